//go:build linux

// Package bench_test prints what the docker backend costs, as ratios to what the
// engine itself takes for the same and to the same program run bare, measured in
// turn in one run. Nothing here passes or fails by a time. Run it alone on the
// machine: `make bench`.
package bench_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/internal/testenv/ratio"
	"github.com/glovebox-dev/glovebox/internal/testenv/testimage"
)

var programs testenv.Builder

func TestMain(m *testing.M) {
	code := m.Run()
	if err := programs.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// fixture is the backend beside the engine itself.
type fixture struct {
	*testing.B
	ex    *docker.Executor
	e     *engine.Engine
	image string
	dir   string
}

func open(b *testing.B) *fixture {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("only root can do this")
	}
	ref, unavailable := testimage.Ref(b.Context())
	testenv.Require(b, "docker", unavailable)
	f := &fixture{B: b, image: ref, dir: filepath.Join(b.TempDir(), "state")}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		b.Fatal(err)
	}
	if why := testimage.Share(f.dir); why != "" {
		b.Fatal(why)
	}
	var err error
	if f.ex, err = docker.Open(b.Context(), docker.Config{Agent: programs.Build(b, "cmd/glovebox-agent"), StateDir: f.dir}); err != nil {
		b.Fatal(err)
	}
	if f.e, err = engine.Open(""); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(f.ex.Close(), f.e.Close()); err != nil {
			b.Error(err)
		}
	})
	return f
}

// container is one as hardened as the backend's, as far as flags go.
func (f *fixture) container(args ...string) engine.Container {
	return engine.Container{
		Name: "glovebox-bench-" + strings.ToLower(rand.Text()[:12]), Image: f.image, Args: args, Labels: map[string]string{"dev.glovebox.test": "bench"},
		User: "65534:65534", Memory: backend.DefaultMemory, PIDs: 256, CPUs: 1, Stdio: true,
		Tmpfs: map[string]string{"/tmp": "size=64m"},
	}
}

// firstOutput is docker run, through the SDK, until the first byte came out; and
// then the container's removal.
func (f *fixture) firstOutput(args ...string) (took time.Duration, err error) {
	ctx := context.WithoutCancel(f.Context())
	c := f.container(args...)
	began := time.Now()
	made, err := f.e.Create(ctx, c)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.e.Remove(ctx, made.ID)) }()
	s, err := f.e.Attach(ctx, made.ID)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	if err := f.e.Start(ctx, made.ID); err != nil {
		return 0, err
	}
	var one [1]byte
	if _, err := io.ReadFull(s, one[:]); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

// sandboxOutput is the same with a sandbox.
func (f *fixture) sandboxOutput(args ...string) (took time.Duration, err error) {
	began := time.Now()
	_, err = backend.Run(f.Context(), f.ex, backend.RunSpec{Command: backend.Command{Args: args, Output: backend.Output{Stdout: writer(func([]byte) {
		if took == 0 {
			took = time.Since(began)
		}
	})}}})
	return took, err
}

type writer func([]byte)

// Write implements io.Writer.
func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// BenchmarkCold: from nothing to the first output.
func BenchmarkCold(b *testing.B) {
	f := open(b)
	for name, args := range map[string][]string{"echo": {"/bin/echo", "1"}, "python": {"/usr/bin/python3", "-c", "print(1)"}} {
		b.Run(name, func(b *testing.B) {
			g := *f
			g.B = b
			ratio.Medians(b, 50, []ratio.Of{{Name: "cold", Measure: func() (time.Duration, error) { return g.sandboxOutput(args...) }}},
				[]ratio.Of{{Name: "docker-run", Measure: func() (time.Duration, error) { return g.firstOutput(args...) }}})
		})
	}
}

