//go:build linux

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// These tests run the program itself against the real subprocess backend.

var builder testenv.Builder

func TestMain(m *testing.M) {
	code := m.Run()
	if err := builder.Close(); err != nil && code == 0 {
		code = 1
	}
	os.Exit(code)
}

type glovebox struct {
	t   *testing.T
	exe string
	dir string
	in  string
	as  *syscall.SysProcAttr
}

// real skips, or fails where the backend is required, when it cannot run here.
func real(t *testing.T) *glovebox {
	t.Helper()
	exe := builder.Build(t, "cmd/glovebox")
	dir := t.TempDir()
	m, err := subprocess.Measure(t.Context(), subprocess.Config{Agent: exe, StateDir: filepath.Join(dir, "measure")})
	why := m.Health.Reason
	switch {
	case err != nil:
		why = err.Error()
	case !m.Health.Available && why == "":
		why = "it does not say why"
	case m.Health.Available:
		why = ""
	}
	testenv.Require(t, "subprocess", why)
	return &glovebox{t: t, exe: exe, dir: dir}
}

type ran struct {
	code     int
	out, err string
}

func (g *glovebox) cmd(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, g.exe, args...)
	cmd.Dir, cmd.SysProcAttr = g.dir, g.as
	cmd.Env = []string{
		"HOME=" + g.dir, "PATH=" + os.Getenv("PATH"), "GLOVEBOX_STATE_DIR=" + filepath.Join(g.dir, "state"),
		"GLOVEBOX_BACKEND=subprocess", "CANARY=hunter2",
	}
	return cmd
}

func (g *glovebox) run(args ...string) ran {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), time.Minute)
	defer cancel()
	cmd := g.cmd(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(g.in), &out, &errs
	err := cmd.Run()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) || ctx.Err() != nil {
		g.t.Fatalf("%q: %v\n%s", args, err, errs.String())
	}
	return ran{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

func (g *glovebox) write(name, text string) string {
	g.t.Helper()
	path := filepath.Join(g.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		g.t.Fatal(err)
	}
	return path
}

func TestRun_shell(t *testing.T) {
	t.Parallel()
	g := real(t)
	script := g.write("hello.sh", "echo \"hello $1\"\npwd\nenv\nexit 3\n")
	r := g.run("run", script, "world")
	if r.code != 3 || !strings.HasPrefix(r.out, "hello world\n/home/user\n") || strings.Contains(r.out, "hunter2") {
		t.Errorf("%+v", r)
	}
	for _, want := range []string{"receipt: exited(3)", "on subprocess", "memory 512", "network none"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("no %q in %s", want, r.err)
		}
	}
}

func TestRun_languages(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, needs, source, want string }{
		{"a.py", "/usr/bin/python3", "import sys\nprint(6*7, sys.argv[1])", "42 x\n"},
		{"a.mjs", "/usr/bin/node", "console.log(6*7, process.argv[2])", "42 x\n"},
		{"a.ts", "/usr/bin/node", "const n: number = await Promise.resolve(42); console.log(n, process.argv[2])", "42 x\n"},
		{"a.bash", "/bin/bash", "echo $((6*7)) $1", "42 x\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			g := real(t)
			if _, err := os.Stat(tc.needs); err != nil {
				t.Skipf("no %s", tc.needs)
			}
			if r := g.run("run", "-q", g.write(tc.name, tc.source), "x"); r.code != 0 || r.out != tc.want {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestRun_limits(t *testing.T) {
	t.Parallel()
	g := real(t)
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		reason string
	}{
		{"wall time", []string{"--timeout", "1s", "--", "sleep", "30"}, 124, "timeout"},
		{"CPU time", []string{"--cpu-time", "1s", "--", "sh", "-c", "while :; do :; done"}, 137, "cpu_limit"},
		{"memory", []string{"--memory", "64m", "--", "tail", "/dev/zero"}, 137, "memory_limit"},
		{"a signal", []string{"--", "sh", "-c", "kill -11 $$"}, 139, "signaled"},
		{"not found", []string{"--", "no-such-program"}, 127, "exited"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := g.run(append([]string{"run", "--json"}, tc.args...)...)
			var doc struct {
				Exit struct{ Reason string }
				Code int `json:"shell_code"`
			}
			if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
				t.Fatalf("%v: %+v", err, r)
			}
			if r.code != tc.code || doc.Code != tc.code || doc.Exit.Reason != tc.reason {
				t.Errorf("code %d, document %+v", r.code, doc)
			}
		})
	}
}

func TestRun_explain(t *testing.T) {
	t.Parallel()
	g := real(t)
	if r := g.run("run", "--explain", "--", "true"); r.code != 0 || !strings.Contains(r.out, "backend: subprocess") {
		t.Fatalf("%+v", r)
	}
	// Each sandbox has a marker here for as long as it lives.
	markers := filepath.Join(g.dir, "state", "sandboxes")
	before, err := os.Stat(markers)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"-v", "/usr/share:/mnt/share:ro"},
		{"--template", "nope"},
		{"-v", "/proc:/mnt/proc:ro"},
		{"-v", "/none/here:/mnt/x:ro"},
	} {
		r := g.run(slices.Concat([]string{"run", "--explain"}, args, []string{"--", "true"})...)
		after, err := os.Stat(markers)
		if err != nil || !after.ModTime().Equal(before.ModTime()) {
			t.Errorf("%q: a sandbox was made: %v", args, err)
		}
		ran := g.run(slices.Concat([]string{"run", "-q"}, args, []string{"--", "true"})...)
		if before, err = os.Stat(markers); err != nil || before.ModTime().Equal(after.ModTime()) && ran.code == 0 {
			t.Errorf("%q: a sandbox leaves no trace: %v", args, err)
		}
		if r.code != ran.code {
			t.Errorf("%q: explained as %+v, and run gave %+v", args, r, ran)
		}
		if ran.code == 0 {
			continue
		}
		why := strings.TrimPrefix(strings.TrimSpace(ran.err), "glovebox: ")
		if !strings.Contains(r.out, "backend: none") || !strings.Contains(r.out, why) {
			t.Errorf("%q: explained as %+v, and run says %q", args, r, why)
		}
	}
}

