//go:build linux

package agent

import (
	"maps"
	"time"
)

// Renewal is what a copy of a sandbox that was saved has of its own.
type Renewal struct {
	Token  string            // in the place of every earlier one
	Env    map[string]string // over the environment so far
	Totals Totals
	// Deadline is from now; 0 is none.
	Deadline time.Duration
}

// Renew makes the server that of another sandbox, whose commands run on. It is
// called while nobody is connected.
func (s *Server) Renew(r Renewal) error {
	s.mu.Lock()
	s.init.token = r.Token
	env := maps.Clone(s.renewed.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, r.Env)
	r.Env = env
	s.renewed = &r
	s.mu.Unlock()
	return s.setDeadline(r.Deadline)
}

// totals is the sandbox's size.
func (s *Server) totals() Totals {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renewed.Totals != (Totals{}) {
		return s.renewed.Totals
	}
	return s.opts.Totals
}
