package cli_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
)

func TestRun_programs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, file, source string
		args               []string // FILE stands for the file
		stdin              string
		want               string // the first line of the output
		contains           string
	}{
		{"python", "a/sort.py", "print(1)", []string{"FILE", "--x", "1"}, "", "python3 -u sort.py --x 1", "print(1)"},
		{"javascript", "a.mjs", "1", []string{"FILE"}, "", "node a.mjs", "1"},
		{"typescript", "a.ts", "const x: number = 1; console.log(x)", []string{"FILE"}, "", "node a.cjs", "const x = 1"},
		{"bash", "a.sh", "echo", []string{"FILE"}, "", "bash a.sh", ""},
		{"sh by its first line", "a.sh", "#!/bin/sh\n", []string{"FILE"}, "", "sh a.sh", ""},
		{"language by flag", "data", "x", []string{"--lang", "js", "FILE"}, "", "node data", ""},
		{"code", "", "", []string{"-c", "print(2)", "a", "-b"}, "", "python3 -u main.py a -b", "print(2)"},
		{"code in bash", "", "", []string{"--lang", "bash", "-c", "ls"}, "", "bash main.sh", "ls"},
		{"empty code", "", "", []string{"-c", ""}, "", "python3 -u main.py", ""},
		{"standard input", "", "", []string{"-"}, "#!/bin/bash\nls", "bash main.sh", "ls"},
		{"standard input without a first line", "", "", []string{"-", "x"}, "print(3)", "python3 -u main.py x", "print(3)"},
		{"a command", "", "", []string{"--", "echo", "--json", "x"}, "", "--json x", ""},
		{"a large program", "big.py", strings.Repeat("# filler\n", 140<<10/9), []string{"FILE"}, "", "python3 -u big.py", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.stdin = strings.NewReader(tc.stdin)
			args := []string{"run"}
			for _, a := range tc.args {
				if a == "FILE" {
					a = w.file(tc.file, tc.source)
				}
				args = append(args, a)
			}
			r := w.run(args...)
			first, _, _ := strings.Cut(r.out, "\n")
			if r.code != 0 || first != tc.want || !strings.Contains(r.out, tc.contains) {
				t.Errorf("code %d, output %.200q, errors %q, want %q and %q", r.code, r.out, r.err, tc.want, tc.contains)
			}
			if !strings.Contains(r.err, "receipt: exited(0)") {
				t.Errorf("no receipt in %q", r.err)
			}
		})
	}
}

func TestRun_elsewhereTheProgramIsNamedAbsolutely(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	py, other := w.file("a.py", "x"), w.file("other", "")
	if r := w.run("run", "--file", other+":sub/other", "-w", "/home/user/sub", py); !strings.HasPrefix(r.out, "python3 -u /home/user/a.py\n") {
		t.Errorf("%+v", r)
	}
	if r := w.run("run", "-u", "user", py); !strings.HasPrefix(r.out, "python3 -u /home/user/a.py\n") {
		t.Errorf("for a user whose home may be another: %+v", r)
	}
}

func TestRun_ttyNeedsATerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if r := w.run("run", "--tty", "--", "true"); r.code != 125 || !strings.Contains(r.err, "not a terminal") || len(w.fake.Calls(backendtest.OpCreate)) > 0 {
		t.Errorf("%+v", r)
	}
	if r := w.run("run", "--tty", "--json", "--", "true"); r.code != 125 || !strings.Contains(r.out, "exclude each other") {
		t.Errorf("%+v", r)
	}
}

func TestRun_flagsBecomeSpecAndCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.file("vars", "# comment\nA=1\n\nB=two words\nSECRET\n")
	w.file("glovebox/config.yaml", "limits: {memory: 300m, pids: 77, max_timeout: 10m}\n")
	r := w.run("run", "-e", "B=3", "-e", "C=x=y", "-e", "NOT_HERE", "--env-file", filepath.Join(w.home, "vars"),
		"-u", "user", "-v", w.home+":/data:ro", "--timeout", "6m", "--cpu-time", "2s", "--memory", "1g", "--cpus", "1.5",
		"--disk", "100m", "--output-limit", "1k", "--network", "none", "--min-isolation", "kernel", "--strict",
		"--advisory", "cpu", "--label", "job=7", "-q", "--", "true")
	if r.code != 0 || r.err != "" {
		t.Fatalf("code %d, errors %q", r.code, r.err)
	}
	wantSpec := backend.Spec{
		Labels: map[string]string{"job": "7"}, MinIsolation: backend.IsolationKernel, Strict: true,
		Advisory: []backend.Control{backend.ControlCPU}, Network: backend.Network{Mode: backend.NetworkNone},
		Mounts:   []backend.Mount{{HostPath: w.home, Target: "/data", ReadOnly: true}},
		Lifetime: 7 * time.Minute,
		Limits: backend.Limits{
			Memory: 1 << 30, CPUs: 1.5, Pids: 77, Disk: 100 << 20, CPUTime: 2 * time.Second, Output: 1024,
		},
	}
	if d := cmp.Diff(wantSpec, w.spec()); d != "" {
		t.Error(d)
	}
	want := backend.Command{
		Args: []string{"true"}, User: "user", Timeout: 6 * time.Minute,
		Env: map[string]string{"A": "1", "B": "3", "C": "x=y", "SECRET": "hunter2"},
	}
	if d := cmp.Diff(want, w.command(), cmpopts.IgnoreFields(backend.Command{}, "Output")); d != "" {
		t.Error(d)
	}
}

func TestRun_defaultsAreNotAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if r := w.run("run", "--", "env"); r.code != 0 || strings.Contains(r.out, "hunter2") {
		t.Errorf("%+v: our environment reached the program", r)
	}
	if d := cmp.Diff(backend.Spec{MinIsolation: backend.IsolationRestricted}, w.spec()); d != "" {
		t.Error(d)
	}
	if got := w.command(); got.Timeout != backend.DefaultTimeout || got.Stdin != nil {
		t.Errorf("timeout %v, standard input %v", got.Timeout, got.Stdin)
	}
}

func TestRun_usageErrors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--memory", "0", "--", "true"}, `invalid argument "0" for "-m, --memory" flag: "0" must be more than zero`},
		{[]string{"--memory", "-1m", "--", "true"}, `"-1m" is not a size`},
		{[]string{"--memory", "99999999999999999999g", "--", "true"}, "is larger than"},
		{[]string{"--memory", "lots", "--", "true"}, "512MiB"},
		{[]string{"--memory", "1k", "--", "true"}, "limits.memory: 1024 is not between"},
		{[]string{"--pids", "-5", "--", "true"}, "whole number above zero"},
		{[]string{"--pids", "99999999999", "--", "true"}, "limits.pids"},
		{[]string{"--cpus", "NaN", "--", "true"}, "number of cores"},
		{[]string{"--timeout", "30", "--", "true"}, "30s"},
		{[]string{"--timeout", "0s", "--", "true"}, "more than zero"},
		{[]string{"--timeout", "301s", "--", "true"}, "limits.max_timeout"},
		{[]string{"--network", "ful", "--", "true"}, `did you mean "full"?`},
		{[]string{"--min-isolation", "strong", "--", "true"}, "known are none, restricted"},
		{[]string{"--advisory", "memroy", "--", "true"}, `did you mean "memory"?`},
		{[]string{"-v", "/a:/b", "--", "true"}, "add :ro"},
		{[]string{"-v", "/a:/b:rw", "--", "true"}, "add :ro"},
		{[]string{"-v", "/a:/proc:ro", "--", "true"}, "below /proc"},
		{[]string{"-v", "/a", "--", "true"}, "SRC:DST:ro"},
		{[]string{"-e", "=x", "--", "true"}, "variable's name"},
		{[]string{"-e", "A=b\x00c", "--", "true"}, "NUL"},
		{[]string{"--label", "x", "--", "true"}, "KEY=VALUE"},
		{[]string{"--file", "/none/here", "--", "true"}, "/none/here"},
		{[]string{"--file", "/", "--", "true"}, "directory"},
		{[]string{"--file", "/dev/null:x", "--", "true"}, "not a regular file"},
		{[]string{"--out", ":x", "--", "true"}, "GUEST:HOST"},
		{[]string{"--env-file", "/none", "--", "true"}, "/none"},
		{[]string{"-i", "--file", "-:x", "--", "true"}, "only be used once"},
		{[]string{"--stdin", "-"}, "only be used once"},
		{[]string{"--quiet", "--verbose", "--", "true"}, "exclude each other"},
		{[]string{"--lang", "cobol", "-c", "x"}, `unknown language "cobol"`},
		{[]string{"/none/here.py"}, "/none/here.py"},
		{[]string{"/"}, "is a directory"},
		{[]string{"/dev/zero"}, "not a regular file"},
		{[]string{}, "nothing to run"},
		{[]string{"--", ""}, "no program given"},
		{[]string{"--memroy", "1g", "x"}, "unknown flag --memroy, did you mean --memory?"},
		{[]string{"--", "a\x00b"}, "NUL"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.run(append([]string{"run"}, tc.args...)...)
			if r.code != 125 || !strings.Contains(r.err, tc.want) || r.out != "" || !strings.Contains(r.err, "see: glovebox run --help") {
				t.Errorf("code %d, errors %q, output %q, want 125 and %q", r.code, r.err, r.out, tc.want)
			}
			j := w.run(append([]string{"run", "--json"}, tc.args...)...)
			f, _ := j.json(t)["error"].(map[string]any)
			if said, _ := f["message"].(string); j.code != 125 || j.err != "" || f["kind"] != "invalid" || !strings.Contains(said, tc.want) {
				t.Errorf("with --json: code %d, errors %q, error %v, want 125 and %q", j.code, j.err, f, tc.want)
			}
			if len(w.fake.Calls(backendtest.OpCreate)) > 0 {
				t.Error("a sandbox was made")
			}
		})
	}
}

