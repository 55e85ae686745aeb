//go:build linux

// Package bench_test prints what the subprocess backend costs, as ratios to the
// same program run bare, measured in turn in one run. Nothing here passes or
// fails by a time. Run it alone on the machine: `make bench`.
package bench_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/glovebox-dev/glovebox/internal/testenv"
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
	bare := median(0)
	b.ReportMetric(bare, names[0]+"-ms")
	for i := 1; i < len(measure); i++ {
		b.ReportMetric(median(i), names[i]+"-ms")
		b.ReportMetric(median(i)/bare, names[i]+"/"+names[0])
	}
}

func bare(args ...string) func() error {
	return func() error { return exec.Command(args[0], args[1:]...).Run() }
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
			medians(b, []string{"bare", "cold", "warm"}, bare(args...),
				func() error {
					res, err := backend.Run(b.Context(), ex, backend.RunSpec{Command: backend.Command{Args: args}})
					return succeed(res.Exit, err)
				},
				func() error { return succeed(backend.RunIn(b.Context(), sb, backend.Command{Args: args})) },
			)
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
		return func() error {
			var wg sync.WaitGroup
			errs := make([]error, 8)
			for i := range errs {
				wg.Go(func() { errs[i] = one() })
			}
			wg.Wait()
			return errors.Join(errs...)
		}
	}
	medians(b, []string{"bare", "cold"}, eight(bare(args...)), eight(func() error {
		res, err := backend.Run(b.Context(), ex, backend.RunSpec{Command: backend.Command{Args: args}})
		return succeed(res.Exit, err)
	}))
}

// BenchmarkCreate: how long a sandbox takes to be made and to be gone, one at a
// time and two at a time.
func BenchmarkCreate(b *testing.B) {
	for _, at := range []int{1, 2} {
		b.Run(strconv.Itoa(at), func(b *testing.B) {
			ex := open(b)
			var made int
			began := time.Now()
			for b.Loop() {
				var wg sync.WaitGroup
				for range at {
					wg.Go(func() {
						sb, err := ex.Create(b.Context(), backend.Spec{})
						if err != nil {
							b.Error(err)
							return
						}
						if err := sb.Destroy(b.Context()); err != nil {
							b.Error(err)
						}
					})
				}
				wg.Wait()
				made += at
			}
			b.ReportMetric(float64(made)/time.Since(began).Seconds(), "sandboxes/s")
		})
	}
}

// BenchmarkAgent: what an agent costs: its start, until the sandbox is ready,
// and the memory of each of many idle ones (proportional set size).
func BenchmarkAgent(b *testing.B) {
	const many = 50
	ex := open(b)
	ctx := context.WithoutCancel(b.Context())
	var start time.Duration
	before := pss(b)
	for range many {
		sb, err := ex.Create(ctx, backend.Spec{Lifetime: time.Hour})
		if err != nil {
			b.Fatal(err)
		}
		start += sb.Receipt().Timings["start"]
	}
	for b.Loop() {
		b.ReportMetric(float64(pss(b)-before)/many/1024, "MB/agent")
	}
	b.ReportMetric(float64(start)/many/float64(time.Millisecond), "start-ms")
}

// pss is the proportional memory, in KiB, of this process's children.
func pss(b *testing.B) (sum int64) {
	b.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		b.Fatal(err)
	}
	for _, task := range tasks {
		pids, _ := os.ReadFile(task)
		for pid := range strings.FieldsSeq(string(pids)) {
			data, _ := os.ReadFile("/proc/" + pid + "/smaps_rollup")
			for line := range strings.Lines(string(data)) {
				if v, ok := strings.CutPrefix(line, "Pss:"); ok {
					n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
					sum += n
				}
			}
		}
	}
	return sum
}

// BenchmarkOutput: a stream of output, against the same through a pipe.
func BenchmarkOutput(b *testing.B) {
	const bytes = 256 << 20
	args := []string{"/usr/bin/head", "-c", strconv.Itoa(bytes), "/dev/zero"}
	ex := open(b)
	sb, err := ex.Create(b.Context(), backend.Spec{Lifetime: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	medians(b, []string{"pipe", "warm"},
		func() error {
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Stdout = &counter{}
			return cmd.Run()
		},
		func() error {
			c := &counter{}
			err := succeed(backend.RunIn(b.Context(), sb, backend.Command{Args: args, Output: backend.Output{Stdout: c}}))
			if err == nil && c.n != bytes {
				err = fmt.Errorf("%d bytes came out: %w", c.n, io.ErrUnexpectedEOF)
			}
			return err
		},
	)
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}
