//go:build linux

package spawn_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

// run starts a and returns its standard output and status.
func run(t testing.TB, r *spawn.Reaper, a spawn.Attr) (string, spawn.Status, error) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	a.Files = [3]*os.File{null, pw, null}
	p, err := r.Start(a)
	pw.Close()
	if err != nil {
		return "", spawn.Status{}, err
	}
	out, err := io.ReadAll(pr)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	return string(out), p.Status(), nil
}

func sh(script string) spawn.Attr {
	return spawn.Attr{Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}}
}

func newReaper(tb testing.TB, o spawn.Options) *spawn.Reaper {
	tb.Helper()
	r, err := spawn.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.Close)
	return r
}

// both runs f with children that share the address space until they execute,
// and with children that do not.
func both(t *testing.T, f func(t *testing.T, r *spawn.Reaper)) {
	t.Helper()
	for _, separate := range []bool{false, true} {
		t.Run(fmt.Sprintf("separate=%t", separate), func(t *testing.T) {
			t.Parallel()
			f(t, newReaper(t, spawn.Options{Separate: separate}))
		})
	}
}

func TestReaper_statusIsTheProgramsOwn(t *testing.T) {
	t.Parallel()
	both(t, statusIsTheProgramsOwn)
}

func statusIsTheProgramsOwn(t *testing.T, r *spawn.Reaper) {
	t.Helper()
	for _, tt := range []struct {
		script string
		code   int
		sig    syscall.Signal
	}{
		{"exit 0", 0, 0},
		{"exit 3", 3, 0},
		{"exit 253", 253, 0},
		{"kill -9 $$", -1, syscall.SIGKILL},
		{"kill -ABRT $$", -1, syscall.SIGABRT},
	} {
		_, st, err := run(t, r, sh(tt.script))
		if err != nil || st.Code != tt.code || st.Signal != tt.sig {
			t.Errorf("%s: status %+v, %v; want code %d signal %d", tt.script, st, err, tt.code, tt.sig)
		}
	}
}

func TestReaper_startErrorsNameTheStep(t *testing.T) {
	t.Parallel()
	both(t, startErrorsNameTheStep)
}

func startErrorsNameTheStep(t *testing.T, r *spawn.Reaper) {
	t.Helper()
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("echo hi\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	huge := strings.Repeat("x", 140<<10)
	for _, tt := range []struct {
		name  string
		attr  spawn.Attr
		stage string
		errno syscall.Errno
	}{
		{"missing", spawn.Attr{Path: dir + "/none", Argv: []string{"none"}}, "exec", unix.ENOENT},
		{"not executable", spawn.Attr{Path: plain, Argv: []string{"plain"}}, "exec", unix.EACCES},
		{"no interpreter line", spawn.Attr{Path: text, Argv: []string{"text"}}, "exec", unix.ENOEXEC},
		{"argument too long", spawn.Attr{Path: "/bin/true", Argv: []string{"true", huge}}, "exec", unix.E2BIG},
		{"missing directory", spawn.Attr{Path: "/bin/true", Argv: []string{"true"}, Dir: dir + "/none"}, "directory", unix.ENOENT},
		{"NUL", spawn.Attr{Path: "/bin/true", Argv: []string{"a\x00b"}}, "exec", unix.EINVAL},
		{"bad cgroup", spawn.Attr{Path: "/bin/true", Argv: []string{"true"}, Confine: &spawn.Confinement{Join: []int{999}}}, "cgroup", unix.EBADF},
	} {
		_, _, err := run(t, r, tt.attr)
		var se *spawn.Error
		if !errors.As(err, &se) || se.Stage != tt.stage || se.Errno != tt.errno {
			t.Errorf("%s: %v, want %s %v", tt.name, err, tt.stage, tt.errno)
		}
	}
}

func TestReaper_limitsAndDescriptorsReachTheCommand(t *testing.T) {
	t.Parallel()
	r := newReaper(t, spawn.Options{})
	// A descriptor that someone left open without close-on-exec.
	leak, err := unix.Open("/etc/hostname", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	control, err := exec.Command("/bin/sh", "-c", "ulimit -Hn").Output()
	if err != nil {
		t.Fatal(err)
	}
	a := sh("ulimit -n; ulimit -Hn; ulimit -Hc; ls /proc/self/fd | tr '\n' ' '; umask; ps -o sid= -p $$ | tr -d ' '; echo $$")
	a.Confine = &spawn.Confinement{Limits: []spawn.Rlimit{{unix.RLIMIT_NOFILE, 77}, {unix.RLIMIT_CORE, 0}}}
	out, _, err := run(t, r, a)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 6 || lines[0] != "77" || lines[1] != "77" || lines[2] != "0" {
		t.Fatalf("limits: %q", out)
	}
	if strings.TrimSpace(string(control)) == "77" {
		t.Fatal("the control already had the limit")
	}
	// 3 is ls's own directory.
	if lines[3] != "0 1 2 3 0022" {
		t.Errorf("descriptors and umask: %q", lines[3])
	}
	if lines[4] != lines[5] {
		t.Errorf("session %s, pid %s", lines[4], lines[5])
	}
}

func TestReaper_victims(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *spawn.Reaper) {
		t.Helper()
		a := sh("cat /proc/self/oom_score_adj")
		a.Confine = &spawn.Confinement{Victim: true}
		if out, st, err := run(t, r, a); err != nil || out != "1000\n" || st.Code != 0 {
			t.Errorf("%q %+v %v", out, st, err)
		}
		a.Confine.Victim = false
		if out, _, err := run(t, r, a); err != nil || out == "1000\n" {
			t.Errorf("control: %q %v", out, err)
		}
	})
}

func TestReaper_manyAtOnce(t *testing.T) {
	t.Parallel()
	r := newReaper(t, spawn.Options{})
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			out, st, err := run(t, r, sh(fmt.Sprintf("echo %d; exit %d", i, i)))
			if err != nil || st.Code != i || out != fmt.Sprintln(i) {
				t.Errorf("%d: %q %+v %v", i, out, st, err)
			}
		})
	}
	wg.Wait()
}

func TestProcess_signalAfterTheEndIsESRCH(t *testing.T) {
	t.Parallel()
	r := newReaper(t, spawn.Options{})
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	a := sh("sleep 100")
	a.Files = [3]*os.File{null, null, null}
	p, err := r.Start(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if p.Status().Signal != syscall.SIGKILL {
		t.Errorf("status %+v", p.Status())
	}
	if err := p.Signal(syscall.SIGKILL); !errors.Is(err, unix.ESRCH) {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestNew_enterErrorIsReturned(t *testing.T) {
	t.Parallel()
	want := errors.New("no")
	if _, err := spawn.New(spawn.Options{Enter: func() error { return want }}); !errors.Is(err, want) {
		t.Fatalf("got %v", err)
	}
}

func BenchmarkStart(b *testing.B) {
	r := newReaper(b, spawn.Options{})
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	a := spawn.Attr{Path: "/bin/true", Argv: []string{"true"}, Files: [3]*os.File{null, null, null}}
	separate := newReaper(b, spawn.Options{Separate: true})
	b.Run("separate", func(b *testing.B) {
		for b.Loop() {
			p, err := separate.Start(a)
			if err != nil {
				b.Fatal(err)
			}
			<-p.Done()
		}
	})
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			p, err := r.Start(a)
			if err != nil {
				b.Fatal(err)
			}
			<-p.Done()
		}
	})
	b.Run("os_exec", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
