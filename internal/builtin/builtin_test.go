package builtin_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/builtin"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

func TestRegistry(t *testing.T) {
	t.Parallel()
	r, err := builtin.Registry()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"docker", "gvisor", "subprocess"}, r.Names()); d != "" {
		t.Error(d)
	}
	if err := r.Check("subprocess", map[string]any{"privilege": "userns"}); err != nil {
		t.Error(err)
	}
	if err := r.Check("subprocess", map[string]any{"privilege": "most"}); err == nil {
		t.Error("an unknown privilege is accepted")
	}
	ex, err := r.Open(t.Context(), "subprocess", registry.Env{Templates: map[string]registry.Template{"t": {Rootfs: t.TempDir()}}},
		map[string]any{"state_dir": t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := ex.Close(); err != nil {
		t.Error(err)
	}
}

// TestTemplates_elsewhere: what one backend does not have may be another's, so
// the refusal lets the choice go on.
func TestTemplates_elsewhere(t *testing.T) {
	t.Setenv("GLOVEBOX_STATE_DIR", t.TempDir())
	r, err := builtin.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for _, driver := range []string{"subprocess", "gvisor"} {
		ex, err := r.Open(t.Context(), driver, registry.Env{Templates: map[string]registry.Template{"theirs": {Image: "theirs:1"}}},
			map[string]any{"state_dir": t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		for _, template := range []string{"theirs", "base"} {
			spec := backend.Spec{Template: template}
			_, cerr := ex.Create(t.Context(), spec)
			a, ok := backend.As[backend.Admitter](ex)
			if !ok {
				t.Fatal("it says nothing beforehand")
			}
			_, _, aerr := a.Admit(spec)
			for _, err := range []error{cerr, aerr} {
				if k := backend.KindOf(err); k != backend.ErrUnavailable && k != backend.ErrUnsupported {
					t.Errorf("%s, template %s: %v (%s)", driver, template, err, k)
				}
			}
		}
		if err := ex.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestTemplates_roots: a root with capabilities is gVisor's alone.
func TestTemplates_roots(t *testing.T) {
	t.Setenv("GLOVEBOX_STATE_DIR", t.TempDir())
	r, err := builtin.Registry()
	if err != nil {
		t.Fatal(err)
	}
	env := registry.Env{Templates: map[string]registry.Template{"own": {Rootfs: t.TempDir(), Root: true}, "plain": {Rootfs: "not-built"}}}
	asks := func(driver string, with map[string]any, template string) error {
		t.Helper()
		ex, err := r.Open(t.Context(), driver, env, with)
		if err != nil {
			t.Fatal(err)
		}
		defer ex.Close()
		a, ok := backend.As[backend.Admitter](ex)
		if !ok {
			t.Fatal("it says nothing beforehand")
		}
		_, _, err = a.Admit(backend.Spec{Template: template})
		_, cerr := ex.Create(t.Context(), backend.Spec{Template: template})
		if template == "own" && err != nil && backend.KindOf(err) != backend.KindOf(cerr) {
			t.Errorf("%s: refused as %v beforehand, and then %v", driver, err, cerr)
		}
		return err
	}
	for driver, with := range map[string]map[string]any{
		"subprocess": {"state_dir": t.TempDir()}, "docker": {"state_dir": t.TempDir()}, "gvisor": {"state_dir": t.TempDir(), "via": "docker"},
	} {
		err := asks(driver, with, "own")
		e, ok := errors.AsType[*backend.Error](err)
		if !ok || e.Kind != backend.ErrUnsupported || e.Field != "template" || e.Fix == "" {
			t.Errorf("%s: %v", driver, err)
		}
		if err := asks(driver, with, "plain"); backend.KindOf(err) == backend.ErrUnsupported {
			t.Errorf("%s without the request: %v", driver, err)
		}
	}
	if err := asks("gvisor", map[string]any{"state_dir": t.TempDir()}, "own"); backend.KindOf(err) == backend.ErrUnsupported {
		t.Errorf("gvisor: %v", err)
	}
}
