//go:build linux

package gvisor_test

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

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/gvisor"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

func (h *harness) snapshot(t *testing.T, sb backend.Sandbox, opts backend.SnapshotOptions) string {
	t.Helper()
	s, ok := backend.As[backend.Snapshotter](sb)
	if !ok {
		t.Fatal("no Snapshotter")
	}
	from := time.Now()
	name, err := s.Snapshot(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("saved in %v", time.Since(from).Round(time.Millisecond))
	t.Cleanup(func() {
		if err := h.store(t).DeleteSnapshot(context.Background(), name); err != nil && backend.KindOf(err) != backend.ErrNotFound { //nolint:usetesting // the test's context is over
			t.Error(err)
		}
	})
	return name
}

func (h *harness) store(t *testing.T) backend.SnapshotStore {
	t.Helper()
	s, ok := backend.As[backend.SnapshotStore](h.ex)
	if !ok {
		t.Fatal("no SnapshotStore")
	}
	return s
}

// counter is a command that counts in memory and says so in a file, and more to
// an output that nobody reads.
const counter = `i=0; while true; do i=$((i+1)); echo $i > /tmp/count.new; mv /tmp/count.new /tmp/count; head -c 20000 /dev/zero; sleep 0.01; done`

func count(t *testing.T, sb backend.Sandbox) int {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		n, err := strconv.Atoi(strings.TrimSpace(sh(t, sb, "cat /tmp/count 2>/dev/null").out))
		if err == nil {
			return n
		}
		if time.Now().After(deadline) {
			t.Fatalf("no count: %v", err)
		}
	}
}

// goesOn tells that the counter counts.
func goesOn(t *testing.T, sb backend.Sandbox) {
	t.Helper()
	first := count(t, sb)
	for deadline := time.Now().Add(10 * time.Second); count(t, sb) <= first; {
		if time.Now().After(deadline) {
			t.Fatalf("%s: stays at %d", sb.ID(), first)
		}
	}
}

func TestSnapshot_threeGoOnFromOne(t *testing.T) {
	testenv.NeedRoot(t)
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep=%t", keep), func(t *testing.T) {
			h := newHarness(t, config(t))
			sb := h.create(t, backend.Spec{Keep: keep, Env: map[string]string{"A": "1", "B": "old"}})
			if _, err := sb.Start(t.Context(), backend.Command{Args: []string{"/bin/bash", "-c", counter}, Timeout: backend.UntilSandboxEnds}); err != nil {
				t.Fatal(err)
			}
			sh(t, sb, "echo kept > ~/f")
			at := count(t, sb)
			name := h.snapshot(t, sb, backend.SnapshotOptions{})
			goesOn(t, sb)
			random := map[string]bool{}
			for i := range 3 {
				from := time.Now()
				one := h.create(t, backend.Spec{From: name, Keep: i == 1, Env: map[string]string{"B": "new"}})
				t.Logf("restored in %v", time.Since(from).Round(time.Millisecond))
				if one.ID() == sb.ID() {
					t.Error("the same ID")
				}
				if n := count(t, one); n < at {
					t.Errorf("it counts from %d, not %d", n, at)
				}
				goesOn(t, one)
				got := sh(t, one, "cat ~/f; echo $A $B; hostname; head -c 16 /dev/urandom | od -An -tx1; echo own > ~/f")
				want := "kept\n1 new\nsandbox\n"
				if !strings.HasPrefix(got.out, want) {
					t.Errorf("%q %q", got.out, got.err)
				}
				random[strings.TrimPrefix(got.out, want)] = true
			}
			if len(random) != 3 {
				t.Errorf("random numbers repeat: %v", random)
			}
			if got := sh(t, sb, "cat ~/f; echo $B"); got.out != "kept\nold\n" {
				t.Errorf("the original: %q", got.out)
			}
		})
	}
}

