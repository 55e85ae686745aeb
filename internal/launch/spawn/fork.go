//go:build linux && (amd64 || arm64)

package spawn

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The hooks that package syscall uses around its own fork; the runtime keeps
// them reachable for programs that must fork by themselves.

//go:linkname runtimeBeforeFork syscall.runtime_BeforeFork
func runtimeBeforeFork()

//go:linkname runtimeAfterFork syscall.runtime_AfterFork
func runtimeAfterFork()

//go:linkname runtimeAfterForkInChild syscall.runtime_AfterForkInChild
func runtimeAfterForkInChild()

func vforkSyscall(trap, a1, a2, a3 uintptr) (r1, errno uintptr)

// cloneArgs is struct clone_args of clone3(2), first to third version.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// atFDCWD is AT_FDCWD as an argument.
const atFDCWD = ^uintptr(99)

// stage is the step of the child that went wrong.
type stage uintptr

const (
	stageClone stage = iota + 1
	stageJoin
	stageSession
	stageFiles
	stageTerminal
	stageLimits
	stageUser
	stageDir
	stagePrivileges
	stageExec
)

func (s stage) String() string {
	names := [...]string{"", "clone", "cgroup", "session", "files", "terminal", "limits", "user", "directory", "privileges", "exec"}
	if int(s) < len(names) {
		return names[s]
	}
	return "start"
}

// rlimit is one limit, as prlimit64(2) takes it.
type rlimit struct {
	resource uintptr
	value    unix.Rlimit
}

// plan is everything the child needs, made before the fork: the child may not
// allocate, grow its stack or call anything that does.
type plan struct {
	path     *byte
	argv     []*byte
	envv     []*byte
	dir      *byte
	fds      [3]int // none below 3
	join     []int
	limits   []rlimit
	terminal bool
	setUser  bool
	uid, gid uintptr
	groups   []uint32
	cgroup   int             // descriptor of a v2 group to be born in; 0 for none
	filter   *unix.SockFprog // installed last; nil for none

	// The child's answer, where it shares the address space until it execs;
	// otherwise it writes the same to report.
	failed stage
	errno  uintptr
	// report is the descriptor of a pipe and means a child with an address
	// space of its own, which nobody waits for; 0 for none.
	report   int
	separate bool
	noPidfd  bool
	elevate  bool // set-user-id bits raise privileges
	// victim has the child be the kernel's first choice when memory is short:
	// the path and the bytes to write there.
	victimPath, victimScore *byte
	victimLen               uintptr
}

// fork runs the child of p and returns its pid and pidfd. The calling thread
// waits until the child has executed or failed; p.failed tells which.
//
// The child runs in this very frame, so the parent must leave it at once and
// not use it again.
//
//go:noinline
//go:norace
//go:nocheckptr
func fork(p *plan) (pid uintptr, pidfd int32, errno uintptr) {
	var (
		i     int
		fd    uintptr
		e     syscall.Errno
		told  [2]uint64
		zero  = [1]byte{'0'}
		args  cloneArgs
		flags uintptr
	)
	pidfd = -1
	if !p.noPidfd {
		flags = unix.CLONE_PIDFD
	}
	if p.report == 0 {
		flags |= unix.CLONE_VFORK | unix.CLONE_VM
	}
	if p.cgroup > 0 {
		args.flags = uint64(flags) | unix.CLONE_INTO_CGROUP
		args.pidfd = uint64(uintptr(unsafe.Pointer(&pidfd)))
		args.exitSignal = uint64(unix.SIGCHLD)
		args.cgroup = uint64(p.cgroup)
	}
	runtimeBeforeFork()
	if p.cgroup > 0 {
		pid, errno = vforkSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	} else {
		pid, errno = vforkSyscall(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, uintptr(unsafe.Pointer(&pidfd)))
	}
	if errno != 0 || pid != 0 {
		runtimeAfterFork()
		return pid, pidfd, errno
	}

	// The child.
	runtimeAfterForkInChild()

	p.failed = stageJoin
	for i = 0; i < len(p.join); i++ {
		if _, _, e = syscall.RawSyscall(unix.SYS_WRITE, uintptr(p.join[i]), uintptr(unsafe.Pointer(&zero[0])), 1); e != 0 {
			goto fail
		}
	}
	p.failed = stageSession
	if _, _, e = syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0); e != 0 {
		goto fail
	}
	if p.victimPath != nil {
		// As far as there is such a thing. While the child shares the agent's
		// memory its files in /proc are root's, like those of the agent.
		syscall.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0)
		if fd, _, e = syscall.RawSyscall6(unix.SYS_OPENAT, atFDCWD, uintptr(unsafe.Pointer(p.victimPath)), unix.O_WRONLY|unix.O_CLOEXEC, 0, 0, 0); e == 0 {
			syscall.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(p.victimScore)), p.victimLen)
			syscall.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
		}
	}
	p.failed = stageFiles
	for i = 0; i < 3; i++ {
		if _, _, e = syscall.RawSyscall(unix.SYS_DUP3, uintptr(p.fds[i]), uintptr(i), 0); e != 0 {
			goto fail
		}
	}
	if p.terminal {
		p.failed = stageTerminal
		if _, _, e = syscall.RawSyscall(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0); e != 0 {
			goto fail
		}
	}
	// Security: whatever else was ever opened without close-on-exec ends here.
	p.failed = stageFiles
	if _, _, e = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 3, ^uintptr(0)>>32, unix.CLOSE_RANGE_CLOEXEC); e != 0 {
		goto fail
	}
	p.failed = stageLimits
	for i = 0; i < len(p.limits); i++ {
		if _, _, e = syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, p.limits[i].resource, uintptr(unsafe.Pointer(&p.limits[i].value)), 0, 0, 0); e != 0 {
			goto fail
		}
	}
	syscall.RawSyscall(unix.SYS_UMASK, 0o022, 0, 0)
	p.failed = stagePrivileges
	if !p.elevate {
		if _, _, e = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
			goto fail
		}
	}
	p.failed = stageUser
	if p.setUser {
		if len(p.groups) > 0 {
			_, _, e = syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(p.groups)), uintptr(unsafe.Pointer(&p.groups[0])), 0)
		} else {
			_, _, e = syscall.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		}
		if e != 0 {
			goto fail
		}
		if _, _, e = syscall.RawSyscall(unix.SYS_SETRESGID, p.gid, p.gid, p.gid); e != 0 {
			goto fail
		}
		// It returns the old id; setresuid checks. gVisor has no such id: the
		// effective one does as well, since who may signal goes by the others.
		if _, _, e = syscall.RawSyscall(unix.SYS_SETFSUID, p.uid, 0, 0); e == unix.ENOSYS {
			if _, _, e = syscall.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), p.uid, ^uintptr(0)); e != 0 {
				goto fail
			}
		}
	}
	if p.dir != nil {
		p.failed = stageDir
		if _, _, e = syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(p.dir)), 0, 0); e != 0 {
			goto fail
		}
	}
	if p.filter != nil {
		p.failed = stagePrivileges
		if _, _, e = syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(p.filter))); e != 0 {
			goto fail
		}
	}
	// Security: the user's processes may signal the child from here on, while
	// it still is on the parent's stack, so nothing but exec is left to do. The
	// capabilities that stay end with exec: none is ambient.
	if p.setUser {
		p.failed = stageUser
		if _, _, e = syscall.RawSyscall(unix.SYS_SETRESUID, p.uid, p.uid, p.uid); e != 0 {
			goto fail
		}
	}
	p.failed = stageExec
	_, _, e = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(p.path)),
		uintptr(unsafe.Pointer(&p.argv[0])), uintptr(unsafe.Pointer(&p.envv[0])))
