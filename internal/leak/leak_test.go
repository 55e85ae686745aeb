package leak_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/leak"
)

// recorder is a TB that keeps its clean-ups and what they say.
type recorder struct {
	testing.TB
	cleanups []func()
	said     string
}

func (r *recorder) Helper()                      { _ = r.said }
func (r *recorder) Cleanup(f func())             { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(f string, args ...any) { r.said += fmt.Sprintf(f, args...) }

func TestCheck(t *testing.T) {
	stop := make(chan struct{})
	tests := []struct {
		name string
		body func()
		want string
	}{
		{"none", func() {}, ""},
		{"one that is about to end", func() { go func() { <-time.After(50 * time.Millisecond) }() }, ""},
		{"one that stays", func() { go lingering(stop) }, "lingering"},
	}
	for _, tt := range tests {
		r := &recorder{TB: t}
		leak.Check(r)
		tt.body()
		for _, f := range r.cleanups {
			f()
		}
		if (r.said == "") != (tt.want == "") || !strings.Contains(r.said, tt.want) {
			t.Errorf("%s: said %q", tt.name, r.said)
		}
	}
	close(stop)
}

func lingering(stop chan struct{}) { <-stop }

func TestHost_seesWhatIsNew(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux")
	}
	before, err := leak.Host()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "glovebox-leak-test-") //nolint:usetesting // the place is what is tested
	if err != nil {
		t.Fatal(err)
	}
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, cat)
	cmd.Args[0] = filepath.Join("/x", "glovebox-leak-test")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	now, err := leak.Host()
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = cmd.Wait()
	_ = os.RemoveAll(dir)
	text := strings.Join(now.Diff(before), "\n")
	for _, want := range []string{"file " + dir, fmt.Sprintf("process %d ", cmd.Process.Pid)} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	again, err := leak.Host()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range again.Diff(before) {
		if strings.Contains(line, dir) || strings.Contains(line, fmt.Sprintf("process %d ", cmd.Process.Pid)) {
			t.Errorf("gone, but listed: %s", line)
		}
	}
}
