//go:build linux

package subprocess_test

import (
	"bufio"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// TestSweep_afterASupervisorWasKilled kills a process that makes, uses and
// destroys sandboxes, at random moments. Nothing may be left but the kept
// sandboxes that it had been given, and those are found.
func TestSweep_afterASupervisorWasKilled(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) { killSupervisors(t, h, 12) })
}

func TestSoak_supervisorsAreKilled(t *testing.T) {
	if os.Getenv(envSoak) == "" {
		t.Skip("takes minutes; " + envSoak + " is not set")
	}
	inModes(t, namespaced, func(t *testing.T, h *harness) { killSupervisors(t, h, 500) })
}

func killSupervisors(t *testing.T, h *harness, rounds int) {
	t.Helper()
	if err := h.ex.Close(); err != nil {
		t.Fatal(err)
	}
	kept := 0
	for range rounds {
		kept += killASupervisor(t, h, time.Duration(rand.IntN(400))*time.Millisecond)
	}
	t.Logf("%d kept sandboxes were found again", kept)
	if h := newHarness(t, h.cfg); len(left(t, h.cfg)) != 0 || len(sandboxes(t, h.ex)) != 0 {
		t.Errorf("left in the end: %q", left(t, h.cfg))
	}
}

// killASupervisor does it once and returns how many sandboxes were found.
func killASupervisor(t *testing.T, h *harness, after time.Duration) int {
	t.Helper()
	number := uniqueNumber()
	cmd := role(t, roleVictim, h.cfg, number)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			lines <- sc.Text()
		}
	}()
	said := []string{<-lines} // it has begun
	<-time.After(after)
	cmd.Process.Kill()
	for line := range lines {
		said = append(said, line)
	}
	cmd.Wait()
	var ready, ending []string
	for _, line := range said {
		switch what, id, _ := strings.Cut(line, " "); what {
		case "ready":
			ready = append(ready, id)
		case "ending":
			ending = append(ending, id)
		case "error":
			t.Errorf("the supervisor said %q", line)
		}
	}
	h2 := newHarness(t, h.cfg)
	eventually(t, "what was bound has ended", func() bool {
		if err := h2.ex.Sweep(t.Context()); err != nil {
			t.Errorf("sweep: %v", err)
		}
		live := sandboxes(t, h2.ex)
		for _, info := range live {
			if !info.Keep || info.State != backend.StateRunning {
				return false
			}
		}
		markers, err := os.ReadDir(filepath.Join(h.cfg.StateDir, "sandboxes"))
		return err == nil && len(markers) == len(live)
	})
	found := map[string]bool{}
	for id, info := range sandboxes(t, h2.ex) {
		sb, err := as[backend.Finder](t, h2.ex).Find(t.Context(), id)
		if backend.KindOf(err) == backend.ErrNotFound { // its agent was about to go
			continue
		}
		if err != nil {
			t.Errorf("killed %v after its first word: %s is listed as %+v and not found: %v", after, id, info, err)
			continue
		}
		found[id] = true
		sh(t, sb, "echo here").succeed(t)
		destroy(t, sb)
	}
	for _, id := range ready {
		if !found[id] && !slices.Contains(ending, id) {
			t.Errorf("killed %v after its first word: %s was kept and is gone", after, id)
		}
	}
	eventually(t, "no command runs", func() bool { return !runs("sleep", number) })
	if err := h2.ex.Sweep(t.Context()); err != nil {
		t.Errorf("sweep: %v", err)
	}
	var groups []string
	for _, deep := range []string{"", "*/", "*/*/", "*/*/*/"} {
		g, _ := filepath.Glob("/sys/fs/cgroup/" + deep + "glovebox-" + storeID(t, h.cfg.StateDir) + "-*")
		groups = append(groups, g...)
	}
	if rest := append(left(t, h.cfg), groups...); len(rest) != 0 {
		t.Errorf("killed %v after its first word: left %q", after, rest)
	}
	if err := h2.ex.Close(); err != nil {
		t.Error(err)
	}
	return len(found)
}

// storeID is the name of a state directory's store, as it stands in the names
// of control groups.
func storeID(t testing.TB, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func TestSweep_byAnotherProcessThatRunsOn(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		idle := role(t, roleIdle, h.cfg, "")
		in, err := idle.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := idle.Start(); err != nil {
			t.Fatal(err)
		}
		// While its sweeps go on, ours and what we make are left alone.
		for range 5 {
			sb := h.create(t, backend.Spec{})
			sh(t, sb, "true").succeed(t)
			if err := h.ex.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			sh(t, sb, "true").succeed(t)
			destroy(t, sb)
		}
		in.Close()
		if err := idle.Wait(); err != nil {
			t.Error(err)
		}
	})
}