func TestRun_warnings(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Skip("no /usr/bin/python3")
	}
	g := real(t)
	for share, want := range map[string]int{"80%": 1, "0": 0} {
		file := g.write("warnings-"+share+".yaml", "warnings: {memory: "+share+"}\n")
		r := g.run("--config", file, "run", "--memory", "64m", "--", "python3", "-c", "x = b'x' * (50 << 20)")
		if r.code != 0 || strings.Count(r.err, "warning: memory") != want {
			t.Errorf("from %s: %+v", share, r)
		}
	}
}

func TestRun_badInput(t *testing.T) {
	t.Parallel()
	g := real(t)
	big := g.write("big.sh", strings.Repeat("# a line of nothing much\n", 6000)+"echo done\n")
	if r := g.run("run", "-q", big); r.code != 0 || r.out != "done\n" {
		t.Errorf("a program of 150 KB: %+v", r)
	}
	if r := g.run("run", "-q", "--", "head", "-c", "300000", "/dev/zero"); r.code != 0 || len(r.out) != 300000 {
		t.Errorf("binary output: code %d, %d bytes", r.code, len(r.out))
	}
	if r := g.run("run", "-q", "--timeout", "50s", "--", "head", "-c", "200000000", "/dev/zero"); r.code != 0 || len(r.out) != 200000000 {
		t.Errorf("much output: code %d, %d bytes", r.code, len(r.out))
	}
	g.in = "in\x00put"
	if r := g.run("run", "-q", "-i", "--", "cat"); r.out != "in\x00put" {
		t.Errorf("NUL bytes: %+v", r)
	}
	if r := g.run("run", "-q", "--", "sh", "-c", "head -c 200M /dev/zero >x; head -c 200M /dev/zero >y"); r.code != 1 || !strings.Contains(r.err, "No space left") {
		t.Errorf("a full disk: %+v", r)
	}
}

func TestRun_filesAreCopiedSafely(t *testing.T) {
	t.Parallel()
	g := real(t)
	in := g.write("in.txt", "b\na\n")
	if r := g.run("run", "-q", "--file", in, "--out", "sorted.txt", "--", "sh", "-c", "sort in.txt >sorted.txt"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if data, err := os.ReadFile(filepath.Join(g.dir, "sorted.txt")); err != nil || string(data) != "a\nb\n" {
		t.Errorf("%q, %v", data, err)
	}
	for name, script := range map[string]string{
		"a link to the host":  "ln -s " + in + " x",
		"a FIFO":              "mkfifo x",
		"a directory":         "mkdir x",
		"nothing":             "true",
		"a link to /dev/zero": "ln -s /dev/zero x",
	} {
		r := g.run("run", "-q", "--out", "x", "--", "sh", "-c", script)
		if _, err := os.Lstat(filepath.Join(g.dir, "x")); r.code != 125 || err == nil {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestRun_endsWithItsSignal(t *testing.T) {
	t.Parallel()
	g := real(t)
	cmd := g.cmd(t.Context(), "run", "-q", "--", "sh", "-c", "echo ready; sleep 60")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 6)
	if _, err := out.Read(buf); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_ = cmd.Process.Signal(syscall.SIGINT)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || time.Since(start) > 20*time.Second {
		t.Errorf("code %d after %v", code, time.Since(start))
	}
}

func TestRun_asNobody(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	g := real(t)
	// t.TempDir lies below a directory that only root can enter.
	dir, err := os.MkdirTemp("", "glovebox-nobody-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program, err := os.ReadFile(g.exe)
	if err != nil {
		t.Fatal(err)
	}
	g.dir, g.exe = dir, filepath.Join(dir, "glovebox")
	if err := errors.Join(os.WriteFile(g.exe, program, 0o755), os.Chown(dir, testenv.Nobody, testenv.Nobody), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	g.as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testenv.Nobody, Gid: testenv.Nobody}}
	if d := g.run("doctor", "--require", "restricted"); d.code != 0 {
		t.Skipf("nobody can contain nothing here: %+v", d)
	}
	r := g.run("run", "--", "sh", "-c", "cat /etc/shadow; echo out; exit 4")
	if r.code != 4 || r.out != "out\n" || !strings.Contains(r.err, "receipt: exited(4)") {
		t.Errorf("%+v", r)
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	g := real(t)
	if r := g.run("doctor", "--require", "subprocess,restricted"); r.code != 0 || !strings.Contains(r.out, "backend subprocess: available") {
		t.Errorf("%+v", r)
	}
	if r := g.run("doctor", "--json", "--require", "vm"); r.code != 1 || !json.Valid([]byte(r.out)) {
		t.Errorf("%+v", r)
	}
}
