package router

import (
	"context"
	"iter"
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
)

// Capabilities implements backend.Executor: what every candidate that reaches
// the policy's minimum gives, at the weakest of their levels. When none
// reaches it there is nothing to promise.
func (r *Router) Capabilities() backend.Capabilities {
	eligible, _ := r.eligible(backend.Spec{MinIsolation: r.opts.MinIsolation})
	if len(eligible) == 0 {
		return backend.Capabilities{Driver: "router"}
	}
	out := eligible[0].Executor.Capabilities()
	if len(eligible) == 1 {
		return out
	}
	out.Driver = "router"
	for _, c := range eligible[1:] {
		out = weaker(out, c.Executor.Capabilities())
	}
	return out
}

func weaker(a, b backend.Capabilities) backend.Capabilities {
	claims := make(map[backend.Control]backend.Claim, len(a.Claims))
	for control, claim := range a.Claims {
		if other := b.Claim(control); rank(other.Enforcement) < rank(claim.Enforcement) {
			claim = other
		}
		claims[control] = claim
	}
	return backend.Capabilities{
		Driver: a.Driver, Isolation: min(a.Isolation, b.Isolation), Claims: claims,
		Networks: both(a.Networks, b.Networks), Features: both(a.Features, b.Features),
	}
}

func rank(e backend.Enforcement) int {
	switch e {
	case backend.Enforced:
		return 2
	case backend.BestEffort:
		return 1
	case backend.Unsupported:
		return 0
	}
	return 0
}

func both[T comparable](a, b []T) []T {
	var out []T
	for _, v := range a {
		if slices.Contains(b, v) {
			out = append(out, v)
		}
	}
	return out
}

// As answers backend.As for the optional interfaces of executors. Sandboxes
// are found on the candidates that can find theirs; every other ability is
// there when every candidate has it.
func (r *Router) As(target any) bool {
	switch t := target.(type) {
	case *backend.Prober:
		*t = prober{r}
		return true
	case *backend.Finder:
		f := finder{}
		for i, c := range r.candidates {
			if one, ok := backend.As[backend.Finder](c.Executor); ok {
				f = append(f, place{c.Name, one, r.watch.pulses[i]})
			}
		}
		*t = f
		return len(f) > 0
	case *backend.SnapshotStore:
		// Snapshots of different backends cannot stand in for each other.
		if len(r.candidates) != 1 {
			return false
		}
		store, ok := backend.As[backend.SnapshotStore](r.candidates[0].Executor)
		*t = store
		return ok
	default:
		return false
	}
}

type prober struct{ r *Router }

// Probe is the health of the first candidate that could be chosen now.
func (p prober) Probe(ctx context.Context) (backend.Health, error) {
	eligible, passed := p.r.eligible(backend.Spec{MinIsolation: p.r.opts.MinIsolation})
	for _, c := range eligible {
		h, err := c.pulse.look(ctx)
		if err != nil || h.Available {
			return h, err
		}
		passed = append(passed, backend.Candidate{Backend: c.Name, Reason: unhealthy(h)})
		if p.r.opts.Required {
			break
		}
	}
	return backend.Health{Reason: reasons(passed), Fix: "run `glovebox doctor` for what this host can do"}, nil
}

// unhealthy is why a candidate is passed over, and what to do.
func unhealthy(h backend.Health) string {
	if h.Fix == "" {
		return "not available: " + h.Reason
	}
	return "not available: " + h.Reason + "; " + h.Fix
}

// finder looks on the candidates that keep sandboxes.
type finder []place

type place struct {
	backend string
	finder  backend.Finder
	pulse   *pulse
}

// Find asks those that are known to be down last, since one that hangs would
// hold up the others. While one cannot answer, an ID that no other knows is
// that one's error and not ErrNotFound.
func (f finder) Find(ctx context.Context, id string) (backend.Sandbox, error) {
	var well, down finder
	for _, p := range f {
		if p.pulse.down() == nil {
			well = append(well, p)
		} else {
			down = append(down, p)
		}
	}
	var failure error
	for _, p := range append(well, down...) {
		sb, err := p.finder.Find(ctx, id)
		if err == nil {
			return &sandbox{sb: sb, backend: p.backend}, nil
		}
		if failure == nil && backend.KindOf(err) != backend.ErrNotFound {
			failure = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	if failure != nil {
		return nil, failure
	}
	return nil, &backend.Error{Op: "find", Kind: backend.ErrNotFound, Sandbox: id}
}

// Sandboxes goes on to the next candidate after one's error.
func (f finder) Sandboxes(ctx context.Context) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		for _, p := range f {
			for info, err := range p.finder.Sandboxes(ctx) {
				info.Backend = p.backend
				if !yield(info, err) {
					return
				}
			}
		}
	}
}
