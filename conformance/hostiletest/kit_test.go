//go:build linux

package hostiletest_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

// reports are the lines of the report file.
var reports struct {
	mu    sync.Mutex
	lines []string
}

// declarations are the tests of what the mode does not claim.
var declarations sync.Map

// declared ends a test of what the mode says that it does not hold.
func declared(t *testing.T, why string) {
	t.Helper()
	declarations.Store(t.Name(), true)
	t.Skipf("declared: %s", why)
}

// informations are the tests that report and do not judge.
var informations sync.Map

// informed ends a test that only says how something is.
func informed(t *testing.T, how string) {
	t.Helper()
	informations.Store(t.Name(), true)
	t.Log(how)
}

// verdict notes how a test ended. It is deferred.
func verdict(t *testing.T, id string) {
	t.Helper()
	v := "contained"
	if _, ok := informations.Load(t.Name()); ok {
		v = "informational"
	}
	if _, ok := emulations.Load(t.Name()); ok {
		v = "emulated"
	}
	switch {
	case t.Failed():
		v = "open"
	case t.Skipped():
		v = "inconclusive"
		if _, ok := declarations.Load(t.Name()); ok {
			v = "declared"
		}
	}
	addReport(fmt.Sprintf("%s %s %s", id, w.mode, v))
}

func addReport(lines string) {
	reports.mu.Lock()
	defer reports.mu.Unlock()
	reports.lines = append(reports.lines, strings.Split(strings.TrimSpace(lines), "\n")...)
}

func writeReport() error {
	name := os.Getenv(envReport)
	if name == "" {
		return nil
	}
	reports.mu.Lock()
	defer reports.mu.Unlock()
	slices.Sort(reports.lines)
	return os.WriteFile(name, []byte(strings.Join(reports.lines, "\n")+"\n"), 0o644)
}

// interpreterWorks runs a program in a sandbox: without that no attack says
// anything.
func interpreterWorks(t *testing.T) {
	t.Helper()
	res, err := backend.Run(t.Context(), w.ex, backend.RunSpec{Command: backend.Command{Args: []string{"/usr/bin/python3", "-c", "print(6*7)"}}})
	if err != nil || string(res.Stdout) != "42\n" || !res.Exit.Success() {
		t.Fatalf("inconclusive: the interpreter does not work inside: %v, %s, %q, %q", err, res.Exit, res.Stdout, res.Stderr)
	}
	want := w.target.level
	if res.Receipt.Achieved != want {
		t.Fatalf("the sandbox reaches %s, not %s", res.Receipt.Achieved, want)
	}
	addReport("LA-11 " + w.mode + " contained")
}

// compilers keeps what was compiled.
var compilers sync.Map

// compiled is a C program, built once, static.
func compiled(t *testing.T, source string) string {
	t.Helper()
	build, _ := compilers.LoadOrStore(source, sync.OnceValues(func() (string, error) {
		out := filepath.Join(w.dir, strings.TrimSuffix(filepath.Base(source), ".c")+"-"+w.mode+".bin")
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		text, err := exec.CommandContext(ctx, "gcc", "-static", "-O1", "-o", out, source).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return out, err
	}))
	path, err := build.(func() (string, error))()
	if err != nil {
		t.Skipf("inconclusive: no C compiler: %v", err)
	}
	return path
}

// inherited is a descriptor of this process's own, to hand to a control.
func inherited(t *testing.T, fd int) *os.File {
	t.Helper()
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 100)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(d), "inherited")
}

// openDir is a directory that every user can enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(w.dir, "d") //nolint:usetesting // other users enter it
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func copyFile(t *testing.T, from, to string, mode fs.FileMode) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	// What a child that forks meanwhile inherits open for writing cannot be
	// executed.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(to, data, mode); err != nil {
		t.Fatal(err)
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// runIn runs a shell command in a sandbox to its end.
func runIn(t *testing.T, b backend.Sandbox, text string) (backend.Exit, string) {
	t.Helper()
	var out watched
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	exit, err := backend.RunIn(ctx, b, backend.Command{
		Args: []string{"/bin/sh", "-c", text}, Output: backend.Output{Stdout: &out, Stderr: &out}, Timeout: 40 * time.Second,
	})
	if err != nil {
		t.Fatalf("%.200s: %v", text, err)
	}
	return exit, string(out.bytes())
}

// victim starts a throw-away process in the test's pen, as uid where root runs
// the tests, and ends it with the test.
func victim(t *testing.T, uid int, args ...string) *exec.Cmd {
	t.Helper()
	if len(args) == 0 {
		args = []string{"/bin/sleep", "600"}
	}
	g := newPen(t)
	cmd := g.command(context.WithoutCancel(t.Context()), args...)
	cmd.Env = append(os.Environ(), "VICTIM_SECRET=victim-"+w.token)
	if uid != 0 && os.Geteuid() == 0 {
		g.open(t, uid)
		cmd.SysProcAttr = credential(uid)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	name := filepath.Base(args[0])
	if !eventually(10*time.Second, func() bool { return status(cmd.Process.Pid, "Name") == name }) {
		t.Fatalf("the victim did not start: %q", status(cmd.Process.Pid, "Name"))
	}
	return cmd
}

// credential starts a process as another user.
func credential(uid int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
}

// living tells whether a process that is our child has not ended.
func living(cmd *exec.Cmd) bool {
	s := status(cmd.Process.Pid, "State")
	return s != "" && !strings.HasPrefix(s, "Z") && !strings.HasPrefix(s, "X")
}
