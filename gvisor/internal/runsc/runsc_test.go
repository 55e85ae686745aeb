//go:build linux

package runsc_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/gvisor/internal/runsc"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

func TestStart_bound(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	lifeOf(t, newBox(t), true)
}

func TestStart_kept(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	lifeOf(t, newBox(t), false)
}

func TestStart_rootless(t *testing.T) {
	if asNobody(t) {
		return
	}
	lifeOf(t, newBox(t), true)
}

func TestStart_rootlessKept(t *testing.T) {
	if asNobody(t) {
		return
	}
	lifeOf(t, newBox(t), false)
}

// asNobody is testenv.AsNobody with the guest built before, as root.
func asNobody(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() == 0 {
		find(t)
		t.Setenv(testenv.EnvBin, filepath.Dir(builder.Build(t, "gvisor/internal/runsc/guest")))
	}
	return testenv.AsNobody(t)
}

// lifeOf starts b, looks from inside and outside, kills and removes it.
func lifeOf(t *testing.T, b *box, bound bool) {
	t.Helper()
	b.spec.Env = []string{"A=1"}
	before := tree(t, b.spec.Root)
	from := time.Now()
	k := b.start(t, bound)
	if got := k.ask(t, "echo hello"); got != "hello" {
		t.Errorf("echo: %q", got)
	}
	t.Logf("bound=%t rootless=%t: first answer after %v", bound, b.Rootless, time.Since(from).Round(time.Millisecond))
	if got := k.ask(t, "gvisor"); got != "true " {
		t.Errorf("recognised: %s", got)
	}
	seen := k.ask(t, "seen")
	// HOME is runsc's own addition.
	if want := `uid=0 env=["A=1" "HOME=/"] host=box`; !strings.HasPrefix(seen, want) {
		t.Errorf("seen inside: %s", seen)
	}
	if b.Groups && !strings.Contains(seen, fmt.Sprintf("mem=%d ", memory)) {
		t.Errorf("the memory seen is not the limit: %s", seen)
	}
	if got := k.ask(t, "caps"); got != "81 0 <nil>" {
		t.Errorf("capabilities: %s", got)
	}
	if got := k.ask(t, "write /file"); !strings.Contains(got, "read-only") {
		t.Errorf("the root is writable: %s", got)
	}
	if got := k.ask(t, "write /work/file"); got != "<nil>" {
		t.Errorf("the tmpfs is not writable: %s", got)
	}
	if got := k.ask(t, "fill /work"); !strings.Contains(got, "no space") {
		t.Errorf("the tmpfs has no limit: %s", got)
	}
	procs, err := b.Processes()
	if err != nil || !procs.Sentry.Alive() || !procs.Gofer.Alive() {
		t.Fatalf("%+v %v", procs, err)
	}
	if b.Groups {
		if err := procs.Contained("/"+b.name, "memory", "pids", "cpu"); err != nil {
			t.Error(err)
		}
		if err := procs.Contained("/"+b.name+"x", "memory"); err == nil {
			t.Error("it is in any group")
		}
	}
	if err := b.Kill(); err != nil {
		t.Error(err)
	}
	t.Logf("ended %v after the kill", k.ended(t).Round(time.Millisecond/10))
	from = time.Now()
	b.remove(t)
	t.Logf("removed in %v", time.Since(from).Round(time.Millisecond/10))
	if procs.Sentry.Alive() || procs.Gofer.Alive() {
		t.Error("still alive")
	}
	if after := tree(t, b.spec.Root); after != before {
		t.Errorf("the host's root changed: %s\n%s", before, after)
	}
}

func TestStart_failsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	for name, change := range map[string]func(b *box){
		"no such root":    func(b *box) { b.spec.Root += "/none" },
		"no such program": func(b *box) { b.exec = nil },
	} {
		for _, bound := range []bool{true, false} {
			b := newBox(t)
			change(b)
			s := b.bundle(t)
			s.Bound = bound
			p, err := b.launcher.Start(t.Context(), b.bin, &b.Config, s)
			switch {
			case bound && err != nil:
				t.Errorf("%s: %v", name, err)
			case bound:
				k := &talk{Process: p}
				k.ended(t)
				if k.Words() == "" {
					t.Errorf("%s: no reason", name)
				}
				p.In.Close()
				p.Out.Close()
			case err == nil:
				t.Errorf("%s: started", name)
			}
			b.remove(t)
		}
	}
}

func TestStart_wantsAPrivateDirectory(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	s := b.bundle(t)
	if err := os.Chmod(b.Dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := b.launcher.Start(t.Context(), b.bin, &b.Config, s); err == nil || !strings.Contains(err.Error(), "this user's alone") {
		t.Error(err)
	}
}

func TestConfig_isChecked(t *testing.T) {
	t.Parallel()
	b := runsc.Binary{Path: "/bin/false"}
	for name, c := range map[string]runsc.Config{
		"no name":       {Dir: "/tmp"},
		"a flag":        {ID: "--x", Dir: "/tmp"},
		"relative":      {ID: "x", Dir: "tmp"},
		"long":          {ID: "x", Dir: "/" + strings.Repeat("x", 100)},
		"kvm":           {ID: "x", Dir: "/tmp", Platform: "kvm"},
		"groups, no id": {ID: "x", Dir: "/tmp", Rootless: true, Groups: true},
	} {
		if err := c.Pause(t.Context(), b); err == nil || !strings.HasPrefix(err.Error(), "runsc: ") || strings.Contains(err.Error(), "exit status") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
