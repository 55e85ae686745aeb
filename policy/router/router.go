// Package router chooses the backend that a sandbox is made on. It is a layer:
// an executor over other executors.
//
// Candidates below the asked isolation are dropped before anything else is
// looked at, so that no failure of a strong backend leads to a weaker one than
// was asked for. Every candidate passed over stands in the sandbox's receipt
// with its reason.
//
// Health is looked at where there is a choice. The first Create finds out by
// itself; one that takes long has its backend probed meanwhile, and is given up
// when that is down or silent. From the first failure or the second Create on,
// candidates are probed in the background, and those known to be down are
// passed over until a probe finds them well again.
package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// destroyTimeout bounds the end of a sandbox that turned out weaker than asked.
const destroyTimeout = 30 * time.Second

// Candidate is a backend to choose from.
type Candidate struct {
	Name     string // as configured
	Executor backend.Executor
}

// Options is the policy that the choice follows.
type Options struct {
	// MinIsolation is the least level for every sandbox; a Spec can only raise it.
	MinIsolation backend.Isolation
	// Strict makes every Spec strict.
	Strict bool
	// Required never falls back: the first candidate that reaches the asked
	// isolation is the only one that is tried.
	Required bool
	// Templates names the candidates that a template may run on; a template
	// that is absent may run on all.
	Templates map[string][]string
	// Absent are backends that could not even be opened. They stand in receipts
	// and refusals as passed over.
	Absent []backend.Candidate
}

// Router is an Executor that makes each sandbox on the first of its candidates
// that can. It is safe for concurrent use and owns its candidates.
type Router struct {
	candidates []Candidate
	opts       Options
	watch      *watch
}

// New makes a router over candidates, the preferred one first.
func New(candidates []Candidate, opts Options) (*Router, error) {
	if len(candidates) == 0 {
		return nil, &backend.Error{Op: "router", Kind: backend.ErrInvalid, Err: errors.New("no backend to choose from")}
	}
	return &Router{candidates: slices.Clone(candidates), opts: opts, watch: newWatch(candidates)}, nil
}

// Create implements backend.Executor. It goes on to the next candidate only
// when one said that nothing was made and that it cannot do it (unavailable,
// unsupported, capacity), or is known to be down; after any other error what
// happened is not the next one's to repeat.
func (r *Router) Create(ctx context.Context, spec backend.Spec) (backend.Sandbox, error) {
	spec = r.raise(spec)
	eligible, passed := r.eligible(spec)
	if len(eligible) == 0 {
		return nil, r.none(spec, passed)
	}
	if r.opts.Required {
		eligible = eligible[:1]
	}
	several := len(eligible) > 1
	if several {
		r.watch.choice(ctx)
	}
	var failures []error
	for i, c := range eligible {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		sb, err := r.try(ctx, c, spec, several, i == len(eligible)-1)
		if err == nil {
			return &sandbox{sb: sb, backend: c.Name, passed: passed}, nil
		}
		failures = append(failures, fmt.Errorf("%s: %w", c.Name, err))
		if !mayFallBack(err) || r.opts.Required || len(r.candidates)+len(r.opts.Absent) == 1 {
			return nil, err
		}
		passed = append(passed, backend.Candidate{Backend: c.Name, Isolation: c.Executor.Capabilities().Isolation, Reason: err.Error()})
	}
	return nil, exhausted(failures, passed)
}

// try makes the sandbox on c and notes what that says of its health. Where
// there is a choice, one that is known to be down is not tried; where another
// comes after it, one that turns out to be down is not waited for.
func (r *Router) try(ctx context.Context, c choice, spec backend.Spec, several, last bool) (backend.Sandbox, error) {
	if several {
		if down := c.pulse.down(); down != nil {
			return nil, down
		}
	}
	sb, err := r.attempt(ctx, c, spec, several && !last)
	switch {
	case err == nil:
		c.pulse.worked()
	case backend.KindOf(err) == backend.ErrUnavailable:
		c.pulse.failed(err)
		if several {
			r.watch.begin(ctx)
		}
	}
	return sb, err
}

