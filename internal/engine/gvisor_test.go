//go:build linux

package engine

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// TestContainer_gvisor: the same calls drive a container of gVisor, whose
// streams are the agent's only way out.
func TestContainer_gvisor(t *testing.T) {
	t.Parallel()
	e := docker(t)
	info, err := e.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unavailable := ""
	n := slices.IndexFunc(info.Runtimes, func(r Runtime) bool { return r.GVisor })
	if n < 0 {
		unavailable = "Docker has no runtime runsc"
	}
	testenv.Require(t, "gvisor", unavailable)
	c := spec(t, "echo")
	c.Runtime, c.Memory, c.PIDs, c.Stdio, c.StdinOnce = info.Runtimes[n].Name, 256<<20, 256, true, true
	c.Seccomp = agentProfile(t)
	id := create(t, e, c)
	s, err := e.Attach(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	_ = s.SetDeadline(time.Now().Add(30 * time.Second))
	got := make([]byte, 5)
	if _, err := io.WriteString(s, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, got); err != nil || string(got) != "hello" {
		t.Fatalf("%q %v", got, err)
	}
	// Its input ends with the one who attached, and the container with that.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if state, err := e.Wait(within(t, 30*time.Second), id); err != nil || !state.Ended() {
		t.Errorf("%+v, %v", state, err)
	}
	if err := e.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if info.Local {
		if err := (Remains{ID: id}).Clean(within(t, 30*time.Second)); err != nil {
			t.Error(err)
		}
	}
}
