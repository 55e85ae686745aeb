//go:build linux

package main

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// calls tries system calls with harmless arguments and tells their errno.
func calls() map[string]int {
	runtime.LockOSThread()
	var buf [256]byte
	p := uintptr(unsafe.Pointer(&buf[0])) //nolint:gosec // a system call's argument
	out := map[string]int{}
	each(p, func(name string, nr uintptr, args ...uintptr) {
		var a [6]uintptr
		copy(a[:], args)
		clear(buf[:])
		r, _, e := syscall.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		for nr == unix.SYS_CLONE && e == 0 && r == 0 { // the child
			_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		out[name] = int(e)
	})
	return out
}

// each names the calls to try; p points to zeroes.
func each(p uintptr, try func(name string, nr uintptr, args ...uintptr)) {
	self := uintptr(syscall.Getpid())
	high := uintptr(1) << 32
	try("socket unix", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)
	try("socket inet", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0)
	try("socket inet6", unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_DGRAM, 0)
	try("socket vsock", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	try("socket vsock high", unix.SYS_SOCKET, high|unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	try("socket netlink", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, 0)
	try("socket alg", unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0)
	try("socket packet", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0)
	try("io_uring_setup", unix.SYS_IO_URING_SETUP, 1, p)
	try("bpf", unix.SYS_BPF, 0, p, 0)
	try("perf_event_open", unix.SYS_PERF_EVENT_OPEN, p, 0, ^uintptr(0), ^uintptr(0), 0)
	try("userfaultfd", unix.SYS_USERFAULTFD, 1)
	try("keyctl", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, 0, 0)
	try("add_key", unix.SYS_ADD_KEY, p, p, p, 0, 0)
	try("ptrace", unix.SYS_PTRACE, unix.PTRACE_PEEKUSR, 0, 0, 0)
	try("process_vm_readv", unix.SYS_PROCESS_VM_READV, self, p, 0, p, 0, 0)
	try("mount", unix.SYS_MOUNT, p, p, p, 0, 0)
	try("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	try("unshare files", unix.SYS_UNSHARE, unix.CLONE_FILES)
	try("clone newuser", unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))
	try("clone", unix.SYS_CLONE, uintptr(unix.SIGCHLD))
	try("clone3", unix.SYS_CLONE3, 0, 0)
	try("personality", unix.SYS_PERSONALITY, 0x40000)
	try("personality query", unix.SYS_PERSONALITY, 0xffffffff)
	try("TIOCSTI", unix.SYS_IOCTL, 0, unix.TIOCSTI, p)
	try("TIOCSTI high", unix.SYS_IOCTL, 0, high|unix.TIOCSTI, p)
	try("TIOCLINUX", unix.SYS_IOCTL, 0, unix.TIOCLINUX, p)
	try("TCGETS", unix.SYS_IOCTL, 0, unix.TCGETS, p)
	try("name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, 0, p, p, p, 0)
	try("kcmp", unix.SYS_KCMP, self, self, 0, 0, 0)
	try("memfd_secret", unix.SYS_MEMFD_SECRET, 0)
	try("mbind", unix.SYS_MBIND, 0, 0, 0, 0, 0, 0)
	try("newer than known", 600)
	try("landlock", unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	try("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, p)
	try("capget", unix.SYS_CAPGET, 0, 0)
	try("prctl", unix.SYS_PRCTL, unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	try("setresuid", unix.SYS_SETRESUID, ^uintptr(0), ^uintptr(0), ^uintptr(0))
	try("memfd_create", unix.SYS_MEMFD_CREATE, p, 0)
	try("close_range", unix.SYS_CLOSE_RANGE, 1000, 1001, 0)
	try("openat2", unix.SYS_OPENAT2, 0, 0, 0, 0)
	try("pidfd_open", unix.SYS_PIDFD_OPEN, self, 0)
}
