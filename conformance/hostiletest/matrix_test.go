//go:build linux

package hostiletest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
)

// probe is one of the verified probes of the hostile catalogue, with the attacks
// here that it is.
type probe struct {
	name, what string
	attacks    []string
}

// probes are all of them, in the catalogue's order.
func probes() []probe {
	p := func(name, what string, attacks ...string) probe { return probe{name, what, attacks} }
	return []probe{
		p("F1", "fork bomb", "FP-01", "FP-02"),
		p("F2", "thread bomb", "FP-03"),
		p("F3", "daemonised survivor", "FP-05"),
		p("F4", "ignored signals, held pipes", "FP-07"),
		p("F5", "zombie storm", "FP-04"),
		p("F6", "kill(-1), then a victim of the same host uid", "FP-13", "FP-14"),
		p("M1", "anonymous memory", "ME-01"),
		p("M6", "memory of many processes", "ME-02"),
		p("M2", "full tmpfs: /tmp and /dev/shm", "ME-03", "ME-04"),
		p("M3", "memfd", "ME-05-memfd"),
		p("M4", "System V shared memory left behind", "ME-06"),
		p("C1", "busy loop", "CT-01"),
		p("C2", "spinners against a share of a core", "CT-02"),
		p("D1", "writing outside the scratch", "DI-01"),
		p("D2", "inodes", "DI-02"),
		p("D3", "sparse file", "DI-03"),
		p("H1", "descriptors", "FD-01"),
		p("O1", "flood of output", "OU-01"),
		p("N1", "TCP to the host", "NW-01"),
		p("N2", "UDP to the host", "NW-02"),
		p("N3", "IPv6 to the host", "NW-03"),
		p("N4", "abstract socket of the host", "NW-08"),
		p("N5", "socket of the host by its path", "NW-09"),
		p("N6", "AF_VSOCK", "NW-10"),
		p("N7", "AF_VSOCK by the 32 bit gate", "NW-10", "NW-11"),
		p("N8", "raw, packet, netlink and AF_ALG sockets", "NW-10", "NW-13-root"),
		p("R1", "a host's secret by its path", "FR-01"),
		p("R2", "the supervisor's secret in environments", "FR-03"),
		p("R3", "a leaked descriptor", "FD-02"),
		p("R4", "the engine's sockets", "FR-16"),
		p("W1", "writing a host's file by its path", "FR-01"),
		p("W2", "core_pattern", "FW-16"),
		p("W3", "mounts and release_agent", "PE-05"),
		p("E1", "a new user namespace", "PE-03"),
		p("E2", "the same by clone3", "PE-03"),
		p("E3", "ptrace", "PE-12"),
		p("E4", "another's memory", "PE-13"),
		p("E5", "bpf, perf, userfaultfd, io_uring, keyctl", "PE-14", "FD-08"),
		p("E6", "capabilities and no_new_privs", "PE-01"),
		p("E7", "setuid programs", "PE-02"),
		p("E8", "a block device of its own", "FR-10"),
		p("E9", "reboot, names, clocks, swap, modules, kexec", "PE-11", "CT-09"),
		p("E10", "files by handle", "FR-11"),
		p("E11", "what /proc and /sys show", "FR-08"),
		p("E12", "process 1: root, cwd, namespaces, memory", "FP-16", "PE-03"),
		p("E13", "terminals and personality", "PE-26", "PE-26-t", "PE-14"),
		p("E14", "huge arguments and environment", "LA-04"),
		p("X1", "what is left for the next run", "XR-01"),
	}
}

// catalogued is how many there are.
const catalogued = 48

// TestProbes_areAllThere: none of them is lost, and each is an attack of every
// backend that runs the whole suite.
func TestProbes_areAllThere(t *testing.T) {
	all := probes()
	names := map[string]bool{}
	for _, p := range all {
		names[p.name] = true
	}
	if len(all) != catalogued || len(names) != catalogued {
		t.Errorf("%d probes with %d names, not %d", len(all), len(names), catalogued)
	}
	only := map[string]string{}
	for _, a := range everyAttack() {
		only[a.id] = a.only
	}
	for id := range gvisorTraps() {
		only[id] = ofGVisor
	}
	for id := range scenarios() {
		only[id] = ""
	}
	for _, id := range measured() {
		only[id] = ""
	}
	for _, p := range all {
		for _, mode := range []string{modeRoot, modeDocker, modeGVisor} {
			for _, id := range p.attacks {
				modes, ok := only[id]
				if !ok || modes != "" && !strings.Contains(modes, mode) {
					t.Errorf("%s: %s is no attack of the mode %s", p.name, id, mode)
				}
			}
		}
	}
	for mode, g := range targets() {
		for id := range g.some {
			if _, ok := only[id]; !ok {
				t.Errorf("the mode %s wants %s, which is no attack", mode, id)
			}
		}
	}
}

// settled demands, of a mode that has run whole, a verdict on every probe, and
// reports each: the weakest of its attacks'.
func settled(t *testing.T) {
	t.Helper()
	if w.target.some != nil || !wholeRun() {
		return
	}
	order := []string{"contained", "emulated", "declared", "informational", "inconclusive", "open"}
	found := verdicts(w.mode)
	left := map[string]bool{} // they need an account that there is not
	for _, a := range everyAttack() {
		left[a.id] = a.user != "" && !rooted()
	}
	for _, p := range probes() {
		worst := 0
		for _, id := range p.attacks {
			if left[id] {
				continue
			}
			v := slices.Index(order, found[id])
			if v < 0 {
				t.Errorf("probe %s: there is no verdict of %s", p.name, id)
			}
			worst = max(worst, v)
		}
		addReport(fmt.Sprintf("probe %s %s %s by %s: %s", p.name, w.mode, order[worst], strings.Join(p.attacks, " "), p.what))
		if order[worst] == "inconclusive" && w.mode != modeUserns {
			t.Errorf("probe %s is inconclusive", p.name)
		}
		if order[worst] == "declared" && w.ex.Capabilities().Isolation >= backend.IsolationContainer {
			t.Errorf("probe %s is declared and not held", p.name)
		}
	}
}

// verdicts are those of a mode so far.
func verdicts(mode string) map[string]string {
	reports.mu.Lock()
	defer reports.mu.Unlock()
	out := map[string]string{}
	for _, line := range reports.lines {
		if f := strings.Fields(line); len(f) == 3 && f[1] == mode {
			out[f[0]] = f[2]
		}
	}
	return out
}

// everyAttack lists the attacks that are a program in a sandbox.
func everyAttack() []attack {
	return slices.Concat(
		forkAttacks(), signalAttacks(), memoryAttacks(), timeAttacks(), diskAttacks(), descriptorAttacks(), outputAttacks(),
		networkAttacks(), secretAttacks(), tamperAttacks(), privilegeAttacks(), kernelAttacks(), sideAttacks(),
	)
}

// TestAttacks_haveNamesOfTheirOwn, since reports go by them.
func TestAttacks_haveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range everyAttack() {
		if seen[a.id] || scenarios()[a.id] != nil {
			t.Errorf("there are two %s", a.id)
		}
		seen[a.id] = true
	}
}
