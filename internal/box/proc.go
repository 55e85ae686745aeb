//go:build linux

package box

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

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

// ListenIn binds a Unix socket in dir. It goes through a descriptor of the
// directory, since a socket's path may have 107 bytes only.
func ListenIn(dir, name string) (*net.UnixListener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close() //nolint:errcheck // read side
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name)})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// Dialer connects to the socket at path.
func Dialer(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		defer dir.Close() //nolint:errcheck // read side
		var d net.Dialer
		return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
	}
}

// Once hands out a connection that cannot be made again.
func Once(conn net.Conn) func(context.Context) (net.Conn, error) {
	ch := make(chan net.Conn, 1)
	ch <- conn
	return func(context.Context) (net.Conn, error) {
		select {
		case c := <-ch:
			return c, nil
		default:
			return nil, errors.New("the connection to the agent has ended")
		}
	}
}
