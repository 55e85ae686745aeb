//go:build linux

package agent

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

// TestReport_hangup: a leader that ends by SIGHUP ended by it, unless we were
// killing its session: gVisor then hangs up on it first.
func TestReport_hangup(t *testing.T) {
	t.Parallel()
	r, err := spawn.New(spawn.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, err := New(Options{Reaper: r})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for scope, want := range map[string]unix.Signal{"": unix.SIGHUP, scopeSession: unix.SIGKILL} {
		p, err := r.Start(spawn.Attr{Path: "/bin/sleep", Argv: []string{"sleep", "1000"}, Files: [3]*os.File{null, null, null}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Signal(unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		c := &command{s: s, proc: p, scope: scope}
		if end := c.report(false); end.GetSignal() != int32(want) {
			t.Errorf("scope %q: signal %d, want %d", scope, end.GetSignal(), want)
		}
	}
}
