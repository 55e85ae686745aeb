//go:build linux

// Package unixsock has Unix sockets that are named by their directory and a
// name in it, so that a long path, which the kernel refuses above 107 bytes, is
// none, and says who is at their other end.
package unixsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// within is a path to name in dir that is short enough for a socket, as long as
// the directory is open.
func within(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// Listen binds the socket name in dir, and gives it a mode. Who may enter the
// directory may connect a moment before that. Closing the listener leaves the
// file.
func Listen(dir, name string, mode os.FileMode) (*net.UnixListener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close() //nolint:errcheck // read side
	path := within(d, name)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Dial connects to the socket at path, through its directory.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close() //nolint:errcheck // read side
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", within(dir, filepath.Base(path)))
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil //nolint:forcetypeassert // what the network makes
}

// Dialer has a transport connect to the socket at path.
func Dialer(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := Dial(ctx, path)
		if err != nil {
			return nil, err // not a nil pointer in an interface
		}
		return c, nil
	}
}

// Once has a transport use a connection that cannot be made again.
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

// Peer says who was at the other end when the connection was made, or, of a
// client's, who listens. Its process id is as this process's pid namespace has
// it, 0 when that does not.
func Peer(c net.Conn) (*unix.Ucred, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%T is not a Unix socket", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, cerr); err != nil {
		return nil, err
	}
	return cred, nil
}
