package subprocess

import (
	"context"

	"github.com/glovebox-dev/glovebox/backend"
)

// Executor makes sandboxes as child processes.
type Executor struct{}

// Open readies the backend. It succeeds on valid configuration whatever the
// host offers; Probe says what it offers.
func Open(ctx context.Context, cfg Config) (*Executor, error) {
	return &Executor{}, cfg.Validate()
}

// Fact is one thing measured about this host.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	OK    bool   `json:"ok"`
	// Fix says what to do to get it, when it is missing and can be had.
	Fix string `json:"fix,omitempty"`
}

// Report is what Measure found.
type Report struct {
	Privilege    Privilege            `json:"privilege"`
	Health       backend.Health       `json:"health"`
	Capabilities backend.Capabilities `json:"capabilities"`
	Facts        []Fact               `json:"facts"`
}

// Measure finds out what this host lets the backend enforce, by doing it.
func Measure(ctx context.Context, cfg Config) (Report, error) { return Report{}, nil }

// MaybeAgent turns this process into a sandbox's agent when it was started as
// one, and never returns then. Programs that use this package and ship no
// glovebox-agent call it first in main.
func MaybeAgent() {}

// Capabilities implements backend.Executor.
func (ex *Executor) Capabilities() backend.Capabilities { return backend.Capabilities{} }

// Create implements backend.Executor.
func (ex *Executor) Create(ctx context.Context, spec backend.Spec) (backend.Sandbox, error) {
	return nil, backend.ErrUnsupported
}

// Close implements backend.Executor.
func (ex *Executor) Close() error { return nil }
