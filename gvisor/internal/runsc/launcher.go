//go:build linux

package runsc

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Launcher owns the one thread that starts bound sandboxes. A death signal is
// bound to the thread that forked, so the thread must live as long as they may.
type Launcher struct {
	work chan func()
	wg   sync.WaitGroup
	once sync.Once
}

// NewLauncher starts the thread.
func NewLauncher() *Launcher {
	l := &Launcher{work: make(chan func())}
	l.wg.Go(func() {
		// Never unlocked: the thread ends with its goroutine.
		runtime.LockOSThread()
		for f := range l.work {
			f()
		}
	})
	return l
}

// Close ends the thread and with it every bound sandbox that still runs. It is
// idempotent; no Start may follow.
func (l *Launcher) Close() {
	l.once.Do(func() {
		close(l.work)
		l.wg.Wait()
	})
}

// fork starts a process on the launcher's thread.
func (l *Launcher) fork(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	done := make(chan struct{})
	l.work <- func() {
		defer close(done)
		pid, err = syscall.ForkExec(path, argv, attr)
	}
	<-done
	return pid, err
}

// reap waits for the child pid.
func reap(pid int) (ws syscall.WaitStatus) {
	for {
		if _, err := syscall.Wait4(pid, &ws, 0, nil); !errors.Is(err, syscall.EINTR) {
			return ws
		}
	}
}

// closeAll closes files, nil ones too.
func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close() //nolint:errcheck // on the way out, or the child has its own
		}
	}
}

// killPidfd kills what the descriptor stands for.
func killPidfd(f *os.File) {
	unix.PidfdSendSignal(int(f.Fd()), unix.SIGKILL, nil, 0) //nolint:errcheck // gone is what we want
}
