//go:build linux && (amd64 || arm64)

package seccomp

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// call is one system call as a filter sees it.
type call struct {
	arch uint32
	nr   uint32
	args [6]uint64
}

// verdict runs prog on c in the interpreter of x/net/bpf, which is not the code
// that assembled it. It reads words big endian, where the kernel reads them in
// its own order.
func verdict(t *testing.T, prog []unix.SockFilter, c call) uint32 {
	t.Helper()
	ins := make([]bpf.Instruction, len(prog))
	for i, f := range prog {
		ins[i] = bpf.RawInstruction{Op: f.Code, Jt: f.Jt, Jf: f.Jf, K: f.K}.Disassemble()
	}
	vm, err := bpf.NewVM(ins)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[0:], c.nr)
	binary.BigEndian.PutUint32(data[4:], c.arch)
	for i, a := range c.args { // low half first, as on the machines we run on
		binary.BigEndian.PutUint32(data[16+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[20+8*i:], uint32(a>>32))
	}
	out, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(out)
}

func TestFilter_verdicts(t *testing.T) {
	t.Parallel()
	eperm, enosys, noFamily := errno(unix.EPERM), errno(unix.ENOSYS), errno(unix.EAFNOSUPPORT)
	all, guard, noIPC := Policy{}, Policy{GuardInit: true}, Policy{NoIPC: true}
	arg := func(nr uint32, args ...uint64) call {
		c := call{arch: auditArch, nr: nr}
		copy(c.args[:], args)
		return c
	}
	for _, tt := range []struct {
		name   string
		policy Policy
		call   call
		want   uint32
	}{
		{"read", all, arg(unix.SYS_READ), retAllow},
		{"openat", all, arg(unix.SYS_OPENAT), retAllow},
		{"execve", all, arg(unix.SYS_EXECVE), retAllow},
		{"other architecture", all, call{arch: auditArch ^ 1, nr: unix.SYS_READ}, retKillProcess},
		{"newer than known", all, arg(maxNr + 1), enosys},
		{"clone3", all, arg(unix.SYS_CLONE3), enosys},
		{"clone3 left to the agent", Policy{LeaveClone3: true}, arg(unix.SYS_CLONE3), retAllow},
		{"io_uring", all, arg(unix.SYS_IO_URING_SETUP), enosys},
		{"mount", all, arg(unix.SYS_MOUNT), eperm},
		{"ptrace", all, arg(unix.SYS_PTRACE), eperm},
		{"fork by clone", all, arg(unix.SYS_CLONE, unix.CLONE_VM|unix.CLONE_VFORK|uint64(unix.SIGCHLD)), retAllow},
		{"user namespace by clone", all, arg(unix.SYS_CLONE, unix.CLONE_NEWUSER|uint64(unix.SIGCHLD)), eperm},
		{"user namespace, high bits set", all, arg(unix.SYS_CLONE, 1<<40|unix.CLONE_NEWUSER), eperm},
		{"unix socket", all, arg(unix.SYS_SOCKET, unix.AF_UNIX), retAllow},
		{"inet socket", all, arg(unix.SYS_SOCKET, unix.AF_INET), retAllow},
		{"inet6 socket", all, arg(unix.SYS_SOCKET, unix.AF_INET6), retAllow},
		{"vsock", all, arg(unix.SYS_SOCKET, unix.AF_VSOCK), noFamily},
		{"vsock, high bits set", all, arg(unix.SYS_SOCKET, 1<<32|unix.AF_VSOCK), noFamily},
		{"netlink", all, arg(unix.SYS_SOCKET, unix.AF_NETLINK), noFamily},
		{"socket without IPC", noIPC, arg(unix.SYS_SOCKET, unix.AF_UNIX), eperm},
		{"socketpair without IPC", noIPC, arg(unix.SYS_SOCKETPAIR, unix.AF_UNIX), retAllow},
		{"memfd without IPC", noIPC, arg(unix.SYS_MEMFD_CREATE), eperm},
		{"memfd", all, arg(unix.SYS_MEMFD_CREATE), retAllow},
		{"TIOCSTI", all, arg(unix.SYS_IOCTL, 0, unix.TIOCSTI), eperm},
		{"TIOCSTI, high bits set", all, arg(unix.SYS_IOCTL, 0, 1<<32|unix.TIOCSTI), eperm},
		{"TIOCLINUX", all, arg(unix.SYS_IOCTL, 0, unix.TIOCLINUX), eperm},
		{"TCGETS", all, arg(unix.SYS_IOCTL, 0, unix.TCGETS), retAllow},
		{"personality default", all, arg(unix.SYS_PERSONALITY, 0), retAllow},
		{"personality query", all, arg(unix.SYS_PERSONALITY, 0xffffffff), retAllow},
		{"personality without randomisation", all, arg(unix.SYS_PERSONALITY, 0x40000), eperm},
		{"kill 1", guard, arg(unix.SYS_KILL, 1, 9), eperm},
		{"kill 1, unguarded", all, arg(unix.SYS_KILL, 1, 9), retAllow},
		{"kill 2", guard, arg(unix.SYS_KILL, 2, 9), retAllow},
		{"tgkill 1", guard, arg(unix.SYS_TGKILL, 1, 5, 9), eperm},
		{"tkill", guard, arg(unix.SYS_TKILL, 5, 9), eperm},
		{"pidfd of 1", guard, arg(unix.SYS_PIDFD_OPEN, 1, 0), eperm},
		{"pidfd of a thread", guard, arg(unix.SYS_PIDFD_OPEN, 5, pidfdThread), eperm},
		{"pidfd", guard, arg(unix.SYS_PIDFD_OPEN, 5, 0), retAllow},
		{"own limits", guard, arg(unix.SYS_PRLIMIT64, 0), retAllow},
		{"another's limits", guard, arg(unix.SYS_PRLIMIT64, 3), eperm},
		{"own priority", guard, arg(unix.SYS_SETPRIORITY, 0, 0), retAllow},
		{"the user's priority", guard, arg(unix.SYS_SETPRIORITY, unix.PRIO_USER, 0), eperm},
		{"the user's I/O priority", guard, arg(unix.SYS_IOPRIO_SET, 3, 0), eperm},
		{"a signal for a descriptor's owner", Policy{GuardOwner: true}, arg(unix.SYS_FCNTL, 3, 10, 11), eperm},
		{"a descriptor's owner", Policy{GuardOwner: true}, arg(unix.SYS_FCNTL, 3, unix.F_SETOWN, 1), retAllow},
		{"a signal for a descriptor's owner, unguarded", all, arg(unix.SYS_FCNTL, 3, 10, 11), retAllow},
		{"another's priority", guard, arg(unix.SYS_SETPRIORITY, 0, 1), eperm},
	} {
		prog, err := Filter(tt.policy)
		if err != nil {
			t.Fatal(err)
		}
		if got := verdict(t, prog, tt.call); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
}

func TestClone3Guard_refusesNothingElse(t *testing.T) {
	t.Parallel()
	prog, err := Clone3Guard()
	if err != nil {
		t.Fatal(err)
	}
	for nr := range uint32(600) {
		want := uint32(retAllow)
		if nr == unix.SYS_CLONE3 {
			want = errno(unix.ENOSYS)
		}
		if got := verdict(t, prog, call{arch: auditArch, nr: nr}); got != want {
			t.Errorf("%d: %#x, want %#x", nr, got, want)
		}
	}
}
