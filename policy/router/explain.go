package router

import (
	"context"

	"github.com/glovebox-dev/glovebox/backend"
)

// Decision is what Create would do with a Spec, without doing it.
type Decision struct {
	Spec       backend.Spec `json:"spec"`              // as it would be granted
	Backend    string       `json:"backend,omitempty"` // the chosen one; empty when none can
	Candidates []Verdict    `json:"candidates"`
	Warnings   []string     `json:"warnings,omitempty"`
}

// Verdict is what the router thinks of one candidate.
type Verdict struct {
	Backend   string            `json:"backend"`
	Driver    string            `json:"driver"`
	Isolation backend.Isolation `json:"isolation"`
	Chosen    bool              `json:"chosen"`
	Reason    string            `json:"reason"` // why it is chosen or passed over
	Health    backend.Health    `json:"health,omitzero"`
	// Claims are those of the chosen candidate.
	Claims map[backend.Control]backend.Claim `json:"claims,omitempty"`
}

// Explain tells which candidate Create would choose for spec and why. It
// probes candidates and makes nothing. An invalid spec is an error.
func (r *Router) Explain(ctx context.Context, spec backend.Spec) (Decision, error) {
	spec = r.raise(spec)
	if err := spec.Validate(); err != nil {
		return Decision{}, err
	}
	d := Decision{Spec: spec}
	_, passed := r.eligible(spec)
	dropped := make(map[string]string, len(passed))
	for _, p := range passed {
		dropped[p.Backend] = p.Reason
	}
	tried := false
	for _, c := range r.candidates {
		caps := c.Executor.Capabilities()
		v := Verdict{Backend: c.Name, Driver: caps.Driver, Isolation: caps.Isolation, Reason: dropped[c.Name]}
		switch {
		case v.Reason != "":
		case d.Backend != "":
			v.Reason = "not needed: " + d.Backend + " comes first"
		case tried && r.opts.Required:
			v.Reason = "not tried: required forbids falling back"
		default:
			tried = true
			if err := r.judge(ctx, c, caps, spec, &d, &v); err != nil {
				return d, err
			}
		}
		d.Candidates = append(d.Candidates, v)
	}
	return d, nil
}

func (r *Router) judge(ctx context.Context, c Candidate, caps backend.Capabilities, spec backend.Spec, d *Decision, v *Verdict) error {
	v.Health = backend.Health{Available: true, Isolation: caps.Isolation}
	if p, ok := backend.As[backend.Prober](c.Executor); ok {
		h, err := p.Probe(ctx)
		if err != nil {
			return err
		}
		v.Health = h
	}
	if !v.Health.Available {
		v.Reason = "not available: " + v.Health.Reason
		if v.Health.Fix != "" {
			v.Reason += "; " + v.Health.Fix
		}
		return nil
	}
	granted, warnings, err := caps.Admit(c.Name, spec)
	if err != nil {
		v.Reason = err.Error()
		return nil
	}
	d.Spec, d.Backend, d.Warnings = granted, c.Name, warnings
	v.Chosen, v.Claims, v.Reason = true, caps.Claims, "the first that reaches isolation "+spec.MinIsolation.String()+" and is available"
	return nil
}
