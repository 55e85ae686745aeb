//go:build linux

package hostiletest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// executor is what every local backend's is.
type executor interface {
	backend.Executor
	Sweep(ctx context.Context) error
}

// settings are what the tests change about a backend.
type settings struct{ agent, stateDir, rootfs string }

// target is a backend as a mode attacks it.
type target struct {
	open  func(context.Context, settings) (executor, error)
	level backend.Isolation
	// groups are the control groups in which user code is counted, by
	// controller.
	groups func(*testing.T, *box) map[string]string
	// weak are creations that must be refused, beside those of every backend.
	weak func(dir string) map[string]weakCase
	// sentry: programs run on a kernel of the sandbox's own.
	sentry bool
	// engine: the sandboxes are an engine's containers.
	engine bool
	// some, if not nil, are the only attacks, each with why what it shows can
	// differ from the same backend's other ways of making sandboxes.
	some map[string]string
}

// weakCase is a way to ask for less than what is promised.
type weakCase struct {
	open func(context.Context, settings) (executor, error)
	spec backend.Spec
}

// targets are the backends, by mode: a driver that is new adds its line here,
// and a test that opens it.
func targets() map[string]target {
	return map[string]target{
		modeRoot:     {open: openSubprocess(subprocess.PrivilegeRoot), level: backend.IsolationProcess, groups: nestedGroups, weak: weakSubprocess},
		modeUserns:   {open: openSubprocess(subprocess.PrivilegeUserns), level: backend.IsolationProcess, groups: noGroups, weak: weakSubprocess},
		modeDocker:   {open: openDocker, level: backend.IsolationContainer, groups: runtimeGroups, engine: true},
		modeGVisor:   {open: openGVisor, level: backend.IsolationKernel, groups: runtimeGroups, sentry: true},
		modeRootless: {open: openGVisor, level: backend.IsolationKernel, groups: noGroups, sentry: true, some: rootlessDiffers()},
		modeViaDocker: {
			open: openGVisorDocker, level: backend.IsolationKernel, groups: runtimeGroups, sentry: true, engine: true, some: viaDockerDiffers(),
		},
	}
}

// rooted tells whether root makes the sandboxes, which then have users.
func rooted() bool { return strings.Contains(asRoot, w.mode) }

// nested tells whether user code's limits are of a group of its own.
func nested() bool { return w.mode == modeRoot }

func openSubprocess(p subprocess.Privilege) func(context.Context, settings) (executor, error) {
	return func(ctx context.Context, s settings) (executor, error) {
		return subprocess.Open(ctx, subprocess.Config{Agent: s.agent, Privilege: p, StateDir: s.stateDir})
	}
}

func openDocker(ctx context.Context, s settings) (executor, error) {
	if err := shareImages(s.stateDir); err != nil {
		return nil, err
	}
	return docker.Open(ctx, docker.Config{Agent: s.agent, StateDir: s.stateDir})
}

func noGroups(*testing.T, *box) map[string]string { return nil }

// nestedGroups are those that the agent makes for user code.
func nestedGroups(t *testing.T, b *box) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range groups(b.ID()) {
		for _, c := range []string{"pids", "memory"} {
			if strings.HasPrefix(dir, "/sys/fs/cgroup/"+c+"/") || w.pens.mem == w.pens.pids && !strings.HasPrefix(dir, "/sys/fs/cgroup/unified") {
				out[c] = filepath.Join(dir, "user")
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("the sandbox %s has no groups", b.ID())
	}
	return out
}

// runtimeGroups are those that a container's runtime made, in which the agent is
// counted as well.
func runtimeGroups(t *testing.T, b *box) map[string]string {
	t.Helper()
	h, err := cgroup.Detect("")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join("/proc", itoa(b.agentPID), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for c := range strings.SplitSeq(f[1], ",") {
			dir := filepath.Join("/sys/fs/cgroup", c, f[2])
			if root := h.V1[c]; root != "" {
				dir = filepath.Join(root, f[2])
			}
			if _, err := os.Stat(dir); c != "" && err == nil {
				out[c] = dir
			}
		}
		if f[1] == "" && h.V2 != "" && w.pens.mem == w.pens.pids {
			out["memory"], out["pids"], out["cpu"] = filepath.Join(h.V2, f[2]), filepath.Join(h.V2, f[2]), filepath.Join(h.V2, f[2])
		}
	}
	if out["memory"] == "" || out["pids"] == "" {
		t.Fatalf("the container has the groups %s", data)
	}
	return out
}

// weakSubprocess are roots and privileges that are less than what is asked for.
func weakSubprocess(dir string) map[string]weakCase {
	with := func(cfg subprocess.Config) func(context.Context, settings) (executor, error) {
		return func(ctx context.Context, s settings) (executor, error) {
			cfg.Agent, cfg.StateDir = s.agent, s.stateDir
			return subprocess.Open(ctx, cfg)
		}
	}
	return map[string]weakCase{
		"a root that is absent": {with(subprocess.Config{Rootfs: filepath.Join(dir, "absent")}), backend.Spec{}},
		"restricted for process": {
			with(subprocess.Config{Privilege: subprocess.PrivilegeRestricted}), backend.Spec{MinIsolation: backend.IsolationProcess},
		},
		"none for restricted": {with(subprocess.Config{Privilege: subprocess.PrivilegeNone}), backend.Spec{MinIsolation: backend.IsolationRestricted}},
	}
}
