package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// pulse is what is known of one candidate.
type pulse struct {
	name      string
	isolation backend.Isolation
	prober    backend.Prober // nil where it cannot be asked

	mu     sync.Mutex
	closed bool
	known  backend.Health
	at     time.Time // of known; zero: nothing is known
	flight *flight   // the probe under way
}

// flight is one probe, shared by all who want its result.
type flight struct {
	cancel  context.CancelFunc
	settled chan struct{} // its result, or that it is overdue, is in known
	ended   chan struct{} // nothing of it runs any more
	once    sync.Once
	late    bool // it settled without a result; guarded by the pulse
}

func (f *flight) settle() { f.once.Do(func() { close(f.settled) }) }

// down says why the candidate is known not to work; nil when it may.
func (p *pulse) down() *backend.Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	valid := 2 * probeEvery // the loop looks again long before
	if p.prober == nil {
		valid = probeEvery // nobody else finds out
	}
	age := time.Since(p.at)
	if p.at.IsZero() || p.known.Available || age >= valid {
		return nil
	}
	return unavailable(p.name, fmt.Errorf("not available, seen %s ago: %s", age.Round(time.Second), p.known.Reason), p.known.Fix)
}

func unavailable(name string, err error, fix string) *backend.Error {
	return &backend.Error{Op: "create", Kind: backend.ErrUnavailable, Backend: name, Err: err, Fix: fix}
}

// failed notes an unavailable backend's answer to Create.
func (p *pulse) failed(err error) {
	h := backend.Health{Isolation: p.isolation, Reason: err.Error()}
	if be, ok := errors.AsType[*backend.Error](err); ok && be.Err != nil {
		h.Reason, h.Fix = be.Err.Error(), be.Fix
	}
	p.note(h)
}

// worked notes that a sandbox was made.
func (p *pulse) worked() { p.note(backend.Health{Available: true, Isolation: p.isolation}) }

func (p *pulse) note(h backend.Health) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known, p.at = h, time.Now()
}

// refresh probes unless a sandbox was made here since the last time.
func (p *pulse) refresh(ctx context.Context) {
	p.mu.Lock()
	fresh := p.known.Available && time.Since(p.at) < probeEvery
	p.mu.Unlock()
	if !fresh {
		p.probe(ctx)
	}
}

// look is the health that a probe finds now, bounded by probeTimeout and ctx.
// A candidate that cannot be asked is what is known of it.
func (p *pulse) look(ctx context.Context) (backend.Health, error) {
	return p.await(ctx, p.probe(ctx))
}

// await is what the probe finds; f is nil for a candidate that cannot be asked.
func (p *pulse) await(ctx context.Context, f *flight) (backend.Health, error) {
	if f == nil {
		h := backend.Health{Available: true, Isolation: p.isolation}
		if err := p.down(); err != nil {
			h.Available, h.Reason, h.Fix = false, err.Err.Error(), err.Fix
		}
		return h, nil
	}
	select {
	case <-f.settled:
	case <-ctx.Done():
		return backend.Health{}, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known, nil
}

// probe starts a probe, or joins the one under way. It is nil for a candidate
// that cannot be asked.
func (p *pulse) probe(ctx context.Context) *flight {
	if p.prober == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flight != nil {
		if p.flight.late {
			p.known, p.at = p.silence(), time.Now()
		}
		return p.flight
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	f := &flight{cancel: cancel, settled: make(chan struct{}), ended: make(chan struct{})}
	if p.closed {
		cancel()
		p.known, p.at = backend.Health{Isolation: p.isolation, Reason: "closed"}, time.Now()
		f.settle()
		return f
	}
	p.flight = f
	began := time.Now()
	// One that does not heed its context must not be waited for either.
	late := time.AfterFunc(probeTimeout, func() { p.land(f, p.silence(), began, true) })
	go func() {
		defer close(f.ended)
		defer cancel()
		h, err := p.prober.Probe(ctx)
		late.Stop()
		switch {
		case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			h = p.silence()
		case err != nil:
			h = backend.Health{Isolation: p.isolation, Reason: err.Error()}
		}
		p.land(f, h, began, false)
		p.mu.Lock()
		p.flight = nil
		p.mu.Unlock()
	}()
	return f
}

func (p *pulse) silence() backend.Health {
	return backend.Health{
		Isolation: p.isolation, Reason: fmt.Sprintf("it does not answer within %s", probeTimeout),
		Fix: "see that its daemon is not stuck",
	}
}

// land notes what a probe begun then found, unless something newer is known.
func (p *pulse) land(f *flight, h backend.Health, began time.Time, late bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if late && p.flight != f {
		return // it has just ended
	}
	f.late = late
	if !p.at.After(began) {
		p.known, p.at = h, time.Now()
	}
	f.settle()
}

func (p *pulse) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.flight != nil {
		p.flight.cancel()
	}
}
