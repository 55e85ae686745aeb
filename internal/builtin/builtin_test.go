package builtin_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

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
