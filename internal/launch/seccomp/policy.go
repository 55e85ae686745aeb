//go:build linux

package seccomp

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Policy says which refusals a sandbox needs beside those every one has.
type Policy struct {
	// NoIPC refuses sockets, System V IPC, message queues and memfd: for
	// sandboxes that share the host's network and IPC namespaces.
	NoIPC bool
	// GuardInit refuses signals to process 1 and to single threads: for
	// agents that share their uid with user code.
	GuardInit bool
	// LeaveClone3 leaves out the refusal of clone3, for an agent that needs it
	// to start commands; each command then installs Clone3Guard itself.
	LeaveClone3 bool
	// GuardOwner refuses to choose which signal a descriptor's owner gets: for
	// kernels without Landlock's signal scope. Root inside may make any process
	// the owner, the agent too.
	GuardOwner bool
}

// A socket's domain must be one of these; AF_VSOCK ignores network namespaces,
// and AF_ALG, AF_NETLINK and AF_PACKET are kernel surface nobody needs.
var domains = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6} //nolint:gochecknoglobals // a constant table

// The namespaces that clone may not make.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// pidfdThread is PIDFD_THREAD of pidfd_open(2).
const pidfdThread = unix.O_EXCL

// fSetSig is F_SETSIG of fcntl(2).
const fSetSig = 10

// ioprioWhoUser is IOPRIO_WHO_USER of ioprio_set(2).
const ioprioWhoUser = 3

// Personalities that do no harm: default, and Linux 2.6 naming with or
// without short inodes (as container runtimes allow).
var personalities = []uint32{0, 0x0008, 0x20000, 0x20008, 0xffffffff} //nolint:gochecknoglobals // a constant table

// common lists the refusals that every architecture has.
func common() []rule {
	eperm, enosys := errno(unix.EPERM), errno(unix.ENOSYS)
	rules := []rule{
		{nr: unix.SYS_IO_URING_SETUP, ret: enosys},
		{nr: unix.SYS_IO_URING_ENTER, ret: enosys},
		{nr: unix.SYS_IO_URING_REGISTER, ret: enosys},
		{nr: unix.SYS_MEMFD_SECRET, ret: enosys},
		{nr: unix.SYS_STATMOUNT, ret: enosys},
		{nr: unix.SYS_LISTMOUNT, ret: enosys},
	}
	for _, nr := range []uint32{
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT,
		unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
		unix.SYS_UNSHARE, unix.SYS_SETNS,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
		unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
		unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX, unix.SYS_CLOCK_ADJTIME,
		unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_FANOTIFY_INIT,
		unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
		unix.SYS_PROCESS_MADVISE, unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES,
		unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT,
		unix.SYS_SYSLOG, unix.SYS_VHANGUP, unix.SYS_LSM_SET_SELF_ATTR,
	} {
		rules = append(rules, rule{nr: nr, ret: eperm})
	}
	return append(rules,
		rule{unix.SYS_CLONE, eperm, []test{{arg: 0, mask: newNamespaces}}},
		rule{unix.SYS_PERSONALITY, eperm, []test{{arg: 0, vals: personalities, not: true}}},
		// The kernel looks at the low 32 bits of an ioctl's number only.
		rule{unix.SYS_IOCTL, eperm, []test{{arg: 1, vals: []uint32{unix.TIOCSTI, unix.TIOCLINUX}}}},
	)
}

// noClone3 refuses clone3, which takes its flags through a pointer, where a
// filter cannot look; C libraries fall back to clone.
func noClone3() rule { return rule{nr: unix.SYS_CLONE3, ret: errno(unix.ENOSYS)} }

// Clone3Guard is the program that refuses clone3 and nothing else.
func Clone3Guard() ([]unix.SockFilter, error) {
	return program(auditArch, ^uint32(0), []rule{noClone3()})
}

// Filter is the program for p on this architecture.
func Filter(p Policy) ([]unix.SockFilter, error) {
	if auditArch == 0 {
		return nil, fmt.Errorf("seccomp: no filter for %s", runtime.GOARCH)
	}
	return program(auditArch, maxNr, policyRules(p))
}

// policyRules are the refusals of p, at most one for each call.
func policyRules(p Policy) []rule {
	eperm := errno(unix.EPERM)
	rules := append(common(), native()...)
	if !p.LeaveClone3 {
		rules = append(rules, noClone3())
	}
	if p.NoIPC {
		for _, nr := range []uint32{
			unix.SYS_SOCKET, unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_SEMGET, unix.SYS_SEMCTL,
			unix.SYS_MSGGET, unix.SYS_MSGCTL, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK, unix.SYS_MEMFD_CREATE,
		} {
			rules = append(rules, rule{nr: nr, ret: eperm})
		}
	} else {
		rules = append(rules, rule{unix.SYS_SOCKET, errno(unix.EAFNOSUPPORT), []test{{arg: 0, vals: domains, not: true}}})
	}
	rules = append(rules, rule{unix.SYS_SOCKETPAIR, errno(unix.EAFNOSUPPORT), []test{{arg: 0, vals: []uint32{unix.AF_UNIX}, not: true}}})
	if p.GuardInit {
		rules = append(rules, guardInit()...)
	}
	if p.GuardOwner {
		// The signal that is sent when none was chosen, SIGIO, ends no agent.
		rules = append(rules, rule{unix.SYS_FCNTL, eperm, []test{{arg: 1, vals: []uint32{fSetSig}}}})
	}
	return rules
}

// guardInit keeps user code of the agent's own uid from signalling the agent or
// changing its limits and scheduling. A filter cannot tell whose thread a number
// names, so single threads cannot be signalled at all and other processes'
// limits and scheduling not be changed.
func guardInit() []rule {
	eperm := errno(unix.EPERM)
	one, zero := []uint32{1}, []uint32{0}
	rules := []rule{
		{nr: unix.SYS_TKILL, ret: eperm},
		{unix.SYS_PIDFD_OPEN, eperm, []test{{arg: 0, vals: one}, {arg: 1, mask: pidfdThread}}},
		// Who 0 of a user is the caller's, and so the agent's.
		{unix.SYS_SETPRIORITY, eperm, []test{{arg: 0, vals: []uint32{unix.PRIO_USER}}, {arg: 1, vals: zero, not: true}}},
		{unix.SYS_IOPRIO_SET, eperm, []test{{arg: 0, vals: []uint32{ioprioWhoUser}}, {arg: 1, vals: zero, not: true}}},
	}
	for _, nr := range []uint32{unix.SYS_KILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO} {
		rules = append(rules, rule{nr, eperm, []test{{arg: 0, vals: one}}})
	}
	for _, nr := range []uint32{
		unix.SYS_PRLIMIT64, unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETAFFINITY,
	} {
		rules = append(rules, rule{nr, eperm, []test{{arg: 0, vals: zero, not: true}}})
	}
	return rules
}

// Install puts prog on every thread of this process, which must be static Go.
// Threads and children made later inherit it. It sets no_new_privs.
func Install(prog []unix.SockFilter) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("seccomp: no_new_privs: %w", err)
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	tid, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&fprog))) //nolint:gosec // a system call's argument
	switch {
	case e != 0:
		return fmt.Errorf("seccomp: install: %w", e)
	case tid != 0:
		return fmt.Errorf("seccomp: thread %d could not be synchronised", tid)
	}
	return nil
}

// Available tells whether this kernel can install filters.
func Available() bool {
	action := uint32(retKillProcess)
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action))) //nolint:gosec // a system call's argument
	return e == 0 && auditArch != 0
}
