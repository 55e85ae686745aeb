//go:build linux

package gvisor_test

import (
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/gvisor"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/internal/testenv/testimage"
)

// TestViaDocker_paused: of a sandbox that is destroyed while it is paused
// nothing is left below the engine, which forgets its shim.
func TestViaDocker_paused(t *testing.T) {
	testenv.NeedRoot(t)
	_, unavailable := testimage.Ref(t.Context())
	testenv.Require(t, "docker", unavailable)
	cfg := gvisor.Config{Via: gvisor.ViaDocker, Agent: builder.Build(t, "cmd/glovebox-agent"), StateDir: t.TempDir()}
	if why := testimage.Share(cfg.StateDir); why != "" {
		t.Fatal(why)
	}
	ex := open(t, cfg)
	sb, err := ex.Create(t.Context(), backend.Spec{Network: backend.Network{Mode: backend.NetworkAllowlist}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	list, err := e.List(t.Context(), "dev.glovebox.sandbox", sb.ID())
	if err != nil || len(list) != 1 {
		t.Fatalf("containers: %v, %v", list, err)
	}
	remains := func() engine.Remains {
		t.Helper()
		left, err := engine.FindRemains(list[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		return left[0]
	}
	if remains().Empty() {
		t.Error("control: nothing is found of a sandbox that runs")
	}
	p, ok := backend.As[backend.Pauser](sb)
	if !ok {
		t.Fatal("it cannot be paused")
	}
	if err := p.Pause(t.Context(), backend.PauseOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if left := remains(); !left.Empty() {
		t.Errorf("left: %s", left)
	}
}
