//go:build unix

package plain

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"github.com/glovebox-dev/glovebox/backend"
)

const (
	shell = "/bin/sh"
	// killScope is what a kill reaches: a command leads a session.
	killScope = "session"
	killNote  = "kills the command's session; descendants that leave it live on"
	nonblock  = syscall.O_NONBLOCK
	// defaultPath has where package managers put programs on macOS and BSD.
	defaultPath = "/opt/homebrew/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
)

// attributes make a command lead a session of its own, without the terminal
// that glovebox may run on.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// platformEnv is what programs need here besides PATH.
func platformEnv(home, tmp string) []string {
	return []string{"HOME=" + home, "TMPDIR=" + tmp}
}

func searchPath() string { return defaultPath }

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) } // none left is what is wanted

// groupAlive tells whether a group that p led has members. Some systems answer
// EPERM for one of zombies.
func groupAlive(p *os.Process) bool {
	return !errors.Is(syscall.Kill(-p.Pid, 0), syscall.ESRCH)
}

// signals are this system's, by their numbers on Linux.
var signals = [...]syscall.Signal{ //nolint:gochecknoglobals // a constant table
	1: syscall.SIGHUP, 2: syscall.SIGINT, 3: syscall.SIGQUIT, 4: syscall.SIGILL, 5: syscall.SIGTRAP,
	6: syscall.SIGABRT, 7: syscall.SIGBUS, 8: syscall.SIGFPE, 9: syscall.SIGKILL, 10: syscall.SIGUSR1,
	11: syscall.SIGSEGV, 12: syscall.SIGUSR2, 13: syscall.SIGPIPE, 14: syscall.SIGALRM, 15: syscall.SIGTERM,
	17: syscall.SIGCHLD, 18: syscall.SIGCONT, 19: syscall.SIGSTOP, 20: syscall.SIGTSTP, 21: syscall.SIGTTIN,
	22: syscall.SIGTTOU, 23: syscall.SIGURG, 24: syscall.SIGXCPU, 25: syscall.SIGXFSZ, 26: syscall.SIGVTALRM,
	27: syscall.SIGPROF, 28: syscall.SIGWINCH, 29: syscall.SIGIO, 31: syscall.SIGSYS,
}

func sendSignal(p *os.Process, sig backend.Signal) error {
	n := syscall.Signal(sig)
	if runtime.GOOS != "linux" && sig != 0 {
		if int(sig) >= len(signals) || signals[sig] == 0 {
			return errors.ErrUnsupported
		}
		n = signals[sig]
	}
	return p.Signal(n)
}

// signalOf is the signal that ended a process, by its number on Linux; 0 when
// it exited. One that Linux has no name for is told as SIGKILL.
func signalOf(state *os.ProcessState) backend.Signal {
	ws, ok := state.Sys().(syscall.WaitStatus)
	if !ok || !ws.Signaled() {
		return 0
	}
	if runtime.GOOS == "linux" {
		return backend.Signal(ws.Signal())
	}
	if i := slices.Index(signals[1:], ws.Signal()); i >= 0 {
		return backend.Signal(i + 1)
	}
	return backend.SIGKILL
}

// wasKilled tells whether a process that was sent SIGKILL ended by it.
func wasKilled(state *os.ProcessState) bool {
	ws, ok := state.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// peakMemory is that of the largest process that the command waited for.
func peakMemory(state *os.ProcessState) int64 {
	ru, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return int64(ru.Maxrss)
	}
	return int64(ru.Maxrss) << 10
}

func owner(info fs.FileInfo, attr *backend.FileAttr) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		attr.UID, attr.GID = st.Uid, st.Gid
		attr.Owner, attr.Group = strconv.FormatUint(uint64(st.Uid), 10), strconv.FormatUint(uint64(st.Gid), 10)
	}
}

func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) || errors.Is(err, syscall.ENOTDIR) ||
		errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENAMETOOLONG)
}

func isNoProgram(err error) bool {
	return errors.Is(err, syscall.ENOEXEC) || errors.Is(err, syscall.EISDIR)
}

func isBusy(err error) bool { return errors.Is(err, syscall.ETXTBSY) }

func isGone(err error) bool {
	return errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH)
}

// systemKind classifies what this system alone knows; "" for the rest.
func systemKind(err error) backend.Kind {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return ""
	}
	switch errno { //nolint:exhaustive // the others have no kind of their own
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG:
		return backend.ErrTooLarge
	case syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.ENOMEM:
		return backend.ErrCapacity
	case syscall.E2BIG, syscall.ENAMETOOLONG, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.EINVAL, syscall.ENXIO:
		return backend.ErrInvalid
	case syscall.ENOTEMPTY:
		return backend.ErrConflict
	}
	return ""
}
