//go:build !linux

package docker

import (
	"context"
	"errors"
	"runtime"

	"github.com/glovebox-dev/glovebox/backend"
)

// Executor makes sandboxes as containers, on Linux. It is safe for concurrent
// use. On this system it refuses every one.
type Executor struct{}

// Open readies the backend. The caller closes the Executor.
func Open(_ context.Context, cfg Config) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Executor{}, nil
}

// MaybeAgent does nothing here.
func MaybeAgent() {}

// Capabilities implements backend.Executor.
func (*Executor) Capabilities() backend.Capabilities {
	return backend.Capabilities{Driver: driverName, Isolation: backend.IsolationContainer}
}

// Create implements backend.Executor.
func (*Executor) Create(context.Context, backend.Spec) (backend.Sandbox, error) {
	return nil, &backend.Error{
		Op: "create", Kind: backend.ErrUnavailable, Backend: driverName,
		Err: errors.New("the engine is not on this machine itself on " + runtime.GOOS), Fix: "run glovebox on Linux, in the engine's virtual machine",
	}
}

// Close implements backend.Executor.
func (*Executor) Close() error { return nil }

// Measure says that there is nothing.
func Measure(ctx context.Context, cfg Config) (Report, error) {
	ex, err := Open(ctx, cfg)
	if err != nil {
		return Report{}, err
	}
	_, err = ex.Create(ctx, backend.Spec{})
	return Report{Capabilities: ex.Capabilities(), Health: backend.Health{Reason: err.Error()}}, nil
}

var _ backend.Executor = (*Executor)(nil)
