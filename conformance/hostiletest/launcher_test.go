//go:build linux

package hostiletest_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// largeProgram is larger than what fits into one argument; LA-01.
func largeProgram(t *testing.T) {
	b := newBox(t, backend.Spec{})
	text := strings.Repeat("# filler that is longer than a line of code usually is\n", 2600) + "print(6*7)\n"
	if len(text) < 140_000 {
		t.Fatalf("%d bytes", len(text))
	}
	run := func(name string, cmd backend.Command) {
		var out watched
		cmd.Output = backend.Output{Stdout: &out, Stderr: &out}
		exit, err := backend.RunIn(t.Context(), b, cmd)
		if err != nil || !exit.Success() || string(out.bytes()) != "42\n" {
			t.Errorf("%s: %s, %v, %.200s", name, exit, err, out.bytes())
		}
	}
	run("on standard input", backend.Command{Args: []string{"/usr/bin/python3", "-"}, Stdin: strings.NewReader(text)})
	if err := backend.WriteFile(t.Context(), b.Files(), "large.py", []byte(text), 0); err != nil {
		t.Fatal(err)
	}
	run("as a file", backend.Command{Args: []string{"/usr/bin/python3", "large.py"}})
	// As an argument the kernel refuses it, here and outside.
	exit, err := backend.RunIn(t.Context(), b, backend.Command{Args: []string{"/usr/bin/python3", "-c", text}})
	if err == nil && exit.Success() {
		t.Error("inconclusive: it fits into an argument")
	}
	if err := exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", text).Run(); err == nil {
		t.Error("inconclusive: it fits into an argument outside")
	}
}

// hugeArguments exceed what the kernel takes; the supervisor only reports it.
func hugeArguments(t *testing.T) {
	b := newBox(t, backend.Spec{})
	many := make([]string, 3<<10)
	for i := range many {
		many[i] = strings.Repeat("a", 1<<10)
	}
	env := map[string]string{}
	for i := range 3 << 10 {
		env["V"+itoa(i)] = strings.Repeat("e", 1<<10)
	}
	for what, cmd := range map[string]backend.Command{
		"arguments":         {Args: append([]string{"/bin/true"}, many...)},
		"one argument":      {Args: []string{"/bin/true", strings.Repeat("a", 1<<20)}},
		"environment":       {Args: []string{"/bin/true"}, Env: env},
		"one variable":      {Args: []string{"/bin/true"}, Env: map[string]string{"V": strings.Repeat("e", 1<<20)}},
		"a directory":       {Args: []string{"/bin/true"}, Dir: "/" + strings.Repeat("d/", 4000)},
		"a program's name":  {Args: []string{"/" + strings.Repeat("p", 1<<20)}},
		"a NUL byte":        {Args: []string{"/bin/true", "a\x00b"}},
		"a variable's name": {Args: []string{"/bin/true"}, Env: map[string]string{"A=B": "c"}},
	} {
		exit, err := backend.RunIn(t.Context(), b, cmd)
		if err == nil && exit.Success() && what != "environment" {
			t.Errorf("%s: taken", what)
		}
	}
	agentLives(&scene{T: t}, b, nil)
}

