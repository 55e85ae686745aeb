//go:build !linux

package subprocess

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess/internal/plain"
)

// Measure finds out what this host lets the backend enforce, by making a
// sandbox and running a program in it where that is accepted.
func Measure(ctx context.Context, cfg Config) (Report, error) {
	ex, err := Open(ctx, cfg)
	if err != nil {
		return Report{}, err
	}
	defer ex.Close() //nolint:errcheck // nothing of a measurement is kept
	return Report{
		Privilege: ex.cfg.Privilege, Capabilities: ex.caps, Health: ex.probe(ctx),
		Facts: []Fact{
			{Name: "system", Value: systemName() + " on " + runtime.GOARCH, Fix: "Linux has namespaces, cgroups, seccomp and Landlock; " + fixOther},
			{Name: "isolation", Value: backend.IsolationNone.String(), Fix: fixOther},
		},
	}, nil
}

// prober is an Executor's Prober.
type prober Executor

// Probe implements backend.Prober.
func (p *prober) Probe(ctx context.Context) (backend.Health, error) {
	return (*Executor)(p).probe(ctx), nil
}

// probe runs a shell where that is accepted.
func (ex *Executor) probe(ctx context.Context) backend.Health {
	began := time.Now()
	h := backend.Health{Isolation: backend.IsolationNone, Measured: true, Fix: fixOther}
	if ex.plain == nil {
		h.Reason = ex.refusal().Err.Error()
		return h
	}
	h.Warnings = []string{plain.Warning}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	args := []string{"/bin/sh", "-c", "exit 42"}
	if runtime.GOOS == "windows" {
		args = []string{cmp.Or(os.Getenv("ComSpec"), "cmd.exe"), "/c", "exit 42"}
	}
	res, err := backend.Run(ctx, ex, backend.RunSpec{Command: backend.Command{Args: args, Timeout: 10 * time.Second}})
	h.Took = time.Since(began)
	switch {
	case err != nil:
		h.Reason = err.Error()
	case res.Exit.String() != "exited(42)":
		h.Reason = fmt.Sprintf("a shell ended with %s and said %.200q", res.Exit, append(res.Stdout, res.Stderr...))
	default:
		h.Available = true
	}
	return h
}
