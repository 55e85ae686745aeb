//go:build linux

package subprocess_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// left lists what a store still has on this host: markers, directories and
// control groups.
func left(t testing.TB, cfg subprocess.Config, ids ...string) []string {
	t.Helper()
	patterns := []string{filepath.Join(cfg.StateDir, "sandboxes/*"), filepath.Join(cfg.StateDir, "run/*")}
	for _, id := range ids {
		for _, deep := range []string{"", "*/", "*/*/", "*/*/*/", "*/*/*/*/"} {
			patterns = append(patterns, "/sys/fs/cgroup/"+deep+"glovebox-*-"+id)
		}
	}
	var out []string
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}

// sandboxes lists what a Finder finds, by ID.
func sandboxes(t testing.TB, ex backend.Executor) map[string]backend.Info {
	t.Helper()
	out := map[string]backend.Info{}
	for info, err := range as[backend.Finder](t, ex).Sandboxes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		out[info.ID] = info
	}
	return out
}

func TestKeep_foundAgain(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		spec := backend.Spec{
			Keep: true, Lifetime: 2 * time.Minute, Labels: map[string]string{"who": "me"}, Env: map[string]string{"E": "kept"},
			Limits: backend.Limits{Memory: 100 << 20},
		}
		sb, err := h.ex.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		bound := h.create(t, backend.Spec{})
		id := sb.ID()
		if err := backend.WriteFile(t.Context(), sb.Files(), "note", []byte("hello from before\n"), 0); err != nil {
			t.Fatal(err)
		}
		p, err := sb.Start(t.Context(), backend.Command{
			Args: []string{"sh", "-c", "echo early; sleep 2; echo late; sleep 1000"}, Timeout: backend.UntilSandboxEnds, Tag: "t",
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.ex.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = bound.Start(t.Context(), backend.Command{Args: []string{"true"}})
		wantKind(t, err, backend.ErrClosed)

		// A second process.
		out, err := role(t, roleFinder, h.cfg, id).Output()
		if err != nil || string(out) != "hello from before\n" {
			t.Errorf("the second process: %q %v", out, err)
		}

		// A second executor.
		h2 := newHarness(t, h.cfg)
		info := sandboxes(t, h2.ex)[id]
		if !info.Keep || info.State != backend.StateRunning || info.Labels["who"] != "me" || info.Limits.Memory != 100<<20 ||
			time.Until(info.Deadline) > 2*time.Minute || time.Until(info.Deadline) < time.Minute || info.Isolation != backend.IsolationProcess {
			t.Errorf("%+v", info)
		}
		f := as[backend.Finder](t, h2.ex)
		found, err := f.Find(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if r := found.Receipt(); r.Lifetime != "kept" || r.Sandbox != id || len(r.Limits) == 0 {
			t.Errorf("%+v", r)
		}
		if got := sh(t, found, "cat note; echo $E; whoami").succeed(t); got.out != "hello from before\nkept\nuser\n" {
			t.Errorf("%q", got.out)
		}
		var replay syncBuffer
		q, err := as[backend.ProcessFinder](t, found).Attach(t.Context(), p.ID(), backend.AttachOptions{Output: backend.Output{Stdout: &replay}, Replay: true})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "all output is replayed", func() bool { return replay.String() == "early\nlate\n" })
		if err := q.Signal(t.Context(), backend.SIGTERM); err != nil {
			t.Error(err)
		}
		if exit, err := q.Wait(t.Context()); err != nil || exit.String() != "signaled(15)" {
			t.Errorf("%v %v", exit, err)
		}
		same, err := f.Find(t.Context(), id)
		if err != nil || same != found {
			t.Errorf("a second Find: %v %v", same, err)
		}
		for _, bad := range []string{"snonexistent", "../x", "", strings.Repeat("s", 100), bound.ID()} {
			_, err := f.Find(t.Context(), bad)
			wantKind(t, err, backend.ErrNotFound)
		}
		destroy(t, found)
		_, err = f.Find(t.Context(), id)
		wantKind(t, err, backend.ErrNotFound)
		if rest := left(t, h.cfg, id, bound.ID()); len(rest) != 0 {
			t.Errorf("left: %q", rest)
		}
	})
}

