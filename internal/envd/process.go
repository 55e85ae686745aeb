package envd

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// judgeTimeout bounds what looks at a command's end from outside.
const judgeTimeout = 10 * time.Second

// process is one command as its stream tells of it. One goroutine, run, reads
// the stream, writes the output and settles the end.
type process struct {
	c              *Client
	w              where
	stdout, stderr sink
	stdin          io.Reader
	timeout        time.Duration // 0 for none
	terminal       bool
	input          bool // Inputter is offered
	killOnOutput   bool
	attached       string // the ID that was asked for, of an attached command
	cancel         context.CancelFunc
	clock          clock

	started chan struct{} // closed once the start or its failure is known
	ended   chan struct{} // closed at the end event, or when there will be none
	done    chan struct{} // closed when exit and err are set

	// Set before started is closed.
	id       string
	pid      uint32
	ext      bool
	begunAt  time.Time
	startErr error

	// Of run alone, until done is closed.
	last         *event
	endedAt      time.Time
	outputKilled bool
	exit         backend.Exit
	err          error

	mu         sync.Mutex
	begun      bool // the start event came
	abandoned  bool // nobody waits for it any more
	late       bool // Overdue was called
	overdueErr error
	warnings   []string
}

var (
	errOverdue   = errors.New("the command's end is overdue")
	errAbandoned = errors.New("the caller left before the command started")
)

func newProcess(c *Client, w where, out backend.Output) *process {
	return &process{
		c: c, w: w,
		stdout: sink{w: out.Stdout}, stderr: sink{w: out.Stderr},
		clock:   clock{grace: c.opts.Grace},
		started: make(chan struct{}), ended: make(chan struct{}), done: make(chan struct{}),
	}
}

// launch opens the stream and returns when the command has started.
func (p *process) launch(ctx context.Context, open func(context.Context) (source, error)) (backend.Process, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	cctx, over, err := p.c.begin(context.WithoutCancel(ctx))
	if err != nil {
		return nil, p.c.fail(ctx, p.w, err)
	}
	sctx, cancel := context.WithCancel(cctx)
	p.cancel = cancel
	if !p.c.spawn(func() { defer over(); p.run(cctx, sctx, open) }) {
		cancel()
		over()
		return nil, p.c.fail(ctx, p.w, errClosed)
	}
	silent := time.NewTimer(callTimeout)
	defer silent.Stop()
	select {
	case <-p.started:
	case <-ctx.Done():
		if p.abandon() {
			return nil, ctx.Err()
		}
	case <-silent.C:
		if p.abandon() {
			return nil, p.c.lost(p.c.error(p.w, backend.ErrLost, errNoAnswer))
		}
	}
	<-p.started
	if p.startErr != nil {
		return nil, p.startErr
	}
	return p, nil
}

// abandon gives a command that may yet start to its own goroutine, which kills
// it. It reports false when the start is known already.
func (p *process) abandon() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun {
		return false
	}
	p.abandoned = true
	time.AfterFunc(p.c.opts.Grace, p.cancel)
	return true
}

// run follows the stream to its end and settles the command's. ctx is the
// client's, sctx the stream's.
func (p *process) run(ctx, sctx context.Context, open func(context.Context) (source, error)) {
	defer close(p.done)
	var helpers sync.WaitGroup
	src, err := open(sctx)
	if err == nil {
		err = p.follow(sctx, src, &helpers)
	}
	if p.last == nil {
		p.endedAt = time.Now()
		close(p.ended)
	}
	var trailer http.Header
	if src != nil && errors.Is(err, io.EOF) {
		trailer = src.trailer()
	}
	p.cancel()
	if src != nil {
		src.close()
	}
	helpers.Wait()
	p.settle(ctx, err, trailer)
	if p.id == "" {
		p.startErr = p.err
		close(p.started)
		return
	}
	if p.err == nil && p.c.opts.Judge != nil {
		jctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), judgeTimeout)
		defer cancel()
		p.c.opts.Judge(jctx, &p.exit)
	}
}

