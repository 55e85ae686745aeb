//go:build linux

package hostiletest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// helper is this test binary in another process: a supervisor that can be
// killed, or measured, without the tests.
type helper struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	dir   string // its state, which stays when it is killed
	in    io.WriteCloser
	errs  *watched
}

func startHelper(t *testing.T, args ...string) *helper {
	t.Helper()
	return startHelperIn(t, 0, args...)
}

// startHelperIn starts it with namespaces of its own.
func startHelperIn(t *testing.T, spaces uintptr, args ...string) *helper {
	t.Helper()
	dir := openDir(t)
	h := &helper{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), "/proc/self/exe"), dir: dir, errs: &watched{}}
	h.cmd.Env = append(os.Environ(), envHelper+"="+strings.Join(args, " "), envDir+"="+dir, "GLOVEBOX_TEST_HOSTILE_AGENT="+w.agent,
		"GLOVEBOX_TEST_HOSTILE_MODE="+w.mode, testenv.EnvRootfs+"="+w.rootfs)
	h.cmd.Stderr = h.errs
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: spaces}
	h.cmd.WaitDelay = 5 * time.Second
	out, err := h.cmd.StdoutPipe()
	if err == nil {
		h.in, err = h.cmd.StdinPipe()
	}
	if err == nil {
		err = h.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	h.lines = bufio.NewScanner(out)
	h.lines.Buffer(nil, 1<<20)
	t.Cleanup(func() {
		h.in.Close()
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
		if ex, err := w.target.open(context.Background(), w.settings(filepath.Join(dir, "state"))); err == nil { //nolint:usetesting // the test's is over
			_ = ex.Sweep(context.Background()) //nolint:usetesting // the same
			_ = ex.Close()
		}
	})
	return h
}

// line is the next thing the helper says.
func (h *helper) line(t *testing.T) string {
	t.Helper()
	if !h.lines.Scan() {
		_ = h.cmd.Wait()
		t.Fatalf("the helper ended: %v, %s", h.cmd.ProcessState, h.errs.bytes())
	}
	return h.lines.Text()
}

// help is what a helper does instead of tests.
func help(what string) int {
	args := strings.Fields(what)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	ex, err := targets()[os.Getenv("GLOVEBOX_TEST_HOSTILE_MODE")].open(ctx, settings{
		agent: os.Getenv("GLOVEBOX_TEST_HOSTILE_AGENT"), stateDir: filepath.Join(os.Getenv(envDir), "state"), rootfs: os.Getenv(testenv.EnvRootfs),
	})
	if err == nil {
		switch args[0] {
		case "hold":
			err = helpHold(ctx, ex, args[1])
		case "flood":
			err = helpFlood(ctx, ex, args[1], args[2])
		case "metadata":
			err = helpMetadata(ctx, ex)
		case "many":
			err = helpMany(ctx, ex, args[1])
		default:
			err = errors.New("unknown helper")
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := ex.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// helpHold makes sandboxes full of processes that want to stay, and says which.
func helpHold(ctx context.Context, ex backend.Executor, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	for range n {
		sb, err := ex.Create(ctx, backend.Spec{Env: map[string]string{"HOSTILE_RUN": filepath.Base(os.Getenv(envDir))}})
		if err != nil {
			return err
		}
		for _, name := range []string{"probe.py", "fork.py"} {
			data, err := os.ReadFile(filepath.Join("testdata", name))
			if err != nil {
				return err
			}
			if err := backend.WriteFile(ctx, sb.Files(), name, data, 0); err != nil {
				return err
			}
		}
		for _, what := range []string{"escape", "ignore", "respawn"} {
			said := &watched{}
			p, err := sb.Start(ctx, backend.Command{
				Args: []string{"/usr/bin/python3", "-u", "fork.py", "n", what}, Output: backend.Output{Stdout: said}, Timeout: time.Minute,
			})
			if err != nil {
				return err
			}
			if !said.saying("RESULT", p) {
				return fmt.Errorf("%s never started: %s", what, said.bytes())
			}
		}
		fmt.Println(sb.ID())
	}
	fmt.Println("READY")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// helpFlood runs a program that writes without end to one stream, and says what
// was kept and how much this process has grown.
func helpFlood(ctx context.Context, ex backend.Executor, stream, megabytes string) error {
	files := map[string]backend.File{}
	for _, name := range []string{"probe.py", "output.py"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			return err
		}
		files[name] = backend.File{Data: data}
	}
	one := func(mb string) (backend.Result, error) {
		return backend.Run(ctx, ex, backend.RunSpec{
			Spec:    backend.Spec{Limits: backend.Limits{Output: floodKept}},
			Command: backend.Command{Args: []string{"/usr/bin/python3", "output.py", "n", stream, mb}, Timeout: 2 * time.Minute}, Files: files,
		})
	}
	// What a small run takes is no part of it.
	if _, err := one("16"); err != nil {
		return err
	}
	debug.FreeOSMemory()
	before, err := resident("VmRSS")
	if err != nil {
		return err
	}
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return err
	}
	res, err := one(megabytes)
	if err != nil {
		return err
	}
	peak, err := resident("VmHWM")
	kept, other, truncated := len(res.Stdout), len(res.Stderr), res.Exit.StdoutTruncated
	if stream == "stderr" {
		kept, other, truncated = other, kept, res.Exit.StderrTruncated
	}
	fmt.Println(res.Exit.Reason, kept, other, truncated, (peak-before)>>10)
	return err
}

// resident is a size of this process in kilobytes.
func resident(key string) (int64, error) {
	f := strings.Fields(status(os.Getpid(), key))
	if len(f) == 0 {
		return 0, errors.New("no " + key)
	}
	return strconv.ParseInt(f[0], 10, 64)
}

// helpMany runs many sandboxes, of which some end badly, and says what it had
// before and after: goroutines and descriptors.
func helpMany(ctx context.Context, ex backend.Executor, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	one := func(i int) {
		rs := backend.RunSpec{Command: backend.Command{Args: []string{"/bin/true"}}}
		rctx, cancel := context.WithCancel(ctx)
		defer cancel()
		switch i % 5 {
		case 1:
			rs.Command = backend.Command{Args: []string{"/bin/sleep", "60"}, Timeout: 20 * time.Millisecond}
		case 2:
			rs.Spec.Template = "none such"
		case 3:
			rctx, cancel = context.WithTimeout(ctx, time.Duration(i)*time.Millisecond/2)
			defer cancel()
		case 4:
			rs.Command.Args = []string{"/bin/sh", "-c", "kill -9 $$"}
		}
		_, _ = backend.Run(rctx, ex, rs)
	}
	for i := range 10 {
		one(i)
	}
	before := counts()
	for i := range n {
		one(i)
	}
	after := counts()
	for range 250 {
		if after = counts(); after[0] <= before[0] && after[1] <= before[1] {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	fmt.Println(before[0], before[1], after[0], after[1])
	if after[0] > before[0] || after[1] > before[1] {
		buf := make([]byte, 1<<16)
		fmt.Fprintf(os.Stderr, "%s\n", bytes.TrimRight(buf[:runtime.Stack(buf, true)], "\x00"))
	}
	return nil
}

// counts are the goroutines and the descriptors of this process.
func counts() [2]int {
	fds, _ := os.ReadDir("/proc/self/fd")
	return [2]int{runtime.NumGoroutine(), len(fds)}
}

// killAndWait kills the helper at once, as a crash would.
func (h *helper) killAndWait(t *testing.T) {
	t.Helper()
	if err := h.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = h.cmd.Wait()
}
