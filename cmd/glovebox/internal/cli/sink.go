package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/internal/term"
)

// errClosedPipe is why a run ended: nobody reads its output any more.
var errClosedPipe = errors.New("nobody reads the output any more")

// errEnded is what a writer is told whose output is over.
var errEnded = errors.New("the run has ended")

// sink passes a program's output on to one of our streams. Writing to it ends
// with its context, even where the stream blocks: a reader that has stopped
// reading must not keep us from ending the sandbox. It has one writer at a time.
type sink struct {
	ctx   context.Context //nolint:containedctx // io.Writer has no room for one
	fail  func(error)     // called once when the stream cannot be written
	name  string
	chunk chan []byte
	done  chan error
	quit  chan struct{}
	close func() // ends the goroutine, at once unless the stream blocks it, and a Write under way
	buf   []byte
	err   error
}

// newSink writes to w until ctx ends. The caller calls close.
func newSink(ctx context.Context, w io.Writer, name string, fail func(error)) *sink {
	s := &sink{
		ctx: ctx, fail: fail, name: name, chunk: make(chan []byte), done: make(chan error, 1), quit: make(chan struct{}),
	}
	s.close = sync.OnceFunc(func() { close(s.quit) })
	go func() {
		for {
			select {
			case p := <-s.chunk:
				_, err := w.Write(p)
				s.done <- err
			case <-s.quit:
				return
			}
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
	case <-s.quit:
		s.err = errEnded
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
	case <-s.quit:
		s.err = errEnded
	}
	return 0, s.err
}

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
type display struct{ out, err *outlet }

// display readies our streams. raw leaves terminals alone, for --tty.
func (a *App) display(ctx context.Context, raw bool, fail func(error)) *display {
	one := func(w io.Writer, name string) *outlet {
		_, ok := terminal(w)
		return newOutlet(newSink(ctx, w, name, fail), ok && !raw)
	}
	return &display{out: one(a.Stdout, "standard output"), err: one(a.Stderr, "standard error")}
}

func (d *display) close() {
	d.out.close()
	d.err.close()
}

// outlet is one output stream of a program. Where waiting for the program
// failed, whoever brings its output may still write: after close that changes
// nothing any more. It is safe for concurrent use.
type outlet struct {
	sink *sink

	mu     sync.Mutex
	filter *term.Writer // nil where bytes pass unchanged
	ended  bool
}

func newOutlet(s *sink, safe bool) *outlet {
	o := &outlet{sink: s}
	if safe {
		o.filter = term.NewWriter(s)
	}
	return o
}

// Write implements io.Writer.
func (o *outlet) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.ended:
		return 0, errEnded
	case o.filter != nil:
		return o.filter.Write(p)
	default:
		return o.sink.Write(p)
	}
}

// outletGrace is how long close waits for a stream that blocks.
const outletGrace = time.Second

// close writes what is held back and ends the current line of a terminal, so
// that what we say next stands on its own.
func (o *outlet) close() {
	defer o.sink.close()
	defer time.AfterFunc(outletGrace, o.sink.close).Stop()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	if o.filter == nil {
		return
	}
	_ = o.filter.Close() // the sink has told about its error
	if o.filter.MidLine() {
		_, _ = o.filter.Write([]byte("\n"))
	}
}
