package plain

import (
	"io"
	"os"
	"sync"
	"time"
)

const (
	chunk = 32 << 10
	// heldBudget is how much is still delivered of output that descendants
	// hold: more than any system's pipe has room for.
	heldBudget = 128 << 10
	// idleFor is how long a reader must have waited for its pipe to be empty.
	idleFor = 50 * time.Millisecond
)

// stream is one output of a command on its way to the caller's writer. After
// its end it is read to nowhere, so that descendants get no SIGPIPE.
type stream struct {
	r     *os.File
	w     io.Writer // nil discards
	limit int64     // 0: none
	over  func()    // called once what is over the limit is dropped

	drained chan struct{} // closed when nothing will be delivered any more
	closed  chan struct{} // closed when nothing is read any more

	mu        sync.Mutex
	waiting   time.Time // since when the reader waits; zero while it delivers
	closing   bool
	spent     int // bytes read since closing
	ended     bool
	held      bool // it ended before its pipe did
	got       int64
	truncated bool
	broken    bool // the writer failed
}

func newStream(r *os.File, w io.Writer, limit int64, over func()) *stream {
	return &stream{r: r, w: w, limit: limit, over: over, drained: make(chan struct{}), closed: make(chan struct{})}
}

// run reads until the pipe's end or stop.
func (s *stream) run() {
	defer close(s.closed)
	defer s.r.Close() //nolint:errcheck // read side
	buf := make([]byte, chunk)
	for {
		s.wait()
		n, err := s.r.Read(buf)
		s.take(buf[:n])
		if err != nil {
			s.end(false)
			return
		}
	}
}

// stop makes run end, whoever holds the pipe.
func (s *stream) stop() { _ = s.r.Close() }

func (s *stream) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = time.Now()
}

// take delivers b. The writer is called without the lock, so that a slow one
// holds up nobody else.
func (s *stream) take(b []byte) {
	s.mu.Lock()
	s.waiting = time.Time{}
	if s.ended || len(b) == 0 {
		s.mu.Unlock()
		return
	}
	room := s.limit - s.got
	s.got += int64(len(b))
	over := s.limit > 0 && int64(len(b)) > room
	if over {
		s.truncated = true
	}
	deliver := b
	if over {
		deliver = b[:max(room, 0)]
	}
	w := s.w
	if s.broken {
		w = nil
	}
	s.mu.Unlock()
	if over {
		s.over()
	}
	broken := false
	if w != nil && len(deliver) > 0 {
		n, err := w.Write(deliver)
		broken = err != nil || n < len(deliver)
	}
	s.mu.Lock()
	s.broken = s.broken || broken
	if s.closing {
		s.spent += len(b)
	}
	exhausted := s.closing && s.spent >= heldBudget
	s.mu.Unlock()
	if exhausted {
		s.end(true)
	}
}

// say delivers text after the pipe's end, for a program that never ran.
func (s *stream) say(text string) {
	s.setEnded(false)
	s.take([]byte(text))
	s.setEnded(true)
}

func (s *stream) setEnded(ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = ended
}

func (s *stream) end(held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(held)
}

func (s *stream) endLocked(held bool) {
	if !s.ended {
		s.ended, s.held = true, held
		close(s.drained)
	}
}

// finish waits for the end of the stream. Once grace is closed only what is in
// the pipe by then is waited for: descendants may hold it for ever.
func (s *stream) finish(grace <-chan struct{}) {
	select {
	case <-s.drained:
		return
	case <-grace:
	}
	t := time.NewTicker(idleFor / 5)
	defer t.Stop()
	for !s.close() {
		select {
		case <-s.drained:
			return
		case <-t.C:
		}
	}
}

// close ends the stream if its pipe is empty. It is never true while the
// writer is being called.
func (s *stream) close() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	if !s.waiting.IsZero() && time.Since(s.waiting) >= idleFor {
		s.endLocked(true)
	}
	return s.ended
}

// result is what there is to say once the stream has ended.
func (s *stream) result() (got int64, truncated, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got, s.truncated, s.held
}
