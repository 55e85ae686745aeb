package backendtest

import (
	"io"
	"sync"
)

// ringSize is how much of a stream is kept for those who attach.
const ringSize = 64 << 10

// stream carries one output of a command to its writers, under the limit.
type stream struct {
	over func() // called at each write beyond the limit, without the lock

	mu        sync.Mutex
	writers   []io.Writer
	limit     int64 // 0: none
	written   int64
	ring      []byte
	truncated bool
	ended     bool
}

func newStream(w io.Writer, limit int64, over func()) *stream {
	s := &stream{limit: limit, over: over}
	if w != nil {
		s.writers = []io.Writer{w}
	}
	return s
}

// Write always takes everything, as a drained pipe does.
func (s *stream) Write(b []byte) (int, error) {
	if s.deliver(b) {
		s.over()
	}
	return len(b), nil
}

func (s *stream) deliver(b []byte) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	if room := s.limit - s.written; s.limit > 0 && int64(len(b)) > room {
		s.truncated, over = true, true
		defer func(dropped int64) { s.written += dropped }(int64(len(b)) - max(room, 0))
		b = b[:max(room, 0)]
	}
	s.written += int64(len(b))
	if len(b) == 0 {
		return over
	}
	s.ring = append(s.ring, b...)
	s.ring = s.ring[max(0, len(s.ring)-ringSize):]
	kept := s.writers[:0]
	for _, w := range s.writers {
		if _, err := w.Write(b); err == nil { // an error stops delivery, not the command
			kept = append(kept, w)
		}
	}
	s.writers = kept
	return over
}

// attach adds a writer, which first gets the ring when replay is set.
func (s *stream) attach(w io.Writer, replay bool) {
	if w == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if replay && len(s.ring) > 0 {
		if _, err := w.Write(s.ring); err != nil {
			return
		}
	}
	if !s.ended {
		s.writers = append(s.writers, w)
	}
}

// end waits for a write under way; nothing is delivered afterwards.
func (s *stream) end() (written int64, truncated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	return s.written, s.truncated
}