// BenchmarkWarm: a command in a sandbox that is there.
func BenchmarkWarm(b *testing.B) {
	f := open(b)
	sb, err := f.ex.Create(b.Context(), backend.Spec{Lifetime: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	c := f.container("/bin/sleep", "3600")
	made, err := f.e.Create(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := f.e.Remove(context.WithoutCancel(b.Context()), made.ID); err != nil {
			b.Error(err)
		}
	})
	if err := f.e.Start(b.Context(), made.ID); err != nil {
		b.Fatal(err)
	}
	ratio.Medians(b, 50, []ratio.Of{ratio.Timed("warm", func() error {
		exit, err := backend.RunIn(b.Context(), sb, backend.Command{Args: []string{"/bin/true"}})
		if err == nil && !exit.Success() {
			err = fmt.Errorf("%s", exit)
		}
		return err
	})}, []ratio.Of{
		ratio.Timed("docker-exec", func() error { return f.exec(made.ID, "/bin/true") }),
		ratio.Timed("bare", func() error { return exec.Command("/bin/true").Run() }),
	})
}

// exec is docker exec: made, started, read to its end, and asked for its status.
// The engine package has none, since nothing of ours uses it.
func (f *fixture) exec(id string, args ...string) error {
	client := http.Client{Transport: f.transport()}
	defer client.CloseIdleConnections()
	call := func(method, path string, body, into any) error {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(f.Context(), method, "http://engine/v1.41"+path, bytes.NewReader(data))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode >= 300 {
			return fmt.Errorf("%s: %s, %w", path, res.Status, errors.Join(err))
		}
		if into == nil {
			return nil
		}
		return json.Unmarshal(answer, into)
	}
	var made struct{ ID string }
	if err := call(http.MethodPost, "/containers/"+id+"/exec", map[string]any{"AttachStdout": true, "AttachStderr": true, "Cmd": args}, &made); err != nil {
		return err
	}
	if err := call(http.MethodPost, "/exec/"+made.ID+"/start", map[string]any{}, nil); err != nil {
		return err
	}
	var ended struct {
		Running  bool
		ExitCode int
	}
	if err := call(http.MethodGet, "/exec/"+made.ID+"/json", nil, &ended); err != nil {
		return err
	}
	if ended.ExitCode != 0 {
		return fmt.Errorf("exit status %d", ended.ExitCode)
	}
	return nil
}

func (f *fixture) transport() *http.Transport {
	path := strings.TrimPrefix(f.e.Host(), "unix://")
	return &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
}

// BenchmarkMany: a hundred sandboxes at once, made and ended two at a time, what
// each takes while it is idle (proportional set size), and what the engine's own
// process beside it does.
func BenchmarkMany(b *testing.B) {
	const many = 100
	f := open(b)
	ctx := context.WithoutCancel(b.Context())
	ratio.Many(b, many, func() (ratio.Made, error) {
		sb, err := f.ex.Create(ctx, backend.Spec{Lifetime: time.Hour})
		if err != nil {
			return nil, err
		}
		return ratio.End(func() error { return sb.Destroy(ctx) }), nil
	}, func() { f.memory(ctx, many) })
}

// BenchmarkManyContainers: the same of containers alone.
func BenchmarkManyContainers(b *testing.B) {
	f := open(b)
	ctx := context.WithoutCancel(b.Context())
	ratio.Many(b, 100, func() (ratio.Made, error) {
		made, err := f.e.Create(ctx, f.container("/bin/sleep", "3600"))
		if err != nil {
			return nil, err
		}
		end := ratio.End(func() error { return f.e.Remove(ctx, made.ID) })
		if err := f.e.Start(ctx, made.ID); err != nil {
			return nil, errors.Join(err, end())
		}
		return end, nil
	}, nil)
}

func (f *fixture) memory(ctx context.Context, many int) {
	f.Helper()
	id, err := os.ReadFile(filepath.Join(f.dir, "store"))
	if err != nil {
		f.Fatal(err)
	}
	list, err := f.e.List(ctx, "dev.glovebox.store", strings.TrimSpace(string(id)))
	if err != nil || len(list) != many {
		f.Fatalf("%d containers, %v", len(list), err)
	}
	var agents, shims int64
	for _, c := range list {
		left, err := engine.FindRemains(c.ID)
		if err != nil {
			f.Fatal(err)
		}
		for _, p := range left[0].Processes {
			if p.Inside {
				agents += ratio.PSS(p.PID)
			} else {
				shims += ratio.PSS(p.PID)
			}
		}
	}
	f.ReportMetric(float64(agents)/float64(many)/1024, "MB/sandbox")
	f.ReportMetric(float64(shims)/float64(many)/1024, "MB/engine's-shim")
}

// BenchmarkOutput: a gibibyte of output, against the same through a pipe.
func BenchmarkOutput(b *testing.B) {
	const size = 1 << 30
	args := []string{"/usr/bin/head", "-c", strconv.Itoa(size), "/dev/zero"}
	f := open(b)
	sb, err := f.ex.Create(b.Context(), backend.Spec{Lifetime: time.Hour, Limits: backend.Limits{CPUs: 2}})
	if err != nil {
		b.Fatal(err)
	}
	ratio.Medians(b, 5, []ratio.Of{ratio.Timed("warm", func() error {
		out := &ratio.Sink{}
		_, err := backend.RunIn(b.Context(), sb, backend.Command{Args: args, Output: backend.Output{Stdout: out}, Timeout: 2 * time.Minute})
		return errors.Join(err, out.Check(size))
	})}, []ratio.Of{ratio.Timed("pipe", func() error {
		out := &ratio.Sink{}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdout = out
		return errors.Join(cmd.Run(), out.Check(size))
	})})
}
