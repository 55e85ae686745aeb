package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A frame is a word of four bytes (big-endian) and data: a word up to
// netFrame is followed by that much data, 0 is the end of what the peer sends,
// and netCredit | n lets the peer send n bytes more. Each side may have
// netWindow bytes under way, so that a program that does not read holds up
// nothing but itself: neither side's HTTP/2 connection ever has more of a
// stream waiting than that.
const (
	netFrame  = 32 << 10
	netWindow = 128 << 10
	netCredit = 1 << 31
)

var errNetStream = errors.New("wire: broken frame")

// NetStream is a connection over two byte streams. A peer that ends without
// saying so has broken it. Its methods are safe for concurrent use.
type NetStream struct {
	r       io.Reader
	w       io.Writer
	closing func()
	remote  net.Addr

	wmu sync.Mutex // held while a frame is written

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when anything below changes
	buf     []byte        // received and not read yet
	eof     bool          // the peer sends no more
	err     error         // why the stream is broken
	unread  int           // read since the last credit was given
	credit  int           // what may be sent
	ended   bool          // CloseWrite was called
	closed  bool
	timers  [2]netDeadline
	once    sync.Once
	done    chan struct{}
}

// NewNetStream makes a connection of what the peer sends, r, and of w, which
// sends at once what is written to it. The caller closes the stream, which
// calls closing once. After that what still comes of r is dropped until it
// ends, for which the caller sees to; then Wait returns.
func NewNetStream(r io.Reader, w io.Writer, remote net.Addr, closing func()) *NetStream {
	s := &NetStream{
		r: r, w: w, closing: closing, remote: remote,
		changed: make(chan struct{}), credit: netWindow, done: make(chan struct{}),
	}
	go s.receive()
	return s
}

// Wait returns when the stream's goroutine has ended, which Close leads to.
func (s *NetStream) Wait() { <-s.done }

// signal wakes those who wait for a change. s.mu is held.
func (s *NetStream) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// receive takes the peer's frames until it ends.
func (s *NetStream) receive() {
	defer close(s.done)
	err := s.frames()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && !s.closed {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		s.err = err
	}
	s.signal()
}

func (s *NetStream) frames() error {
	var head [4]byte
	chunk := make([]byte, netFrame)
	for {
		if _, err := io.ReadFull(s.r, head[:]); err != nil {
			return err
		}
		word := binary.BigEndian.Uint32(head[:])
		var data []byte
		if word&netCredit == 0 {
			if word > netFrame {
				return errNetStream
			}
			data = chunk[:word]
			if _, err := io.ReadFull(s.r, data); err != nil {
				return err
			}
		}
		if err := s.take(word, data); err != nil {
			return err
		}
	}
}

// take accounts for one frame.
func (s *NetStream) take(word uint32, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.signal()
	switch {
	case s.closed: // nobody reads it any more
	case word&netCredit != 0:
		// Security: no more than was taken away can be given back.
		n := int(word &^ netCredit)
		if n > netWindow-s.credit {
			return errNetStream
		}
		s.credit += n
	case s.eof:
		return errNetStream
	case word == 0:
		s.eof = true
	case len(s.buf)+s.unread+len(data) > netWindow:
		return errNetStream
	default:
		s.buf = append(s.buf, data...)
	}
	return nil
}

// Read implements [net.Conn].
func (s *NetStream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		s.mu.Lock()
		expired, timeout := s.timers[0].state()
		switch {
		case s.closed:
			s.mu.Unlock()
			return 0, net.ErrClosed
		case timeout:
			s.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(s.buf) > 0:
			n := copy(p, s.buf)
			s.buf = append(s.buf[:0], s.buf[n:]...)
			s.unread += n
			give := 0
			if s.unread >= netWindow/2 && !s.eof {
				give, s.unread = s.unread, 0
			}
			s.mu.Unlock()
			if give > 0 {
				_ = s.send(netCredit|uint32(give), nil) // a broken stream shows at the next read
			}
			return n, nil
		case s.eof:
			s.mu.Unlock()
			return 0, io.EOF
		case s.err != nil:
			s.mu.Unlock()
			return 0, s.err
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-expired:
		}
	}
}

// Write implements [net.Conn].
func (s *NetStream) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		size, err := s.spend(min(len(p), netFrame))
		if err != nil {
			return n, err
		}
		if err := s.send(uint32(size), p[:size]); err != nil {
			return n, err
		}
		n += size
		p = p[size:]
	}
	return n, nil
}

// spend waits until something may be sent and takes at most n of it.
func (s *NetStream) spend(n int) (int, error) {
	for {
		s.mu.Lock()
		expired, timeout := s.timers[1].state()
		changed := s.changed
		var err error
		switch {
		case s.closed || s.ended:
			err = net.ErrClosed
		case s.err != nil:
			err = s.err
		case timeout:
			err = os.ErrDeadlineExceeded
		case s.credit > 0:
			n = min(n, s.credit)
			s.credit -= n
			s.mu.Unlock()
			return n, nil
		}
		s.mu.Unlock()
		if err != nil {
			return 0, err
		}
		select {
		case <-changed:
		case <-expired:
		}
	}
}

func (s *NetStream) send(word uint32, data []byte) error {
	frame := make([]byte, 4, 4+len(data))
	binary.BigEndian.PutUint32(frame, word)
	frame = append(frame, data...)
	s.wmu.Lock()
	defer s.wmu.Unlock()
	_, err := s.w.Write(frame)
	return err
}

// CloseWrite ends what is sent; what comes can still be read.
func (s *NetStream) CloseWrite() error {
	s.mu.Lock()
	if s.ended || s.closed {
		s.mu.Unlock()
		return nil
	}
	s.ended = true
	s.signal()
	s.mu.Unlock()
	return s.send(0, nil)
}

// Close implements [net.Conn]. What was written before is not lost, but a peer
// that was not told of an end by CloseWrite sees a broken stream.
func (s *NetStream) Close() error {
	s.once.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.buf = nil
		s.signal()
		s.timers[0].set(time.Time{})
		s.timers[1].set(time.Time{})
		s.mu.Unlock()
		s.closing()
	})
	return nil
}

// LocalAddr implements [net.Conn].
func (s *NetStream) LocalAddr() net.Addr { return s.remote }

// RemoteAddr implements [net.Conn].
func (s *NetStream) RemoteAddr() net.Addr { return s.remote }

// SetDeadline implements [net.Conn].
func (s *NetStream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline implements [net.Conn].
func (s *NetStream) SetReadDeadline(t time.Time) error { return s.setDeadline(0, t) }

// SetWriteDeadline implements [net.Conn].
func (s *NetStream) SetWriteDeadline(t time.Time) error { return s.setDeadline(1, t) }

func (s *NetStream) setDeadline(i int, t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	s.timers[i].set(t)
	s.signal()
	return nil
}

// netDeadline is a moment after which a direction fails. NetStream.mu guards it.
type netDeadline struct {
	at      time.Time
	timer   *time.Timer
	expired chan struct{}
}

// state returns what tells of the moment, and whether it has passed.
func (d *netDeadline) state() (<-chan struct{}, bool) {
	return d.expired, !d.at.IsZero() && !time.Now().Before(d.at)
}

func (d *netDeadline) set(t time.Time) {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.at, d.timer, d.expired = t, nil, nil
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		expired := make(chan struct{})
		d.expired = expired
		d.timer = time.AfterFunc(wait, func() { close(expired) })
	}
}

var _ net.Conn = (*NetStream)(nil)
