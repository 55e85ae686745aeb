//go:build linux

// Package bench_test prints what the gVisor backend costs, as ratios to runsc
// itself on the same root, measured in turn in one run. Nothing here passes or
// fails by a time. Run it alone on the machine: `make bench`.
package bench_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/gvisor"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/internal/testenv/ratio"
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
			ratio.Medians(b, 0, []ratio.Of{ratio.Timed("cold", func() error {
				res, err := backend.Run(b.Context(), ex, backend.RunSpec{Command: backend.Command{Args: args}})
				return succeed(res.Exit, err)
			})}, []ratio.Of{ratio.Timed("runsc-run", runsc.run)})
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
			ratio.Medians(b, 0, []ratio.Of{
				ratio.Timed("warm", func() error { return succeed(backend.RunIn(b.Context(), sb, backend.Command{Args: args})) }),
			}, []ratio.Of{
				ratio.Timed("runsc-exec", func() error { return runsc.command(append([]string{"exec", "one"}, args...)...).Run() }),
				ratio.Timed("bare", func() error { return exec.Command(args[0], args[1:]...).Run() }),
			})
		})
	}
}

// BenchmarkMany: a hundred sandboxes at once, made and ended two at a time, and
// what each takes while it is idle, by its group.
func BenchmarkMany(b *testing.B) {
	const many = 100
	ex := open(b)
	ctx := context.WithoutCancel(b.Context())
	var mu sync.Mutex
	var meters []backend.Meter
	ratio.Many(b, many, func() (ratio.Made, error) {
		sb, err := ex.Create(ctx, backend.Spec{Lifetime: time.Hour})
		if err != nil {
			return nil, err
		}
		m, ok := backend.As[backend.Meter](sb)
		if !ok {
			return nil, errors.New("no Meter")
		}
		mu.Lock()
		defer mu.Unlock()
		meters = append(meters, m)
		return ratio.End(func() error { return sb.Destroy(ctx) }), nil
	}, func() {
		var sum int64
		for _, m := range meters {
			u, err := m.Usage(ctx)
			if err != nil {
				b.Fatal(err)
			}
			sum += u.Memory
		}
		b.ReportMetric(float64(sum)/many/(1<<20), "MiB/sandbox")
	})
}

// BenchmarkOutput: a gibibyte of output, against the same through a pipe and
// through `runsc run`.
func BenchmarkOutput(b *testing.B) {
	const size = 1 << 30
	args := []string{"/usr/bin/head", "-c", strconv.Itoa(size), "/dev/zero"}
	ex, runsc := open(b), newBare(b, args...)
	sb, err := ex.Create(b.Context(), backend.Spec{Lifetime: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	through := func(cmd *exec.Cmd) error {
		out := &ratio.Sink{}
		cmd.Stdout = out
		return errors.Join(cmd.Run(), out.Check(size))
	}
	ratio.Medians(b, 3, []ratio.Of{ratio.Timed("warm", func() error {
		out := &ratio.Sink{}
		err := succeed(backend.RunIn(b.Context(), sb, backend.Command{Args: args, Output: backend.Output{Stdout: out}, Timeout: 2 * time.Minute}))
		return errors.Join(err, out.Check(size))
	})}, []ratio.Of{
		ratio.Timed("pipe", func() error { return through(exec.Command(args[0], args[1:]...)) }),
		ratio.Timed("runsc-run", func() error { return through(runsc.command("run", "--bundle="+runsc.bundle, "one")) }),
	})
}
