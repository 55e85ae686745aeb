package statedir_test

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/statedir"
)

func TestDir(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("other paths are absolute there")
	}
	for _, tc := range []struct {
		name, override string
		env            map[string]string
		want           string // "" is an error
		unprivileged   bool   // root has a place of its own
	}{
		{"override wins", "/a/../b", map[string]string{statedir.Env: "/c"}, "/b", false},
		{"environment", "", map[string]string{statedir.Env: "/c", "XDG_STATE_HOME": "/d"}, "/c", false},
		{"XDG", "", map[string]string{"XDG_STATE_HOME": "/d", "HOME": "/h"}, "/d/glovebox", true},
		{"a relative XDG is ignored", "", map[string]string{"XDG_STATE_HOME": "d", "HOME": "/h"}, "/h/.local/state/glovebox", true},
		{"home", "", map[string]string{"HOME": "/h"}, "/h/.local/state/glovebox", true},
		{"no home", "", nil, "", true},
		{"a relative override", "a", map[string]string{statedir.Env: "/c"}, "", false},
		{"a relative environment", "", map[string]string{statedir.Env: "./c"}, "", false},
	} {
		want := tc.want
		if tc.unprivileged && os.Geteuid() == 0 {
			want = "/var/lib/glovebox"
		}
		got, err := statedir.Dir(tc.override, func(name string) string { return tc.env[name] })
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v, want %q", tc.name, got, err, want)
		}
		if err != nil && (backend.KindOf(err) != backend.ErrInvalid || !strings.Contains(err.Error(), statedir.Env)) {
			t.Errorf("%s: error %v", tc.name, err)
		}
	}
}
