package cli

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

// A daemon that hangs holds up neither the others nor the end.
func TestMeasure_hungDaemon(t *testing.T) {
	t.Parallel()
	factory := func(name string, probe func(context.Context) (registry.Report, error)) registry.Factory {
		return registry.Driver(name, func() struct{} { return struct{}{} },
			func(context.Context, registry.Env, struct{}) (backend.Executor, error) {
				return nil, backend.ErrUnavailable
			},
			func(ctx context.Context, _ registry.Env, _ struct{}) (registry.Report, error) { return probe(ctx) })
	}
	reg, err := registry.New(
		factory("hung", func(ctx context.Context) (registry.Report, error) { <-ctx.Done(); return registry.Report{}, ctx.Err() }),
		factory("well", func(context.Context) (registry.Report, error) {
			return registry.Report{Driver: "well", Health: backend.Health{Available: true}}, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Config{Backends: map[string]config.Backend{"a": {Driver: "hung"}, "b": {Driver: "well"}}}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		got := measure(t.Context(), cfg, config.Open(cfg, reg))
		if took := time.Since(began); took > measureTimeout {
			t.Errorf("it took %s", took)
		}
		if len(got) != 2 || got[0].Error == "" || got[0].Driver != "hung" || !got[1].Health.Available {
			t.Errorf("%+v", got)
		}
	})
}
