package envd

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
)

// settle sets exit and err from how the stream ended.
func (p *process) settle(ctx context.Context, streamErr error, trailer http.Header) {
	p.mu.Lock()
	late, overdueErr := p.late, p.overdueErr
	warnings := p.warnings
	p.mu.Unlock()
	timedOut := p.timedOut(streamErr) || late && overdueErr == nil
	var err error
	switch {
	case p.last == nil && late && overdueErr != nil:
		err = overdueErr
	case p.last == nil && timedOut:
	case p.last == nil && errors.Is(streamErr, io.EOF):
		err = protocolf("the stream ended without the command's end")
	case p.last == nil:
		err = streamErr
	default:
		p.exit, err = p.conclude(streamErr, trailer)
	}
	if err != nil && p.id != "" && p.died(err) {
		err = nil
	}
	if err != nil {
		w := p.w
		if p.id != "" && w.op == opStart {
			w.op = opWait
		}
		p.exit, p.err = backend.Exit{}, p.c.fail(ctx, w, err)
		return
	}
	switch {
	case timedOut:
		p.killed(backend.ReasonTimeout)
	case p.outputKilled && p.exit.Reason == backend.ReasonSignaled:
		p.killed(backend.ReasonOutputLimit)
	}
	p.exit.Warnings = append(p.exit.Warnings, warnings...)
	p.tally()
}

// died takes over the end that the backend knows of, when the stream broke.
func (p *process) died(err error) bool {
	if p.c.opts.Died == nil || connect.IsWireError(err) {
		return false
	}
	exit, ok := p.c.opts.Died()
	if ok {
		p.exit = exit
	}
	return ok
}

// timedOut tells whether envd ended the stream since the time we gave it was
// up, which it does by killing the command.
func (p *process) timedOut(err error) bool {
	return !p.ext && p.timeout > 0 && p.id != "" && connect.IsWireError(err) &&
		connect.CodeOf(err) == connect.CodeDeadlineExceeded &&
		p.endedAt.Sub(p.begunAt)+p.c.opts.Grace >= p.timeout
}

func (p *process) killed(why backend.Reason) {
	p.exit.Reason = why
	p.exit.Signal, p.exit.Code = backend.SIGKILL, 128+int(backend.SIGKILL)
}

// conclude is the command's end as the peer gave it, once its end event came.
func (p *process) conclude(streamErr error, trailer http.Header) (backend.Exit, error) {
	if _, ok := errors.AsType[*protocolError](streamErr); ok {
		return backend.Exit{}, streamErr
	}
	end := p.last.end
	switch values := trailer.Values(wire.TrailerEnd); {
	case len(values) > 1:
		return backend.Exit{}, protocolf("%d trailers", len(values))
	case len(values) == 1 && end == nil:
		end = new(gloveboxv1.End)
		if err := wire.Unpack(values[0], end); err != nil {
			return backend.Exit{}, protocolf("%v", err)
		}
	}
	exit, err := exitOf(end, p.last.status)
	if err == nil && p.ext && end == nil && exit.Reason != backend.ReasonExited {
		// A kill whose cause was lost on the way is not told as one by itself.
		return backend.Exit{}, protocolf("the command was killed and the reason is missing")
	}
	return exit, err
}

// tally adds what was measured on this side.
func (p *process) tally() {
	e := &p.exit
	e.Usage.Wall = p.endedAt.Sub(p.begunAt)
	e.Usage.Stdout = max(e.Usage.Stdout, p.stdout.got)
	e.Usage.Stderr = max(e.Usage.Stderr, p.stderr.got)
	e.StdoutTruncated = e.StdoutTruncated || p.stdout.truncated
	e.StderrTruncated = e.StderrTruncated || p.stderr.truncated
	if (e.StdoutTruncated || e.StderrTruncated) && !slices.Contains(e.Hits, backend.HitOutput) {
		e.Hits = append(e.Hits, backend.HitOutput)
	}
}

// sink is one output stream on its way to the caller's writer.
type sink struct {
	w         io.Writer // nil discards
	limit     int64     // 0 for none
	got       int64
	truncated bool
	broken    bool // the writer failed
}

func (s *sink) write(b []byte) {
	room := s.limit - s.got
	s.got += int64(len(b))
	if s.limit > 0 && int64(len(b)) > room {
		s.truncated = true
		b = b[:max(room, 0)]
	}
	if len(b) == 0 || s.w == nil || s.broken {
		return
	}
	n, err := s.w.Write(b)
	s.broken = err != nil || n < len(b)
}

// clock tells how late the peer is with a command's end: how long past due it
// is, less the time that went by in the caller's writers since.
type clock struct {
	due   time.Time // set before it is shared; zero for never
	grace time.Duration

	mu      sync.Mutex
	entered time.Time // when the write under way began, zero if none is
	spent   time.Duration
}

func (c *clock) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entered = time.Now()
}

func (c *clock) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spent += c.writing(time.Now())
	c.entered = time.Time{}
}

// writing is how much of the write under way lies past due.
func (c *clock) writing(now time.Time) time.Duration {
	if c.entered.IsZero() {
		return 0
	}
	if c.entered.Before(c.due) {
		return max(now.Sub(c.due), 0)
	}
	return now.Sub(c.entered)
}

// left is when to look again; nothing is left when the grace is used up.
func (c *clock) left(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	late := now.Sub(c.due) - c.spent - c.writing(now)
	if late >= c.grace {
		return 0
	}
	// While a write blocks, lateness stands still just below the grace.
	return max(c.grace-late, c.grace/10, time.Millisecond)
}
