//go:build unix

package state_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// dead takes all dead markers and lets them go again, after use.
func dead(t *testing.T, s *state.Store, use func(mk *state.Marker)) (ids []string) {
	t.Helper()
	for mk, err := range s.Dead() {
		if err != nil {
			t.Error(err)
			continue
		}
		ids = append(ids, mk.ID())
		if use != nil {
			use(mk)
		}
		if err := mk.Close(); err != nil {
			t.Error(err)
		}
	}
	return ids
}

func TestMarker_lifeCycle(t *testing.T) {
	// Not in parallel: a child that another test has just forked holds the lock
	// of a closed marker until it executes.
	s := open(t, t.TempDir())
	want := state.Mark{Backend: "box", PID: 7, Started: time.Unix(1, 0).UTC(), Cgroups: []string{"a"}, Procs: []state.Proc{{PID: 8, Start: 9}}}
	mk, err := s.Mark("abc", want)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Mark("abc", want); backend.KindOf(err) != backend.ErrConflict {
		t.Errorf("a second marker: %v", err)
	}
	live, err := s.Live()
	if diff := cmp.Diff(map[string]state.Mark{"abc": want}, live); err != nil || diff != "" {
		t.Errorf("Live: %v %s", err, diff)
	}
	if ids := dead(t, s, nil); len(ids) != 0 {
		t.Errorf("dead while it is held: %q", ids)
	}
	want.Cgroups = []string{strings.Repeat("d", 9000)}
	if err := mk.Update(want); err != nil {
		t.Fatal(err)
	}
	want.Cgroups = nil // shorter again: nothing of the longer text may stay
	if err := mk.Update(want); err != nil {
		t.Fatal(err)
	}
	if err := mk.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, mk.Update(want), backend.ErrClosed)
	ids := dead(t, s, func(mk *state.Marker) {
		got, err := mk.Content()
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("Content: %v %s", err, diff)
		}
		if inner := dead(t, s, nil); len(inner) != 0 {
			t.Errorf("a second sweep got %q too", inner)
		}
	})
	if diff := cmp.Diff([]string{"abc"}, ids); diff != "" {
		t.Error(diff)
	}
	for mk := range s.Dead() {
		for range 2 {
			if err := mk.Release(); err != nil {
				t.Error(err)
			}
		}
	}
	if ids := dead(t, s, nil); len(ids) != 0 {
		t.Errorf("released, but dead: %q", ids)
	}
}

func TestMark_refusesNamesThatAreNoIDs(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	for _, id := range []string{"", "a", "../abc", "a/b", ".new-a", "ABC", "a\x00b", strings.Repeat("a", 42)} {
		_, err := s.Mark(id, state.Mark{})
		wantError(t, err, backend.ErrInvalid)
	}
}

func TestDead_goesByNameWhenAMarkerIsDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	for name, content := range map[string]string{
		"empty": "", "torn": `{"backend":"b`, "huge": strings.Repeat("x", 1<<20), "good": `{"pid":3}`,
		"NOT-OURS": "x", ".new-crashed": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, "sandboxes", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("good", filepath.Join(dir, "sandboxes", "link")); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	failed := 0
	for mk, err := range s.Dead() {
		if err != nil {
			failed++
			continue
		}
		_, cerr := mk.Content()
		got[mk.ID()] = cerr == nil
		if err := mk.Release(); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(map[string]bool{"empty": false, "torn": false, "huge": false, "good": true}, got); diff != "" || failed != 1 {
		t.Errorf("%d failed: %s", failed, diff)
	}
	if _, err := os.Lstat(filepath.Join(dir, "sandboxes", ".new-crashed")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a crash left of a new marker: %v", err)
	}
}

func TestMarker_lockLivesWithWhoeverInherited(t *testing.T) { // not in parallel, see above
	s := open(t, t.TempDir())
	mk, err := s.Mark("abc", state.Mark{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mk.File().WriteString("x"); err == nil {
		t.Error("a child could write to its marker")
	}
	child := exec.CommandContext(t.Context(), "cat")
	child.ExtraFiles = []*os.File{mk.File()}
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if err := mk.Close(); err != nil {
		t.Fatal(err)
	}
	if ids := dead(t, s, nil); len(ids) != 0 {
		t.Errorf("dead while a child holds it: %q", ids)
	}
	_ = stdin.Close()
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	if ids := dead(t, s, nil); len(ids) != 1 {
		t.Errorf("dead after the child: %q", ids)
	}
}

func TestDead_handsEachMarkerToOneSweep(t *testing.T) { // not in parallel, see above
	s := open(t, t.TempDir())
	const n = 50
	for i := range n {
		mk, err := s.Mark("s"+strings.Repeat("x", 1+i%30)+string(rune('a'+i/30)), state.Mark{})
		if err != nil {
			t.Fatal(err)
		}
		if err := mk.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var got atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for mk, err := range s.Dead() {
				if err != nil {
					t.Error(err)
					continue
				}
				got.Add(1)
				if err := mk.Release(); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() { // markers made while sweeps go on are not theirs
			for range 20 {
				mk, err := s.Mark("live"+strings.ToLower(randomID()), state.Mark{})
				if err != nil {
					t.Error(err)
					continue
				}
				if err := mk.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got.Load() != n {
		t.Errorf("%d handled, want %d", got.Load(), n)
	}
}

func TestLeaseUIDs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "uids")
	leases := map[uint32]*state.UIDLease{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				l, err := state.LeaseUIDs(dir)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if leases[l.Base()] != nil {
					t.Errorf("%d leased twice", l.Base())
				}
				leases[l.Base()] = l
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for base, l := range leases {
		if base < 1<<29 || base > 1<<30-state.UIDLeaseSize || base%state.UIDLeaseSize != 0 {
			t.Errorf("at %d", base)
		}
		for range 2 {
			if err := l.Release(); err != nil {
				t.Error(err)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
	mkdir(t, dir+"2", 0o777)
	_, err := state.LeaseUIDs(dir + "2")
	wantError(t, err, backend.ErrInvalid, "chmod go-w")
}
