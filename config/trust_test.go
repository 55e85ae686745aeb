package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/config"
)

func TestProjectFile_countsOnlyWhenTrusted(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	file := p.write(filepath.Join(p.project, ".glovebox", "config.yaml"), "limits: {pids: 7}\n")
	expect := func(step string, pids config.Count, warning string) {
		t.Helper()
		l := p.mustLoad()
		if l.Config.Limits.Pids != pids {
			t.Errorf("%s: pids %d, want %d", step, l.Config.Limits.Pids, pids)
		}
		switch {
		case warning == "" && len(l.Warnings) > 0, warning != "" && len(l.Warnings) != 1:
			t.Errorf("%s: warnings %q", step, l.Warnings)
		case warning != "" && (!strings.Contains(l.Warnings[0], warning) || !strings.Contains(l.Warnings[0], "glovebox config trust")):
			t.Errorf("%s: warning %q, want %q and the command", step, l.Warnings[0], warning)
		}
	}
	expect("a stranger's file", 0, "not trusted")
	p.trust(file)
	expect("trusted", 7, "")
	p.write(file, "limits: {pids: 8}\n")
	expect("changed", 0, "changed since")
	p.write(file, "limits: {pids: 7}\n")
	expect("changed back", 7, "")
	store, err := config.NewTrustStore(p.env)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := store.Remove(file); !ok || err != nil {
		t.Errorf("Remove = %v, %v", ok, err)
	}
	if ok, err := store.Remove(file); ok || err != nil {
		t.Errorf("the second Remove = %v, %v", ok, err)
	}
	expect("removed", 0, "not trusted")
	p.trust(file)
	moved := t.TempDir()
	p.write(filepath.Join(moved, ".glovebox", "config.yaml"), "limits: {pids: 7}\n")
	p.project = moved
	expect("the same content elsewhere", 0, "not trusted")
}

func TestProjectFile_brokenButNotTrustedIsOnlyIgnored(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(filepath.Join(p.project, "glovebox.yaml"), ": [\n")
	if l := p.mustLoad(); len(l.Warnings) != 1 {
		t.Errorf("warnings %q", l.Warnings)
	}
}

func TestTrustStore_isPrivate(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	file := p.write(filepath.Join(p.project, "glovebox.yaml"), "limits: {pids: 7}\n")
	p.trust(file)
	store, err := config.NewTrustStore(p.env)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(store.Path())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v, want 0600", info.Mode(), err)
	}
	if list, err := store.List(); err != nil || len(list) != 1 || len(list[0].SHA256) != 64 {
		t.Errorf("List = %v, %v", list, err)
	}
	if err := os.Chmod(store.Path(), 0o622); err != nil {
		t.Fatal(err)
	}
	if l := p.mustLoad(); l.Config.Limits.Pids != 0 || len(l.Warnings) != 1 {
		t.Errorf("a store that others can write is believed: %v", l.Warnings)
	}
	if err := os.Remove(store.Path()); err != nil {
		t.Fatal(err)
	}
	elsewhere := p.write(filepath.Join(t.TempDir(), "t.json"), `{"files": []}`)
	if err := os.Symlink(elsewhere, store.Path()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.List(); err == nil {
		t.Error("a symbolic link is believed")
	}
	entries, err := os.ReadDir(p.state)
	if err != nil || len(entries) != 1 {
		t.Errorf("left in the state directory: %v, %v", entries, err)
	}
}

func TestTrustStore_needsAStateDirectory(t *testing.T) {
	t.Parallel()
	if _, err := config.NewTrustStore([]string{"GLOVEBOX_STATE_DIR=relative"}); err == nil {
		t.Error("a relative directory is accepted")
	}
}
