//go:build linux

package state_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/state"
)

// sleeper is a process that runs until end is called.
func sleeper(t *testing.T) (p state.Proc, end func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(end)
	start, err := state.StartTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return state.Proc{PID: cmd.Process.Pid, Start: start}, end
}

func TestMark_detachedLivesWithItsProcess(t *testing.T) {
	// Not in parallel: see TestMarker_lifeCycle.
	s := open(t, t.TempDir())
	p, end := sleeper(t)
	for id, m := range map[string]state.Mark{
		"detached": {Detached: true, BootID: state.BootID(), Procs: []state.Proc{p}},
		"attached": {BootID: state.BootID(), Procs: []state.Proc{p}},
		"reused":   {Detached: true, BootID: state.BootID(), Procs: []state.Proc{{PID: p.PID, Start: p.Start + 1}}},
		"rebooted": {Detached: true, BootID: "another", Procs: []state.Proc{p}},
	} {
		mk, err := s.Mark(id, m)
		if err != nil {
			t.Fatal(err)
		}
		if err := mk.Close(); err != nil {
			t.Fatal(err)
		}
	}
	live, err := s.Live()
	if _, ok := live["detached"]; err != nil || len(live) != 1 || !ok {
		t.Errorf("live: %v %v", live, err)
	}
	if ids := dead(t, s, nil); len(ids) != 3 {
		t.Errorf("dead: %q", ids)
	}
	end()
	if ids := dead(t, s, nil); len(ids) != 4 {
		t.Errorf("dead after the process: %q", ids)
	}
}

func TestUIDLease_handedLivesWithItsProcess(t *testing.T) {
	// Not in parallel: see TestMarker_lifeCycle.
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p, end := sleeper(t)
	take := func() bool {
		t.Helper()
		l, err := state.LeaseSlot(dir, 7)
		if err != nil {
			t.Fatal(err)
		}
		if l == nil {
			return false
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		return true
	}
	l, err := state.LeaseSlot(dir, 7)
	if err != nil || l == nil {
		t.Fatal(l, err)
	}
	if err := l.Hand(p); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if take() {
		t.Error("the range of a running process was leased again")
	}
	held, err := state.LeaseSlot(dir, 8)
	if err != nil || held == nil {
		t.Fatal(held, err)
	}
	left := func() (names []string) {
		t.Helper()
		if err := state.TidyUIDs(dir); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	if got := left(); len(got) != 2 {
		t.Errorf("held and handed: %q are left", got)
	}
	end()
	if !take() {
		t.Error("the range of an ended process stays taken")
	}
	if got := left(); len(got) != 1 || got[0] != "8" {
		t.Errorf("%q are left", got)
	}
	if err := held.Release(); err != nil {
		t.Error(err)
	}
}
