//go:build linux

package box

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/glovebox-dev/glovebox/backend"
)

// firstWait is how long is waited after the first attempt; every further wait is
// twice as long, up to Startup.Interval, so that what is quick is noticed soon.
const firstWait = 20 * time.Millisecond

// startup starts what the sandbox starts with and waits until it is ready. What
// comes from a snapshot has done so before.
func (b *Birth) startup(ctx context.Context, sb *Sandbox) error {
	st := b.Spec.Startup
	if len(st.Args) == 0 || b.Spec.From != "" {
		return nil
	}
	s := &starting{b: b, sb: sb, st: st, words: &tail{}, failed: make(chan struct{})}
	p, err := sb.Start(ctx, backend.Command{
		Args: st.Args, Tag: backend.StartupTag, Timeout: backend.UntilSandboxEnds,
		Output: backend.Output{Stdout: s.words, Stderr: s.words},
	})
	if err != nil {
		return s.error(ctx, "startup.args", err.Error())
	}
	defer s.words.stop()
	if len(st.Ready) == 0 && st.Port == 0 {
		return nil
	}
	began := time.Now()
	err = s.wait(ctx, p)
	sb.readyAfter = time.Since(began)
	return err
}

// starting is a sandbox that waits for what it started to be ready.
type starting struct {
	b     *Birth
	sb    *Sandbox
	st    backend.Startup
	words *tail // of what was started

	mu     sync.Mutex
	exit   *backend.Exit // of what was started
	failed chan struct{} // closed when that says that it failed
}

// wait tries until one attempt succeeds.
func (s *starting) wait(parent context.Context, p backend.Process) error {
	ctx, cancel := context.WithTimeout(parent, s.st.Timeout)
	var waiting sync.WaitGroup
	actx, stop := context.WithCancel(ctx) // of attempts, which a failure cuts short
	waiting.Go(func() { s.follow(ctx, p, stop) })
	defer waiting.Wait()
	defer cancel()
	defer stop()
	last := ""
	for pause := firstWait; ; pause *= 2 {
		why := s.attempt(actx)
		if s.hasFailed() {
			return s.error(parent, "startup.args", "it ended before it was ready")
		}
		switch {
		case why == "":
			return nil
		case ctx.Err() == nil || last == "":
			last = why
		}
		t := time.NewTimer(min(pause, s.st.Interval))
		select {
		case <-t.C:
			if s.b.ex.closing() {
				return &backend.Error{Op: "create", Kind: backend.ErrClosed, Backend: s.b.ex.name}
			}
		case <-s.failed:
			t.Stop()
			return s.error(parent, "startup.args", "it ended before it was ready")
		case <-ctx.Done():
			t.Stop()
			return s.error(parent, s.readyField(), fmt.Sprintf("not ready after %v; the last attempt: %s", s.st.Timeout, last))
		}
	}
}

func (s *starting) readyField() string {
	if s.st.Port != 0 {
		return "startup.port"
	}
	return "startup.ready"
}

// follow notes how what was started ends. That it ends well may mean that it
// went on in the background.
func (s *starting) follow(ctx context.Context, p backend.Process, stop func()) {
	exit, err := p.Wait(ctx)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exit = &exit
	if !exit.Success() {
		close(s.failed)
		stop()
	}
}

func (s *starting) hasFailed() bool {
	select {
	case <-s.failed:
		return true
	default:
		return false
	}
}

// attempt says why it is not ready; "" when it is.
func (s *starting) attempt(ctx context.Context) string {
	if s.st.Port != 0 {
		conn, err := s.sb.client.DialContext(ctx, "tcp", strconv.Itoa(s.st.Port))
		if err != nil {
			return fmt.Sprintf("port %d is closed", s.st.Port)
		}
		conn.Close() //nolint:errcheck // that it opened is all
		return ""
	}
	words := &tail{}
	left := s.st.Timeout
	if at, ok := ctx.Deadline(); ok {
		left = max(time.Until(at), time.Millisecond)
	}
	// RunIn ends the command with ctx.
	exit, err := backend.RunIn(ctx, s.sb, backend.Command{
		Args: s.st.Ready, Tag: backend.ReadyTag, Timeout: left, Output: backend.Output{Stdout: words, Stderr: words},
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return "it did not end" + words.said()
	case err != nil:
		return clean(err.Error(), tailBytes)
	case exit.Success():
		return ""
	}
	return exit.String() + words.said()
}

// error is why Create fails, with what was started said and how it ended.
func (s *starting) error(ctx context.Context, field, why string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	exit := s.exit
	s.mu.Unlock()
	state := "runs"
	if exit != nil {
		state = exit.String()
	}
	return &backend.Error{
		Op: "create", Kind: backend.ErrInvalid, Backend: s.b.ex.name, Field: field,
		Err: errors.New(why + "; what was started: " + state + s.words.said()),
		Fix: "mend what the template starts with, or give it longer",
	}
}

// tailBytes is how much of an output stands in an error.
const tailBytes = 600

// tail keeps the end of what is written to it. It is safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	data []byte
	done bool
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.done {
		t.data = append(t.data, p[max(0, len(p)-tailBytes):]...)
		t.data = append(t.data[:0], t.data[max(0, len(t.data)-tailBytes):]...)
	}
	return len(p), nil
}

// stop forgets what there is: nobody will ask.
func (t *tail) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data, t.done = nil, true
}

// said is what was written last, as a part of a sentence.
func (t *tail) said() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if words := clean(string(t.data), tailBytes); words != "" {
		return ", saying: " + words
	}
	return ", saying nothing"
}

// clean makes one bounded line of hostile text.
func clean(s string, limit int) string {
	s = strings.ToValidUTF8(s[:min(len(s), limit)], "?")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s))
}