// TestSnapshot_refuses what could not be gone on with, by field and with a fix.
func TestSnapshot_refuses(t *testing.T) {
	testenv.NeedRoot(t)
	h := newHarness(t, config(t))
	sb := h.create(t, backend.Spec{})
	name := h.snapshot(t, sb, backend.SnapshotOptions{Name: "one"})
	wrong := func(what string, err error, kind backend.Kind, field string) {
		t.Helper()
		var be *backend.Error
		if !errors.As(err, &be) || be.Kind != kind || be.Field != field || be.Fix == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	saver, _ := backend.As[backend.Snapshotter](sb)
	_, err := saver.Snapshot(t.Context(), backend.SnapshotOptions{Name: name})
	wrong("a name twice", err, backend.ErrConflict, "name")
	other := t.TempDir()
	if err := os.Mkdir(filepath.Join(other, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for what, tc := range map[string]struct {
		spec   backend.Spec
		change func(*gvisor.Config)
		kind   backend.Kind
		field  string
	}{
		"unknown":       {spec: backend.Spec{From: "two"}, kind: backend.ErrNotFound, field: "from"},
		"no name":       {spec: backend.Spec{From: "../one"}, kind: backend.ErrInvalid, field: "from"},
		"little memory": {spec: backend.Spec{From: name, Limits: backend.Limits{Memory: 300 << 20}}, kind: backend.ErrUnsupported, field: "limits.memory"},
		"little disk":   {spec: backend.Spec{From: name, Limits: backend.Limits{Disk: 1 << 20}}, kind: backend.ErrUnsupported, field: "limits.disk"},
		"other pids":    {spec: backend.Spec{From: name, Limits: backend.Limits{Pids: 300}}, kind: backend.ErrUnsupported, field: "limits.pids"},
		"a network":     {spec: backend.Spec{From: name, Network: backend.Network{Mode: backend.NetworkAllowlist}}, kind: backend.ErrUnsupported, field: "network.mode"},
		"a mount":       {spec: backend.Spec{From: name, Mounts: []backend.Mount{{HostPath: other, Target: "/mnt/x", ReadOnly: true}}}, kind: backend.ErrUnsupported, field: "mounts"},
		"a platform":    {spec: backend.Spec{From: name}, change: func(c *gvisor.Config) { c.Platform = gvisor.PlatformPtrace }, kind: backend.ErrUnsupported, field: "from"},
		"a root":        {spec: backend.Spec{From: name}, change: func(c *gvisor.Config) { c.Rootfs = other }, kind: backend.ErrUnsupported, field: "from"},
	} {
		cfg := h.cfg
		if tc.change != nil {
			tc.change(&cfg)
		}
		ex, err := gvisor.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		one, err := ex.Create(t.Context(), tc.spec)
		wrong(what, err, tc.kind, tc.field)
		if err == nil {
			one.Destroy(t.Context())
		}
		if err := ex.Close(); err != nil {
			t.Error(err)
		}
	}
	// One that was torn.
	files, err := filepath.Glob(filepath.Join(h.cfg.StateDir, "snapshots", "*", "image", "pages.img"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v %v", files, err)
	}
	if st, err := os.Stat(files[0]); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	good := h.create(t, backend.Spec{From: name})
	sh(t, good, "true")
	f, err := os.OpenFile(files[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("x"), 4097); err != nil {
		t.Error(err)
	}
	f.Close()
	_, err = h.ex.Create(t.Context(), backend.Spec{From: name})
	wrong("torn", err, backend.ErrUnavailable, "from")
}

// TestSnapshot_fullDisk leaves nothing, and the sandbox goes on.
func TestSnapshot_fullDisk(t *testing.T) {
	testenv.NeedRoot(t)
	cfg := config(t)
	dir := filepath.Join(cfg.StateDir, "snapshots")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=12m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	h := newHarness(t, cfg)
	sb := h.create(t, backend.Spec{})
	saver, _ := backend.As[backend.Snapshotter](sb)
	_, err := saver.Snapshot(t.Context(), backend.SnapshotOptions{})
	if backend.KindOf(err) != backend.ErrCapacity {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
	for range h.store(t).Snapshots(t.Context()) {
		t.Error("it is listed")
	}
	if got := sh(t, sb, "echo on"); got.out != "on\n" {
		t.Errorf("%+v", got)
	}
	// With room it works: the files alone have it.
	h.snapshot(t, sb, backend.SnapshotOptions{FilesOnly: true})
}

// TestSnapshot_ofACopy with a network of its own, and deleted under it.
func TestSnapshot_ofACopy(t *testing.T) {
	testenv.NeedRoot(t)
	h := newHarness(t, config(t))
	network := backend.Network{Mode: backend.NetworkAllowlist, Allow: []backend.Rule{{Host: "example.org"}}}
	sb := h.create(t, backend.Spec{Network: network})
	name := h.snapshot(t, sb, backend.SnapshotOptions{})
	network.Allow[0].Host = "example.com"
	one := h.create(t, backend.Spec{From: name, Network: network})
	if err := h.store(t).DeleteSnapshot(t.Context(), name); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(h.cfg.StateDir, "snapshots", "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
	// The proxy that decides is the copy's: what it refuses it refuses by its rules.
	const ask = `exec 3<>/dev/tcp/${HTTPS_PROXY##*[/@]} 2>/dev/null; env | grep -ic proxy`
	if a, b := sh(t, sb, ask), sh(t, one, ask); a.out != b.out || a.out == "0\n" {
		t.Errorf("%q %q", a.out, b.out)
	}
	again := h.snapshot(t, one, backend.SnapshotOptions{})
	two := h.create(t, backend.Spec{From: again, Network: network})
	if got := sh(t, two, "echo two"); got.out != "two\n" {
		t.Errorf("%+v", got)
	}
}

// TestSnapshot_saverKilled: a kept sandbox that stood still goes on, and what
// was written of the snapshot is removed, by the next sweep.
func TestSnapshot_saverKilled(t *testing.T) {
	testenv.NeedRoot(t)
	h := newHarness(t, config(t))
	sb := h.create(t, backend.Spec{Keep: true})
	sh(t, sb, "true")
	store, err := state.Open(h.cfg.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	j, err := store.Journal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// As it is left when the process is killed in the middle.
	dir := filepath.Join(store.SnapshotDir(), "cut")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	gone := exec.Command("/bin/true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	rec := state.Snapshot{
		Name: "cut", Backend: "gvisor", Sandbox: sb.ID(), Created: time.Now(), Dir: "cut", BootID: state.BootID(),
		Maker: state.Proc{PID: gone.Process.Pid, Start: 1},
	}
	if err := j.PutSnapshot(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	rt := filepath.Join(store.Dir(), "run", sb.ID(), "rt")
	pause := exec.Command("runsc", "--root="+rt, "pause", "box")
	if out, err := pause.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := backend.RunIn(short, sb, backend.Command{Args: []string{"/bin/true"}}); err == nil {
		t.Fatal("it does not stand still")
	}
	if err := h.ex.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if got := sh(t, sb, "echo on"); got.out != "on\n" {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("its files are left")
	}
	if _, err := j.Snapshot(t.Context(), "cut"); backend.KindOf(err) != backend.ErrNotFound {
		t.Error(err)
	}
}

// TestSnapshot_whileItTalks: whatever is on its way on the stream, each copy is
// taken up.
func TestSnapshot_whileItTalks(t *testing.T) {
	testenv.NeedRoot(t)
	h := newHarness(t, config(t))
	sb := h.create(t, backend.Spec{})
	for _, script := range []string{
		`while :; do echo x >n.new; mv n.new n; head -c 8192 /dev/zero; done`, `while :; do /bin/echo x >m; cat m; rm m; done`,
	} {
		if _, err := sb.Start(t.Context(), backend.Command{Args: []string{"/bin/sh", "-c", script}, Timeout: backend.UntilSandboxEnds}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		name := h.snapshot(t, sb, backend.SnapshotOptions{})
		one, err := h.ex.Create(t.Context(), backend.Spec{From: name})
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		if err := one.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
