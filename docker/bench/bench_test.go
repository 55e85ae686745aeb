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
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/testenv"
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

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

func timed(f func() error) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		began := time.Now()
		err := f()
		return time.Since(began), err
	}
}

// medians runs the measurements in turn b.N times, but at most so often, and
// reports each one's median and the first's ratio to those against.
func (f *fixture) medians(most int, names []string, against []int, measure ...func() (time.Duration, error)) {
	f.Helper()
	took := make([][]time.Duration, len(measure))
	for range min(f.N, most) {
		for i, m := range measure {
			d, err := m()
			if err != nil {
				f.Fatalf("%s: %v", names[i], err)
			}
			took[i] = append(took[i], d)
		}
	}
	median := func(i int) float64 {
		slices.Sort(took[i])
		return float64(took[i][len(took[i])/2]) / float64(time.Millisecond)
	}
	for i, name := range names {
		f.ReportMetric(median(i), name+"-ms")
	}
	for _, j := range against {
		f.ReportMetric(median(0)/median(j), names[0]+"/"+names[j])
	}
}

// BenchmarkCold: from nothing to the first output.
func BenchmarkCold(b *testing.B) {
	f := open(b)
	for name, args := range map[string][]string{"echo": {"/bin/echo", "1"}, "python": {"/usr/bin/python3", "-c", "print(1)"}} {
		b.Run(name, func(b *testing.B) {
			g := *f
			g.B = b
			g.medians(50, []string{"cold", "docker_run"}, []int{1},
				func() (time.Duration, error) { return g.sandboxOutput(args...) },
				func() (time.Duration, error) { return g.firstOutput(args...) })
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
	f.medians(50, []string{"warm", "docker_exec", "bare"}, []int{1, 2},
		timed(func() error {
			exit, err := backend.RunIn(b.Context(), sb, backend.Command{Args: []string{"/bin/true"}})
			if err == nil && !exit.Success() {
				err = fmt.Errorf("%s", exit)
			}
			return err
		}),
		timed(func() error { return f.exec(made.ID, "/bin/true") }),
		timed(func() error { return exec.Command("/bin/true").Run() }))
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

// BenchmarkMany: a hundred sandboxes made, two at a time, and destroyed; against
// a hundred containers.
func BenchmarkMany(b *testing.B) {
	f := open(b)
	const many = 100
	twoAtATime := func(one func() error) func() (time.Duration, error) {
		return timed(func() error {
			var wg sync.WaitGroup
			errs := make([]error, 2)
			for i := range errs {
				wg.Go(func() {
					for range many / len(errs) {
						errs[i] = errors.Join(errs[i], one())
					}
				})
			}
			wg.Wait()
			return errors.Join(errs...)
		})
	}
	f.medians(1, []string{"sandboxes", "containers"}, []int{1},
		twoAtATime(func() error {
			sb, err := f.ex.Create(b.Context(), backend.Spec{})
			if err != nil {
				return err
			}
			return sb.Destroy(b.Context())
		}),
		twoAtATime(func() error {
			_, err := f.firstOutput("/bin/echo", "1")
			return err
		}))
}

// BenchmarkIdle: the memory of each of fifty idle sandboxes, and of the engine's
// own process beside it.
func BenchmarkIdle(b *testing.B) {
	const many = 50
	f := open(b)
	ctx := context.WithoutCancel(b.Context())
	var agents, shims int64
	for range many {
		if _, err := f.ex.Create(ctx, backend.Spec{Lifetime: time.Hour}); err != nil {
			b.Fatal(err)
		}
	}
	id, err := os.ReadFile(filepath.Join(f.dir, "store"))
	if err != nil {
		b.Fatal(err)
	}
	list, err := f.e.List(ctx, "dev.glovebox.store", strings.TrimSpace(string(id)))
	if err != nil || len(list) != many {
		b.Fatalf("%d containers, %v", len(list), err)
	}
	for b.Loop() {
		agents, shims = 0, 0
		for _, c := range list {
			left, err := engine.FindRemains(c.ID)
			if err != nil {
				b.Fatal(err)
			}
			for _, p := range left[0].Processes {
				if p.Inside {
					agents += pss(p.PID)
				} else {
					shims += pss(p.PID)
				}
			}
		}
	}
	b.ReportMetric(float64(agents)/many/1024, "MB/sandbox")
	b.ReportMetric(float64(shims)/many/1024, "MB/engine's-shim")
}

// pss is the proportional memory of a process in KiB.
func pss(pid int) int64 {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "Pss:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return n
		}
	}
	return 0
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
	count := func(run func(io.Writer) error) func() (time.Duration, error) {
		return timed(func() error {
			n := 0
			err := run(writer(func(p []byte) { n += len(p) }))
			if err == nil && n != size {
				err = fmt.Errorf("%d bytes came out: %w", n, io.ErrUnexpectedEOF)
			}
			return err
		})
	}
	f.medians(5, []string{"warm", "pipe"}, []int{1},
		count(func(w io.Writer) error {
			_, err := backend.RunIn(b.Context(), sb, backend.Command{Args: args, Output: backend.Output{Stdout: w}, Timeout: 2 * time.Minute})
			return err
		}),
		count(func(w io.Writer) error {
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Stdout = w
			return cmd.Run()
		}))
}
