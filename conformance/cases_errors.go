package conformance

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func errorCases() []Case {
	return []Case{
		{ID: "ER-01", Area: Errors, Title: "limits that make no sense are invalid, and the field is named", Run: badLimits},
		{ID: "ER-02", Area: Errors, Title: "a lifetime that makes no sense is invalid", Run: badLifetimes},
		{ID: "ER-03", Area: Errors, Title: "a variable's name with = or NUL is invalid, and no value is in the error", Run: badEnv},
		{ID: "ER-04", Area: Errors, Title: "an unknown action at expiry is invalid", Run: badExpiry},
		{ID: "ER-05", Area: Errors, Title: "network rules without a network are invalid", Run: rulesWithoutNetwork},
		{ID: "ER-06", Area: Errors, Title: "an unknown advisory control is invalid", Run: badAdvisory},
		{ID: "ER-07", Area: Errors, Title: "a mount that could harm is refused, whatever the backend", Run: badMounts},
		{ID: "ER-08", Area: Errors, Title: "a secret that nothing could use is invalid", Run: badSecrets},
		{ID: "ER-09", Area: Errors, Title: "a command without a program, or with NUL bytes, is invalid", Run: badCommands},
		{ID: "ER-10", Area: Errors, Title: "a reader and kept input exclude each other", Run: inputTwice},
		{ID: "ER-11", Area: Errors, Title: "signals to a command that has ended are not found", Run: signalAfterEnd},
		{ID: "ER-12", Area: Errors, Title: "numbers that are no signals are invalid", Run: badSignals},
		{ID: "ER-13", Area: Errors, Title: "a missing file is fs.ErrNotExist and not_found in every call", Run: missingFile},
		{ID: "ER-14", Area: Errors, Title: "an empty name and one with NUL are invalid in every call", Run: badNames},
		{ID: "ER-15", Area: Errors, Title: "errors of a destroyed sandbox name it", Run: errorNamesSandbox},
		{ID: "ER-16", Area: Errors, Title: "an unknown command cannot be attached to", Needs: needs(feature(backend.FeatureProcesses)), Run: attachUnknown},
		{ID: "ER-17", Area: Errors, Title: "an unknown sandbox is not found", Needs: needs(feature(backend.FeatureFind)), Run: findUnknown},
		{ID: "ER-18", Area: Errors, Title: "a refused create is refused again in the same way", Run: refusedTwice},
		{ID: "ER-19", Area: Errors, Title: "an error of the caller's reader is the caller's", Run: readerFails},
	}
}

func (t *T) invalidSpec(ctx context.Context, field string, spec backend.Spec) {
	t.refusedWith(field, t.refuses(ctx, t.Executor(), t.Spec(spec)), backend.ErrInvalid, field)
}

func badLimits(ctx context.Context, t *T) {
	for field, bad := range map[string][]backend.Limits{
		"limits.memory":     {{Memory: -1}, {Memory: 1}, {Memory: math.MaxInt64}},
		"limits.cpus":       {{CPUs: math.NaN()}, {CPUs: -0.5}, {CPUs: math.Inf(1)}, {CPUs: 0.0001}},
		"limits.pids":       {{Pids: -7}, {Pids: 1}, {Pids: math.MaxInt64}},
		"limits.disk":       {{Disk: 1}, {Disk: math.MinInt64}},
		"limits.inodes":     {{Inodes: 1}, {Inodes: math.MaxInt64}},
		"limits.open_files": {{OpenFiles: -2}, {OpenFiles: 1 << 40}},
		"limits.file_size":  {{FileSize: math.MinInt64}},
		"limits.output":     {{Output: -1}},
		"limits.cpu_time":   {{CPUTime: -1}},
	} {
		for _, l := range bad {
			t.invalidSpec(ctx, field, backend.Spec{Limits: l})
		}
	}
}

func badLifetimes(ctx context.Context, t *T) {
	for _, d := range []time.Duration{-1, backend.MaxLifetime + 1, math.MaxInt64} {
		t.invalidSpec(ctx, "lifetime", backend.Spec{Lifetime: d})
	}
}

