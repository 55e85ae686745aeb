//go:build linux

package gvisor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/gvisor"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

func TestSandbox_isGVisors(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		r := sb.Receipt()
		if r.Achieved != backend.IsolationKernel || !strings.Contains(r.Kernel, "4.4.0") || !r.Measured {
			t.Errorf("achieved %v on %q", r.Achieved, r.Kernel)
		}
		got := sh(t, sb, "id -un; id -u; hostname; pwd; dmesg 2>/dev/null | head -1; grep -c . /proc/sentry-meminfo")
		if !strings.HasPrefix(got.out, "user\n1000\nsandbox\n/home/user\n") {
			t.Errorf("%+v", got)
		}
	})
}

// TestSandbox_nothingButTheScratchCanBeWritten, for uid 0 inside as well; what
// can be is shown to be.
func TestSandbox_nothingButTheScratchCanBeWritten(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{Disk: 8 << 20}})
		for _, user := range []string{"", "root"} {
			got := run(t, sb, backend.Command{User: user, Args: []string{"/bin/bash", "-c", `
for d in / /usr /etc /root /run /home /mnt /dev /dev/net /sys /var /var/lib /opt /.glovebox /.glovebox/scratch; do
	if touch $d/x 2>/dev/null; then echo "wrote to $d"; fi
done
if echo x 2>/dev/null >> /etc/passwd; then echo wrote to passwd; fi
for d in /tmp /var/tmp /dev/shm; do touch $d/$(id -u) || echo "cannot write to $d"; done
echo x > /dev/null || echo no devices
head -c 20M /dev/zero > /tmp/big.$(id -u) 2>/dev/null && echo wrote too much
rm -f /tmp/big.$(id -u)
grep -E "^(CapPrm|CapEff|CapBnd):" /proc/self/status | grep -v 0000000000000000
cat /proc/1/environ 2>/dev/null && echo saw the agent
kill -9 1 2>/dev/null && echo signalled the agent
echo done`}})
			if got.out != "done\n" || got.err != "" {
				t.Errorf("as %q: %q %q", user, got.out, got.err)
			}
		}
	})
}

// TestSandbox_leavesTheRootAlone: whatever is mounted, nothing is made in the
// root that others share.
func TestSandbox_leavesTheRootAlone(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		before := names(t, h.cfg.Rootfs)
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte("canary"), 0o644); err != nil {
			t.Fatal(err)
		}
		mounts := []backend.Mount{
			{HostPath: dir, Target: "/data/deep", ReadOnly: true},
			{HostPath: filepath.Join(dir, "f"), Target: "/mnt/file", ReadOnly: true},
			{HostPath: dir, Target: "/opt/x", ReadOnly: true},
		}
		if h.root {
			mounts = append(mounts, backend.Mount{HostPath: dir, Target: "/home/user/in", ReadOnly: true})
		}
		sb := h.create(t, backend.Spec{Mounts: mounts})
		for _, m := range mounts {
			at := m.Target
			if m.HostPath == dir {
				at += "/f"
			}
			got := sh(t, sb, "cat "+at+"; echo x 2>/dev/null >> "+at+" && echo wrote")
			if got.out != "canary" {
				t.Errorf("%s: %q %q", m.Target, got.out, got.err)
			}
		}
		if after := names(t, h.cfg.Rootfs); !slices.Equal(before, after) {
			t.Errorf("the root had %d entries and now has %d", len(before), len(after))
		}
		// What the image lacks cannot be made in it.
		_, err := h.ex.Create(t.Context(), backend.Spec{Mounts: []backend.Mount{{HostPath: dir, Target: "/usr/new/x", ReadOnly: true}}})
		var be *backend.Error
		if !errors.As(err, &be) || be.Kind != backend.ErrInvalid || be.Field != "mounts[0]" || be.Fix == "" {
			t.Errorf("a mount where the image has no place: %v", err)
		}
	})
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	for _, d := range []string{".", "usr", "etc", "var", "var/lib", "opt", "home", "dev", "mnt"} {
		entries, err := os.ReadDir(filepath.Join(dir, d))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, filepath.Join(d, e.Name()))
		}
	}
	return out
}

