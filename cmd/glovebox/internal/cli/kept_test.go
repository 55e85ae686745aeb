package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
	"github.com/glovebox-dev/glovebox/cmd/glovebox/internal/cli"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

// several is a world of several backends.
type several struct {
	t    *testing.T
	home string
	reg  func() (*registry.Registry, error)
}

// with configures these executors as backends of their names.
func with(t *testing.T, backends map[string]backend.Executor) *several {
	t.Helper()
	home := t.TempDir()
	var config strings.Builder
	config.WriteString("version: 1\nbackends:\n")
	var factories []registry.Factory
	for name, ex := range backends {
		fmt.Fprintf(&config, "  %s: {driver: of-%s}\n", name, name)
		factories = append(factories, registry.Driver("of-"+name, func() struct{} { return struct{}{} },
			func(context.Context, registry.Env, struct{}) (backend.Executor, error) {
				if f, ok := ex.(*backendtest.Fake); ok {
					return f.Reopen(), nil
				}
				if ex == nil {
					return nil, &backend.Error{Op: "open", Kind: backend.ErrUnavailable}
				}
				return ex, nil
			},
			func(context.Context, registry.Env, struct{}) (registry.Report, error) {
				return registry.Report{Driver: "of-" + name}, nil
			}))
	}
	config.WriteString("executors: {default: {use: [one]}}\n")
	if err := os.WriteFile(filepath.Join(home, "config.yaml"), []byte(config.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return &several{t, home, func() (*registry.Registry, error) { return registry.New(factories...) }}
}

func (s *several) run(args ...string) result {
	s.t.Helper()
	var out, errs bytes.Buffer
	code := cli.Main(s.t.Context(), cli.App{
		Args:     append([]string{"--config", filepath.Join(s.home, "config.yaml")}, args...),
		Environ:  []string{"HOME=" + s.home, "GLOVEBOX_STATE_DIR=" + s.home + "/state"},
		Registry: s.reg, Dir: s.home, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
	})
	return result{code, out.String(), errs.String()}
}

// made makes a kept sandbox on a fake.
func made(t *testing.T, f *backendtest.Fake, labels map[string]string) backend.Sandbox {
	t.Helper()
	sb, err := f.Create(t.Context(), backend.Spec{Keep: true, Labels: labels})
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// hung is a backend whose lists never come, and which heeds no context.
type hung struct{ *backendtest.Fake }

func (hung) Close() error { return nil }
func (hung) Find(context.Context, string) (backend.Sandbox, error) {
	return nil, &backend.Error{Op: "find", Kind: backend.ErrUnavailable}
}

func (hung) Sandboxes(context.Context) iter.Seq2[backend.Info, error] {
	return func(func(backend.Info, error) bool) { select {} }
}

func TestKept_foundOnEveryBackend(t *testing.T) {
	t.Parallel()
	one, two := backendtest.New(), backendtest.New()
	a, b := made(t, one, map[string]string{"name": "first"}), made(t, two, map[string]string{"k": "v"})
	if a.ID() == b.ID() {
		b = made(t, two, map[string]string{"k": "v"})
	}
	w := with(t, map[string]backend.Executor{
		"one": one, "two": two, "without": backendtest.New(backendtest.Without(backend.FeatureFind)), "absent": nil, "stuck": hung{backendtest.New()},
	})
	began := time.Now()
	r := w.run("ps", "-q")
	if r.code != 0 || !strings.Contains(r.out, a.ID()+"\n") || !strings.Contains(r.out, b.ID()+"\n") {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(r.err, "backend absent") || !strings.Contains(r.err, "stuck") || strings.Contains(r.err, "without") {
		t.Errorf("what could not be asked: %s", r.err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	began = time.Now()
	if r := w.run("exec", a.ID(), "echo", "by ID"); r.code != 0 || r.out != "by ID\n" {
		t.Errorf("%+v", r)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("a whole ID waits %v for a backend that hangs", took)
	}
	w = with(t, map[string]backend.Executor{"one": one, "two": two, "absent": nil})
	var infos []backend.Info
	if err := json.Unmarshal([]byte(w.run("ps", "--json", "--filter", "label=k=v").out), &infos); err != nil || len(infos) == 0 || infos[0].Backend != "two" {
		t.Errorf("%v %+v", err, infos)
	}
	if r := w.run("exec", b.ID(), "echo", "on two"); r.code != 0 || r.out != "on two\n" {
		t.Errorf("%+v", r)
	}
	if r := w.run("exec", "first", "echo", "by name"); r.code != 0 || r.out != "by name\n" {
		t.Errorf("%+v", r)
	}
	if r := w.run("kill", "frist"); r.code != 1 || !strings.Contains(r.err, `did you mean "first"`) || !strings.Contains(r.err, "not asked") {
		t.Errorf("%+v", r)
	}
	if r := w.run("sandbox", "ls", "-q"); r.code != 0 || !strings.Contains(r.out, a.ID()) {
		t.Errorf("%+v", r)
	}
	none := with(t, map[string]backend.Executor{"one": nil})
	if r := none.run("ps"); r.code != 1 {
		t.Errorf("nothing could be asked: %+v", r)
	}
}

func TestKept_names(t *testing.T) {
	t.Parallel()
	one := backendtest.New()
	w := with(t, map[string]backend.Executor{"one": one})
	a, b := made(t, one, nil), made(t, one, nil)
	same := 0
	for same < len(a.ID()) && a.ID()[:same+1] == b.ID()[:same+1] {
		same++
	}
	if r := w.run("kill", a.ID()[:same]); same > 0 && (r.code != 1 || !strings.Contains(r.err, "means 2 sandboxes")) {
		t.Errorf("%+v", r)
	}
	if r := w.run("kill", ""); r.code != 1 {
		t.Errorf("%+v", r)
	}
	if r := w.run("kill", a.ID()[:same+1], b.ID()); r.code != 0 || r.out != a.ID()+"\n"+b.ID()+"\n" {
		t.Errorf("%+v", r)
	}
	if left := one.Leaked(); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	for _, args := range [][]string{
		{"kill"},
		{"kill", "--all", "x"},
		{"kill", "-s", "NOPE", "x"},
		{"kill", "--filter", "id=x", "y"},
		{"ps", "--filter", "lable=x"},
		{"ps", "x"},
		{"extend", "x"},
		{"extend", "x", "25h"},
		{"pause"},
		{"cp", "x"},
		{"create", "a", "b"},
		{"create", "--name", "-x"},
		{"create", "--name", "a b"},
		{"logs"},
		{"logs", "a", "b"},
	} {
		if r := w.run(args...); r.code != 2 || r.err == "" {
			t.Errorf("%q: %+v", args, r)
		}
	}
	for _, args := range [][]string{
		{"run", "--lifetime", "5m", "--", "true"},
		{"run", "-d", "-i", "--", "cat"},
		{"run", "-d", "--out", "x", "--", "true"},
		{"run", "-d", "--rm", "--", "true"},
		{"exec", "x"},
		{"exec", "-di", "x", "cat"},
		{"exec", "-t", "x", "cat"},
		{"wait"},
	} {
		if r := w.run(args...); r.code != 125 || r.err == "" {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

// TestKept_leavesNothingOnAnError: a sandbox that nobody would learn of.
func TestKept_leavesNothingOnAnError(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		fault backendtest.Op
		args  []string
	}{
		{"create", backendtest.OpCreate, []string{"create"}},
		{"a file", backendtest.OpWrite, []string{"create", "--file", "f"}},
		{"the program", backendtest.OpWrite, []string{"run", "-d", "f"}},
		{"start", backendtest.OpStart, []string{"run", "-d", "--", "true"}},
		{"the receipt", "", []string{"create", "--receipt", "no/such\x00dir"}},
	} {
		for _, extra := range []string{"-q", "--json"} {
			one := backendtest.New(programs()...)
			w := with(t, map[string]backend.Executor{"one": one})
			file := filepath.Join(w.home, "f.sh")
			if err := os.WriteFile(file, []byte("true\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			if tc.fault != "" {
				one.Inject(backendtest.Fault{Op: tc.fault, Err: &backend.Error{Op: "boom", Kind: backend.ErrLost}})
			}
			args := slices.Clone(tc.args)
			for i := range args {
				if args[i] == "f" {
					args[i] = file
				}
			}
			r := w.run(slices.Insert(args, 1, extra)...)
			if r.code == 0 || (extra == "--json") != strings.Contains(r.out, `"error"`) {
				t.Errorf("%s: %+v", tc.name, r)
			}
			if left := one.Leaked(); len(left) > 0 {
				t.Errorf("%s left %q", tc.name, left)
			}
		}
	}
}

// liar lists names that no file has.
type liar struct {
	backend.Filesystem
	name string
}

type liarSandbox struct {
	backend.Sandbox
	name string
}

func (l liarSandbox) Files() backend.Filesystem { return liar{l.Sandbox.Files(), l.name} }

func (l liar) List(ctx context.Context, dir string) ([]fs.FileInfo, error) {
	list, err := l.Filesystem.List(ctx, dir)
	for i := range list {
		list[i] = renamed{list[i], l.name}
	}
	return list, err
}

type renamed struct {
	fs.FileInfo
	name string
}

func (r renamed) Name() string { return r.name }

type liarBackend struct {
	*backendtest.Fake
	name string
}

func (l liarBackend) Close() error { return nil }
func (l liarBackend) Find(ctx context.Context, id string) (backend.Sandbox, error) {
	f, _ := backend.As[backend.Finder](l.Fake)
	sb, err := f.Find(ctx, id)
	return liarSandbox{sb, l.name}, err
}

func (l liarBackend) Sandboxes(ctx context.Context) iter.Seq2[backend.Info, error] {
	f, _ := backend.As[backend.Finder](l.Fake)
	return f.Sandboxes(ctx)
}

func TestCp_namesFromTheSandboxAreNotBelieved(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"..", ".", "", "../x", "/etc/x", "a/b", "a\x00b"} {
		one := backendtest.New()
		sb := made(t, one, nil)
		if err := backend.WriteFile(t.Context(), sb.Files(), "d/f", []byte("x"), 0); err != nil {
			t.Fatal(err)
		}
		w := with(t, map[string]backend.Executor{"one": liarBackend{one, name}})
		for _, dst := range []string{filepath.Join(w.home, "out", "deep"), "-"} {
			if err := os.MkdirAll(filepath.Join(w.home, "out"), 0o755); err != nil {
				t.Fatal(err)
			}
			if r := w.run("cp", sb.ID()+":d/.", dst); r.code != 1 || !strings.Contains(r.err, "lists the name") {
				t.Errorf("%q to %s: %+v", name, dst, r)
			}
		}
		if list, _ := os.ReadDir(filepath.Join(w.home, "out")); len(list) > 1 {
			t.Errorf("%q: %v", name, list)
		}
	}
}

// TestKept_pageDescribesTheFlags: the flags that each command's help lists are
// those of the page.
func TestKept_pageDescribesTheFlags(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	flag := regexp.MustCompile(`(?m)^ +(?:(-\w), +)?(--[a-z-]+)\b`)
	row := regexp.MustCompile("(?m)^\\| (?:`(-\\w)`, )?`(--[a-z-]+)` \\|")
	for heading, command := range map[string]string{
		"### glovebox ps\n": "ps", "### glovebox exec, ": "exec", "### glovebox cp\n": "cp", "### glovebox kill\n": "kill",
	} {
		_, section, ok := strings.Cut(string(page), heading)
		if !ok {
			t.Fatalf("no %q", heading)
		}
		section, _, _ = strings.Cut(section, "\n##")
		want, got := map[string]string{}, map[string]string{}
		for _, m := range flag.FindAllStringSubmatch(w.run(command, "--help").out, -1) {
			want[m[2]] = m[1]
		}
		delete(want, "--help")
		delete(want, "--config")
		for _, m := range row.FindAllStringSubmatch(section, -1) {
			got[m[2]] = m[1]
		}
		if command == "kill" { // described in another's row
			got["--filter"] = ""
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-program +page):\n%s", command, diff)
		}
	}
	for _, command := range []string{"create", "logs", "wait", "stats", "prune", "pause", "extend", "shell"} {
		for _, m := range flag.FindAllStringSubmatch(w.run(command, "--help").out, -1) {
			if !strings.Contains(string(page), m[2]) {
				t.Errorf("%s %s is not described", command, m[2])
			}
		}
	}
}