func TestRun_jsonIsSeenBehindAWrongFlag(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if r := w.run("run", "--memory", "lots", "--memroy", "1", "--json", "--", "true"); r.json(t)["error"] == nil || r.code != 125 || r.err != "" {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{{"--memory", "lots", "prog", "--json"}, {"--memory", "lots", "--", "prog", "--json"}, {"--memory", "lots", "--json=false", "prog"}} {
		if r := w.run(append([]string{"run"}, args...)...); r.out != "" || !strings.Contains(r.err, "512MiB") {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

func TestRun_exitCodes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		fault *backendtest.Fault
		args  []string
		want  int
	}{
		{"success", nil, []string{"true"}, 0},
		{"its own code", nil, []string{"exit", "3"}, 3},
		{"a signal", nil, []string{"ends", "signaled"}, 139},
		{"the timeout", nil, []string{"ends", "timeout"}, 124},
		{"the memory limit", nil, []string{"oom"}, 137},
		{"the CPU limit", nil, []string{"ends", "cpu_limit"}, 137},
		{"the sandbox's end", nil, []string{"ends", "sandbox_expired"}, 125},
		{"not found", nil, []string{"no-such-program"}, 127},
		{"create fails", &backendtest.Fault{Op: backendtest.OpCreate, Err: backend.ErrCapacity}, []string{"true"}, 125},
		{"start fails", &backendtest.Fault{Op: backendtest.OpStart, Err: backend.ErrLost}, []string{"true"}, 125},
		{"wait fails while it talks", &backendtest.Fault{Op: backendtest.OpWait, Err: backend.ErrLost, Nth: 1}, []string{"talk"}, 125},
		{"wait fails", &backendtest.Fault{Op: backendtest.OpWait, Err: backend.ErrLost, Nth: 1}, []string{"true"}, 125},
		{"destroy fails", &backendtest.Fault{Op: backendtest.OpDestroy, Err: errors.New("stuck"), After: true}, []string{"true"}, 125},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, extra := range [][]string{nil, {"--json"}} {
				w := newWorld(t)
				if tc.fault != nil {
					w.fake.Inject(*tc.fault)
				}
				r := w.run(append(append([]string{"run"}, append(extra, "--")...), tc.args...)...)
				if r.code != tc.want {
					t.Errorf("%v: code %d, want %d; errors %q", extra, r.code, tc.want, r.err)
				}
				if extra == nil {
					continue
				}
				doc := r.json(t)
				if got := doc["shell_code"]; got != float64(tc.want) {
					t.Errorf("the document says %v", got)
				}
				if (doc["error"] != nil) != (tc.fault != nil) {
					t.Errorf("error %v", doc["error"])
				}
			}
		})
	}
}

