package router

import (
	"context"
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
)

// sandbox adds what the router knows to the receipt and is transparent
// otherwise.
type sandbox struct {
	sb      backend.Sandbox
	backend string
	passed  []backend.Candidate
}

func (s *sandbox) ID() string { return s.sb.ID() }

func (s *sandbox) Start(ctx context.Context, cmd backend.Command) (backend.Process, error) {
	return s.sb.Start(ctx, cmd)
}

func (s *sandbox) Files() backend.Filesystem { return s.sb.Files() }

func (s *sandbox) Receipt() backend.Receipt {
	r := s.sb.Receipt()
	r.Backend = s.backend
	r.Passed = append(slices.Clone(s.passed), r.Passed...)
	return r
}

func (s *sandbox) Destroy(ctx context.Context) error { return s.sb.Destroy(ctx) }

// Unwrap lets backend.As reach the optional interfaces.
func (s *sandbox) Unwrap() any { return s.sb }

var _ backend.Sandbox = (*sandbox)(nil)
