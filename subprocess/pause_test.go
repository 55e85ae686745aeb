//go:build linux

package subprocess_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// counter starts a program that counts in a file, and reads it past the
// sandbox, which may be frozen.
func counter(t *testing.T, sb backend.Sandbox) (read func() int) {
	t.Helper()
	var out syncBuffer
	_, err := sb.Start(t.Context(), backend.Command{
		Args:    []string{"/usr/bin/python3", "-u", "-c", "import time\nn = 0\nwhile True:\n    n += 1\n    print(n)\n    time.sleep(0.01)"},
		Timeout: backend.UntilSandboxEnds, Output: backend.Output{Stdout: &out},
	})
	if err != nil {
		t.Fatal(err)
	}
	read = func() int {
		lines := strings.Fields(out.String())
		if len(lines) == 0 {
			return 0
		}
		n, _ := strconv.Atoi(lines[len(lines)-1])
		return n
	}
	eventually(t, "it counts", func() bool { return read() > 3 })
	return read
}

func canPause(t *testing.T, h *harness) {
	t.Helper()
	needsV2(t, h.caps.Has(backend.FeaturePause))
}

// needsV2 goes on when the host's v2 tree gave what was claimed, and skips the
// test on a host without one.
func needsV2(t *testing.T, claimed bool) {
	t.Helper()
	if claimed {
		return
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), " cgroup2 ") {
		t.Fatalf("not claimed, though the host has a cgroup v2 tree: %v", err)
	}
	t.Skip("not claimed: the host has no cgroup v2 tree")
}

func TestPause_freezesAndResumes(t *testing.T) {
	inModes(t, asRoot, func(t *testing.T, h *harness) {
		canPause(t, h)
		sb := h.create(t, backend.Spec{Lifetime: 2 * time.Second})
		read := counter(t, sb)
		p := as[backend.Pauser](t, sb)
		wantKind(t, p.Resume(t.Context()), backend.ErrConflict)
		wantKind(t, p.Pause(t.Context(), backend.PauseOptions{FilesOnly: true}), backend.ErrUnsupported)
		if err := p.Pause(t.Context(), backend.PauseOptions{}); err != nil {
			t.Fatal(err)
		}
		wantKind(t, p.Pause(t.Context(), backend.PauseOptions{}), backend.ErrConflict)
		_, err := sb.Start(t.Context(), backend.Command{Args: []string{"true"}})
		wantKind(t, err, backend.ErrConflict, "paused")
		fctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if _, err := sb.Files().Stat(fctx, "."); err == nil {
			t.Error("the frozen agent answers")
		}
		cancel()
		before := read()
		<-time.After(4 * time.Second) // beyond the deadline, which is disarmed
		if after := read(); after != before {
			t.Errorf("it went on from %d to %d", before, after)
		}
		if err := p.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it counts on", func() bool { return read() > before+3 })
		sh(t, sb, "true").succeed(t)
		// The deadline is armed anew.
		eventually(t, "it expires", func() bool {
			_, err := sb.Start(t.Context(), backend.Command{Args: []string{"true"}})
			return backend.KindOf(err) == backend.ErrExpired
		})
	})
}

func TestPause_destroyAndClose(t *testing.T) {
	inModes(t, asRoot, func(t *testing.T, h *harness) {
		canPause(t, h)
		var ids []string
		for range 2 {
			sb := h.create(t, backend.Spec{})
			counter(t, sb)
			if err := as[backend.Pauser](t, sb).Pause(t.Context(), backend.PauseOptions{}); err != nil {
				t.Fatal(err)
			}
			if ids = append(ids, sb.ID()); len(ids) == 1 {
				destroy(t, sb)
			}
		}
		if err := h.ex.Close(); err != nil {
			t.Error(err)
		}
		if rest := left(t, h.cfg, ids...); len(rest) != 0 {
			t.Errorf("left: %q", rest)
		}
	})
}

func TestPause_keptAndFound(t *testing.T) {
	inModes(t, asRoot, func(t *testing.T, h *harness) {
		canPause(t, h)
		var ids []string
		for range 2 {
			sb, err := h.ex.Create(t.Context(), backend.Spec{Keep: true, Lifetime: 3 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			counter(t, sb)
			if err := as[backend.Pauser](t, sb).Pause(t.Context(), backend.PauseOptions{}); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, sb.ID())
		}
		if err := h.ex.Close(); err != nil {
			t.Fatal(err)
		}
		<-time.After(4 * time.Second) // beyond the deadlines
		h2 := newHarness(t, h.cfg)
		if err := h2.ex.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		for i, id := range ids {
			if info := sandboxes(t, h2.ex)[id]; info.State != backend.StatePaused || time.Until(info.Deadline) < time.Hour {
				t.Errorf("%+v", info)
			}
			sb, err := as[backend.Finder](t, h2.ex).Find(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				if err := as[backend.Pauser](t, sb).Resume(t.Context()); err != nil {
					t.Error(err)
				}
				sh(t, sb, "pgrep python3").succeed(t)
				if info := sandboxes(t, h2.ex)[id]; info.State != backend.StateRunning || time.Until(info.Deadline) > 3*time.Second {
					t.Errorf("%+v", info)
				}
			}
			destroy(t, sb)
		}
		if rest := left(t, h.cfg, ids...); len(rest) != 0 {
			t.Errorf("left: %q", rest)
		}
	})
}
