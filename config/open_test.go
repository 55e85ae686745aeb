package config_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

// driver is a factory of fakes at a level; open fails with refusal if that is
// not nil.
func driver(name string, level backend.Isolation, refusal error) registry.Factory {
	type settings struct {
		Depth int `json:"depth"`
	}
	return registry.Driver(name, func() settings { return settings{} },
		func(context.Context, registry.Env, settings) (backend.Executor, error) {
			if refusal != nil {
				return nil, refusal
			}
			return backendtest.New(backendtest.WithCapabilities(func(c *backend.Capabilities) { c.Isolation, c.Driver = level, name })), nil
		},
		func(context.Context, registry.Env, settings) (registry.Report, error) { return registry.Report{}, nil })
}

// order is the backends that the default executor goes through, with their
// drivers; an error's text when it cannot be had.
func order(t *testing.T, text string, factories ...registry.Factory) []string {
	t.Helper()
	reg, err := registry.New(factories...)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t)
	p.user(text)
	l, err := config.Load(config.Options{Dir: p.project, Environ: p.env, Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	executors := config.Open(l.Config, reg)
	defer func() {
		if err := errors.Join(executors.Close(), executors.Close()); err != nil {
			t.Error(err)
		}
	}()
	ex, err := executors.Executor(t.Context(), config.DefaultExecutor)
	if err != nil {
		return []string{err.Error()}
	}
	d, err := ex.Explain(t.Context(), backend.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range d.Candidates {
		where := c.Backend + " " + c.Driver
		if c.Driver == "" {
			where = c.Backend + ": " + c.Reason
		}
		out = append(out, where)
	}
	return out
}

func TestExecutors_order(t *testing.T) {
	t.Parallel()
	const process, container, kernel, vm = backend.IsolationProcess, backend.IsolationContainer, backend.IsolationKernel, backend.IsolationVM
	down := &backend.Error{Op: "open", Kind: backend.ErrUnavailable, Err: errors.New("no engine here")}
	wrong := &backend.Error{Op: "open", Kind: backend.ErrInvalid, Err: errors.New("a bad setting")}
	local := []registry.Factory{
		driver("bare", process, nil).Local(), driver("zoo", kernel, nil).Local(), driver("arc", kernel, nil).Local(),
		driver("box", container, nil).Local(), driver("cloud", vm, nil),
	}
	broken := func(err error) []registry.Factory {
		return []registry.Factory{driver("bare", process, nil).Local(), driver("box", container, err).Local()}
	}
	for _, tc := range []struct {
		name, text string
		drivers    []registry.Factory
		want       []string
	}{
		{"nothing configured: strongest first, then cheapest, nothing that sends code away", "", local, []string{"zoo zoo", "arc arc", "box box", "bare bare"}},
		{
			"a configured backend takes its driver's default's place", "backends: {mine: {driver: arc}, far: {driver: cloud}}", local,
			[]string{"far cloud", "zoo zoo", "mine arc", "box box", "bare bare"},
		},
		{"the default with settings stays", "backends: {mine: {driver: arc}, arc: {with: {depth: 2}}}", local, []string{"zoo zoo", "arc arc", "mine arc", "box box", "bare bare"}},
		{"a default by name", "backend: box", local, []string{"box box"}},
		{"a list in its own order", "backend: [bare, zoo]", local, []string{"bare bare", "zoo zoo"}},
		{"one that cannot be opened", "", broken(down), []string{"box: open: no engine here", "bare bare"}},
		{"one that is wrongly configured", "", broken(wrong), []string{"backend box: open: a bad setting"}},
		{"one that is required and cannot be opened", "executors: {default: {use: [box, bare], required: true}}", broken(down), []string{"backend box: open: no engine here"}},
		{"the only one", "backend: box", broken(down), []string{"backend box: open: no engine here"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if d := cmp.Diff(tc.want, order(t, tc.text, tc.drivers...)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestExecutors_closed(t *testing.T) {
	t.Parallel()
	reg, err := registry.New(driver("box", backend.IsolationVM, nil).Local())
	if err != nil {
		t.Fatal(err)
	}
	l, err := config.Load(config.Options{Dir: t.TempDir(), Environ: []string{"HOME=" + t.TempDir()}, Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	executors := config.Open(l.Config, reg)
	ex, err := executors.Executor(t.Context(), config.DefaultExecutor)
	if err != nil {
		t.Fatal(err)
	}
	if err := executors.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := ex.Create(t.Context(), backend.Spec{}); backend.KindOf(err) != backend.ErrClosed {
		t.Errorf("error %v of an executor that is closed", err)
	}
	if _, err := executors.Executor(t.Context(), config.DefaultExecutor); backend.KindOf(err) != backend.ErrClosed || !strings.Contains(err.Error(), "closed") {
		t.Errorf("error %v", err)
	}
}
