//go:build linux

package gvisor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// TestBound_creatorKilled: the sandbox ends with its creator, and the next
// executor's sweep takes away what it was made of.
func TestBound_creatorKilled(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		cfg := config(t)
		id, kill := startCreator(t, cfg)
		if len(running(id)) == 0 {
			t.Fatal("positive control: no process names the sandbox")
		}
		kill()
		eventually(t, "its processes end", func() bool { return len(running(id)) == 0 })
		ex := open(t, cfg)
		if err := ex.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		eventually(t, "nothing is left", func() bool { return len(left(t, cfg.StateDir)) == 0 })
	})
}

// running lists the processes that name a sandbox.
func running(id string) []string { return processesWith(id) }

// TestSandbox_partKilled: whichever of its processes is killed, the sandbox is
// lost and nothing is left.
func TestSandbox_partKilled(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		for _, part := range []string{"runsc-sandbox", "runsc-gofer", "runsc"} {
			sb := h.create(t, backend.Spec{})
			pid := partOf(t, sb.ID(), part)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			p, err := sb.Start(ctx, backend.Command{Args: []string{"sleep", "60"}})
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if exit, err := p.Wait(ctx); backend.KindOf(err) != backend.ErrLost {
				t.Errorf("%s: its command ended with %v, %v", part, exit, err)
			}
			_, err = tryRun(t, sb, backend.Command{Args: []string{"true"}})
			if backend.KindOf(err) != backend.ErrLost {
				t.Errorf("%s: the next one: %v", part, err)
			}
			if err := sb.Destroy(t.Context()); err != nil {
				t.Errorf("%s: %v", part, err)
			}
		}
	})
}

// partOf is the process of a sandbox that calls itself name.
func partOf(t *testing.T, id, name string) int {
	t.Helper()
	for _, p := range processesWith(id) {
		path, args, _ := strings.Cut(p, " ")
		if strings.HasPrefix(args, name+" ") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("%s has no process %s", id, name)
	return 0
}

// TestCreate_fails: whatever it fails at, nothing is left, which open's cleanup
// looks at too.
func TestCreate_fails(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.ex.Create(cancelled, backend.Spec{}); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled before: %v", err)
		}
		for _, after := range []time.Duration{5 * time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			if sb, err := h.ex.Create(ctx, backend.Spec{}); err == nil {
				if err := sb.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("cancelled after %v: %v", after, err)
			}
			cancel()
		}
		nothingLeft(t, h.cfg.StateDir)

		// A runsc that fails, one that says nothing, and one without gVisor.
		for name, script := range map[string]string{
			"fails":  "echo no luck >&2; exit 1",
			"silent": "exit 0",
		} {
			cfg := config(t)
			cfg.Runsc = fakeRunsc(t, script)
			_, err := open(t, cfg).Create(t.Context(), backend.Spec{})
			if backend.KindOf(err) != backend.ErrUnavailable {
				t.Errorf("%s: %v", name, err)
			}
			if name == "fails" && (err == nil || !strings.Contains(err.Error(), "no luck")) {
				t.Errorf("its words are lost: %v", err)
			}
			nothingLeft(t, cfg.StateDir)
		}
	})
}

// fakeRunsc is a program that passes for runsc until it is to run something.
func fakeRunsc(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runsc")
	text := "#!/bin/sh\ncase \"$1\" in --version|flags) exec /usr/local/bin/runsc \"$1\";; esac\n" + script + "\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestKept: a sandbox outlives its creator, killed or not, and is found, used,
// paused and ended by others.
func TestKept(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		cfg := config(t)
		id, kill := startCreator(t, cfg, envKeep+"=1")
		kill()
		ex := open(t, cfg)
		finder, ok := backend.As[backend.Finder](ex)
		if !ok {
			t.Fatal("no Finder")
		}
		if err := ex.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		sb, err := finder.Find(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := sb.Destroy(context.Background()); err != nil { //nolint:usetesting // the test's context is over
				t.Error(err)
			}
		})
		if got := sh(t, sb, "echo on > ~/f; cat ~/f"); got.out != "on\n" {
			t.Errorf("%+v", got)
		}
		p, ok := backend.As[backend.Pauser](sb)
		if !ok {
			t.Fatal("no Pauser")
		}
		if err := p.Pause(t.Context(), backend.PauseOptions{}); err != nil {
			t.Fatal(err)
		}
		second := open(t, cfg)
		finder, _ = backend.As[backend.Finder](second)
		other, err := finder.Find(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if p, ok = backend.As[backend.Pauser](other); !ok {
			t.Fatal("no Pauser")
		}
		if err := p.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, other, "cat ~/f"); got.out != "on\n" {
			t.Errorf("%+v", got)
		}
		if err := other.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := finder.Find(t.Context(), id); backend.KindOf(err) != backend.ErrNotFound {
			t.Errorf("afterwards: %v", err)
		}
	})
}
