//go:build linux

package subprocess_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess"
)

func TestLimits_invalid(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		for field, l := range map[string]backend.Limits{
			"limits.memory": {Memory: -1}, "limits.cpus": {CPUs: math.NaN()}, "limits.pids": {Pids: -7}, "limits.disk": {Disk: 1},
			"limits.inodes": {Inodes: math.MaxInt64}, "limits.open_files": {OpenFiles: -2}, "limits.file_size": {FileSize: math.MinInt64},
			"limits.output": {Output: -1}, "limits.cpu_time": {CPUTime: -1},
		} {
			_, err := h.ex.Create(t.Context(), h.spec(backend.Spec{Limits: l}))
			wantKind(t, err, backend.ErrInvalid, field)
		}
		for _, l := range []backend.Limits{{Memory: math.MaxInt64}, {CPUs: math.Inf(1)}, {Pids: math.MaxInt64}, {CPUs: -0.5}, {Memory: 1}} {
			_, err := h.ex.Create(t.Context(), h.spec(backend.Spec{Limits: l}))
			wantKind(t, err, backend.ErrInvalid)
		}
		for _, s := range []backend.Spec{{Lifetime: -1}, {Lifetime: 25 * time.Hour}, {MinIsolation: 99}, {Env: map[string]string{"A=B": ""}}, {OnExpiry: "explode"}} {
			_, err := h.ex.Create(t.Context(), h.spec(s))
			wantKind(t, err, backend.ErrInvalid)
		}
		if h.contains() {
			_, err := h.ex.Create(t.Context(), backend.Spec{Limits: backend.Limits{Memory: backend.MaxBytes}})
			wantKind(t, err, backend.ErrCapacity, "limits.memory")
		}
	})
}

func TestLimits_diskIsMemory(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		_, err := h.ex.Create(t.Context(), backend.Spec{Limits: backend.Limits{Memory: 64 << 20, Disk: 40 << 20}})
		wantKind(t, err, backend.ErrUnsupported, "limits.disk", "twice the disk")
	})
}

func TestAdmission_refusals(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		refused := func(what string, s backend.Spec, kind backend.Kind, words ...string) {
			t.Helper()
			sb, err := h.ex.Create(t.Context(), s)
			if err == nil {
				destroy(t, sb)
				t.Errorf("%s: accepted", what)
				return
			}
			wantKind(t, err, kind, words...)
		}
		refused("stronger", backend.Spec{MinIsolation: h.caps.Isolation + 1}, backend.ErrUnsupported, "min_isolation")
		if h.caps.Isolation < backend.IsolationProcess {
			refused("allowlist", backend.Spec{Network: backend.Network{Mode: backend.NetworkAllowlist}}, backend.ErrUnsupported, "network.mode")
		} else if sb, err := h.ex.Create(t.Context(), backend.Spec{Network: backend.Network{Mode: backend.NetworkAllowlist}}); err != nil {
			t.Errorf("allowlist: %v", err)
		} else {
			destroy(t, sb)
		}
		refused("snapshot", h.spec(backend.Spec{From: "x"}), backend.ErrUnsupported, "from")
		switch full := (backend.Spec{Network: backend.Network{Mode: backend.NetworkFull}}); {
		case h.contains() && !slices.Contains(h.caps.Networks, backend.NetworkFull):
			refused("full network", full, backend.ErrUnsupported, "network.mode")
		case h.contains():
			sb, err := h.ex.Create(t.Context(), full)
			if err != nil {
				t.Fatalf("full network: %v", err)
			}
			destroy(t, sb)
		default:
			refused("no network", backend.Spec{Network: backend.Network{Mode: backend.NetworkNone}}, backend.ErrUnsupported, "network.mode")
		}
		for control, s := range map[backend.Control]backend.Spec{
			backend.ControlMemory: {Limits: backend.Limits{Memory: 256 << 20}}, backend.ControlCPU: {Limits: backend.Limits{CPUs: 0.5}},
			backend.ControlPids: {Limits: backend.Limits{Pids: 100}}, backend.ControlDisk: {Limits: backend.Limits{Disk: 1 << 20}},
			backend.ControlInodes: {Limits: backend.Limits{Inodes: 1000}}, backend.ControlCPUTime: {Limits: backend.Limits{CPUTime: time.Second}},
		} {
			s = h.spec(s)
			sb, err := h.ex.Create(t.Context(), s)
			claim := h.caps.Claim(control)
			if claim.Enforcement == backend.Unsupported {
				wantKind(t, err, backend.ErrUnsupported, string(control))
				s.Advisory = []backend.Control{control}
				sb, err = h.ex.Create(t.Context(), s)
			}
			if err != nil {
				t.Errorf("%s: %v", control, err)
				continue
			}
			if warned := len(sb.Receipt().Warnings) > 0; warned == (claim.Enforcement == backend.Enforced) && h.contains() {
				t.Errorf("%s is %s, warnings %q", control, claim.Enforcement, sb.Receipt().Warnings)
			}
			destroy(t, sb)
		}
		sb, err := h.ex.Create(t.Context(), h.spec(backend.Spec{Strict: true}))
		if weak := h.weak(); len(weak) == 0 {
			if err != nil {
				t.Errorf("strict: %v", err)
			} else {
				destroy(t, sb)
			}
		} else {
			wantKind(t, err, backend.ErrUnsupported, "strict", "advisory")
			if h.contains() {
				destroy(t, h.create(t, backend.Spec{Strict: true, Advisory: weak}))
			}
		}
	})
}

