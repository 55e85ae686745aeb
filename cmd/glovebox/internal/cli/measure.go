package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/policy/router"
)

// measureTimeout bounds the measuring of one backend, whose daemon may hang.
const measureTimeout = 30 * time.Second

// measure probes all backends at once.
func measure(ctx context.Context, cfg config.Config, executors *config.Executors) []backendDiagnosis {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	names := slices.Sorted(maps.Keys(cfg.Backends))
	out := make([]backendDiagnosis, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			b := backendDiagnosis{Name: name}
			var err error
			if b.Report, err = executors.Probe(ctx, name); err != nil {
				b.Error = err.Error()
				b.Driver = cfg.Backends[name].Driver
			}
			out[i] = b
		})
	}
	wg.Wait()
	return out
}

// decide is what a run without further wishes would be made on.
func decide(ctx context.Context, executors *config.Executors) (*router.Decision, error) {
	ex, err := executors.Executor(ctx, config.DefaultExecutor)
	if err != nil {
		return nil, err
	}
	decision, err := ex.Explain(ctx, backend.Spec{})
	return &decision, err
}

// decisionLines says which backend is chosen and why not the others.
func decisionLines(d *router.Decision) []string {
	if d == nil {
		return nil
	}
	chosen := d.Backend
	if chosen == "" {
		chosen = "none"
	}
	lines := []string{fmt.Sprintf("chosen by default: %s (isolation %s or more is asked for)", chosen, d.Spec.MinIsolation)}
	for _, c := range d.Candidates {
		lines = append(lines, fmt.Sprintf("  %-12s %s", c.Backend, c.Reason))
	}
	return lines
}
