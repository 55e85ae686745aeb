package image_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
	"github.com/glovebox-dev/glovebox/internal/image"
)

// anyUser has accounts, which the fake has not: it tells programs by
// environment who they are.
type anyUser struct{ backend.Executor }

func (x anyUser) Create(ctx context.Context, spec backend.Spec) (backend.Sandbox, error) {
	sb, err := x.Executor.Create(ctx, spec)
	return userSandbox{sb}, err
}

type userSandbox struct{ backend.Sandbox }

func (s userSandbox) Start(ctx context.Context, cmd backend.Command) (backend.Process, error) {
	env := map[string]string{"FAKE_USER": cmd.User}
	maps.Copy(env, cmd.Env)
	cmd.User, cmd.Env = "", env
	return s.Sandbox.Start(ctx, cmd)
}

// stepped is a store with a standard base in it and a runner on a fake, which
// records what its programs were given.
type stepped struct {
	t    *testing.T
	s    *image.Store
	opts image.TemplateOptions
	fake *backendtest.Fake
	ran  []string
	base image.Template
	fail string // the command that fails
	on   func() // called by every command
}

func newStepped(t *testing.T) *stepped {
	t.Helper()
	w := &stepped{t: t}
	s, opts := builder(t, "cat "+small(t))
	out, err := os.ReadFile(small(t))
	if err != nil {
		t.Fatal(err)
	}
	w.s = s
	record := func(run func(ctx context.Context, p *backendtest.Proc) backend.Exit) backendtest.Program {
		return func(ctx context.Context, p *backendtest.Proc) backend.Exit {
			line := strings.Join(p.Args, " ")
			w.ran = append(w.ran, fmt.Sprintf("%s@%s A=%s: %s", p.Env["FAKE_USER"], p.Dir, p.Env["A"], line))
			if w.on != nil {
				w.on()
			}
			if w.fail != "" && strings.Contains(line, w.fail) {
				fmt.Fprintln(p.Stderr, "it went wrong")
				return backendtest.Exited(3)
			}
			return run(ctx, p)
		}
	}
	nothing := record(func(context.Context, *backendtest.Proc) backend.Exit { return backendtest.Exited(0) })
	w.fake = backendtest.New(
		backendtest.WithProgram("/bin/sh", nothing), backendtest.WithProgram("mkdir", nothing), backendtest.WithProgram("python3", nothing),
		backendtest.WithProgram("tar", record(func(_ context.Context, p *backendtest.Proc) backend.Exit {
			if slices.Contains(p.Args, "-cf") {
				_, err := p.Stdout.Write(out)
				if err != nil {
					return backendtest.Exited(2)
				}
				return backendtest.Exited(0)
			}
			for r := tar.NewReader(p.Stdin); ; {
				h, err := r.Next()
				if errors.Is(err, io.EOF) {
					return backendtest.Exited(0)
				}
				if err != nil {
					return backendtest.Exited(2)
				}
				w.ran = append(w.ran, "got "+h.Name)
			}
		})),
	)
	w.opts = image.TemplateOptions{BuildOptions: opts, Runner: func(_ context.Context, base image.Template) (image.StepRunner, func() error, error) {
		w.base = base
		return &image.Sandboxed{Executor: anyUser{w.fake}, Spec: backend.Spec{Template: "base"}}, func() error { return nil }, nil
	}}
	return w
}

