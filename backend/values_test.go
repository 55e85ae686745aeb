package backend_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
)

func TestIsolation_orderAndText(t *testing.T) {
	t.Parallel()
	names := []string{"none", "restricted", "process", "container", "kernel", "vm"}
	if !slices.IsSorted(backend.Isolations()) {
		t.Error("the levels are not in order")
	}
	for i, level := range backend.Isolations() {
		if level.String() != names[i] {
			t.Errorf("%d is %s, want %s", i, level, names[i])
		}
		got, err := backend.ParseIsolation(names[i])
		if err != nil || got != level {
			t.Errorf("ParseIsolation(%q) = %v, %v", names[i], got, err)
		}
		data, err := json.Marshal(map[backend.Isolation]backend.Isolation{level: level})
		if err != nil {
			t.Fatal(err)
		}
		var back map[backend.Isolation]backend.Isolation
		if err := json.Unmarshal(data, &back); err != nil || back[level] != level {
			t.Errorf("%s came back as %v: %v", data, back, err)
		}
	}
	for _, text := range []string{"", "VM", "isolation(9)", "vm "} {
		var level backend.Isolation
		err := level.UnmarshalText([]byte(text))
		if backend.KindOf(err) != backend.ErrInvalid || level != backend.IsolationNone || !strings.Contains(err.Error(), "kernel, vm") {
			t.Errorf("%q: %v %v", text, level, err)
		}
	}
	if got := backend.Isolation(9).String(); got != "isolation(9)" {
		t.Errorf("an unknown level is %q", got)
	}
}

func TestExit_shellCode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		exit    backend.Exit
		text    string
		code    int
		success bool
	}{
		{backend.Exit{Reason: backend.ReasonExited}, "exited(0)", 0, true},
		{backend.Exit{Reason: backend.ReasonExited, Code: 255}, "exited(255)", 255, false},
		{backend.Exit{Reason: backend.ReasonExited, Code: 256}, "exited(256)", 125, false},
		{backend.Exit{Reason: backend.ReasonExited, Code: -1}, "exited(-1)", 125, false},
		{backend.Exit{Reason: backend.ReasonSignaled, Signal: 9, Code: 137}, "signaled(9)", 137, false},
		{backend.Exit{Reason: backend.ReasonSignaled, Signal: 64}, "signaled(64)", 192, false},
		{backend.Exit{Reason: backend.ReasonSignaled, Signal: 128}, "signaled(128)", 125, false},
		{backend.Exit{Reason: backend.ReasonSignaled, Signal: -128}, "signaled(-128)", 125, false},
		{backend.Exit{Reason: backend.ReasonTimeout}, "timeout", 124, false},
		{backend.Exit{Reason: backend.ReasonCPULimit}, "cpu_limit", 137, false},
		{backend.Exit{Reason: backend.ReasonMemoryLimit}, "memory_limit", 137, false},
		{backend.Exit{Reason: backend.ReasonOutputLimit}, "output_limit", 137, false},
		{backend.Exit{Reason: backend.ReasonCanceled}, "canceled", 125, false},
		{backend.Exit{Reason: backend.ReasonExpired}, "sandbox_expired", 125, false},
		{backend.Exit{Reason: "newer"}, "newer", 125, false},
		{backend.Exit{}, "", 125, false},
	}
	for _, tt := range tests {
		if tt.exit.String() != tt.text || tt.exit.ShellCode() != tt.code || tt.exit.Success() != tt.success {
			t.Errorf("%+v: %q %d %v", tt.exit, tt.exit, tt.exit.ShellCode(), tt.exit.Success())
		}
	}
}

func TestLimits_withDefaults(t *testing.T) {
	t.Parallel()
	want := backend.Limits{
		Memory: 512 << 20, CPUs: 1, Pids: 256, Disk: 256 << 20, Inodes: 65536, OpenFiles: 1024, FileSize: 256 << 20,
	}
	if diff := cmp.Diff(want, backend.Limits{}.WithDefaults()); diff != "" {
		t.Error(diff)
	}
	if err := want.Validate(); err != nil {
		t.Errorf("the defaults are invalid: %v", err)
	}
	if diff := cmp.Diff(want, want.WithDefaults()); diff != "" {
		t.Error(diff)
	}
	if got := (backend.Limits{Memory: 64 << 30}).WithDefaults().Disk; got != 1<<30 {
		t.Errorf("the default disk of much memory is %d", got)
	}
	if err := (backend.Limits{Memory: backend.MinMemory}).WithDefaults().Validate(); err != nil {
		t.Errorf("the least memory with defaults: %v", err)
	}
	if got := (backend.Limits{KillOnOutput: true}).WithDefaults().Output; got != backend.DefaultOutput {
		t.Errorf("kills at %d bytes of output", got)
	}
}

func TestWarnings_Check(t *testing.T) {
	t.Parallel()
	w := backend.Warnings{Memory: 0.8, Pids: 0.5, Timeout: 0.9}
	limits := backend.Limits{Memory: 100 << 20, Pids: 10}
	exit := backend.Exit{Usage: backend.Usage{PeakMemory: 90 << 20, PeakProcesses: 4, Wall: 950 * time.Millisecond, Disk: 1 << 40}}
	want := []string{"memory reached 90% of its limit", "wall time reached 95% of its limit"}
	if d := cmp.Diff(want, w.Check(limits, time.Second, exit)); d != "" {
		t.Error(d)
	}
	if got := w.Check(limits, backend.UntilSandboxEnds, exit); len(got) != 1 {
		t.Errorf("without a limit on time: %q", got)
	}
	w.Memory = 0.91
	if got := w.Check(limits, time.Minute, exit); got != nil {
		t.Errorf("below what was raised: %q", got)
	}
	if got := (backend.Warnings{}).Check(limits, time.Second, exit); got != nil {
		t.Errorf("warnings that are off: %q", got)
	}
}

func TestControls_areAllConstants(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "capabilities.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []backend.Control
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); ok && id.Name == "Control" {
			name, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Error(err)
			}
			want = append(want, backend.Control(name))
		}
		return true
	})
	if d := cmp.Diff(want, backend.Controls()); d != "" {
		t.Error(d)
	}
}
