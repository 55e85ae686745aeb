//go:build linux

package box

import (
	"context"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// probeTimeout bounds a probe, whatever hangs.
const probeTimeout = 30 * time.Second

// ProbeShell makes a sandbox on ex and runs a shell in it.
func ProbeShell(ctx context.Context, ex backend.Executor) backend.Health {
	began := time.Now()
	h := backend.Health{Isolation: ex.Capabilities().Isolation, Measured: true}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	res, err := backend.Run(ctx, ex, backend.RunSpec{
		Command: backend.Command{Args: []string{"/bin/sh", "-c", "echo $((6*7))"}, Timeout: 10 * time.Second},
	})
	h.Took = time.Since(began)
	switch {
	case err != nil:
		h.Reason = err.Error()
	case string(res.Stdout) != "42\n":
		h.Reason = fmt.Sprintf("a shell in a sandbox ended with %s and said %.200q", res.Exit, append(res.Stdout, res.Stderr...))
	default:
		h.Available = true
	}
	return h
}