func TestCreate_refuses(t *testing.T) {
	for name, tc := range map[string]struct {
		config func(*gvisor.Config)
		spec   backend.Spec
		kind   backend.Kind
		field  string
	}{
		"little memory": {nil, backend.Spec{Limits: backend.Limits{Memory: 128 << 20}}, backend.ErrUnsupported, "limits.memory"},
		"no template":   {nil, backend.Spec{Template: "none"}, backend.ErrNotFound, "template"},
		"no runsc":      {func(c *gvisor.Config) { c.Runsc = "/nonexistent/runsc" }, backend.Spec{}, backend.ErrUnavailable, "runsc"},
		"not runsc":     {func(c *gvisor.Config) { c.Runsc = "/bin/true" }, backend.Spec{}, backend.ErrUnavailable, "runsc"},
		"no root":       {func(c *gvisor.Config) { c.Rootfs = "/nonexistent" }, backend.Spec{}, backend.ErrInvalid, "rootfs"},
		"no group":      {func(c *gvisor.Config) { c.CgroupParent = "no/such/group" }, backend.Spec{}, backend.ErrUnavailable, "cgroup_parent"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			if tc.config != nil {
				tc.config(&cfg)
			}
			ex := open(t, cfg)
			_, err := ex.Create(t.Context(), tc.spec)
			var be *backend.Error
			if !errors.As(err, &be) || be.Kind != tc.kind || be.Field != tc.field || be.Fix == "" {
				t.Errorf("%v", err)
			}
			if _, _, err := ex.Admit(tc.spec); backend.KindOf(err) != tc.kind {
				t.Errorf("admit: %v", err)
			}
		})
	}
}

func TestConfig_Validate(t *testing.T) {
	t.Parallel()
	if err := gvisor.DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	if err := (gvisor.Config{Via: gvisor.ViaDocker, Host: "unix:///run/docker.sock"}).Validate(); err != nil {
		t.Error(err)
	}
	for field, c := range map[string]gvisor.Config{
		"platform": {Platform: "kvm"}, "privilege": {Privilege: "most"}, "via": {Via: "podman"},
		"host": {Host: "unix:///run/docker.sock"}, "cgroup_parent": {Via: gvisor.ViaDocker, CgroupParent: "a"},
		"runsc": {Runsc: "runsc"}, "rootfs": {Rootfs: "root"}, "agent": {Agent: "a\x00"}, "state_dir": {StateDir: "x"},
	} {
		var be *backend.Error
		if err := c.Validate(); !errors.As(err, &be) || be.Kind != backend.ErrInvalid || be.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestLimits_memory: at the limit all of gVisor ends, which is that limit's end
// of the command and not a crash.
func TestLimits_memory(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{Memory: 256 << 20, Disk: 8 << 20}})
		small := sh(t, sb, "python3 -c 'x = b\"x\" * (64 << 20); print(len(x))'")
		if !small.exit.Success() {
			t.Errorf("well below the limit: %+v", small)
		}
		got, err := tryRun(t, sb, backend.Command{Args: []string{"python3", "-c", "x = [b'x' * (1 << 20) for i in range(1000)]"}})
		if err != nil || got.exit.Reason != backend.ReasonMemoryLimit {
			t.Fatalf("%+v, %v", got, err)
		}
		if !h.root {
			return // the command alone was killed
		}
		_, err = tryRun(t, sb, backend.Command{Args: []string{"true"}})
		if backend.KindOf(err) != backend.ErrLost || !strings.Contains(err.Error(), "memory limit") {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// TestLimits_pids: so many tasks as were asked for can be had by user, no more,
// and gVisor does not crash at its own limit.
func TestLimits_pids(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{Pids: 40}})
		for name, script := range map[string]string{"processes": forks, "threads": threads} {
			got := run(t, sb, backend.Command{Args: []string{"python3", "-c", script}})
			if strings.TrimSpace(got.out) != "39" {
				t.Errorf("%s: %q beside the first, %q", name, got.out, got.err)
			}
		}
		if after := sh(t, sb, "echo on"); after.out != "on\n" {
			t.Errorf("afterwards: %+v", after)
		}
	})
}

