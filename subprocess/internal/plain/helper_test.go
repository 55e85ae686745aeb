//go:build unix

package plain_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess/internal/plain"
)

func newExecutor(t *testing.T) (*plain.Executor, string) {
	t.Helper()
	dir := t.TempDir()
	ex := plain.New(plain.Options{Dir: dir})
	t.Cleanup(func() {
		if err := ex.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 0 {
			t.Errorf("left behind: %v %v", entries, err)
		}
	})
	return ex, dir
}

func newSandbox(t *testing.T, spec backend.Spec) backend.Sandbox {
	t.Helper()
	ex, _ := newExecutor(t)
	sb, err := ex.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func sh(script string) backend.Command {
	return backend.Command{Args: []string{"sh", "-c", script}}
}

// run runs cmd to its end and gives its output.
func run(t *testing.T, sb backend.Sandbox, cmd backend.Command) (exit backend.Exit, stdout, stderr string) {
	t.Helper()
	var out, errs buffer
	cmd.Output = backend.Output{Stdout: &out, Stderr: &errs}
	exit, err := backend.RunIn(t.Context(), sb, cmd)
	if err != nil {
		t.Fatalf("%q: %v", cmd.Args, err)
	}
	return exit, out.String(), errs.String()
}

func start(t *testing.T, sb backend.Sandbox, cmd backend.Command) backend.Process {
	t.Helper()
	p, err := sb.Start(t.Context(), cmd)
	if err != nil {
		t.Fatalf("%q: %v", cmd.Args, err)
	}
	return p
}

func wait(t *testing.T, p backend.Process) backend.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	exit, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return exit
}

// buffer may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// line reads the first line that a command writes.
type line struct {
	once sync.Once
	c    chan string
}

func newLine() *line { return &line{c: make(chan string, 1)} }

func (l *line) Write(p []byte) (int, error) {
	l.once.Do(func() { l.c <- strings.TrimSpace(string(p)) })
	return len(p), nil
}

func (l *line) get(t *testing.T) string {
	t.Helper()
	select {
	case s := <-l.c:
		return s
	case <-time.After(20 * time.Second):
		t.Fatal("the command wrote nothing")
		return ""
	}
}

func pid(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil || n <= 1 {
		t.Fatalf("%q is no process", s)
	}
	return n
}

// running tells whether a process is there and no zombie.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) {
		_, err := os.Stat("/proc/self/stat")
		return err != nil // no such file system here
	}
	return !strings.Contains(string(stat), ") Z ")
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within ten seconds", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func wantKind(t *testing.T, err error, kind backend.Kind, field string) {
	t.Helper()
	if backend.KindOf(err) != kind || err == nil {
		t.Errorf("error %v, want %s", err, kind)
		return
	}
	if e, ok := errors.AsType[*backend.Error](err); ok && e.Field != field {
		t.Errorf("field %q in %v, want %q", e.Field, err, field)
	}
}

func read(t *testing.T, sb backend.Sandbox, name string) string {
	t.Helper()
	data, err := backend.ReadFile(t.Context(), sb.Files(), name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func write(t *testing.T, sb backend.Sandbox, name, data string, perm os.FileMode) {
	t.Helper()
	if err := sb.Files().Write(t.Context(), name, io.NopCloser(strings.NewReader(data)), perm); err != nil {
		t.Fatal(err)
	}
}
