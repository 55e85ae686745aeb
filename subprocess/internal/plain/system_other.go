//go:build !unix

package plain

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"syscall"

	"github.com/glovebox-dev/glovebox/backend"
)

const (
	shell     = "" // scripts are not run by themselves here
	killScope = "" // a kill reaches the command alone
	killNote  = "kills the command's first process; its descendants live on"
	nonblock  = 0

	// What Windows says that package syscall has no name for.
	errHandleDiskFull syscall.Errno = 39
	errDiskFull       syscall.Errno = 112
	errBadExeFormat   syscall.Errno = 193
	errBadPath        syscall.Errno = 161
	errInvalidName    syscall.Errno = 123
)

func attributes() *syscall.SysProcAttr { return nil }

// platformEnv is what programs need here besides PATH: without SystemRoot many
// do not start.
func platformEnv(home, tmp string) []string {
	env := []string{"HOME=" + home, "USERPROFILE=" + home, "TEMP=" + tmp, "TMP=" + tmp}
	for _, name := range []string{"SystemRoot", "SystemDrive", "ComSpec", "PATHEXT", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// searchPath is the host's: there is no usual place for programs here.
func searchPath() string { return os.Getenv("PATH") }

func killGroup(p *os.Process) { _ = p.Kill() } // ended already is what is wanted

func groupAlive(*os.Process) bool { return false }

func sendSignal(p *os.Process, sig backend.Signal) error {
	switch sig {
	case 0:
		return nil
	case backend.SIGKILL:
		return p.Kill()
	default:
		return errors.ErrUnsupported
	}
}

func signalOf(*os.ProcessState) backend.Signal { return 0 }

// wasKilled tells whether a process that was killed ended by it: Kill makes it
// exit with 1.
func wasKilled(state *os.ProcessState) bool { return state.ExitCode() == 1 }

func peakMemory(*os.ProcessState) int64 { return 0 }

func owner(fs.FileInfo, *backend.FileAttr) {}

func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) ||
		errors.Is(err, errInvalidName) || errors.Is(err, errBadPath)
}

func isNoProgram(err error) bool { return errors.Is(err, errBadExeFormat) }

func isBusy(error) bool { return false }

func isGone(err error) bool { return errors.Is(err, os.ErrProcessDone) }

// systemKind classifies what this system alone knows; "" for the rest.
func systemKind(err error) backend.Kind {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return ""
	}
	switch errno { //nolint:exhaustive // the others have no kind of their own
	case errDiskFull, errHandleDiskFull:
		return backend.ErrTooLarge
	case errInvalidName, errBadPath:
		return backend.ErrInvalid
	}
	return ""
}
