//go:build linux

package runsc

import (
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// tailSize bounds what is kept of what a sandbox or runsc says.
const tailSize = 8 << 10

// tail keeps the last words from a pipe and drains it, so that nobody who
// writes there ever waits.
type tail struct {
	mu   sync.Mutex
	buf  []byte
	done chan struct{}
}

func newTail(r *os.File) *tail {
	t := &tail{done: make(chan struct{})}
	go func() {
		defer close(t.done)
		defer r.Close() //nolint:errcheck // read side
		io.Copy(t, r)   //nolint:errcheck // its end is all there is to know
	}()
	return t
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p[max(0, len(p)-tailSize):]...)
	t.buf = t.buf[max(0, len(t.buf)-tailSize):]
	return len(p), nil
}

// words waits a moment for the end of what was said and returns its last part.
func (t *tail) words() string {
	timer := time.NewTimer(200 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(strings.TrimSpace(string(t.buf)), "?")
}