fail:
	p.errno = uintptr(e)
	if p.report > 0 {
		told = [2]uint64{uint64(p.failed), uint64(e)}
		syscall.RawSyscall(unix.SYS_WRITE, uintptr(p.report), uintptr(unsafe.Pointer(&told[0])), unsafe.Sizeof(told))
	}
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 253, 0, 0)
	}
}

// child is what a fork made.
type child struct {
	pid, pidfd int
	// answer is where a child with an address space of its own reports; nil for
	// one that has executed already.
	answer *os.File
}

// run forks for p on the calling thread and keeps alive what the child reads.
func run(p *plan) (child, error) {
	if p.separate {
		return runSeparate(p)
	}
	syscall.ForkLock.Lock()
	raw, fd, e := fork(p)
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(p)
	if e != 0 {
		return child{}, &Error{Stage: stageClone.String(), Errno: syscall.Errno(e)}
	}
	if p.errno != 0 {
		discard(int(raw), int(fd))
		return child{}, &Error{Stage: p.failed.String(), Errno: syscall.Errno(p.errno)}
	}
	return child{pid: int(raw), pidfd: int(fd)}, nil
}

// runSeparate forks without waiting for the child, which reports through a
// pipe.
func runSeparate(p *plan) (child, error) {
	answer, w, err := os.Pipe()
	if err != nil {
		return child{}, &Error{Stage: stageClone.String(), Errno: unix.EMFILE}
	}
	p.report = int(w.Fd())
	syscall.ForkLock.Lock()
	raw, fd, e := fork(p)
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(p)
	w.Close() //nolint:errcheck // the child has its own
	if e != 0 {
		answer.Close() //nolint:errcheck // read side
		return child{}, &Error{Stage: stageClone.String(), Errno: syscall.Errno(e)}
	}
	return child{pid: int(raw), pidfd: int(fd), answer: answer}, nil
}

// execTimeout bounds how long a child with an address space of its own may take
// to exec, which user code may try to hold up with signals.
const execTimeout = 10 * time.Second

// executed waits for a child's report and closes answer, whose end means that
// the child has executed.
func executed(answer *os.File) error {
	defer answer.Close() //nolint:errcheck // read side
	var told [16]byte
	answer.SetReadDeadline(time.Now().Add(execTimeout)) //nolint:errcheck // a pipe has deadlines
	n, err := io.ReadFull(answer, told[:])
	switch {
	case n == len(told):
		return &Error{
			Stage: stage(binary.NativeEndian.Uint64(told[:8])).String(), Errno: syscall.Errno(binary.NativeEndian.Uint64(told[8:])),
		}
	case !errors.Is(err, io.EOF):
		return &Error{Stage: stageExec.String(), Errno: unix.ETIMEDOUT}
	}
	return nil
}

// discard reaps a child that did not execute.
func discard(pid, pidfd int) {
	var ws syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(pid, &ws, 0, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if pidfd >= 0 {
		unix.Close(pidfd) //nolint:errcheck // nothing to do about it
	}
}
