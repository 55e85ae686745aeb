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
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

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
	// Complete fills in what the configuration says of sandboxes and a Spec leaves
	// open; nil for nothing.
	Complete func(backend.Spec) backend.Spec
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

// raise applies the policy's minimum and defaults to spec.
func (r *Router) raise(spec backend.Spec) backend.Spec {
	if r.opts.Complete != nil {
		spec = r.opts.Complete(spec)
	}
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
	allowed, limited := r.opts.Templates[spec.Template]
	if limited && slices.ContainsFunc(r.candidates, func(c Candidate) bool {
		return c.Executor.Capabilities().Isolation >= spec.MinIsolation
	}) {
		return &backend.Error{
			Op: "create", Kind: backend.ErrUnsupported, Field: "template",
			Err: fmt.Errorf("no backend may run the template %s: %s", spec.Template, reasons(passed)),
			Fix: "choose one of " + strings.Join(allowed, ", ") + ", or add one to the template's backends",
		}
	}
	return &backend.Error{
		Op: "create", Kind: backend.ErrUnsupported, Field: "min_isolation",
		Err: fmt.Errorf("no backend gives isolation %s: %s", spec.MinIsolation, reasons(passed)),
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