// TestLimits_cpu: by the host's account, since the time that gVisor's kernel
// tells its programs counts what they wait for a processor too.
func TestLimits_cpu(t *testing.T) {
	testenv.NeedRoot(t)
	h := newHarness(t, config(t))
	share := func(cpus float64) float64 {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{CPUs: cpus}})
		m, ok := backend.As[backend.Meter](sb)
		if !ok {
			t.Fatal("no Meter")
		}
		used := func() time.Duration {
			u, err := m.Usage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return u.CPU
		}
		began, before := time.Now(), used()
		sh(t, sb, "end=$((SECONDS+3)); while [ $SECONDS -lt $end ]; do :; done")
		return (used() - before).Seconds() / time.Since(began).Seconds()
	}
	whole, fifth := share(1), share(0.2)
	t.Logf("%.2f of a core, %.2f with a fifth", whole, fifth)
	if fifth > 0.27 || fifth < 0.05 {
		t.Errorf("a fifth of a core is %.2f", fifth)
	}
}

// What they print is how many they could start.
const (
	forks = `
import os, time
n = 0
for _ in range(200):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        time.sleep(60); os._exit(0)
    n += 1
print(n, flush=True)
os.kill(0, 9)`
	threads = `
import os, threading, time
n = 0
for _ in range(200):
    try:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    except RuntimeError:
        break
    n += 1
print(n, flush=True)
os._exit(0)`
)

// TestLimits_inodes: so many files as were asked for, in all places that can be
// written together.
func TestLimits_inodes(t *testing.T) {
	testenv.NeedRoot(t)
	h := newHarness(t, config(t))
	sb := h.create(t, backend.Spec{Limits: backend.Limits{Inodes: 200}})
	got := sh(t, sb, "cd /tmp; n=0; while [ $n -lt 100 ] && : > $n; do n=$((n+1)); done; echo $n; cd ~; while [ $n -lt 300 ] && : > $n; do n=$((n+1)); done; echo $n")
	var first, all int
	if _, err := fmt.Sscan(got.out, &first, &all); err != nil || first != 100 || all < 150 || all > 200 || !strings.Contains(got.err, "No space left") {
		t.Errorf("%q %q", got.out, got.err)
	}
}

// TestPause: what is paused does not run, and can be killed.
func TestPause(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		p, ok := backend.As[backend.Pauser](sb)
		if !ok {
			t.Fatal("no Pauser")
		}
		if err := p.Pause(t.Context(), backend.PauseOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := p.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, sb, "echo on"); got.out != "on\n" {
			t.Errorf("%+v", got)
		}
		if err := p.Pause(t.Context(), backend.PauseOptions{}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := sb.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("destroying it took %v", took)
		}
	})
}

func TestMeasure(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		m, err := gvisor.Measure(t.Context(), h.cfg)
		if err != nil || !m.Health.Available || m.Health.Isolation != backend.IsolationKernel {
			t.Fatalf("%+v, %v", m.Health, err)
		}
		want := gvisor.PrivilegeRootless
		if h.root {
			want = gvisor.PrivilegeRoot
		}
		if m.Privilege != want {
			t.Errorf("privilege %s", m.Privilege)
		}
		cfg := h.cfg
		cfg.Runsc = "/nonexistent/runsc"
		m, err = gvisor.Measure(t.Context(), cfg)
		if err != nil || m.Health.Available || m.Health.Fix == "" || m.Facts[0].OK || m.Facts[0].Fix == "" {
			t.Errorf("without runsc: %+v, %v", m, err)
		}
	})
}
