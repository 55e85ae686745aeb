//go:build linux

// Package bench_test prints what the gVisor backend costs, as ratios to runsc
// itself on the same root, measured in turn in one run. Nothing here passes or
// fails by a time. Run it alone on the machine: `make bench`.
package bench_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/gvisor"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

var builder testenv.Builder

func TestMain(m *testing.M) {
	code := m.Run()
	if err := builder.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func rootfs(b *testing.B) string {
	b.Helper()
	dir, unavailable := builder.Rootfs(b)
	testenv.Require(b, "gvisor", unavailable)
	return dir
}

func open(b *testing.B) *gvisor.Executor {
	b.Helper()
	ex, err := gvisor.Open(b.Context(), gvisor.Config{
		Agent: builder.Build(b, "cmd/glovebox-agent"), Rootfs: rootfs(b), StateDir: filepath.Join(b.TempDir(), "state"),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := ex.Close(); err != nil {
			b.Error(err)
		}
	})
	if _, _, err := ex.Admit(backend.Spec{}); err != nil {
		testenv.Require(b, "gvisor", err.Error())
	}
	return ex
}

// medians runs the measurements in turn b.N times and reports the first's
// median and the others' as ratios to it.
func medians(b *testing.B, names []string, measure ...func() error) {
	b.Helper()
	took := make([][]time.Duration, len(measure))
	for b.Loop() {
		for i, f := range measure {
			began := time.Now()
			if err := f(); err != nil {
				b.Fatalf("%s: %v", names[i], err)
			}
			took[i] = append(took[i], time.Since(began))
		}
	}
	median := func(i int) float64 {
		slices.Sort(took[i])
		return float64(took[i][len(took[i])/2]) / float64(time.Millisecond)
	}
	first := median(0)
	b.ReportMetric(first, names[0]+"-ms")
	for i := 1; i < len(measure); i++ {
		b.ReportMetric(median(i), names[i]+"-ms")
		b.ReportMetric(median(i)/first, names[i]+"/"+names[0])
	}
}

func succeed(exit backend.Exit, err error) error {
	if err == nil && !exit.Success() {
		err = fmt.Errorf("%s", exit)
	}
	return err
}

// bare is runsc on a bundle that `runsc spec` might have written.
type bare struct {
	b      *testing.B
	bundle string
	flags  []string
}

func newBare(b *testing.B, args ...string) *bare {
	b.Helper()
	testenv.NeedProgram(b, "runsc")
	dir := b.TempDir()
	spec := map[string]any{
		"ociVersion": "1.0.0", "root": map[string]any{"path": rootfs(b), "readonly": true}, "hostname": "sandbox",
		"process": map[string]any{"args": args, "cwd": "/", "env": []string{"PATH=/usr/bin:/bin"}, "user": map[string]int{"uid": 0, "gid": 0}},
		"mounts": []map[string]any{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
			{"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": []string{"ro"}},
			{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
		},
		"linux": map[string]any{"namespaces": []map[string]string{{"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}}},
	}
	data, err := json.Marshal(spec)
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600), os.Mkdir(filepath.Join(dir, "rt"), 0o700))
	}
	if err != nil {
		b.Fatal(err)
	}
	return &bare{b, dir, []string{
		"--root=" + filepath.Join(dir, "rt"), "--network=none", "--directfs=false", "--overlay2=none", "--ignore-cgroups", "--log=/dev/null",
	}}
}

func (x *bare) command(args ...string) *exec.Cmd {
	return exec.CommandContext(x.b.Context(), "runsc", append(slices.Clone(x.flags), args...)...)
}

func (x *bare) run() error {
	out, err := x.command("run", "--bundle="+x.bundle, "one").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// BenchmarkCommand: a command in a sandbox made for it beside `runsc run`, and
// in one that is there already beside `runsc exec`.
func BenchmarkCommand(b *testing.B) {
	for name, args := range map[string][]string{
		"true":   {"/bin/true"},
		"python": {"/usr/bin/python3", "-c", "print(1)"},
	} {
		b.Run(name+"/cold", func(b *testing.B) {
			ex, runsc := open(b), newBare(b, args...)
			medians(b, []string{"runsc-run", "glovebox"}, runsc.run, func() error {
				res, err := backend.Run(b.Context(), ex, backend.RunSpec{Command: backend.Command{Args: args}})
				return succeed(res.Exit, err)
			})
		})
		b.Run(name+"/warm", func(b *testing.B) {
			ex, runsc := open(b), newBare(b, "/bin/sleep", "3600")
			sb, err := ex.Create(b.Context(), backend.Spec{Lifetime: time.Hour})
			if err != nil {
				b.Fatal(err)
			}
			kept := runsc.command("run", "--bundle="+runsc.bundle, "one")
			if err := kept.Start(); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				kept.Process.Kill()
				kept.Wait()
			})
			for i := 0; runsc.command("exec", "one", "/bin/true").Run() != nil; i++ {
				if i > 200 {
					b.Fatal("runsc's own sandbox does not start")
				}
			}
			medians(b, []string{"runsc-exec", "glovebox"},
				func() error { return runsc.command(append([]string{"exec", "one"}, args...)...).Run() },
				func() error { return succeed(backend.RunIn(b.Context(), sb, backend.Command{Args: args})) },
			)
		})
	}
}

// BenchmarkLife: making and ending a sandbox, without a command.
func BenchmarkLife(b *testing.B) {
	ex := open(b)
	var made, ended []time.Duration
	for b.Loop() {
		began := time.Now()
		sb, err := ex.Create(b.Context(), backend.Spec{})
		if err != nil {
			b.Fatal(err)
		}
		made = append(made, time.Since(began))
		began = time.Now()
		if err := sb.Destroy(b.Context()); err != nil {
			b.Fatal(err)
		}
		ended = append(ended, time.Since(began))
	}
	for name, took := range map[string][]time.Duration{"create-ms": made, "destroy-ms": ended} {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2])/float64(time.Millisecond), name)
	}
}

// BenchmarkIdle: the memory of each of many idle sandboxes, by their groups.
func BenchmarkIdle(b *testing.B) {
	const many = 10
	ex := open(b)
	var mu sync.Mutex
	var sum int64
	var wg sync.WaitGroup
	for range many {
		wg.Go(func() {
			sb, err := ex.Create(b.Context(), backend.Spec{Lifetime: time.Hour})
			if err != nil {
				b.Error(err)
				return
			}
			m, ok := backend.As[backend.Meter](sb)
			if !ok {
				b.Error("no Meter")
				return
			}
			u, err := m.Usage(b.Context())
			if err != nil {
				b.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			sum += u.Memory
		})
	}
	wg.Wait()
	for b.Loop() {
		b.ReportMetric(float64(sum)/many/(1<<20), "MiB/sandbox")
	}
}

// BenchmarkOutput: a stream of output, against the same through `runsc run`.
func BenchmarkOutput(b *testing.B) {
	args := []string{"/usr/bin/head", "-c", "268435456", "/dev/zero"}
	ex, runsc := open(b), newBare(b, args...)
	sb, err := ex.Create(b.Context(), backend.Spec{Lifetime: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	medians(b, []string{"runsc-run", "glovebox"},
		func() error {
			cmd := runsc.command("run", "--bundle="+runsc.bundle, "one")
			var errs strings.Builder
			cmd.Stdout, cmd.Stderr = &counter{}, &errs
			return cmd.Run()
		},
		func() error {
			return succeed(backend.RunIn(b.Context(), sb, backend.Command{Args: args, Output: backend.Output{Stdout: &counter{}}}))
		},
	)
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}
