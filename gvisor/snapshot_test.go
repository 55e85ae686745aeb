//go:build linux

package gvisor_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

func (h *harness) snapshot(t *testing.T, sb backend.Sandbox, opts backend.SnapshotOptions) string {
	t.Helper()
	s, ok := backend.As[backend.Snapshotter](sb)
	if !ok {
		t.Fatal("no Snapshotter")
	}
	from := time.Now()
	name, err := s.Snapshot(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("saved in %v", time.Since(from).Round(time.Millisecond))
	t.Cleanup(func() {
		if err := h.store(t).DeleteSnapshot(context.Background(), name); err != nil && backend.KindOf(err) != backend.ErrNotFound { //nolint:usetesting // the test's context is over
			t.Error(err)
		}
	})
	return name
}

func (h *harness) store(t *testing.T) backend.SnapshotStore {
	t.Helper()
	s, ok := backend.As[backend.SnapshotStore](h.ex)
	if !ok {
		t.Fatal("no SnapshotStore")
	}
	return s
}

// counter is a command that counts in memory and says so in a file, and more to
// an output that nobody reads.
const counter = `i=0; while true; do i=$((i+1)); echo $i > /tmp/count.new; mv /tmp/count.new /tmp/count; head -c 20000 /dev/zero; sleep 0.01; done`

func count(t *testing.T, sb backend.Sandbox) int {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		n, err := strconv.Atoi(strings.TrimSpace(sh(t, sb, "cat /tmp/count 2>/dev/null").out))
		if err == nil {
			return n
		}
		if time.Now().After(deadline) {
			t.Fatalf("no count: %v", err)
		}
	}
}

// goesOn tells that the counter counts.
func goesOn(t *testing.T, sb backend.Sandbox) {
	t.Helper()
	first := count(t, sb)
	for deadline := time.Now().Add(10 * time.Second); count(t, sb) <= first; {
		if time.Now().After(deadline) {
			t.Fatalf("%s: stays at %d", sb.ID(), first)
		}
	}
}

func TestSnapshot_threeGoOnFromOne(t *testing.T) {
	testenv.NeedRoot(t)
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep=%t", keep), func(t *testing.T) {
			h := newHarness(t, config(t))
			sb := h.create(t, backend.Spec{Keep: keep, Env: map[string]string{"A": "1", "B": "old"}})
			if _, err := sb.Start(t.Context(), backend.Command{Args: []string{"/bin/bash", "-c", counter}, Timeout: backend.UntilSandboxEnds}); err != nil {
				t.Fatal(err)
			}
			sh(t, sb, "echo kept > ~/f")
			at := count(t, sb)
			name := h.snapshot(t, sb, backend.SnapshotOptions{})
			goesOn(t, sb)
			random := map[string]bool{}
			for i := range 3 {
				from := time.Now()
				one := h.create(t, backend.Spec{From: name, Keep: i == 1, Env: map[string]string{"B": "new"}})
				t.Logf("restored in %v", time.Since(from).Round(time.Millisecond))
				if one.ID() == sb.ID() {
					t.Error("the same ID")
				}
				if n := count(t, one); n < at {
					t.Errorf("it counts from %d, not %d", n, at)
				}
				goesOn(t, one)
				got := sh(t, one, "cat ~/f; echo $A $B; hostname; head -c 16 /dev/urandom | od -An -tx1; echo own > ~/f")
				want := "kept\n1 new\nsandbox\n"
				if !strings.HasPrefix(got.out, want) {
					t.Errorf("%q %q", got.out, got.err)
				}
				random[strings.TrimPrefix(got.out, want)] = true
			}
			if len(random) != 3 {
				t.Errorf("random numbers repeat: %v", random)
			}
			if got := sh(t, sb, "cat ~/f; echo $B"); got.out != "kept\nold\n" {
				t.Errorf("the original: %q", got.out)
			}
		})
	}
}