func (w *stepped) dockerfile(text string) image.Spec {
	w.t.Helper()
	dir := w.t.TempDir()
	for name, data := range map[string]string{"Dockerfile": text, "f": "1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	return image.Spec{Name: "app", Dockerfile: filepath.Join(dir, "Dockerfile")}
}

func TestBuildTemplate_dockerfile(t *testing.T) {
	w := newStepped(t)
	spec := w.dockerfile("FROM base\nENV A=1\nWORKDIR /w\nRUN one\nCOPY f d/\nUSER user\nENV A=2\nRUN two\nCMD [\"go\"]\n")
	img, built, err := w.s.BuildTemplate(t.Context(), spec, w.opts)
	if err != nil || !built {
		t.Fatal(built, err)
	}
	want := []string{
		"root@/ A=: mkdir -p -- /w", "root@/w A=1: /bin/sh -c one", "root@/ A=: mkdir -p -- /w/d",
		"root@/ A=: tar -C / --keep-directory-symlink -xpf -", "got w/d/f", "user@/w A=2: /bin/sh -c two",
	}
	if d := cmp.Diff(want, w.ran[:min(len(want), len(w.ran))]); d != "" {
		t.Error(d)
	}
	if len(w.ran) != len(want)+1 || !strings.Contains(w.ran[len(want)], "tar -C / --sort=name") {
		t.Errorf("ran %q", w.ran)
	}
	if !w.base.Root || w.base.Built == nil || w.base.Built.Name != "base" {
		t.Errorf("base %+v", w.base)
	}
	if d := cmp.Diff(image.Config{Env: map[string]string{"A": "2"}, WorkDir: "/w", User: "user", Start: []string{"go"}}, img.Config); d != "" {
		t.Error(d)
	}
	w.ran = nil
	if again, built, err := w.s.BuildTemplate(t.Context(), spec, w.opts); err != nil || built || again.Hash != img.Hash || w.ran != nil {
		t.Errorf("it was built again: %v, %v, %q", built, err, w.ran)
	}
	got, err := w.s.Resolve(spec)
	if err != nil || got.Rootfs != img.Rootfs() || got.Config.WorkDir != "/w" {
		t.Errorf("resolved %+v, %v", got, err)
	}
	w.nothingLeft()
}

func (w *stepped) nothingLeft() {
	w.t.Helper()
	clean(w.t, w.s)
	finder, ok := backend.As[backend.Finder](w.fake)
	if !ok {
		w.t.Fatal("the fake finds nothing")
	}
	for info, err := range finder.Sandboxes(w.t.Context()) {
		w.t.Errorf("a sandbox is left: %+v, %v", info, err)
	}
}

func TestBuildTemplate_failures(t *testing.T) {
	w := newStepped(t)
	spec := w.dockerfile("FROM base\nRUN one\nRUN two\nRUN three\n")
	w.fail = "two"
	_, _, err := w.s.BuildTemplate(t.Context(), spec, w.opts)
	var step *image.StepError
	if !errors.As(err, &step) || step.Line != 3 || !strings.Contains(err.Error(), "it went wrong") || !strings.Contains(err.Error(), "exited(3)") {
		t.Errorf("error %v", err)
	}
	if strings.Contains(strings.Join(w.ran, " "), "three") {
		t.Error("it went on after a step that failed")
	}
	if _, err := w.s.Resolve(spec); !errors.Is(err, backend.ErrNotFound) || !strings.Contains(err.Error(), "glovebox image build app") {
		t.Errorf("resolve: %v", err)
	}
	w.nothingLeft()

	w.fail = "tar -C / --sort"
	if _, _, err := w.s.BuildTemplate(t.Context(), spec, w.opts); err == nil {
		t.Error("a root file system that cannot be read is accepted")
	}
	w.nothingLeft()

	w.fail = ""
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.on = cancel
	if _, _, err := w.s.BuildTemplate(ctx, spec, w.opts); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	w.nothingLeft()
}

func TestBuildTemplate_needsKernel(t *testing.T) {
	w := newStepped(t)
	spec := w.dockerfile("FROM base\nRUN one\n")
	weak := backendtest.New(backendtest.WithCapabilities(func(c *backend.Capabilities) { c.Isolation = backend.IsolationContainer }))
	w.opts.Runner = func(context.Context, image.Template) (image.StepRunner, func() error, error) {
		return &image.Sandboxed{Executor: weak}, func() error { return nil }, nil
	}
	if _, _, err := w.s.BuildTemplate(t.Context(), spec, w.opts); err == nil {
		t.Error("steps ran on a shared kernel")
	}
	w.opts.Runner, w.opts.NoRunner = nil, "no runsc"
	if _, _, err := w.s.BuildTemplate(t.Context(), spec, w.opts); !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "no runsc") {
		t.Errorf("without gVisor: %v", err)
	}
}

func TestBuildTemplate_packages(t *testing.T) {
	w := newStepped(t)
	spec := image.Spec{Name: "ml", Rootfs: "base", Pip: []string{"x==1", "y"}}
	if _, _, err := w.s.BuildTemplate(t.Context(), spec, w.opts); err != nil {
		t.Fatal(err)
	}
	if len(w.ran) == 0 || w.ran[0] != "root@/ A=: python3 -m pip install -- x==1 y" {
		t.Errorf("ran %q", w.ran)
	}
	w.ran = nil
	img, _, err := w.s.BuildTemplate(t.Context(), image.Spec{Name: "tools", Rootfs: "base", Apt: []string{"jq"}}, w.opts)
	if err != nil || w.ran != nil || img.Name != "template-tools" {
		t.Errorf("Debian packages of a built image: %v, %q", err, w.ran)
	}
}

// exporter is an engine that has one image.
type exporter struct{ archive string }

func (e exporter) Export(context.Context, string) (io.ReadCloser, image.Config, error) {
	f, err := os.Open(e.archive)
	return f, image.Config{Env: map[string]string{"FROM": "engine"}, WorkDir: "/e"}, err
}

func TestBuildTemplate_engineImage(t *testing.T) {
	w := newStepped(t)
	spec := image.Spec{Name: "slim", Image: "python:3"}
	if _, _, err := w.s.BuildTemplate(t.Context(), spec, w.opts); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("without an engine: %v", err)
	}
	before, err := w.s.Resolve(spec)
	if err != nil || before.Image != "python:3" || !errors.Is(before.NeedRootfs(), backend.ErrNotFound) {
		t.Errorf("resolved %+v, %v", before, err)
	}
	w.opts.Exporter = exporter{small(t)}
	img, built, err := w.s.BuildTemplate(t.Context(), spec, w.opts)
	if err != nil || !built || img.Config.Env["FROM"] != "engine" || img.Config.WorkDir != "/e" {
		t.Fatalf("%+v, %v, %v", img, built, err)
	}
	after, err := w.s.Resolve(spec)
	if err != nil || after.Image != "python:3" || after.Rootfs != img.Rootfs() {
		t.Errorf("resolved %+v, %v", after, err)
	}
}

func TestResolve(t *testing.T) {
	w := newStepped(t)
	dir := image.Spec{Name: "d", Rootfs: "/srv/r"}
	if got, err := w.s.Resolve(dir); err != nil || got.Rootfs != "/srv/r" || got.Built != nil {
		t.Errorf("a directory: %+v, %v", got, err)
	}
	if _, err := w.s.Resolve(image.Spec{Name: "x", Rootfs: "base"}); !errors.Is(err, backend.ErrNotFound) || !strings.Contains(err.Error(), "glovebox image build base") {
		t.Errorf("an image that is not built: %v", err)
	}
}