// follow handles events until the stream ends; io.EOF is its clean end.
func (p *process) follow(ctx context.Context, src source, helpers *sync.WaitGroup) error {
	opened := time.Now()
	input, stop := context.WithCancel(ctx)
	defer stop()
	var seq sequence
	for {
		ev, err := src.next()
		if err != nil {
			return err
		}
		if err := seq.check(ev, time.Since(opened)); err != nil {
			return err
		}
		switch ev.kind {
		case evStart:
			if err := p.begin(ctx, ev.pid, src.header()); err != nil {
				return err
			}
			helpers.Go(func() { p.guard(ctx) })
			if p.stdin != nil {
				// Not waited for: it may be blocked in the caller's reader.
				go p.feed(input, p.stdin)
			}
		case evStdout, evTerminal:
			p.deliver(ctx, &p.stdout, ev.data)
		case evStderr:
			p.deliver(ctx, &p.stderr, ev.data)
		case evEnd:
			p.last, p.endedAt = &ev, time.Now()
			stop()
			close(p.ended)
		case evIdle:
		}
	}
}

// begin takes in the start event.
func (p *process) begin(ctx context.Context, pid uint32, h http.Header) error {
	id := h.Get(wire.HeaderCommand)
	switch {
	case p.attached != "":
		id = p.attached
	case id == "":
		id = strconv.FormatUint(uint64(pid), 10)
	case !validID(id):
		return protocolf("command ID %q", id)
	default:
		p.ext = true
	}
	p.mu.Lock()
	p.begun = true
	abandoned := p.abandoned
	p.id, p.pid, p.begunAt = id, pid, time.Now()
	p.mu.Unlock()
	if p.timeout > 0 {
		p.clock.due = p.begunAt.Add(p.timeout)
	}
	close(p.started)
	if !abandoned {
		return nil
	}
	kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.c.opts.Grace)
	defer cancel()
	_ = p.kill(kctx)
	return errAbandoned
}

// validID tells whether a command's ID can be used and shown.
func validID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for _, r := range id {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.' {
			return false
		}
	}
	return true
}

// deliver writes output, the time it takes not counted against the peer.
func (p *process) deliver(ctx context.Context, s *sink, data []byte) {
	p.clock.enter()
	s.write(data)
	p.clock.leave()
	if !s.truncated || !p.killOnOutput || p.ext || p.outputKilled {
		return
	}
	p.outputKilled = true
	kctx, cancel := context.WithTimeout(ctx, p.c.opts.Grace)
	defer cancel()
	_ = p.kill(kctx)
}

// guard ends a stream that outlives its command, and calls for help when the
// command outlives its timeout.
func (p *process) guard(ctx context.Context) {
	if !p.clock.due.IsZero() && !p.awaitEnd(ctx) {
		p.overdue(ctx)
	}
	select {
	case <-ctx.Done():
		return
	case <-p.ended:
	}
	if !wait(ctx, nil, p.c.opts.Grace) {
		p.cancel()
	}
}

// awaitEnd reports false when the end is overdue.
func (p *process) awaitEnd(ctx context.Context) bool {
	for {
		left := p.clock.left(time.Now())
		if left <= 0 {
			return false
		}
		if wait(ctx, p.ended, left) {
			return true
		}
	}
}

// overdue has the command killed from outside, then ends the stream unless
// it ends by itself soon.
func (p *process) overdue(ctx context.Context) {
	p.mu.Lock()
	p.late = true
	p.mu.Unlock()
	err := p.c.error(where{op: opWait}, backend.ErrLost, errOverdue)
	if kill := p.c.opts.Overdue; kill != nil {
		kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), judgeTimeout)
		err = kill(kctx, p.id)
		cancel()
	}
	p.mu.Lock()
	p.overdueErr = err
	p.mu.Unlock()
	if !wait(ctx, p.ended, p.c.opts.Grace) {
		p.cancel()
	}
}

// wait reports whether ctx ended or ch was closed within d.
func wait(ctx context.Context, ch <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return true
	case <-ch:
		return true
	case <-t.C:
		return false
	}
}

// ID implements [backend.Process].
func (p *process) ID() string { return p.id }

// Wait implements [backend.Process].
func (p *process) Wait(ctx context.Context) (backend.Exit, error) {
	select {
	case <-p.done:
		return p.exit, p.err
	default:
	}
	select {
	case <-p.done:
		return p.exit, p.err
	case <-ctx.Done():
		return backend.Exit{}, ctx.Err()
	}
}

var _ backend.Process = (*process)(nil)