func TestRun_json(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run("run", "--json", "--", "escape")
	doc := r.json(t)
	if strings.ContainsAny(r.out, "\x1b\a") || r.err != "" {
		t.Errorf("raw control characters, or something on standard error: %q %q", r.out, r.err)
	}
	if d := cmp.Diff(map[string]any{"base64": "G10wO293bmVkB/8="}, doc["stdout"]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]any{"text": ""}, doc["stderr"]); d != "" {
		t.Error(d)
	}
	exit := doc["exit"].(map[string]any)
	if doc["ok"] != true || exit["reason"] != "exited" || doc["receipt"].(map[string]any)["backend"] != "subprocess" {
		t.Errorf("document %v", doc)
	}
	bidi := w.run("run", "--json", "--", "echo", "a\u202e\u009b\x7f")
	if strings.ContainsAny(bidi.out, "\u202e\u009b\x7f") {
		t.Errorf("raw control characters: %q", bidi.out)
	}
	if got := bidi.json(t)["stdout"].(map[string]any)["text"]; got != "a\u202e\u009b\x7f\n" {
		t.Errorf("text %q", got)
	}
	bad := w.run("run", "--json", "--memory", "5g", "/none.py")
	if f := bad.json(t)["error"].(map[string]any); bad.code != 125 || f["kind"] != "invalid" || !strings.Contains(f["message"].(string), "/none.py") {
		t.Errorf("%+v", bad)
	}
}

func TestRun_jsonKeepsAtMostTheLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	doc := w.run("run", "--json", "--", "flood", "20000000").json(t)
	got := doc["stdout"].(map[string]any)["text"].(string)
	exit := doc["exit"].(map[string]any)
	if int64(len(got)) != backend.DefaultOutput || exit["stdout_truncated"] != true {
		t.Errorf("%d bytes, truncated %v", len(got), exit["stdout_truncated"])
	}
	if r := w.run("run", "-q", "--", "flood", "20000000"); len(r.out) != 20000000 {
		t.Errorf("streamed output was cut to %d bytes", len(r.out))
	}
}

func TestRun_bytesPassUnchangedToAPipe(t *testing.T) {
	t.Parallel()
	if r := newWorld(t).run("run", "-q", "--", "escape"); r.out != "\x1b]0;owned\a\xff" {
		t.Errorf("output %q", r.out)
	}
}

func TestRun_stdin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stdin = strings.NewReader("in")
	if r := w.run("run", "-q", "--", "cat"); r.out != "" {
		t.Errorf("standard input was passed on unasked: %q", r.out)
	}
	if r := w.run("run", "-q", "-i", "--", "cat"); r.out != "in" {
		t.Errorf("output %q", r.out)
	}
	w.stdin = strings.NewReader("data")
	if r := w.run("run", "-q", "--file", "-:d.txt", "--", "cat", "d.txt"); r.out != "data" {
		t.Errorf("output %q, errors %q", r.out, r.err)
	}
}

func TestRun_filesInAndOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.file("in.csv", "1,2\n")
	if r := w.run("run", "-q", "--file", in, "--", "cat", "in.csv"); r.out != "1,2\n" {
		t.Errorf("output %q, errors %q", r.out, r.err)
	}
	out := filepath.Join(w.home, "new", "out.txt")
	if err := os.Mkdir(filepath.Dir(out), 0o755); err != nil {
		t.Fatal(err)
	}
	if r := w.run("run", "-q", "--out", "res.txt:"+out, "--", "write", "res.txt", "hello"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if got, err := os.ReadFile(out); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	r := w.run("run", "--out", "none.txt:"+out, "--", "true")
	if r.code != 125 || !strings.Contains(r.err, "--out none.txt") {
		t.Errorf("a missing file: %+v", r)
	}
	if r := w.run("run", "--out", "none.txt:"+out, "--", "exit", "4"); r.code != 4 {
		t.Errorf("the program's own code is lost: %+v", r)
	}
	if r := w.run("run", "-q", "--disk", "4k", "--out", "res.txt:"+out, "--", "write", "res.txt", strings.Repeat("x", 5000)); r.code == 0 {
		t.Errorf("more than the disk's size: %+v", r)
	}
	py := w.file("p.py", "x")
	if r := w.run("run", "--file", in+":p.py", py); r.code != 125 || !strings.Contains(r.err, "overwrite the program") {
		t.Errorf("%+v", r)
	}
}

func TestRun_missingInterpreter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backendtest.WithProgram("python3", func(context.Context, *backendtest.Proc) backend.Exit {
		return backendtest.Exited(127)
	}))
	r := w.run("run", "-q", "-c", "x")
	if r.code != 127 || !strings.Contains(r.err, "python3 is not in the sandbox") || !strings.Contains(r.err, "apt install python3") {
		t.Errorf("%+v", r)
	}
	if r := w.run("run", "-q", "--", "exit", "127"); r.code != 127 || r.err != "" {
		t.Errorf("a command's own 127: %+v", r)
	}
}

