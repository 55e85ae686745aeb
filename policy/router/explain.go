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
	// Claims are those of the chosen candidate.
	Claims map[backend.Control]backend.Claim `json:"claims,omitempty"`
	// Health is what a probe found; nil for a candidate that was not probed.
	Health *backend.Health `json:"health,omitempty"`
}

// Explain tells which candidate Create would choose for spec now and why. It
// runs nothing of the caller's. Where several could be chosen it probes them,
// as far as it must; an only one is not probed, since nothing would be decided
// by it. An invalid spec is an error.
func (r *Router) Explain(ctx context.Context, spec backend.Spec) (Decision, error) {
	spec = r.raise(spec)
	if err := spec.Validate(); err != nil {
		return Decision{}, err
	}
	d := Decision{Spec: spec}
	for _, a := range r.opts.Absent {
		d.Candidates = append(d.Candidates, Verdict{Backend: a.Backend, Isolation: a.Isolation, Reason: a.Reason})
	}
	eligible, passed := r.eligible(spec)
	dropped := make(map[string]string, len(passed))
	for _, p := range passed {
		dropped[p.Backend] = p.Reason
	}
	several := len(eligible) > 1 && !r.opts.Required
	stop := "" // why no further candidate would be tried
	for i, c := range r.candidates {
		caps := c.Executor.Capabilities()
		v := Verdict{Backend: c.Name, Driver: caps.Driver, Isolation: caps.Isolation, Reason: dropped[c.Name]}
		switch {
		case v.Reason != "":
		case stop != "":
			v.Reason = stop
		default:
			stop = r.judge(c, caps, spec, &d, &v)
			if !v.Chosen || !several {
				break
			}
			h, err := r.watch.pulses[i].look(ctx)
			if err != nil {
				return Decision{}, err
			}
			v.Health = &h
			if why := short(h, spec); why != "" {
				d.Backend, d.Spec, d.Warnings = "", spec, nil
				v.Chosen, v.Claims, v.Reason, stop = false, nil, why, ""
			} else {
				v.Reason += ", as a probe confirms"
			}
		}
		d.Candidates = append(d.Candidates, v)
	}
	return d, nil
}

// short says why a candidate with this health is passed over, "" when it is not.
func short(h backend.Health, spec backend.Spec) string {
	switch {
	case !h.Available:
		return unhealthy(h)
	case h.Isolation < spec.MinIsolation:
		return "it reaches isolation " + h.Isolation.String() + ", " + spec.MinIsolation.String() + " is asked for"
	default:
		return ""
	}
}

// judge puts into v and d what comes of trying c, and says why nobody would be
// tried after it, "" where somebody would.
func (r *Router) judge(c Candidate, caps backend.Capabilities, spec backend.Spec, d *Decision, v *Verdict) string {
	granted, warnings, err := admit(c, caps, spec)
	switch {
	case err == nil:
		d.Spec, d.Backend, d.Warnings = granted, c.Name, warnings
		v.Chosen, v.Claims = true, caps.Claims
		v.Reason = "the first that reaches isolation " + spec.MinIsolation.String() + " and takes it on"
		return "not needed: " + c.Name + " comes first"
	case r.opts.Required:
		v.Reason = err.Error()
		return "not tried: required forbids falling back"
	case !mayFallBack(err):
		v.Reason = err.Error()
		return "not tried: what " + c.Name + " refuses so is refused"
	default:
		v.Reason = err.Error()
		return ""
	}
}

func admit(c Candidate, caps backend.Capabilities, spec backend.Spec) (backend.Spec, []string, error) {
	if a, ok := backend.As[backend.Admitter](c.Executor); ok {
		return a.Admit(spec)
	}
	return caps.Admit(c.Name, spec)
}
