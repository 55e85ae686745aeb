package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"

	"github.com/glovebox-dev/glovebox/backend"
)

// maxTail is how much of a container's standard error is kept.
const maxTail = 4 << 10

// Stream is a container's standard streams: Read is its output, Write its
// input. Its error output is kept as a tail. Who does not read holds up the
// container's output, error output included.
type Stream struct {
	conn net.Conn
	in   io.Reader // the daemon's frames

	rmu    sync.Mutex // held by Read
	header [8]byte
	have   int    // bytes of header that have been read
	left   uint32 // bytes of the frame's content that have not
	kind   byte

	tmu  sync.Mutex
	tail []byte

	once sync.Once
}

// Kinds of the daemon's frames.
const (
	frameOut   = 1
	frameErr   = 2
	frameFault = 3 // the daemon's own words
)

// Attach connects to a container's standard streams. To miss nothing, attach
// before Start. It takes a container made with Stdio.
func (e *Engine) Attach(ctx context.Context, id string) (*Stream, error) {
	var got types.HijackedResponse
	err := e.onContainer(ctx, call{op: "attach", within: e.limits.normal}, id, func(ctx context.Context) (err error) {
		got, err = e.hijack(ctx, id)
		return err
	})
	if backend.KindOf(err) == backend.ErrUnavailable {
		// The SDK keeps nothing of the daemon's refusal but its number.
		if _, ierr := e.Inspect(ctx, id); ierr != nil {
			return nil, ierr
		}
	}
	if err != nil {
		return nil, err
	}
	return &Stream{conn: got.Conn, in: got.Reader}, nil
}

// hijack attaches, and gives up when ctx ends although the SDK would go on
// waiting for the answer.
func (e *Engine) hijack(ctx context.Context, id string) (types.HijackedResponse, error) {
	type answer struct {
		got types.HijackedResponse
		err error
	}
	// The connection lives longer than this call.
	held := context.WithoutCancel(ctx)
	var mu sync.Mutex
	var made net.Conn
	held = context.WithValue(held, hookKey{}, hook(func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		made = c
		if ctx.Err() != nil {
			c.Close() //nolint:errcheck // nobody wants it any more
		}
	}))
	done := make(chan answer, 1)
	go func() {
		got, err := e.api.ContainerAttach(held, id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
		done <- answer{got, err}
	}()
	select {
	case a := <-done:
		return a.got, a.err
	case <-ctx.Done():
	}
	mu.Lock()
	if made != nil {
		made.Close() //nolint:errcheck // it ends the goroutine's wait
	}
	mu.Unlock()
	go func() {
		if a := <-done; a.err == nil {
			a.got.Close()
		}
	}()
	return types.HijackedResponse{}, ctx.Err()
}

// Read reads the container's output. It is io.EOF when the container has
// closed it, which its end does too.
func (s *Stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.rmu.Lock()
	defer s.rmu.Unlock()
	for {
		if s.left == 0 {
			if err := s.next(); err != nil {
				return 0, err
			}
			continue // a frame can be empty
		}
		if s.kind == frameOut {
			n, err := s.in.Read(p[:min(len(p), int(min(s.left, 1<<30)))])
			s.left -= uint32(n)
			if n > 0 || err != nil {
				return n, cut(err)
			}
			continue
		}
		var buf [1024]byte
		n, err := s.in.Read(buf[:min(len(buf), int(min(s.left, 1<<30)))])
		s.left -= uint32(n)
		s.keep(buf[:n])
		if err != nil {
			return 0, cut(err)
		}
	}
}

// next reads a frame's header. What a deadline left half-read is gone on with.
func (s *Stream) next() error {
	for s.have < len(s.header) {
		n, err := s.in.Read(s.header[s.have:])
		s.have += n
		if err != nil && s.have < len(s.header) {
			if errors.Is(err, io.EOF) && s.have == 0 {
				return io.EOF
			}
			return cut(err)
		}
	}
	s.have = 0
	s.kind, s.left = s.header[0], binary.BigEndian.Uint32(s.header[4:])
	if s.kind < frameOut || s.kind > frameFault {
		return fmt.Errorf("attach: a frame of the unknown kind %d", s.kind)
	}
	return nil
}

// cut tells an end amid a frame from one between two.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (s *Stream) keep(p []byte) {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.tail = append(s.tail, p...)
	if over := len(s.tail) - maxTail; over > 0 {
		s.tail = append(s.tail[:0], s.tail[over:]...)
	}
}

// Tail is the last of what was read of the error output, as it came: hostile
// bytes.
func (s *Stream) Tail() []byte {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	return append([]byte(nil), s.tail...)
}

// Write writes to the container's input.
func (s *Stream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// CloseWrite ends the container's input.
func (s *Stream) CloseWrite() error {
	if half, ok := s.conn.(types.CloseWriter); ok {
		return half.CloseWrite()
	}
	return &backend.Error{Op: "attach", Kind: backend.ErrUnsupported, Err: errors.New("this connection cannot be closed by half")}
}

// Close leaves the container's streams. Further calls do nothing.
func (s *Stream) Close() (err error) {
	s.once.Do(func() { err = s.conn.Close() })
	return err
}

// LocalAddr implements net.Conn.
func (s *Stream) LocalAddr() net.Addr { return s.conn.LocalAddr() }

// RemoteAddr implements net.Conn.
func (s *Stream) RemoteAddr() net.Addr { return s.conn.RemoteAddr() }

// SetDeadline implements net.Conn.
func (s *Stream) SetDeadline(t time.Time) error { return s.conn.SetDeadline(t) }

// SetReadDeadline implements net.Conn.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.conn.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.conn.SetWriteDeadline(t) }

var _ net.Conn = (*Stream)(nil)