func badEnv(ctx context.Context, t *T) {
	for _, name := range []string{"", "A=B", "A\x00"} {
		t.invalidSpec(ctx, "env", backend.Spec{Env: map[string]string{name: "x"}})
	}
	err := t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{Env: map[string]string{"KEY": "hush\x00hush"}}))
	t.refusedWith("a value with NUL", err, backend.ErrInvalid, "env")
	if err != nil && strings.Contains(err.Error(), "hush") {
		t.Errorf("the value is in the error: %v", err)
	}
}

func badExpiry(ctx context.Context, t *T) {
	t.invalidSpec(ctx, "on_expiry", backend.Spec{OnExpiry: "explode"})
}

func rulesWithoutNetwork(ctx context.Context, t *T) {
	spec := t.Spec(backend.Spec{})
	for _, n := range []backend.Network{
		{Allow: []backend.Rule{{Host: "example.com"}}},
		{Mode: backend.NetworkNone, Deny: []backend.Rule{{CIDR: "10.0.0.0/8"}}},
		{DNS: []string{"192.0.2.1"}},
	} {
		spec.Network = n
		t.refusedWith("rules", t.refuses(ctx, t.Executor(), spec), backend.ErrInvalid, "network")
	}
}

func badAdvisory(ctx context.Context, t *T) {
	t.invalidSpec(ctx, "advisory", backend.Spec{Advisory: []backend.Control{"gravity"}})
}

func badMounts(ctx context.Context, t *T) {
	for _, m := range [][]backend.Mount{
		{{}},
		{{HostPath: "/usr", Volume: "v", Target: "/mnt", ReadOnly: true}},
		{{HostPath: "usr", Target: "/mnt", ReadOnly: true}},
		{{HostPath: "/usr", Target: "mnt", ReadOnly: true}},
		{{HostPath: "/usr", Target: "/", ReadOnly: true}},
		{{HostPath: "/usr", Target: "/mnt/../etc", ReadOnly: true}},
		{{HostPath: "/usr", Target: "/proc/1", ReadOnly: true}},
		{{HostPath: "/usr", Target: "/a\x00b", ReadOnly: true}},
		{{HostPath: "/usr", Target: "/a", ReadOnly: true}, {HostPath: "/etc", Target: "/a", ReadOnly: true}},
	} {
		t.invalidSpec(ctx, "mounts[", backend.Spec{Mounts: m})
	}
	writable := t.Spec(backend.Spec{Mounts: []backend.Mount{{HostPath: "/usr", Target: "/mnt"}}})
	t.unsupportedField("writable", t.refuses(ctx, t.Executor(), writable), "mounts[")
}

func badSecrets(ctx context.Context, t *T) {
	spec := backend.Spec{Network: backend.Network{Mode: backend.NetworkNone}, Secrets: []backend.SecretRef{"env:KEY"}}
	t.refusedWith("secrets", t.refuses(ctx, t.Executor(), spec), backend.ErrInvalid, "secrets")
}

func badCommands(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for field, cmds := range map[string][]backend.Command{
		"command.args":     {{}, {Args: []string{""}}, {Args: []string{"true", "a\x00b"}}},
		"command.env":      {{Args: []string{"true"}, Env: map[string]string{"A=B": ""}}, {Args: []string{"true"}, Env: map[string]string{"A": "\x00"}}},
		"command.timeout":  {{Args: []string{"true"}, Timeout: -5}},
		"command.cpu_time": {{Args: []string{"true"}, CPUTime: -5}},
		"command":          {{Args: []string{"true"}, Dir: "a\x00"}, {Args: []string{"true"}, Tag: "a\x00"}},
	} {
		for _, cmd := range cmds {
			_, err := sb.Start(ctx, cmd)
			t.refusedWith(field, err, backend.ErrInvalid, field)
		}
	}
	_, err := sb.Start(ctx, backend.Command{Args: []string{"true"}, User: "a\x00"})
	t.kind("an account's name with NUL", err, backend.ErrInvalid, backend.ErrUnsupported)
	t.good(t.exec(ctx, sb, "true"))
}

func inputTwice(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	_, err := sb.Start(ctx, backend.Command{Args: []string{"cat"}, Stdin: strings.NewReader("x"), KeepInput: true})
	t.refusedWith("both", err, backend.ErrInvalid, "command.stdin")
}

