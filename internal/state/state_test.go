package state_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/state"
)

func open(t *testing.T, dir string) *state.Store {
	t.Helper()
	s, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func wantError(t *testing.T, err error, kind backend.Kind, texts ...string) {
	t.Helper()
	if err == nil || backend.KindOf(err) != kind {
		t.Errorf("error %v is %q, want %q", err, backend.KindOf(err), kind)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}

func TestDir(t *testing.T) {
	tests := []struct {
		name, override, env, xdg string
		want                     string
		unprivileged             bool
	}{
		{name: "override wins", override: "/a/../b", env: "/c", want: "/b"},
		{name: "environment", env: "/c", xdg: "/d", want: "/c"},
		{name: "XDG", xdg: "/d", want: "/d/glovebox", unprivileged: true},
		{name: "relative XDG is ignored", xdg: "d", want: "/h/.local/state/glovebox", unprivileged: true},
		{name: "home", want: "/h/.local/state/glovebox", unprivileged: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(state.EnvDir, tt.env)
			t.Setenv("XDG_STATE_HOME", tt.xdg)
			t.Setenv("HOME", "/h")
			want := tt.want
			if tt.unprivileged && os.Geteuid() == 0 {
				want = "/var/lib/glovebox"
			}
			if got, err := state.Dir(tt.override); err != nil || got != want {
				t.Errorf("Dir(%q) = %q, %v, want %q", tt.override, got, err, want)
			}
		})
	}
	for _, relative := range []string{"a", "./a", "../a"} {
		_, err := state.Dir(relative)
		wantError(t, err, backend.ErrInvalid, relative)
	}
}

func TestOpen_makesOneIDForAll(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	ids := make([]string, 20)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			s, err := state.Open(dir)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = s.ID()
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || len(id) != 8 || !backend.ValidID("s"+id) {
			t.Errorf("id %q, want %q, eight lower-case letters and digits", id, ids[0])
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("in the directory: %v %v", entries, err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
}

func TestOpen_refuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		prepare func(t *testing.T, dir string)
		text    string
	}{
		{"a directory others can write", func(t *testing.T, dir string) {
			t.Helper()
			mkdir(t, dir, 0o770)
		}, "chmod go-w"},
		{"a symbolic link", func(t *testing.T, dir string) {
			t.Helper()
			mkdir(t, dir+"2", 0o700)
			if err := os.Symlink(dir+"2", dir); err != nil {
				t.Fatal(err)
			}
		}, "symbolic link"},
		{"a parent anybody can write", func(t *testing.T, dir string) {
			t.Helper()
			mkdir(t, dir, 0o700)
			if err := os.Chmod(filepath.Dir(dir), 0o777); err != nil {
				t.Fatal(err)
			}
		}, "anybody"},
		{"a file", func(t *testing.T, dir string) {
			t.Helper()
			if err := os.WriteFile(dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "state"},
		{"a damaged id", func(t *testing.T, dir string) {
			t.Helper()
			mkdir(t, dir, 0o700)
			if err := os.WriteFile(filepath.Join(dir, "store"), []byte("../../x\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "store's id"},
		{"an id behind a symbolic link", func(t *testing.T, dir string) {
			t.Helper()
			mkdir(t, dir, 0o700)
			if err := os.Symlink("/etc/hostname", filepath.Join(dir, "store")); err != nil {
				t.Fatal(err)
			}
		}, "store"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "s")
			tt.prepare(t, dir)
			_, err := state.Open(dir)
			wantError(t, err, backend.ErrInvalid, tt.text, filepath.Dir(dir))
		})
	}
	_, err := state.Open("relative")
	wantError(t, err, backend.ErrInvalid)
}

func mkdir(t *testing.T, dir string, perm os.FileMode) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, perm); err != nil {
		t.Fatal(err)
	}
}
