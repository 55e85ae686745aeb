package egress

import (
	"net/netip"
	"time"
)

// Kind is what was decided on.
type Kind string

// The kinds of decisions.
const (
	KindResolve Kind = "resolve" // the address of a name
	KindConnect Kind = "connect" // a connection, HTTPS that is not opened among them
	KindHTTP    Kind = "http"    // one request
	// KindDatagram is a flow of datagrams: what one port of the sandbox sends
	// to one elsewhere, and gets back.
	KindDatagram Kind = "udp"
)

// Decision is one entry for the audit log. What is allowed is told of twice, as
// it begins and, Done, as it ends. It holds no secret, no query of an URL and
// nothing of what was sent; texts from the sandbox are bounded, and quoted
// where they could be anything.
type Decision struct {
	Time    time.Time `json:"time"`
	Sandbox string    `json:"sandbox"`
	// ID is the same in the two entries of one decision.
	ID   uint64 `json:"id"`
	Kind Kind   `json:"kind"`
	// Host is the name or the address that was asked for, Address what it
	// resolved to, where that was reached.
	Host    string     `json:"host"`
	Address netip.Addr `json:"address,omitzero"`
	Port    uint16     `json:"port,omitempty"`
	Method  string     `json:"method,omitempty"`
	Path    string     `json:"path,omitempty"`
	Allowed bool       `json:"allowed"`
	Rule    string     `json:"rule,omitempty"`
	Reason  string     `json:"reason,omitempty"`

	Done bool `json:"done,omitempty"`
	// Sent and Received are the payload's bytes, as the sandbox sees it.
	Sent     int64         `json:"sent,omitempty"`
	Received int64         `json:"received,omitempty"`
	Duration time.Duration `json:"duration,omitempty"`
}

// maxText bounds what a Decision holds of the sandbox's own words.
const maxText = 512

// audit tells of d.
func (p *Proxy) audit(d Decision) Decision {
	if d.ID == 0 {
		d.ID = p.ids.Add(1)
	}
	if d.Time.IsZero() {
		d.Time = p.opts.Now()
	}
	d.Sandbox = p.opts.Sandbox
	d.Host, d.Path, d.Method = clip(d.Host), clip(d.Path), clip(d.Method)
	if p.opts.Audit != nil {
		p.opts.Audit(d)
	}
	return d
}

// ended tells of the end of what d allowed.
func (p *Proxy) ended(d Decision, sent, received int64) {
	now := p.opts.Now()
	d.Done, d.Sent, d.Received = true, sent, received
	d.Duration, d.Time = now.Sub(d.Time), now
	p.audit(d)
}

func (t target) decision(kind Kind, v verdict) Decision {
	return Decision{Kind: kind, Host: t.host(), Port: t.port, Allowed: v.ok, Rule: v.rule, Reason: v.reason}
}

// clip bounds s and drops what a terminal or a line would take for its own.
func clip(s string) string {
	s = s[:min(len(s), maxText)]
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f {
			out = append(out, '?')
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}
