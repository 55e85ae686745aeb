//go:build unix

package state_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/state"
)

func journal(t *testing.T, s *state.Store) *state.Journal {
	t.Helper()
	j, err := s.Journal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func record(id string) state.Record {
	return state.Record{
		ID: id, Backend: "box", Spec: json.RawMessage(`{"keep":true}`), Labels: map[string]string{"a": "'; DROP TABLE sandboxes"},
		Created: time.Unix(1, 5).UTC(), Deadline: time.Unix(2, 0).UTC(), State: backend.StateCreating, Socket: "/s",
		AgentPID: 9, AgentStart: 1 << 40, BootID: "b", Token: "t", Cgroups: []string{"c"}, Receipt: json.RawMessage(`{}`),
	}
}

func TestJournal_roundTrip(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "odd ?name%20#x")
	j := journal(t, open(t, dir))
	want := record("abc")
	if err := j.Put(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	wantError(t, j.Put(t.Context(), want), backend.ErrConflict)
	got, err := j.Get(t.Context(), "abc")
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Fatalf("%v %s", err, diff)
	}
	want.Ready, want.State, want.AgentPID, want.AgentStart = true, backend.StateRunning, 10, 1<<63+1
	want.Receipt = json.RawMessage(`{"sandbox":"abc"}`)
	if err := j.Ready(t.Context(), "abc", want.AgentPID, want.AgentStart, want.Receipt); err != nil {
		t.Fatal(err)
	}
	want.State, want.Deadline = backend.StatePaused, time.Time{}
	if err := j.SetState(t.Context(), "abc", want.State); err != nil {
		t.Fatal(err)
	}
	if err := j.SetDeadline(t.Context(), "abc", want.Deadline); err != nil {
		t.Fatal(err)
	}
	// Another process sees the same.
	second := journal(t, open(t, dir))
	list, err := second.List(t.Context())
	if diff := cmp.Diff([]state.Record{want}, list); err != nil || diff != "" {
		t.Fatalf("%v %s", err, diff)
	}
	for range 2 {
		if err := second.Delete(t.Context(), "abc"); err != nil {
			t.Error(err)
		}
	}
	_, err = j.Get(t.Context(), "abc")
	wantError(t, err, backend.ErrNotFound)
	wantError(t, j.SetState(t.Context(), "abc", backend.StateLost), backend.ErrNotFound)
	wantError(t, j.Put(t.Context(), record("../x")), backend.ErrInvalid)
	for _, name := range []string{"journal.db", "journal.db-wal", "journal.db-shm"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
}

func TestStore_opensNoDatabaseUntilAsked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	mk, err := s.Mark("abc", state.Mark{})
	if err != nil {
		t.Fatal(err)
	}
	if err := mk.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "journal.db")); !os.IsNotExist(err) {
		t.Errorf("a database: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = s.Journal(t.Context())
	wantError(t, err, backend.ErrClosed)
}

func TestJournal_usesANewerDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := journal(t, open(t, dir))
	if err := j.Exec(t.Context(), "ALTER TABLE sandboxes ADD COLUMN later TEXT NOT NULL DEFAULT ''; PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	again := journal(t, open(t, dir))
	if err := again.Put(t.Context(), record("abc")); err != nil {
		t.Fatal(err)
	}
	if list, err := again.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v %v", list, err)
	}
}

func TestJournal_damagedDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "journal.db"), []byte(strings.Repeat("garbage ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	mk, err := s.Mark("abc", state.Mark{})
	if err != nil {
		t.Fatal(err)
	}
	_ = mk.Close()
	_, err = s.Journal(t.Context())
	wantError(t, err, backend.ErrInternal, "journal.db", "move ")
	if ids := dead(t, s, nil); len(ids) != 1 {
		t.Errorf("the sweep found %q", ids)
	}
}

func TestJournal_symbolicLinkIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := filepath.Join(t.TempDir(), "victim")
	if err := os.Symlink(target, filepath.Join(dir, "journal.db")); err != nil {
		t.Fatal(err)
	}
	_, err := open(t, dir).Journal(t.Context())
	wantError(t, err, backend.ErrInvalid, "journal.db")
	if _, err := os.Stat(target); !os.IsNotExist(err) {
		t.Errorf("the link's target: %v", err)
	}
}

func TestJournal_cancelled(t *testing.T) {
	t.Parallel()
	j := journal(t, open(t, t.TempDir()))
	for i := range 3 {
		if err := j.Put(t.Context(), record(fmt.Sprintf("abc%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	ctx := cancelled(t)
	if _, err := j.List(ctx); backend.KindOf(err) != "" || err == nil {
		t.Errorf("List: %v", err)
	}
}
