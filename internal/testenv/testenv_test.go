package testenv_test

import (
	"debug/elf"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/testenv"
)

func TestMain(m *testing.M) {
	var b testenv.Builder
	builder = &b
	code := m.Run()
	if err := b.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var builder *testenv.Builder

// recorder is a TB that records how a test would have ended.
type recorder struct {
	testing.TB
	ended string
}

func (r *recorder) Helper()               { _ = r.ended }
func (r *recorder) Fatalf(string, ...any) { r.ended = "failed" }
func (r *recorder) Skipf(string, ...any)  { r.ended = "skipped" }

func TestRequire(t *testing.T) {
	tests := []struct{ required, name, unavailable, want string }{
		{"", "docker", "", ""},
		{"", "docker", "no socket", "skipped"},
		{"subprocess, docker", "docker", "no socket", "failed"},
		{"subprocess,docker", "dock", "no socket", "skipped"},
		{"docker", "docker", "", ""},
	}
	for _, tt := range tests {
		t.Setenv(testenv.EnvRequire, tt.required)
		r := &recorder{TB: t}
		testenv.Require(r, tt.name, tt.unavailable)
		if r.ended != tt.want {
			t.Errorf("%+v: %q", tt, r.ended)
		}
	}
}

func TestBuilder_buildsOnceAndStatic(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("reads ELF")
	}
	const pkg = "internal/leak/leakcheck"
	path := builder.Build(t, pkg)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(builder.Build(t, pkg))
	if err != nil || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Errorf("built twice: %v", err)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("it is linked dynamically")
		}
	}
}

func TestAsNobody(t *testing.T) {
	if testenv.AsNobody(t) {
		return
	}
	if os.Geteuid() == 65534 {
		if _, err := os.ReadFile("/etc/shadow"); err == nil {
			t.Error("root's groups were kept")
		}
		if err := os.WriteFile(os.Getenv("HOME")+"/x", nil, 0o600); err != nil {
			t.Error(err)
		}
	}
}
