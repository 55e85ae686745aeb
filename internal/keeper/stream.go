//go:build linux

package keeper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// deadlined is an end of a stream whose calls can be ended.
type deadlined interface {
	io.ReadWriteCloser
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

// stream is the one connection to an agent.
type stream struct {
	from, to deadlined
	read     io.Reader // from, without its framing
	broken   func()    // told when it cannot be used any more
	once     sync.Once
}

// newStream makes a connection of descriptors, which it owns in any case.
func newStream(s *Stream, files []*os.File, broken func()) (*stream, error) {
	ends, err := ends(files)
	if err != nil {
		closeAll(files)
		return nil, err
	}
	st := &stream{from: ends[0], to: ends[len(ends)-1], broken: broken}
	st.read = st.from
	if len(s.Ahead) > 0 {
		st.read = io.MultiReader(bytes.NewReader(s.Ahead), st.from)
	}
	if s.Framing == DockerAttach {
		st.read = &frames{r: st.read, left: s.Left, drop: s.LeftError}
	}
	return st, nil
}

// ends are what files become. Other kinds than these are refused: reading them
// could not be ended.
func ends(files []*os.File) ([]deadlined, error) {
	var out []deadlined
	for _, f := range files {
		var st unix.Stat_t
		if err := fstat(f, &st); err != nil {
			return nil, err
		}
		switch kind := st.Mode & unix.S_IFMT; {
		case kind == unix.S_IFSOCK && len(files) == 1:
			c, err := net.FileConn(f)
			if err != nil {
				return nil, fmt.Errorf("stream: %w", err)
			}
			f.Close() //nolint:errcheck // duplicated
			return []deadlined{c}, nil
		case kind == unix.S_IFIFO && len(files) == 2:
			out = append(out, f)
		default:
			return nil, invalid("a stream is one socket or two pipes")
		}
	}
	return out, nil
}

func fstat(f *os.File, st *unix.Stat_t) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := raw.Control(func(fd uintptr) { serr = unix.Fstat(int(fd), st) }); err != nil {
		return err
	}
	return serr
}

// Read implements [net.Conn].
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.read.Read(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		s.broken()
	}
	return n, err
}

// Write implements [net.Conn].
func (s *stream) Write(p []byte) (int, error) { return s.to.Write(p) }

// Close implements [net.Conn].
func (s *stream) Close() (err error) {
	s.once.Do(func() { err = errors.Join(s.from.Close(), s.closeOther()) })
	s.broken() // by who speaks on it, perhaps
	return err
}

func (s *stream) closeOther() error {
	if s.to == s.from {
		return nil
	}
	return s.to.Close()
}

// LocalAddr implements [net.Conn].
func (s *stream) LocalAddr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "keeper"} }

// RemoteAddr implements [net.Conn].
func (s *stream) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "agent"} }

// SetDeadline implements [net.Conn].
func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline implements [net.Conn].
func (s *stream) SetReadDeadline(t time.Time) error { return s.from.SetReadDeadline(t) }

// SetWriteDeadline implements [net.Conn].
func (s *stream) SetWriteDeadline(t time.Time) error { return s.to.SetWriteDeadline(t) }

var _ net.Conn = (*stream)(nil)

// frames reads the output of an attached container. A header that a deadline
// left half-read is gone on with.
type frames struct {
	r    io.Reader
	head [8]byte
	have int
	left uint32
	drop bool // the frame is none of standard output
}

func (f *frames) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if f.left == 0 {
			if err := f.next(); err != nil {
				return 0, err
			}
			continue // a frame can be empty
		}
		to := p
		if f.drop {
			var waste [1024]byte
			to = waste[:]
		}
		n, err := f.r.Read(to[:min(uint64(len(to)), uint64(f.left))])
		f.left -= uint32(n)
		if f.drop {
			n = 0
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (f *frames) next() error {
	for f.have < len(f.head) {
		n, err := f.r.Read(f.head[f.have:])
		f.have += n
		if err != nil && f.have < len(f.head) {
			return err
		}
	}
	f.have = 0
	if k := f.head[0]; k < 1 || k > 3 {
		return fmt.Errorf("attach: a frame of the unknown kind %d", k)
	}
	f.drop, f.left = f.head[0] != 1, binary.BigEndian.Uint32(f.head[4:])
	return nil
}