// attempt is createOn. When impatient, a backend that takes long is asked
// whether it works, and given up when it is down or does not answer.
func (r *Router) attempt(ctx context.Context, c choice, spec backend.Spec, impatient bool) (backend.Sandbox, error) {
	if !impatient || c.pulse.prober == nil {
		return r.createOn(ctx, c.Candidate, spec)
	}
	inner, cancel := context.WithCancelCause(ctx)
	var asking sync.WaitGroup
	asking.Add(1)
	timer := time.AfterFunc(patience, func() {
		defer asking.Done()
		if h, err := c.pulse.look(inner); err == nil && !h.Available {
			cancel(unavailable(c.Name, errors.New("not available: "+h.Reason), h.Fix))
		}
	})
	sb, err := r.createOn(inner, c.Candidate, spec)
	down := (*backend.Error)(nil)
	errors.As(context.Cause(inner), &down)
	cancel(nil)
	if !timer.Stop() {
		asking.Wait()
	}
	// A context's error says that nothing was made; any other classification is
	// the backend's to give, above all that it lost sight of what it made.
	if err != nil && down != nil && ctx.Err() == nil && backend.KindOf(err) == "" {
		return nil, down
	}
	return sb, err
}

// createOn makes the sandbox and holds the backend to the level it promised.
func (r *Router) createOn(ctx context.Context, c Candidate, spec backend.Spec) (backend.Sandbox, error) {
	sb, err := c.Executor.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	got := sb.Receipt().Achieved
	if got >= spec.MinIsolation {
		return sb, nil
	}
	dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTimeout)
	defer cancel()
	weak := &backend.Error{
		Op: "create", Kind: backend.ErrUnsupported, Backend: c.Name, Field: "min_isolation",
		Err: fmt.Errorf("the sandbox reached isolation %s, %s is asked for", got, spec.MinIsolation),
	}
	if err := sb.Destroy(dctx); err != nil {
		weak.Kind, weak.Err = backend.ErrLost, errors.Join(weak.Err, err)
	}
	return nil, weak
}

// raise applies the policy's minimum to spec.
func (r *Router) raise(spec backend.Spec) backend.Spec {
	spec.MinIsolation = max(spec.MinIsolation, r.opts.MinIsolation)
	spec.Strict = spec.Strict || r.opts.Strict
	return spec
}

// choice is a candidate with what is known of its health.
type choice struct {
	Candidate
	pulse *pulse
}

// eligible are the candidates that may be tried, and those that may not.
func (r *Router) eligible(spec backend.Spec) (yes []choice, no []backend.Candidate) {
	no = slices.Clone(r.opts.Absent)
	for i, c := range r.candidates {
		level := c.Executor.Capabilities().Isolation
		drop := func(reason string) {
			no = append(no, backend.Candidate{Backend: c.Name, Isolation: level, Reason: reason})
		}
		allowed, limited := r.opts.Templates[spec.Template]
		switch {
		case level < spec.MinIsolation:
			drop(fmt.Sprintf("isolation %s is below the asked %s", level, spec.MinIsolation))
		case limited && !slices.Contains(allowed, c.Name):
			drop(fmt.Sprintf("template %s is only for %s", spec.Template, strings.Join(allowed, ", ")))
		default:
			yes = append(yes, choice{c, r.watch.pulses[i]})
		}
	}
	return yes, no
}

func (r *Router) none(spec backend.Spec, passed []backend.Candidate) error {
	return &backend.Error{
		Op: "create", Kind: backend.ErrUnsupported, Field: "min_isolation",
		Err: fmt.Errorf("no backend gives isolation %s: %s", spec.MinIsolation, reasons(passed)),
		Fix: "run `glovebox doctor` for what this host can do",
	}
}

// mayFallBack tells whether err says that nothing was made and another backend
// may be asked. A sandbox that is lost may still run, and a refusal by policy
// is not to be shopped around.
func mayFallBack(err error) bool {
	switch backend.KindOf(err) {
	case backend.ErrUnavailable, backend.ErrUnsupported, backend.ErrCapacity:
		return true
	default:
		return false
	}
}

func exhausted(failures []error, passed []backend.Candidate) error {
	if len(failures) == 1 && len(passed) == 1 {
		return failures[0]
	}
	kind := backend.ErrUnsupported
	for _, err := range failures {
		if k := backend.KindOf(err); k != backend.ErrUnsupported {
			kind = k
		}
	}
	return &backend.Error{
		Op: "create", Kind: kind, Err: errors.New("no backend can do it: " + reasons(passed)),
		Fix: "run `glovebox doctor` for what this host can do",
	}
}

func reasons(passed []backend.Candidate) string {
	out := make([]string, len(passed))
	for i, p := range passed {
		out[i] = p.Backend + ": " + p.Reason
	}
	return strings.Join(out, "; ")
}

// Close implements backend.Executor; it closes every candidate and ends all
// probing.
func (r *Router) Close() error {
	r.watch.close()
	var errs []error
	for _, c := range r.candidates {
		errs = append(errs, c.Executor.Close())
	}
	// Last, since closing a backend is what ends a probe that heeds nothing else.
	errs = append(errs, r.watch.wait())
	return errors.Join(errs...)
}

var _ backend.Executor = (*Router)(nil)