func TestKeep_boundIsNotFoundWhileItLives(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		h2 := newHarness(t, h.cfg)
		if info, ok := sandboxes(t, h2.ex)[sb.ID()]; !ok || info.Keep {
			t.Errorf("%+v %v", info, ok)
		}
		_, err := as[backend.Finder](t, h2.ex).Find(t.Context(), sb.ID())
		wantKind(t, err, backend.ErrNotFound)
		// Nor does the other's sweep or end harm it.
		if err := h2.ex.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		if err := h2.ex.Close(); err != nil {
			t.Error(err)
		}
		sh(t, sb, "true").succeed(t)
	})
}

func TestKeep_endsAtItsDeadlineAlone(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		sb, err := h.ex.Create(t.Context(), backend.Spec{Keep: true, Lifetime: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		mark := uniqueNumber()
		if _, err := sb.Start(t.Context(), backend.Command{Args: []string{"sh", "-c", "setsid sleep " + mark + " & wait"}, Timeout: backend.UntilSandboxEnds}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it runs", func() bool { return runs("sleep", mark) })
		if err := h.ex.Close(); err != nil {
			t.Fatal(err)
		}
		if !runs("sleep", mark) {
			t.Error("it ended with its executor")
		}
		began := time.Now()
		eventually(t, "nothing runs", func() bool { return !runs("sleep", mark) })
		if time.Since(began) > 6*time.Second {
			t.Errorf("after %v", time.Since(began))
		}
		h2 := newHarness(t, h.cfg)
		// The first sweep may have met the agent while it was ending.
		eventually(t, "a later sweep has cleaned up", func() bool {
			return h2.ex.Sweep(t.Context()) == nil && len(left(t, h.cfg, sb.ID())) == 0
		})
		_, err = as[backend.Finder](t, h2.ex).Find(t.Context(), sb.ID())
		wantKind(t, err, backend.ErrNotFound)
	})
}

func TestKeep_refusedWithoutNamespaces(t *testing.T) {
	inModes(t, []subprocess.Privilege{subprocess.PrivilegeRestricted, subprocess.PrivilegeNone}, func(t *testing.T, h *harness) {
		_, err := h.ex.Create(t.Context(), h.spec(backend.Spec{Keep: true}))
		wantKind(t, err, backend.ErrUnsupported, "keep")
		if _, ok := backend.As[backend.Finder](h.ex); ok {
			t.Error("there is a Finder")
		}
	})
}

func TestKeep_extendedByAnother(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		sb, err := h.ex.Create(t.Context(), backend.Spec{Keep: true, Lifetime: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		h2 := newHarness(t, h.cfg)
		found, err := as[backend.Finder](t, h2.ex).Find(t.Context(), sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		if err := as[backend.Extender](t, found).SetLifetime(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		// The first one's own timer fires about now, and must not end it.
		run(t, found, backend.Command{Args: []string{"sleep", "5"}}).succeed(t)
		if info := sandboxes(t, h2.ex)[sb.ID()]; time.Until(info.Deadline) < 30*time.Second {
			t.Errorf("%+v", info)
		}
		destroy(t, found)
		destroy(t, sb)
	})
}

// runs tells whether a process of this host has these arguments.
func runs(args ...string) bool {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	want := strings.Join(args, "\x00") + "\x00"
	for _, p := range paths {
		if data, err := os.ReadFile(p); err == nil && string(data) == want {
			return true
		}
	}
	return false
}

// uniqueNumber is a number of seconds to sleep that tells one process of this
// host from all others.
func uniqueNumber() string { return fmt.Sprintf("9%d", time.Now().UnixNano()%1e9) }
