//go:build linux

package subprocess_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// calls are every call on a sandbox, by name.
func calls(sb backend.Sandbox) map[string]func(context.Context) error {
	files := sb.Files()
	all := map[string]func(context.Context) error{
		"start": func(ctx context.Context) error {
			_, err := sb.Start(ctx, backend.Command{Args: []string{"true"}})
			return err
		},
		"open":   func(ctx context.Context) error { _, err := files.Open(ctx, "x"); return err },
		"write":  func(ctx context.Context) error { return backend.WriteFile(ctx, files, "x", []byte("x"), 0) },
		"stat":   func(ctx context.Context) error { _, err := files.Stat(ctx, "x"); return err },
		"list":   func(ctx context.Context) error { _, err := files.List(ctx, "."); return err },
		"mkdir":  func(ctx context.Context) error { return files.Mkdir(ctx, "d", 0) },
		"rename": func(ctx context.Context) error { return files.Rename(ctx, "x", "y") },
		"remove": func(ctx context.Context) error { return files.Remove(ctx, "x") },
	}
	if e, ok := backend.As[backend.Extender](sb); ok {
		all["extend"] = func(ctx context.Context) error { return e.SetLifetime(ctx, time.Minute) }
	}
	if m, ok := backend.As[backend.Meter](sb); ok {
		all["usage"] = func(ctx context.Context) error { _, err := m.Usage(ctx); return err }
	}
	if f, ok := backend.As[backend.ProcessFinder](sb); ok {
		all["processes"] = func(ctx context.Context) error { _, err := f.Processes(ctx); return err }
		all["attach"] = func(ctx context.Context) error { _, err := f.Attach(ctx, "c1", backend.AttachOptions{}); return err }
	}
	if d, ok := backend.As[backend.Dialer](sb); ok {
		all["dial"] = func(ctx context.Context) error { _, err := d.DialContext(ctx, "tcp", "1"); return err }
	}
	if p, ok := backend.As[backend.Pauser](sb); ok {
		all["pause"] = func(ctx context.Context) error { return p.Pause(ctx, backend.PauseOptions{}) }
		all["resume"] = p.Resume
	}
	return all
}

func TestDestroy_twiceAndAfter(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		p, err := sb.Start(t.Context(), backend.Command{Args: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		all := calls(sb)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { destroy(t, sb) })
		}
		wg.Wait()
		destroy(t, sb)
		for name, call := range all {
			if err := call(t.Context()); backend.KindOf(err) != backend.ErrClosed {
				t.Errorf("%s: %s: %v", name, backend.KindOf(err), err)
			}
		}
		if _, err := p.Wait(t.Context()); backend.KindOf(err) != backend.ErrClosed {
			t.Errorf("wait: %s: %v", backend.KindOf(err), err)
		}
		if sb.Receipt().Sandbox != sb.ID() || sb.ID() == "" {
			t.Error("ID and receipt are gone")
		}
		if left, _ := os.ReadDir(filepath.Join(h.cfg.StateDir, "run")); len(left) != 0 {
			t.Errorf("left in run: %v", left)
		}
		if left, _ := os.ReadDir(filepath.Join(h.cfg.StateDir, "sandboxes")); len(left) != 0 {
			t.Errorf("markers left: %v", left)
		}
	})
}

func TestCalls_withACancelledContext(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.ex.Create(ctx, h.spec(backend.Spec{})); !errors.Is(err, context.Canceled) {
			t.Errorf("create: %v", err)
		}
		sb := h.create(t, backend.Spec{})
		for name, call := range calls(sb) {
			switch err := call(ctx); {
			case name == "resume" && backend.KindOf(err) == backend.ErrConflict:
			case !errors.Is(err, context.Canceled):
				t.Errorf("%s: %v", name, err)
			}
		}
		// None of it has harmed the sandbox.
		sh(t, sb, "echo fine").succeed(t)
	})
}

func TestClose(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		var sbs []backend.Sandbox
		for range 3 {
			sbs = append(sbs, h.create(t, backend.Spec{}))
		}
		for range 2 {
			if err := h.ex.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, sb := range sbs {
			_, err := sb.Start(t.Context(), backend.Command{Args: []string{"true"}})
			wantKind(t, err, backend.ErrClosed)
		}
		_, err := h.ex.Create(t.Context(), h.spec(backend.Spec{}))
		wantKind(t, err, backend.ErrClosed)
		if caps := h.ex.Capabilities(); caps.Isolation != h.caps.Isolation {
			t.Errorf("%+v", caps)
		}
	})
}

func TestSetLifetime(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Lifetime: 1500 * time.Millisecond})
		e := as[backend.Extender](t, sb)
		for _, d := range []time.Duration{0, -time.Second, 25 * time.Hour} {
			wantKind(t, e.SetLifetime(t.Context(), d), backend.ErrInvalid)
		}
		if err := e.SetLifetime(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		run(t, sb, backend.Command{Args: []string{"sleep", "2"}}).succeed(t)
		if err := e.SetLifetime(t.Context(), 300*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it has expired", func() bool {
			_, err := sb.Start(t.Context(), backend.Command{Args: []string{"true"}})
			return backend.KindOf(err) == backend.ErrExpired
		})
	})
}

func TestExpiry_leavesNothing(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb, err := h.ex.Create(t.Context(), backend.Spec{Lifetime: 300 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the host forgets it", func() bool {
			return len(left(t, h.cfg, sb.ID())) == 0
		})
		for name, call := range calls(sb) {
			if err := call(t.Context()); backend.KindOf(err) != backend.ErrExpired {
				t.Errorf("%s: %v", name, err)
			}
		}
		destroy(t, sb)
	})
}

func TestRun_leavesNothingOnItsErrorPaths(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		bad := errors.New("the reader broke")
		_, err := backend.Run(t.Context(), h.ex, backend.RunSpec{
			Command: backend.Command{Args: []string{"true"}},
			Files:   map[string]backend.File{"x": {Reader: io.MultiReader(strings.NewReader("abc"), &failing{bad})}},
		})
		if !errors.Is(err, bad) {
			t.Errorf("%v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		res, err := backend.Run(ctx, h.ex, backend.RunSpec{Command: backend.Command{Args: []string{"sleep", "1000"}}})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v %v", res.Exit, err)
		}
		_, err = backend.Run(t.Context(), h.ex, backend.RunSpec{Command: backend.Command{Args: []string{"true"}, Dir: "/missing"}})
		wantKind(t, err, backend.ErrInvalid)
		_, err = backend.Run(t.Context(), h.ex, backend.RunSpec{
			Command: backend.Command{Args: []string{"sh", "-c", "head -c 20000000 /dev/zero >big"}}, Fetch: []string{"big"},
		})
		wantKind(t, err, backend.ErrTooLarge)
		if left, _ := os.ReadDir(filepath.Join(h.cfg.StateDir, "sandboxes")); len(left) != 0 {
			t.Errorf("markers left: %v", left)
		}
	})
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

func TestProbe(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		health, err := as[backend.Prober](t, h.ex).Probe(t.Context())
		if err != nil || health.Available != h.contains() && h.contains() || health.Isolation != h.caps.Isolation {
			t.Errorf("%+v %v", health, err)
		}
		report, err := subprocess.Measure(t.Context(), h.cfg)
		if err != nil || report.Privilege != h.privilege || len(report.Facts) < 5 || report.Capabilities.Isolation != h.caps.Isolation {
			t.Errorf("%+v %v", report, err)
		}
		t.Log(fmt.Sprint(health.Available, health.Reason, health.Warnings))
	})
}
