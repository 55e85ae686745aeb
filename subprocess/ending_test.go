//go:build linux

package subprocess_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// deaf is a writer that takes nothing until it is released.
type deaf struct{ release chan struct{} }

func (d deaf) Write(p []byte) (int, error) {
	<-d.release
	return len(p), nil
}

func TestDestroy_doesNotWaitForADeafWriter(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		d := deaf{make(chan struct{})}
		defer close(d.release)
		_, err := sb.Start(t.Context(), backend.Command{
			Args: []string{"sh", "-c", "while :; do echo line; done"}, Output: backend.Output{Stdout: d}, Timeout: backend.UntilSandboxEnds,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		if err := sb.Destroy(ctx); err != nil {
			t.Error(err)
		}
		if found := left(t, h.cfg, sb.ID()); len(found) > 0 {
			t.Errorf("left: %q", found)
		}
	})
}

func TestDestroy_goesOnWithoutItsCaller(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if err := sb.Destroy(over); err != nil && err != context.Canceled { //nolint:errorlint // the very error
			t.Error(err)
		}
		destroy(t, sb)
		if found := left(t, h.cfg, sb.ID()); len(found) > 0 {
			t.Errorf("left: %q", found)
		}
	})
}

// record is what the journal says of a kept sandbox.
func record(t *testing.T, cfg subprocess.Config, id string) (*state.Journal, state.Record) {
	t.Helper()
	s, err := state.Open(cfg.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	j, err := s.Journal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := j.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return j, r
}

func TestDestroy_ofASandboxWhoseAgentIsSilent(t *testing.T) {
	inModes(t, asRoot, func(t *testing.T, h *harness) {
		canPause(t, h)
		sb := h.create(t, backend.Spec{Keep: true, Lifetime: 5 * time.Minute})
		_, r := record(t, h.cfg, sb.ID())
		if err := unix.Kill(r.AgentPID, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		paused := make(chan error, 1)
		go func() { paused <- as[backend.Pauser](t, sb).Pause(t.Context(), backend.PauseOptions{}) }()
		select {
		case err := <-paused:
			t.Fatalf("the agent is not silent: %v", err)
		case <-time.After(300 * time.Millisecond):
		}
		began := time.Now()
		destroy(t, sb)
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("it took %v", took)
		}
		if err := <-paused; err == nil {
			t.Error("it was paused")
		}
	})
}

func TestFind_knowsWhatOthersDid(t *testing.T) {
	inModes(t, asRoot, func(t *testing.T, h *harness) {
		canPause(t, h)
		other := newHarness(t, h.cfg)
		find := func(h *harness, id string) (backend.Sandbox, error) {
			return as[backend.Finder](t, h.ex).Find(t.Context(), id)
		}
		bound := h.create(t, backend.Spec{})
		_, err := find(h, bound.ID())
		wantKind(t, err, backend.ErrNotFound)

		made, err := h.ex.Create(t.Context(), backend.Spec{Keep: true, Lifetime: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := find(other, made.ID())
		if err != nil {
			t.Fatal(err)
		}
		if err := as[backend.Pauser](t, theirs).Pause(t.Context(), backend.PauseOptions{}); err != nil {
			t.Fatal(err)
		}
		again, err := find(h, made.ID())
		if err != nil {
			t.Fatal(err)
		}
		_, err = again.Start(t.Context(), backend.Command{Args: []string{"true"}})
		wantKind(t, err, backend.ErrConflict, "paused")
		destroy(t, theirs)
		for range 2 {
			_, err = find(h, made.ID())
			wantKind(t, err, backend.ErrNotFound)
		}
	})
}

// A paused sandbox has no deadline of its own, so one that nobody can find any
// more would stay for ever.
func TestSweep_endsAKeptSandboxWithoutARecord(t *testing.T) {
	inModes(t, asRoot, func(t *testing.T, h *harness) {
		canPause(t, h)
		sb, err := h.ex.Create(t.Context(), backend.Spec{Keep: true, Lifetime: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if err := as[backend.Pauser](t, sb).Pause(t.Context(), backend.PauseOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := h.ex.Close(); err != nil {
			t.Fatal(err)
		}
		j, _ := record(t, h.cfg, sb.ID())
		if err := j.Delete(t.Context(), sb.ID()); err != nil {
			t.Fatal(err)
		}
		later := newHarness(t, h.cfg)
		eventually(t, "it is gone", func() bool {
			_ = later.ex.Sweep(t.Context())
			return len(left(t, h.cfg, sb.ID())) == 0
		})
	})
}

// Without namespaces nothing but the marker tells a sweep which process to end.
func TestMarker_namesTheAgentThatCanOutlive(t *testing.T) {
	inModes(t, []subprocess.Privilege{subprocess.PrivilegeRestricted}, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		s, err := state.Open(h.cfg.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		live, err := s.Live()
		if err != nil {
			t.Fatal(err)
		}
		procs := live[sb.ID()].Procs
		if len(procs) != 1 {
			t.Fatalf("%+v", procs)
		}
		if start, err := state.StartTime(procs[0].PID); err != nil || start != procs[0].Start {
			t.Errorf("%+v: %d, %v", procs, start, err)
		}
	})
}

func TestNone_hasNoMemoryLimit(t *testing.T) {
	inModes(t, []subprocess.Privilege{subprocess.PrivilegeNone}, func(t *testing.T, h *harness) {
		if h.caps.Claim(backend.ControlMemory).Enforcement != backend.Unsupported {
			t.Fatal("memory is claimed")
		}
		python(t, h.create(t, backend.Spec{}), `
import time
x = bytearray(b"x") * (700 << 20)
time.sleep(0.5)
`).succeed(t)
	})
}

// The agent is started with descriptors of this process, whatever their
// numbers are.
func TestCreate_manyDescriptorsAndMounts(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		var mounts []backend.Mount
		for len(mounts) < 100 {
			mounts = append(mounts, backend.Mount{HostPath: dir, Target: "/bound" + strings.Repeat("x", len(mounts)), ReadOnly: true})
		}
		sb := h.create(t, backend.Spec{Mounts: mounts})
		if got := sh(t, sb, "ls -d /bound* | wc -l").succeed(t); got.out != "100\n" {
			t.Errorf("%q", got.out)
		}
		_, err := h.ex.Create(t.Context(), backend.Spec{Mounts: append(mounts, backend.Mount{HostPath: dir, Target: "/n", ReadOnly: true})})
		wantKind(t, err, backend.ErrTooLarge, "mounts")
		// They go past 200, where the agent's binary once stood.
		for i := range 250 {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if i < 150 {
				continue
			}
			one, err := h.ex.Create(t.Context(), backend.Spec{})
			if err != nil {
				t.Fatalf("descriptor %d: %v", f.Fd(), err)
			}
			destroy(t, one)
		}
	})
}

// What a configuration names is had or refused, never replaced.
func TestCreate_refusesAWayOfWorkingThatCannotBeHad(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		open := func(cfg subprocess.Config) error {
			cfg.StateDir, cfg.Agent = t.TempDir(), h.cfg.Agent
			ex, err := subprocess.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer ex.Close()
			sb, err := ex.Create(t.Context(), h.spec(backend.Spec{}))
			if err == nil {
				destroy(t, sb)
			}
			return err
		}
		if err := open(subprocess.Config{Privilege: h.privilege}); err != nil {
			t.Error(err)
		}
		wantKind(t, open(subprocess.Config{Privilege: h.privilege, CgroupParent: "no/such/group"}), backend.ErrUnavailable, "cgroup_parent", "no/such/group")
		if h.privilege != subprocess.PrivilegeRoot {
			wantKind(t, open(subprocess.Config{Privilege: subprocess.PrivilegeRoot}), backend.ErrUnavailable, "privilege", "root")
		}
	})
}
