package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"github.com/glovebox-dev/glovebox/internal/term"
)

// errClosedPipe is why a run ended: nobody reads its output any more.
var errClosedPipe = errors.New("nobody reads the output any more")

// sink passes a program's output on to one of our streams. Writing to it ends
// with its context, even where the stream blocks: a reader that has stopped
// reading must not keep us from ending the sandbox.
type sink struct {
	ctx   context.Context //nolint:containedctx // io.Writer has no room for one
	fail  func(error)     // called once when the stream cannot be written
	name  string
	chunk chan []byte
	done  chan error
	buf   []byte
	err   error
}

// newSink writes to w until ctx ends. The caller calls close.
func newSink(ctx context.Context, w io.Writer, name string, fail func(error)) *sink {
	s := &sink{ctx: ctx, fail: fail, name: name, chunk: make(chan []byte), done: make(chan error, 1)}
	go func() {
		for p := range s.chunk {
			_, err := w.Write(p)
			s.done <- err
		}
	}()
	return s
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	// The stream's goroutine may still hold the text after we gave up on it.
	s.buf = append(s.buf[:0], p...)
	select {
	case s.chunk <- s.buf:
	case <-s.ctx.Done():
		s.err = s.ctx.Err()
		return 0, s.err
	}
	select {
	case err := <-s.done:
		if err == nil {
			return len(p), nil
		}
		s.err = err
		if errors.Is(err, syscall.EPIPE) {
			s.fail(errClosedPipe)
		} else {
			s.fail(fmt.Errorf("writing %s: %w", s.name, err))
		}
	case <-s.ctx.Done():
		s.err = s.ctx.Err()
	}
	return 0, s.err
}

// close ends the goroutine, at once unless the stream blocks it.
func (s *sink) close() { close(s.chunk) }

// collector keeps the first bytes of an output and drops the rest.
type collector struct {
	mu        sync.Mutex
	limit     int64
	buf       bytes.Buffer
	truncated bool
}

// Write implements io.Writer.
func (c *collector) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	room := max(c.limit-int64(c.buf.Len()), 0)
	if int64(len(p)) > room {
		c.truncated = true
		c.buf.Write(p[:room])
		return len(p), nil
	}
	return c.buf.Write(p)
}

// collected is what a collector kept.
type collected struct {
	data      []byte
	truncated bool
}

func (c *collector) end() collected {
	c.mu.Lock()
	defer c.mu.Unlock()
	return collected{bytes.Clone(c.buf.Bytes()), c.truncated}
}

// display is where a program's output goes when it is not collected: to our
// streams, unchanged to files and pipes, made safe for terminals.
type display struct {
	out, err io.Writer
	sinks    []*sink
	filters  []*term.Writer
}

// display readies our streams. raw leaves terminals alone, for --tty.
func (a *App) display(ctx context.Context, raw bool, fail func(error)) *display {
	d := &display{}
	one := func(w io.Writer, name string) io.Writer {
		s := newSink(ctx, w, name, fail)
		d.sinks = append(d.sinks, s)
		if _, ok := terminal(w); !ok || raw {
			return s
		}
		t := term.NewWriter(s)
		d.filters = append(d.filters, t)
		return t
	}
	d.out = one(a.Stdout, "standard output")
	d.err = one(a.Stderr, "standard error")
	return d
}

// close writes what is held back and ends the current line of a terminal, so
// that what we say next stands on its own.
func (d *display) close() {
	for _, t := range d.filters {
		_ = t.Close() // the sink has told about its error
		if t.MidLine() {
			_, _ = t.Write([]byte("\n"))
		}
	}
	for _, s := range d.sinks {
		s.close()
	}
}
