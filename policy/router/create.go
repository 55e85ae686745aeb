package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// destroyTimeout bounds the end of a sandbox that turned out weaker than asked.
const destroyTimeout = 30 * time.Second

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
	t := &trial{r: r, spec: spec, passed: passed}
	var unasked []choice
	for i, c := range eligible {
		if down := c.pulse.down(); several && down != nil {
			unasked = append(unasked, c)
			t.pass(c, down)
			continue
		}
		if done, sb, err := t.on(ctx, c, several, i == len(eligible)-1); done {
			return sb, err
		}
	}
	// Nobody is left but those that were passed over: perhaps they are well again.
	for _, c := range awake(ctx, unasked) {
		t.passed = slices.DeleteFunc(t.passed, func(p backend.Candidate) bool { return p.Backend == c.Name })
		if done, sb, err := t.on(ctx, c, several, true); done {
			return sb, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, exhausted(t.failures, t.passed)
}

// trial is one Create going through the candidates.
type trial struct {
	r        *Router
	spec     backend.Spec
	failures []error
	passed   []backend.Candidate
}

func (t *trial) pass(c choice, err error) {
	t.failures = append(t.failures, fmt.Errorf("%s: %w", c.Name, err))
	t.passed = append(t.passed, backend.Candidate{Backend: c.Name, Isolation: c.Executor.Capabilities().Isolation, Reason: err.Error()})
}

// on makes the sandbox on c and notes what that says of c's health. It is done
// unless the next candidate may be tried. Where another comes after c, c is not
// waited for when it turns out to be down.
func (t *trial) on(ctx context.Context, c choice, several, last bool) (done bool, sb backend.Sandbox, err error) {
	if err := ctx.Err(); err != nil {
		return true, nil, err
	}
	sb, err = t.r.attempt(ctx, c, t.spec, several && !last)
	if err == nil {
		c.pulse.worked()
		return true, &sandbox{sb: sb, backend: c.Name, passed: t.passed}, nil
	}
	if backend.KindOf(err) == backend.ErrUnavailable {
		c.pulse.failed(err)
		if several {
			t.r.watch.begin(ctx)
		}
	}
	if !mayFallBack(err) || t.r.opts.Required || len(t.r.candidates)+len(t.r.opts.Absent) == 1 {
		return true, nil, err
	}
	t.pass(c, err)
	return false, nil, nil
}

// awake are those of choices that a probe finds well now.
func awake(ctx context.Context, choices []choice) []choice {
	var flights []*flight
	for _, c := range choices {
		flights = append(flights, c.pulse.probe(ctx)) // all at once
	}
	var out []choice
	for i, c := range choices {
		if h, err := c.pulse.await(ctx, flights[i]); err == nil && h.Available {
			out = append(out, c)
		}
	}
	return out
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
