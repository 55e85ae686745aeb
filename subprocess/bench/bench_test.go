//go:build linux

// Package bench_test prints what the subprocess backend costs, as ratios to the
// same program run bare, measured in turn in one run. Nothing here passes or
// fails by a time. Run it alone on the machine: `make bench`.
package bench_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/internal/testenv/ratio"
	"github.com/glovebox-dev/glovebox/subprocess"
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

func open(b *testing.B) *subprocess.Executor {
	b.Helper()
	ex, err := subprocess.Open(b.Context(), subprocess.Config{
		Agent: programs.Build(b, "cmd/glovebox-agent"), StateDir: filepath.Join(b.TempDir(), "state"),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := ex.Close(); err != nil {
			b.Error(err)
		}
	})
	return ex
}

func bare(args ...string) func() error {
	return func() error { return exec.Command(args[0], args[1:]...).Run() }
}

// oneShot runs a command in a sandbox made for it.
func oneShot(b *testing.B, ex *subprocess.Executor, args ...string) func() error {
	b.Helper()
	return func() error {
		res, err := backend.Run(b.Context(), ex, backend.RunSpec{Command: backend.Command{Args: args}})
		return succeed(res.Exit, err)
	}
}

func succeed(exit backend.Exit, err error) error {
	if err == nil && !exit.Success() {
		err = fmt.Errorf("%s", exit)
	}
	return err
}

// BenchmarkCommand: a command alone, in a sandbox made for it, and in one that
// is there already.
func BenchmarkCommand(b *testing.B) {
	for name, args := range map[string][]string{
		"true":   {"/bin/true"},
		"python": {"/usr/bin/python3", "-c", "print(1)"},
	} {
		b.Run(name, func(b *testing.B) {
			if _, err := os.Stat(args[0]); err != nil {
				b.Skip(err)
			}
			ex := open(b)
			sb, err := ex.Create(b.Context(), backend.Spec{Lifetime: time.Hour})
			if err != nil {
				b.Fatal(err)
			}
			ratio.Medians(b, 0, []ratio.Of{
				ratio.Timed("cold", oneShot(b, ex, args...)),
				ratio.Timed("warm", func() error { return succeed(backend.RunIn(b.Context(), sb, backend.Command{Args: args})) }),
			}, []ratio.Of{ratio.Timed("bare", bare(args...))})
		})
	}
}

// BenchmarkClients: eight clients at a time, each with a sandbox for every
// program; the ratio is that of the programs' rates, turned round.
func BenchmarkClients(b *testing.B) {
	args := []string{"/usr/bin/python3", "-c", "print(1)"}
	if _, err := os.Stat(args[0]); err != nil {
		b.Skip(err)
	}
	ex := open(b)
	eight := func(one func() error) func() error {
		return func() error { return ratio.At(8, 8, one) }
	}
	ratio.Medians(b, 0, []ratio.Of{ratio.Timed("cold", eight(oneShot(b, ex, args...)))}, []ratio.Of{ratio.Timed("bare", eight(bare(args...)))})
}

// BenchmarkMany: a hundred sandboxes at once, made and ended two at a time, and
// what each takes while it is idle (proportional set size).
func BenchmarkMany(b *testing.B) {
	const many = 100
	ex := open(b)
	ctx := context.WithoutCancel(b.Context())
	before := children(b)
	ratio.Many(b, many, func() (ratio.Made, error) {
		sb, err := ex.Create(ctx, backend.Spec{Lifetime: time.Hour})
		if err != nil {
			return nil, err
		}
		return ratio.End(func() error { return sb.Destroy(ctx) }), nil
	}, func() { b.ReportMetric(float64(children(b)-before)/many/1024, "MB/sandbox") })
}

// children is the proportional memory, in KiB, of this process's children.
func children(b *testing.B) (sum int64) {
	b.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		b.Fatal(err)
	}
	for _, task := range tasks {
		pids, _ := os.ReadFile(task)
		for pid := range strings.FieldsSeq(string(pids)) {
			if n, err := strconv.Atoi(pid); err == nil {
				sum += ratio.PSS(n)
			}
		}
	}
	return sum
}

// BenchmarkOutput: a gibibyte of output, against the same through a pipe.
func BenchmarkOutput(b *testing.B) {
	const size = 1 << 30
	args := []string{"/usr/bin/head", "-c", strconv.Itoa(size), "/dev/zero"}
	ex := open(b)
	sb, err := ex.Create(b.Context(), backend.Spec{Lifetime: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	ratio.Medians(b, 5, []ratio.Of{ratio.Timed("warm", func() error {
		out := &ratio.Sink{}
		err := succeed(backend.RunIn(b.Context(), sb, backend.Command{Args: args, Output: backend.Output{Stdout: out}, Timeout: 2 * time.Minute}))
		return errors.Join(err, out.Check(size))
	})}, []ratio.Of{ratio.Timed("pipe", func() error {
		out := &ratio.Sink{}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdout = out
		return errors.Join(cmd.Run(), out.Check(size))
	})})
}
