//go:build linux

package spawn_test

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

// heldUp is a command whose child stays between fork and exec, as if user code
// had stopped it, until release is called.
func heldUp(t *testing.T) (a spawn.Attr, release func()) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	size, err := unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, 4096)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(p[1], make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	a = sh("exit 5")
	a.Confine = &spawn.Confinement{Join: []int{p[1]}} // a write to it waits
	return a, func() {
		if _, err := unix.Read(p[0], make([]byte, size)); err != nil {
			t.Error(err)
		}
	}
}

// started is how a Start went that others did not wait for.
type started struct {
	p   *spawn.Process
	err error
}

func startBehind(t *testing.T, r *spawn.Reaper, a spawn.Attr) <-chan started {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	a.Files = [3]*os.File{null, null, null}
	done := make(chan started, 1)
	go func() {
		p, err := r.Start(a)
		done <- started{p, err}
	}()
	// Forked later, it would have copies of what the others use.
	for unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) != nil {
		<-time.After(time.Millisecond)
	}
	return done
}

// TestReaper_aHeldUpChildHoldsUpNobody is not parallel: a Reaper of orphans
// takes every child there is.
func TestReaper_aHeldUpChildHoldsUpNobody(t *testing.T) { //nolint:paralleltest // see above
	for name, orphans := range map[string]bool{"its own children": false, "orphans too": true} {
		t.Run(name, func(t *testing.T) {
			r := newReaper(t, spawn.Options{Separate: true, Orphans: orphans})
			a, release := heldUp(t)
			held := startBehind(t, r, a)
			began := time.Now()
			for range 5 {
				out, st, err := run(t, r, sh("echo x; exit 3"))
				if err != nil || out != "x\n" || st.Code != 3 {
					t.Fatalf("%q %+v %v", out, st, err)
				}
				_, _, err = run(t, r, spawn.Attr{Path: "/none", Argv: []string{"none"}})
				if !errors.Is(err, unix.ENOENT) {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("others waited %v", took)
			}
			select {
			case got := <-held:
				t.Fatalf("nothing held it up: %v", got.err)
			default:
			}
			release()
			got := <-held
			if got.err != nil {
				t.Fatal(got.err)
			}
			<-got.p.Done()
			if st := got.p.Status(); st.Code != 5 {
				t.Errorf("%+v", st)
			}
			noChildren(t)
		})
	}
}

func TestReaper_aChildThatNeverExecutesIsGivenUp(t *testing.T) { //nolint:paralleltest // looks for children of any test
	if testing.Short() {
		t.Skip("waits for the time that a child has")
	}
	r := newReaper(t, spawn.Options{Separate: true})
	a, _ := heldUp(t)
	if got := <-startBehind(t, r, a); !errors.Is(got.err, unix.ETIMEDOUT) {
		t.Errorf("%v", got.err)
	}
	noChildren(t)
}

// noChildren fails the test when this process has children left, ended or not.
func noChildren(t *testing.T) {
	t.Helper()
	var ws syscall.WaitStatus
	if pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("a child is left: %d, %v", pid, err)
	}
}
