package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

type config struct {
	Path  string `json:"path"`
	Depth int    `json:"depth"`
}

func (c config) Validate() error {
	if c.Depth < 0 {
		return errors.New("depth is negative")
	}
	return nil
}

type executor struct {
	cfg    config
	closed *int
}

func (ex *executor) Capabilities() backend.Capabilities {
	return backend.Capabilities{Driver: "toy", Isolation: backend.IsolationProcess}
}

func (ex *executor) Create(context.Context, backend.Spec) (backend.Sandbox, error) {
	return nil, backend.ErrUnsupported
}

func (ex *executor) Close() error { *ex.closed++; return nil }

func toy(name string, closed *int, got *registry.Env) registry.Factory {
	return registry.Driver(name, func() config { return config{Path: "/default"} },
		func(_ context.Context, env registry.Env, cfg config) (backend.Executor, error) {
			*got = env
			if cfg.Path == "broken" {
				var none *executor
				return none, errors.New("broken")
			}
			return &executor{cfg: cfg, closed: closed}, nil
		},
		func(_ context.Context, _ registry.Env, cfg config) (registry.Report, error) {
			return registry.Report{Driver: name, Privilege: fmt.Sprintf("%s%d", cfg.Path, cfg.Depth)}, nil
		})
}

func TestRegistry_opensWithDefaultsAndSection(t *testing.T) {
	t.Parallel()
	var closed int
	var env registry.Env
	r, err := registry.New(toy("toy", &closed, &env))
	if err != nil {
		t.Fatal(err)
	}
	ex, err := r.Open(t.Context(), "toy", registry.Env{Name: "mine"}, map[string]any{"depth": 3})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(config{Path: "/default", Depth: 3}, ex.(*executor).cfg); d != "" || env.Name != "mine" {
		t.Errorf("%s name %q", d, env.Name)
	}
	if ex, err := r.Open(t.Context(), "toy", registry.Env{}, map[string]any{"path": "broken"}); err == nil || ex != nil {
		t.Errorf("Open = %v, %v, want an error and no typed nil", ex, err)
	}
}

func TestRegistry_refuses(t *testing.T) {
	t.Parallel()
	var closed int
	var env registry.Env
	r, err := registry.New(toy("toy", &closed, &env))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, driver string
		with         map[string]any
		want         string
	}{
		{"a misspelt key", "toy", map[string]any{"dpeth": 1}, `did you mean "depth"`},
		{"a value that is not valid", "toy", map[string]any{"depth": -1}, "depth is negative"},
		{"a misspelt driver", "tyo", nil, `did you mean "toy"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, err := range []error{
				r.Check(tc.driver, tc.with),
				second(r.Open(t.Context(), tc.driver, registry.Env{}, tc.with)),
				second(r.Probe(t.Context(), tc.driver, registry.Env{}, tc.with)),
			} {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("error %v, want %q", err, tc.want)
				}
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestNew_refusesADuplicate(t *testing.T) {
	t.Parallel()
	var closed int
	var env registry.Env
	f := toy("toy", &closed, &env)
	if _, err := registry.New(f, f); err == nil || !strings.Contains(err.Error(), `"toy"`) {
		t.Errorf("error %v", err)
	}
	if _, err := registry.New(registry.Factory{}); err == nil {
		t.Error("an empty factory is accepted")
	}
}

func TestRegistry_probesWithDefaultsAndSection(t *testing.T) {
	t.Parallel()
	var closed int
	var env registry.Env
	r, err := registry.New(toy("toy", &closed, &env))
	if err != nil {
		t.Fatal(err)
	}
	rep, err := r.Probe(t.Context(), "toy", registry.Env{}, map[string]any{"depth": 3})
	if err != nil || rep.Driver != "toy" || rep.Privilege != "/default3" {
		t.Errorf("Probe = %+v, %v", rep, err)
	}
}