// nothingWeaker: what cannot be had is an error, never something weaker; LA-06
// and LA-07.
func nothingWeaker(t *testing.T) {
	dir := openDir(t)
	open := w.target.open
	agent := func(path string) func(context.Context, settings) (executor, error) {
		return func(ctx context.Context, s settings) (executor, error) {
			s.agent = path
			return open(ctx, s)
		}
	}
	mount := func(path, target string) backend.Spec {
		return backend.Spec{Mounts: []backend.Mount{{HostPath: path, Target: target, ReadOnly: true}}}
	}
	cases := map[string]weakCase{
		"no agent":                 {agent(filepath.Join(dir, "absent")), backend.Spec{}},
		"a dynamic agent":          {agent("/bin/true"), backend.Spec{}},
		"an agent that is no file": {agent(dir), backend.Spec{}},
		"more than it is":          {open, backend.Spec{MinIsolation: w.target.level + 1}},
		"no such template":         {open, backend.Spec{Template: "../../etc"}},
		"the host's root":          {open, mount("/", "/mnt/h")},
		"the host's /proc":         {open, mount("/proc", "/mnt/h")},
		"the host's /run":          {open, mount("/run", "/mnt/h")},
		"a link to the root":       {open, mount("/proc/self/root", "/mnt/h")},
		"its own state":            {open, mount(w.dir, "/mnt/h")},
		"over the interpreter":     {open, mount(dir, "/usr/../proc")},
	}
	if !slices.Contains(w.ex.Capabilities().Networks, backend.NetworkFull) {
		cases["a whole network"] = weakCase{open, backend.Spec{Network: backend.Network{Mode: backend.NetworkFull}}}
	}
	if !slices.Contains(w.ex.Capabilities().Networks, backend.NetworkAllowlist) {
		cases["an allowlist"] = weakCase{open, backend.Spec{
			Network: backend.Network{Mode: backend.NetworkAllowlist, Allow: []backend.Rule{{Host: "example.com"}}},
		}}
	}
	if w.target.weak != nil {
		maps.Copy(cases, w.target.weak(dir))
	}
	for what, tt := range cases {
		// Below the shared one, so that "its own state" holds it.
		ex, err := tt.open(t.Context(), w.settings(filepath.Join(dir, "state")))
		if err != nil {
			continue
		}
		sb, err := ex.Create(t.Context(), tt.spec)
		if err == nil {
			t.Errorf("open: %s: a sandbox was made: %s", what, sb.Receipt().Achieved)
		}
		if err := ex.Close(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// impossibleLimits are refused, never taken for none; LA-10.
func impossibleLimits(t *testing.T) {
	for what, l := range map[string]backend.Limits{
		"memory -1": {Memory: -1}, "memory 1": {Memory: 1}, "memory 2^63": {Memory: math.MaxInt64}, "memory of more than there is": {Memory: 1 << 59},
		"pids -1": {Pids: -1}, "pids 1": {Pids: 1}, "pids 2^63": {Pids: math.MaxInt64},
		"cpus -1": {CPUs: -1}, "cpus NaN": {CPUs: math.NaN()}, "cpus inf": {CPUs: math.Inf(1)}, "cpus tiny": {CPUs: 1e-9},
		"disk -1": {Disk: -1}, "disk 1": {Disk: 1}, "disk 2^63": {Disk: math.MaxInt64}, "disk of more than memory": {Disk: 1 << 40},
		"inodes -1": {Inodes: -1}, "inodes 1": {Inodes: 1}, "files -1": {OpenFiles: -1}, "files 2^63": {OpenFiles: math.MaxInt64},
		"file size -1": {FileSize: -1}, "output -1": {Output: -1}, "cpu time -1": {CPUTime: -1},
	} {
		if sb, err := w.ex.Create(t.Context(), backend.Spec{Limits: l}); err == nil {
			_ = sb.Destroy(t.Context())
			t.Errorf("open: %s is taken", what)
		}
	}
	for what, d := range map[string]time.Duration{"lifetime -1": -1, "lifetime of a century": math.MaxInt64} {
		if sb, err := w.ex.Create(t.Context(), backend.Spec{Lifetime: d}); err == nil {
			_ = sb.Destroy(t.Context())
			t.Errorf("open: %s is taken", what)
		}
	}
	// Zero is the default, not nothing.
	b := newBox(t, backend.Spec{})
	for _, g := range b.Receipt().Limits {
		if g.Control == backend.ControlPids && g.Value != itoa(int(backend.DefaultPids)) {
			t.Errorf("no limit of processes: %s", g.Value)
		}
	}
}

// manyHostile runs bombs of every kind beside each other; LA-09.
func manyHostile(t *testing.T) {
	limits := backend.Limits{Memory: 128 * mib, Pids: fewTasks, Disk: 32 * mib}
	count := 50
	if sentry() || w.target.engine {
		// Each of these takes a second of this machine's two cores to make.
		limits.Memory, count = 3*smallMemory/2, 12
	}
	// Those that are to end by themselves have the time that the others leave.
	const short, long = 6 * time.Second, 2 * time.Minute
	kinds := []struct {
		program string
		args    []string
		timeout time.Duration
		want    backend.Reason
	}{
		{"fork.py", []string{"bomb"}, short, backend.ReasonTimeout},
		{"memory.py", []string{"anonymous"}, long, backend.ReasonMemoryLimit},
		{"memory.py", []string{"tmp"}, long, backend.ReasonExited},
		{"clock.py", []string{"spin"}, short, backend.ReasonTimeout},
		{"fork.py", []string{"respawn"}, short, backend.ReasonTimeout},
		{"output.py", []string{"code", "0"}, long, backend.ReasonExited},
	}
	var wg sync.WaitGroup
	for i := range count {
		kind := kinds[i%len(kinds)]
		s := &scene{T: t, a: &attack{program: kind.program}, nonce: nonce(), args: kind.args}
		b := newBox(t, backend.Spec{Limits: limits})
		s.upload(b)
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), kind.timeout+time.Minute)
			defer cancel()
			exit, err := backend.RunIn(ctx, b, backend.Command{
				Args: s.argv(backend.DefaultHome, s.args), Timeout: kind.timeout, Stdin: strings.NewReader(""),
			})
			if err != nil {
				t.Errorf("%v: %v", kind.args, err)
				return
			}
			// A bomb's processes and gVisor's kernel share one limit of memory.
			full := sentry() && kind.program == "fork.py" && exit.Reason == backend.ReasonMemoryLimit
			if exit.Reason != kind.want && !full {
				t.Errorf("%s %v ended with %s", kind.program, kind.args, exit)
			}
		})
	}
	wg.Wait()
}

// blocked is an input that never ends until the test does, with a secret.
func blocked(t *testing.T, secret string) io.Reader {
	t.Helper()
	pr, pw := io.Pipe()
	go func() { _, _ = pw.Write([]byte("# " + secret)) }()
	t.Cleanup(func() { pw.Close() })
	return pr
}

// compileTo builds a static C program.
func compileTo(t *testing.T, source, out string) string {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), "gcc", "-static", "-o", out, source).CombinedOutput()
	if _, ok := errors.AsType[*exec.Error](err); ok {
		t.Skipf("inconclusive: no C compiler: %v", err)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}
