package gvisor

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// stream is the connection to an agent over its standard files.
type stream struct {
	in, out *os.File // the agent's
	once    sync.Once
	err     error
}

// Read implements net.Conn.
func (s *stream) Read(p []byte) (int, error) { return s.out.Read(p) }

// Write implements net.Conn.
func (s *stream) Write(p []byte) (int, error) { return s.in.Write(p) }

// Close implements net.Conn.
func (s *stream) Close() error {
	s.once.Do(func() { s.err = errors.Join(s.in.Close(), s.out.Close()) })
	return s.err
}

// LocalAddr implements net.Conn.
func (s *stream) LocalAddr() net.Addr { return &net.UnixAddr{Name: "host", Net: "unix"} }

// RemoteAddr implements net.Conn.
func (s *stream) RemoteAddr() net.Addr { return &net.UnixAddr{Name: "agent", Net: "unix"} }

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.in.SetWriteDeadline(t), s.out.SetReadDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (s *stream) SetReadDeadline(t time.Time) error { return s.out.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (s *stream) SetWriteDeadline(t time.Time) error { return s.in.SetWriteDeadline(t) }

var _ net.Conn = (*stream)(nil)
