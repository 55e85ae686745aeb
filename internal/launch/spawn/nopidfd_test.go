//go:build linux

package spawn_test

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

// TestReaper_withoutPidfds runs again by itself: a Reaper that collects orphans
// takes the statuses of every child of its program.
func TestReaper_withoutPidfds(t *testing.T) {
	t.Parallel()
	const env = "GLOVEBOX_TEST_NOPIDFD"
	if os.Getenv(env) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestReaper_withoutPidfds$", "-test.count=1")
		cmd.Env = append(os.Environ(), env+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil || pidfds(t) != 1 {
		t.Fatalf("control: %d pidfds, %v", pidfds(t), err)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	r := newReaper(t, spawn.Options{Orphans: true, NoPidfd: true})
	a := sh("exec sleep 1000")
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	a.Files = [3]*os.File{null, null, null}
	p, err := r.Start(a)
	if err != nil {
		t.Fatal(err)
	}
	if n := pidfds(t); n != 0 {
		t.Errorf("%d pidfds", n)
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if p.Status().Signal != syscall.SIGKILL {
		t.Errorf("%+v", p.Status())
	}
	if err := p.Signal(0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a signal after the end: %v", err)
	}
	if _, st, err := run(t, r, sh("exit 7")); err != nil || st.Code != 7 {
		t.Errorf("%+v %v", st, err)
	}
	if _, err := spawn.New(spawn.Options{NoPidfd: true}); err == nil {
		t.Error("without orphans it is accepted")
	}
}

// pidfds counts this process's.
func pidfds(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == "anon_inode:[pidfd]" {
			n++
		}
	}
	return n
}