func TestRun_receipt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := filepath.Join(w.home, "r.json")
	r := w.run("run", "--receipt", file, "--label", "job=7", "--", "oom")
	for _, want := range []string{"receipt: memory_limit, hit the limit on memory", "isolation vm", "network none"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("no %q in %q", want, r.err)
		}
	}
	if n := strings.Count(r.err, "\n"); n > 6 {
		t.Errorf("%d lines: %s", n, r.err)
	}
	data, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(data), `"backend": "subprocess"`) || !strings.Contains(string(data), `"job": "7"`) {
		t.Errorf("%s, %v", data, err)
	}
	if r := w.run("run", "-q", "--receipt", "-", "--", "true"); !strings.Contains(r.err, `"achieved": "vm"`) {
		t.Errorf("errors %q", r.err)
	}
	if r := w.run("run", "-q", "--receipt", "/none/here/r.json", "--", "true"); r.code != 125 || !strings.Contains(r.err, "--receipt") {
		t.Errorf("%+v", r)
	}
}

func TestRun_aCompilersWarningKeepsItsLines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := w.file("a.ts", "const x = 1\nif (x === -0) { console.log(x) }\n")
	for _, extra := range []string{"--verbose", "--explain"} {
		r := w.run("run", extra, file)
		if said := r.out + r.err; r.code != 0 || strings.Contains(said, "^J") || !strings.Contains(said, "will also match 0\n    if (x") {
			t.Errorf("%s: %+v", extra, r)
		}
	}
}

func TestRun_minimumIsNeverUndercut(t *testing.T) {
	t.Parallel()
	weak := backendtest.WithCapabilities(func(c *backend.Capabilities) { c.Isolation = backend.IsolationProcess })
	w := newWorld(t, weak)
	r := w.run("run", "--min-isolation", "vm", "--", "true")
	if r.code != 125 || !strings.Contains(r.err, "isolation process is below the asked vm") || len(w.fake.Calls(backendtest.OpCreate)) > 0 {
		t.Errorf("%+v", r)
	}
	none := newWorld(t, backendtest.WithCapabilities(func(c *backend.Capabilities) { c.Isolation = backend.IsolationNone }))
	if r := none.run("run", "--", "true"); r.code != 125 {
		t.Errorf("ran without containment: %+v", r)
	}
	if r := none.run("run", "--min-isolation", "none", "--", "true"); r.code != 0 {
		t.Errorf("refused though none was accepted by name: %+v", r)
	}
}

func TestRun_explainMakesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run("run", "--explain", "-e", "TOKEN=hunter2", "-c", "print(1)")
	if r.code != 0 || !strings.Contains(r.out, "backend: subprocess") || !strings.Contains(r.out, "memory") {
		t.Errorf("%+v", r)
	}
	j := w.run("run", "--explain", "--json", "-e", "TOKEN=hunter2", "-c", "print(1)")
	if doc := j.json(t); doc["backend"] != "subprocess" || strings.Contains(j.out, "hunter2") {
		t.Errorf("%+v", j)
	}
	if r := w.run("run", "--explain", "--min-isolation", "vm", "--advisory", "cpu", "--", "true"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if len(w.fake.Calls(backendtest.OpCreate))+len(w.fake.Calls(backendtest.OpProbe)) > 0 {
		t.Error("a sandbox was made, or the backend was probed, which makes one")
	}
}

func TestRun_warnsNearALimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backendtest.WithProgram("greedy", func(context.Context, *backendtest.Proc) backend.Exit {
		e := backendtest.Exited(0)
		e.Usage.PeakMemory = int64(math.Round(0.9 * float64(backend.DefaultMemory)))
		return e
	}))
	if r := w.run("run", "--", "greedy"); r.code != 0 || strings.Count(r.err, "memory reached 90% of its limit") != 1 {
		t.Errorf("%+v", r)
	}
	for _, share := range []string{"0", "91%"} {
		w.file("glovebox/config.yaml", "warnings: {memory: "+share+"}\n")
		if r := w.run("run", "--", "greedy"); r.code != 0 || strings.Contains(r.err, "reached") {
			t.Errorf("warned from %s: %+v", share, r)
		}
	}
}
