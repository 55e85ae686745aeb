//go:build linux

package runsc_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/glovebox-dev/glovebox/gvisor/internal/runsc"
)

func TestFind(t *testing.T) {
	t.Parallel()
	b := find(t)
	if b.Version == "" || !filepath.IsAbs(b.Path) || len(b.Flags) < 20 {
		t.Errorf("%+v", b)
	}
	again, err := runsc.Find(t.Context(), b.Path)
	if err != nil || again.Version != b.Version {
		t.Errorf("%+v %v", again, err)
	}
}

func TestFind_saysWhatIsWrong(t *testing.T) {
	t.Parallel()
	const flags = `  -allow-flag-override\n  -directfs\n  -host-fifo value\n  -host-uds value\n  -ignore-cgroups\n  -net-raw\n  -network value\n  -overlay2 value\n  -platform string\n  -root string\n  -rootless\n`
	for name, tt := range map[string]struct{ script, want string }{
		"not runsc":  {"echo hello", "it tells no version"},
		"it fails":   {"exit 1", "exit status 1"},
		"old":        {`[ $1 = flags ] && printf '` + strings.ReplaceAll(flags, `  -directfs\n`, "") + `' || echo runsc version release-20221219.0`, "too old: it does not know --directfs"},
		"no systrap": {`[ $1 = flags ] && printf '` + flags + `' || echo runsc version x`, "systrap"},
		"good":       {`[ $1 = flags ] && printf '` + flags + `  -x systrap' || echo runsc version x`, ""},
	} {
		path := filepath.Join(t.TempDir(), "runsc")
		// A child forked meanwhile would hold the file open for writing, and what
		// is written to cannot be executed.
		syscall.ForkLock.RLock()
		err := os.WriteFile(path, []byte("#!/bin/sh\n"+tt.script+"\n"), 0o755)
		syscall.ForkLock.RUnlock()
		if err != nil {
			t.Fatal(err)
		}
		_, err = runsc.Find(t.Context(), path)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := runsc.Find(t.Context(), "/none/runsc"); err == nil {
		t.Error("found what is not there")
	}
}
