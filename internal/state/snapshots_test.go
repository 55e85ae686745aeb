//go:build linux

package state_test

import (
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/state"
)

func TestSnapshots_areJournalled(t *testing.T) {
	t.Parallel()
	s, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	j, err := s.Journal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	self, err := state.Self()
	if err != nil {
		t.Fatal(err)
	}
	rec := state.Snapshot{Name: "a", Backend: "x", Sandbox: "s1", Created: time.Unix(1, 2).UTC(), Maker: self, BootID: state.BootID(), Dir: "d"}
	if err := j.PutSnapshot(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	if err := j.PutSnapshot(t.Context(), rec); backend.KindOf(err) != backend.ErrConflict {
		t.Errorf("twice: %v", err)
	}
	if got, err := j.Snapshot(t.Context(), "a"); err != nil || got.Ready || got.Alone() || got.Dir != "d" || !got.Created.Equal(rec.Created) {
		t.Errorf("%+v %v", got, err)
	}
	rec.Bytes, rec.Spec, rec.Detail = 5, []byte(`{}`), []byte(`{"a":1}`)
	if err := j.ReadySnapshot(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	if all, err := j.Snapshots(t.Context()); err != nil || len(all) != 1 || !all[0].Ready || all[0].Bytes != 5 || all[0].Alone() {
		t.Errorf("%+v %v", all, err)
	}
	if err := j.ClaimSnapshot(t.Context(), rec, state.Proc{}); err != nil {
		t.Error(err)
	}
	if got, err := j.Snapshot(t.Context(), "a"); err != nil || got.Ready || !got.Alone() {
		t.Errorf("%+v %v", got, err)
	}
	other := rec
	other.Dir = "e"
	if err := j.ReadySnapshot(t.Context(), other); backend.KindOf(err) != backend.ErrNotFound {
		t.Errorf("another of its name: %v", err)
	}
	if err := j.DeleteSnapshot(t.Context(), rec); err != nil {
		t.Error(err)
	}
	if _, err := j.Snapshot(t.Context(), "a"); backend.KindOf(err) != backend.ErrNotFound {
		t.Error(err)
	}
	for name, ok := range map[string]bool{"a": true, "a-1_x.y": true, "": false, "-a": false, "../a": false, "A": false, "a/b": false, "a\n": false, ".": false} {
		if state.ValidSnapshotName(name) != ok {
			t.Errorf("%q", name)
		}
	}
}
