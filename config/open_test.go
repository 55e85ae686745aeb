package config_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

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

// TestComplete: what a template and the general limits say is there in Go too,
// and what the caller says wins.
func TestComplete(t *testing.T) {
	t.Parallel()
	reg, err := registry.New(driver("a", backend.IsolationContainer, nil), driver("b", backend.IsolationContainer, nil))
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t)
	p.user("version: 1\nbackends: {a: {driver: a}, b: {driver: b}}\nexecutors: {default: {use: [a, b]}}\n" +
		"limits: {memory: 300MiB, pids: 40, lifetime: 2m, timeout: 40s, max_timeout: 1m}\n" +
		"templates:\n  t: {rootfs: base, limits: {memory: 200MiB, output: 1MiB, on_output_limit: kill, max_timeout: 5m}, backends: [b]}\n" +
		"  short: {rootfs: base, limits: {max_timeout: 10s}}\n  none: {rootfs: base, backends: [c]}\n")
	if _, err := config.Load(config.Options{Dir: p.project, Environ: p.env, Registry: reg}); err == nil || !strings.Contains(err.Error(), "templates.none.backends") {
		t.Fatalf("a backend that nobody configured: %v", err)
	}
	p.user("version: 1\nbackends: {a: {driver: a}, b: {driver: b}, c: {driver: b}}\nexecutors: {default: {use: [a, b]}}\n" +
		"limits: {memory: 300MiB, pids: 40, lifetime: 2m, timeout: 40s, max_timeout: 1m}\n" +
		"templates:\n  t: {rootfs: base, limits: {memory: 200MiB, output: 1MiB, on_output_limit: kill, max_timeout: 5m}, backends: [b]}\n" +
		"  short: {rootfs: base, limits: {max_timeout: 10s}}\n  none: {rootfs: base, backends: [c]}\n")
	l, err := config.Load(config.Options{Dir: p.project, Environ: p.env, Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	for template, want := range map[string][2]config.Duration{
		"t": {config.Duration(40 * time.Second), config.Duration(time.Minute)}, "short": {config.Duration(10 * time.Second), config.Duration(10 * time.Second)},
	} {
		if got := l.Config.LimitsFor(template); got.Timeout != want[0] || got.MaxTimeout != want[1] {
			t.Errorf("%s: timeout %s, at most %s", template, got.Timeout, got.MaxTimeout)
		}
	}
	executors := config.Open(l.Config, reg)
	defer executors.Close()
	ex, err := executors.Executor(t.Context(), config.DefaultExecutor)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := ex.Create(t.Context(), backend.Spec{Template: "t", Limits: backend.Limits{Memory: 100 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	r := sb.Receipt()
	if len(r.Passed) != 1 || r.Passed[0].Backend != "a" || r.Passed[0].Reason != "template t is only for b" || r.Backend != "b" {
		t.Errorf("on %s, passed over: %+v", r.Backend, r.Passed)
	}
	_, err = ex.Create(t.Context(), backend.Spec{Template: "none"})
	if be, ok := errors.AsType[*backend.Error](err); !ok || be.Field != "template" || !strings.Contains(be.Fix, "c") {
		t.Errorf("a template for none of them: %v", err)
	}
	for name, test := range map[string]struct{ spec, want backend.Spec }{
		"template": {backend.Spec{Template: "t"}, backend.Spec{
			Limits: backend.Limits{Memory: 200 << 20, Pids: 40, Output: 1 << 20, KillOnOutput: true}, Lifetime: 2 * time.Minute,
		}},
		"caller": {backend.Spec{Template: "t", Lifetime: time.Minute, Limits: backend.Limits{Memory: 100 << 20}}, backend.Spec{
			Limits: backend.Limits{Memory: 100 << 20, Pids: 40, Output: 1 << 20}, Lifetime: time.Minute,
		}},
		"general": {backend.Spec{}, backend.Spec{Limits: backend.Limits{Memory: 300 << 20, Pids: 40}, Lifetime: 2 * time.Minute}},
	} {
		d, err := ex.Explain(t.Context(), test.spec)
		if err != nil {
			t.Fatal(err)
		}
		got := d.Spec
		if diff := cmp.Diff(test.want.Limits.WithDefaults(), got.Limits); diff != "" || got.Lifetime != test.want.Lifetime {
			t.Errorf("%s: %s, lifetime %v", name, diff, got.Lifetime)
		}
	}
}
