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

// As answers backend.As for the optional interfaces of executors: an ability
// is there when every candidate has it.
func (r *Router) As(target any) bool {
	switch t := target.(type) {
	case *backend.Prober:
		*t = prober{r}
		return true
	case *backend.Finder:
		all, ok := every[backend.Finder](r)
		if ok {
			*t = finder{r, all}
		}
		return ok
	case *backend.SnapshotStore:
		// Snapshots of different backends cannot stand in for each other.
		all, ok := every[backend.SnapshotStore](r)
		if ok && len(all) == 1 {
			*t = all[0]
			return true
		}
		return false
	default:
		return false
	}
}

func every[T any](r *Router) ([]T, bool) {
	out := make([]T, 0, len(r.candidates))
	for _, c := range r.candidates {
		t, ok := backend.As[T](c.Executor)
		if !ok {
			return nil, false
		}
		out = append(out, t)
	}
	return out, true
}

type prober struct{ r *Router }

// Probe is the health of the first candidate that could be chosen now.
func (p prober) Probe(ctx context.Context) (backend.Health, error) {
	eligible, passed := p.r.eligible(backend.Spec{MinIsolation: p.r.opts.MinIsolation})
	for _, c := range eligible {
		h := backend.Health{Available: true, Isolation: c.Executor.Capabilities().Isolation}
		if inner, ok := backend.As[backend.Prober](c.Executor); ok {
			var err error
			if h, err = inner.Probe(ctx); err != nil {
				return backend.Health{}, err
			}
		}
		if h.Available {
			return h, nil
		}
		passed = append(passed, backend.Candidate{Backend: c.Name, Reason: "not available: " + h.Reason})
		if p.r.opts.Required {
			break
		}
	}
	return backend.Health{Reason: reasons(passed), Fix: "run `glovebox doctor` for what this host can do"}, nil
}

// finder looks on every candidate, all[i] being that of r.candidates[i].
type finder struct {
	r   *Router
	all []backend.Finder
}

func (f finder) Find(ctx context.Context, id string) (backend.Sandbox, error) {
	for i, one := range f.all {
		sb, err := one.Find(ctx, id)
		if err == nil {
			return &sandbox{sb: sb, backend: f.r.candidates[i].Name}, nil
		}
		if backend.KindOf(err) != backend.ErrNotFound {
			return nil, err
		}
	}
	return nil, &backend.Error{Op: "find", Kind: backend.ErrNotFound, Sandbox: id}
}

func (f finder) Sandboxes(ctx context.Context) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		for i, one := range f.all {
			for info, err := range one.Sandboxes(ctx) {
				info.Backend = f.r.candidates[i].Name
				if !yield(info, err) {
					return
				}
			}
		}
	}
}
