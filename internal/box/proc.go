//go:build linux

package box

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/state"
)

// Alive tells whether a process still runs.
func Alive(p state.Proc) bool {
	fd, err := openProcess(p)
	if err != nil {
		return false
	}
	unix.Close(fd) //nolint:errcheck // nothing to do about it
	return true
}

// KillProcess kills the process with a number and a start time.
func KillProcess(p state.Proc) {
	fd, err := openProcess(p)
	if err != nil {
		return
	}
	defer unix.Close(fd)                           //nolint:errcheck // nothing to do about it
	unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) //nolint:errcheck // gone is what we want
}

// openProcess is a pidfd of the process with a number and a start time; the
// start time is read after the descriptor holds the number.
func openProcess(p state.Proc) (int, error) {
	if p.PID <= 0 || p.Start == 0 {
		return -1, unix.ESRCH
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1, err
	}
	if now, err := state.StartTime(p.PID); err != nil || now != p.Start {
		unix.Close(fd) //nolint:errcheck // another process
		return -1, unix.ESRCH
	}
	return fd, nil
}

// WaitGone waits for the end of a process that is not our child.
func WaitGone(ctx context.Context, p state.Proc) error {
	fd, err := openProcess(p)
	if err != nil {
		return nil //nolint:nilerr // no such process any more
	}
	defer unix.Close(fd) //nolint:errcheck // nothing to do about it
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
		if n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return nil //nolint:nilerr // it has ended, or cannot be watched
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