func signalAfterEnd(ctx context.Context, t *T) {
	p, _, _ := t.start(ctx, t.Create(ctx, backend.Spec{}), backend.Command{Args: []string{"true"}})
	t.wait(ctx, p)
	for _, sig := range []backend.Signal{backend.SIGTERM, backend.SIGKILL} {
		t.kind("a signal after the end", p.Signal(ctx, sig), backend.ErrNotFound)
	}
	t.wait(ctx, p)
}

func badSignals(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	pr, pw := io.Pipe()
	p, _, _ := t.start(ctx, sb, backend.Command{Args: []string{"cat"}, Stdin: pr})
	for _, sig := range []backend.Signal{-1, 65, 1 << 20} {
		t.kind("no signal", p.Signal(ctx, sig), backend.ErrInvalid)
	}
	if err := pw.Close(); err != nil {
		t.Errorf("%v", err)
	}
	t.exited("it goes on", t.wait(ctx, p), "exited(0)")
}

// fileCalls are the calls of a file system on one name.
func fileCalls(ctx context.Context, files backend.Filesystem, name string) map[string]error {
	out := map[string]error{}
	rc, err := files.Open(ctx, name)
	if err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(rc, 1<<20))
		_ = rc.Close() // was only read
	}
	out["open"] = err
	_, out["stat"] = files.Stat(ctx, name)
	_, out["list"] = files.List(ctx, name)
	out["rename"] = files.Rename(ctx, name, "elsewhere")
	return out
}

func missingFile(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for _, name := range []string{"missing", "missing/deeper"} {
		for call, err := range fileCalls(ctx, sb.Files(), name) {
			t.kind(call+" "+name, err, backend.ErrNotFound)
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s %s: not fs.ErrNotExist: %v", call, name, err)
			}
		}
		if err := sb.Files().Remove(ctx, name); err != nil {
			t.Errorf("removing what is absent: %v", err)
		}
	}
}

func badNames(ctx context.Context, t *T) {
	files := t.Create(ctx, backend.Spec{}).Files()
	for _, name := range []string{"", "a\x00b"} {
		all := fileCalls(ctx, files, name)
		all["write"] = backend.WriteFile(ctx, files, name, []byte("x"), 0)
		all["mkdir"] = files.Mkdir(ctx, name, 0)
		all["remove"] = files.Remove(ctx, name)
		for call, err := range all {
			t.kind(call, err, backend.ErrInvalid)
		}
	}
}

func errorNamesSandbox(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	if err := sb.Destroy(ctx); err != nil {
		t.Fatalf("destroy: %v", err)
	}
	_, err := sb.Start(ctx, backend.Command{Args: []string{"true"}})
	t.kind("start", err, backend.ErrClosed)
	if be, ok := errors.AsType[*backend.Error](err); !ok || be.Sandbox != sb.ID() {
		t.Errorf("the sandbox %s is not named by %v", sb.ID(), err)
	}
}

func attachUnknown(ctx context.Context, t *T) {
	f := find[backend.ProcessFinder](t, "processes", t.Create(ctx, backend.Spec{}))
	for _, id := range []string{"unknown", "", strings.Repeat("9", 300), "../1"} {
		_, err := f.Attach(ctx, id, backend.AttachOptions{})
		t.kind("attach", err, backend.ErrNotFound)
	}
}

func findUnknown(ctx context.Context, t *T) {
	f := find[backend.Finder](t, "find", t.Executor())
	for _, id := range []string{"snone00", "", "../x", strings.Repeat("s", 100), "S1"} {
		_, err := f.Find(ctx, id)
		t.kind("find", err, backend.ErrNotFound)
	}
}

func refusedTwice(ctx context.Context, t *T) {
	for range 2 {
		t.invalidSpec(ctx, "limits.memory", backend.Spec{Limits: backend.Limits{Memory: -1}})
	}
	t.good(t.exec(ctx, t.Create(ctx, backend.Spec{}), "true"))
}

// brokenReader gives some bytes and then fails.
type brokenReader struct {
	left int
	err  error
}

func (b *brokenReader) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, b.err
	}
	n := min(b.left, len(p))
	b.left -= n
	return n, nil
}

func readerFails(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	broken := errors.New("the reader broke")
	if err := sb.Files().Write(ctx, "partial", &brokenReader{100_000, broken}, 0); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	t.write(ctx, sb, "whole", "x")
}
