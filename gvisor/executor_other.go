//go:build !linux

package gvisor

import (
	"context"
	"errors"

	"github.com/glovebox-dev/glovebox/backend"
)

// Executor would make sandboxes under gVisor, which exists on Linux only: it
// refuses every one.
type Executor struct{}

// MaybeAgent does nothing where there are no agents.
func MaybeAgent() {}

// Open readies the backend. The caller closes the Executor.
func Open(_ context.Context, cfg Config) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Executor{}, nil
}

// Capabilities implements backend.Executor.
func (*Executor) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Driver: driverName, Isolation: backend.IsolationNone, Claims: map[backend.Control]backend.Claim{},
		Networks: []backend.NetworkMode{backend.NetworkNone}, Features: []backend.Feature{backend.FeatureProbe},
	}
}

const fixOther = "use a backend with Docker, or run glovebox in a Linux virtual machine"

func refusal() error {
	return &backend.Error{
		Op: "create", Kind: backend.ErrUnavailable, Backend: driverName,
		Err: errors.New("gVisor runs on Linux only"), Fix: fixOther,
	}
}

// Create implements backend.Executor.
func (*Executor) Create(context.Context, backend.Spec) (backend.Sandbox, error) {
	return nil, refusal()
}

// Admit implements backend.Admitter.
func (*Executor) Admit(spec backend.Spec) (backend.Spec, []string, error) {
	return spec, nil, refusal()
}

// Probe implements backend.Prober.
func (*Executor) Probe(context.Context) (backend.Health, error) {
	return backend.Health{Isolation: backend.IsolationNone, Measured: true, Reason: refusal().Error(), Fix: fixOther}, nil
}

// Close implements backend.Executor.
func (*Executor) Close() error { return nil }

// Measure finds out what this host lets the backend enforce.
func Measure(ctx context.Context, cfg Config) (Report, error) {
	ex, err := Open(ctx, cfg)
	if err != nil {
		return Report{}, err
	}
	health, err := ex.Probe(ctx)
	return Report{
		Privilege: cfg.Privilege, Capabilities: ex.Capabilities(), Health: health,
		Facts: []Fact{{Name: "system", Value: "no Linux", Fix: fixOther}},
	}, err
}

var (
	_ backend.Executor = (*Executor)(nil)
	_ backend.Admitter = (*Executor)(nil)
	_ backend.Prober   = (*Executor)(nil)
)