// weak are the controls that a strict sandbox cannot have here.
func (h *harness) weak() []backend.Control {
	var out []backend.Control
	for _, c := range []backend.Control{
		backend.ControlMemory, backend.ControlPids, backend.ControlDisk, backend.ControlWallTime, backend.ControlKillAll, backend.ControlBound,
		backend.ControlReadOnly, backend.ControlHostFiles, backend.ControlHostProcs, backend.ControlPrivileges, backend.ControlSyscalls,
		backend.ControlAgent, backend.ControlHostIPC, backend.ControlNetworkOff,
	} {
		if !h.enforces(c) {
			out = append(out, c)
		}
	}
	return out
}

func TestReceipt_isTrue(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		limits := backend.Limits{Memory: 200 << 20, Pids: 77, CPUs: 0.75, Disk: 20 << 20, Inodes: 5000, OpenFiles: 333, FileSize: 3 << 20}
		spec := h.spec(backend.Spec{Limits: limits, Lifetime: 90 * time.Second, Advisory: []backend.Control{
			backend.ControlMemory, backend.ControlPids, backend.ControlCPU, backend.ControlDisk, backend.ControlInodes, backend.ControlFileSize,
		}})
		sb := h.create(t, spec)
		r := sb.Receipt()
		if r.Sandbox != sb.ID() || !backend.ValidID(r.Sandbox) || r.Achieved != h.caps.Isolation || !r.Measured || r.Lifetime != "bound" ||
			time.Until(r.Deadline) > 90*time.Second || time.Until(r.Deadline) < 60*time.Second || r.Network != spec.Network.Mode && h.privilege == subprocess.PrivilegeNone {
			t.Errorf("%+v", r)
		}
		got := map[backend.Control]backend.Grant{}
		for _, g := range r.Limits {
			got[g.Control] = g
			if claim := h.caps.Claim(g.Control); g.Enforcement != claim.Enforcement || g.Mechanism != claim.Mechanism {
				t.Errorf("%s: %+v, claimed %+v", g.Control, g, claim)
			}
		}
		for c, want := range map[backend.Control]string{
			backend.ControlMemory: "200 MiB", backend.ControlPids: "77", backend.ControlCPU: "0.75 cores", backend.ControlDisk: "20 MiB",
			backend.ControlInodes: "5000", backend.ControlOpenFiles: "333", backend.ControlFileSize: "3 MiB", backend.ControlLifetime: "1m30s",
		} {
			if got[c].Value != want || got[c].Default {
				t.Errorf("%s: %+v", c, got[c])
			}
		}
		if g := got[backend.ControlOutput]; !g.Default {
			t.Errorf("%+v", g)
		}
		if out := sh(t, sb, "ulimit -n; ulimit -f; ulimit -c").succeed(t).out; out != "333\n6144\n0\n" {
			t.Errorf("limits of a process: %q", out)
		}
		if h.caps.Isolation == backend.IsolationProcess {
			df := strings.Fields(sh(t, sb, "df -k --output=size /home/user | tail -1; df --output=itotal /tmp | tail -1").succeed(t).out)
			if !slices.Equal(df, []string{"20480", "5000"}) {
				t.Errorf("the scratch: %q", df)
			}
		}
		if h.privilege == subprocess.PrivilegeRoot {
			checkGroups(t, sb.ID(), map[string]string{
				"memory.limit_in_bytes": "209715200", "memory.memsw.limit_in_bytes": "209715200", "pids.max": "77",
				"memory.max": "209715200", "cpu.cfs_quota_us": "75000", "cpu.max": "75000 100000",
			})
		}
	})
}

// checkGroups compares files of a sandbox's control groups, wherever they are
// mounted, with what they must say.
func checkGroups(t *testing.T, id string, want map[string]string) {
	t.Helper()
	found := 0
	for _, deep := range []string{"", "*/", "*/*/", "*/*/*/", "*/*/*/*/"} {
		dirs, err := filepath.Glob("/sys/fs/cgroup/" + deep + "glovebox-*-" + id)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			for name, value := range want {
				file := filepath.Join(dir, "user", name)
				if strings.HasPrefix(name, "cpu.") {
					file = filepath.Join(dir, name)
				}
				data, err := os.ReadFile(file)
				if err != nil {
					continue
				}
				found++
				if got := strings.TrimSpace(string(data)); got != value {
					t.Errorf("%s: %q, want %q", file, got, value)
				}
			}
		}
	}
	if found < 3 {
		t.Errorf("only %d limits were found below /sys/fs/cgroup", found)
	}
}

func TestLimits_cpuShare(t *testing.T) {
	inModes(t, asRoot, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{CPUs: 0.2}})
		got := python(t, sb, `
import time
end = time.monotonic() + 1
while time.monotonic() < end: pass
print(time.process_time())
`).succeed(t)
		used, err := strconv.ParseFloat(strings.TrimSpace(got.out), 64)
		if err != nil || used > 0.35 {
			t.Errorf("%v s of CPU in a second, %v", used, err)
		}
	})
}

func TestLimits_outputOfRun(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		res, err := backend.Run(t.Context(), h.ex, backend.RunSpec{
			Spec: h.spec(backend.Spec{}), Command: backend.Command{Args: []string{"head", "-c", "11000000", "/dev/zero"}},
		})
		if err != nil || int64(len(res.Stdout)) != backend.DefaultOutput || !res.Exit.StdoutTruncated || !res.Exit.Success() {
			t.Errorf("%d bytes, %+v, %v", len(res.Stdout), res.Exit, err)
		}
	})
}
