package subprocess

import (
	"context"
	"fmt"
	"os"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// Measure finds out what this host lets the backend enforce, by making a
// sandbox and running a program in it.
func Measure(ctx context.Context, cfg Config) (Report, error) {
	ex, err := Open(ctx, cfg)
	if err != nil {
		return Report{}, err
	}
	defer ex.Close() //nolint:errcheck,contextcheck // nothing of a measurement is kept; Close takes no context
	d := ex.d
	return Report{
		Privilege: privilegeOf(d.host.mode), Capabilities: d.caps, Facts: d.facts(), Health: d.Probe(ctx),
	}, nil
}

func privilegeOf(m launch.Mode) Privilege {
	switch m {
	case launch.ModeMapped:
		return PrivilegeRoot
	case launch.ModeSingle:
		return PrivilegeUserns
	case launch.ModeRestricted:
		return PrivilegeRestricted
	case launch.ModePlain:
		return PrivilegeNone
	case launch.ModeContained: // a container runtime's
	}
	return ""
}

// Probe implements box.Driver: it makes a sandbox and runs a shell in it.
func (d *driver) Probe(ctx context.Context) backend.Health {
	h := box.ProbeShell(ctx, d.ex)
	for _, c := range []backend.Control{backend.ControlMemory, backend.ControlPids, backend.ControlCPU, backend.ControlAgent, backend.ControlFileRules} {
		if cl := d.caps.Claim(c); cl.Enforcement != backend.Enforced {
			h.Warnings = append(h.Warnings, fmt.Sprintf("%s is %s: %s", c, cl.Enforcement, cl.Note))
		}
	}
	h.Fix = d.moreOf()
	return h
}

// moreOf says how to get more than this host gives now.
func (d *driver) moreOf() string {
	switch d.host.mode {
	case launch.ModeSingle:
		return "run as root for hard memory, CPU and per-sandbox uid limits"
	case launch.ModeRestricted:
		return "allow unprivileged user namespaces (" + d.host.why + "), or run as root"
	case launch.ModePlain:
		return "drop privilege: none"
	case launch.ModeMapped, launch.ModeContained:
	}
	return ""
}

// facts are the measurements behind the claims.
func (d *driver) facts() []Fact {
	h := d.host
	ns := Fact{Name: "user namespaces", Value: "yes", OK: true}
	if h.mode == launch.ModeRestricted {
		ns = Fact{
			Name: "user namespaces", Value: h.why,
			Fix: "sysctl -w user.max_user_namespaces=10000 (and kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0 where they exist)",
		}
	}
	ll := Fact{Name: "landlock", Value: fmt.Sprintf("ABI %d", h.landlock), OK: h.landlock >= 6}
	if h.landlock < 6 {
		ll.Fix = "Linux 6.12 or later with landlock among its security modules (lsm=landlock,…)"
	}
	cg := Fact{Name: "cgroups", Value: h.groups.String(), OK: true}
	for _, c := range []string{"memory", "pids", "cpu"} {
		if _, ok := h.groups.Has(c); !ok {
			cg.OK = false
			cg.Fix = "run as root, or give cgroup_parent a group delegated to this user"
		}
	}
	facts := []Fact{
		{Name: "kernel", Value: h.kernel, OK: true},
		{Name: "runs as", Value: fmt.Sprintf("uid %d, %s", os.Geteuid(), privileges(h.mode)), OK: h.mode != launch.ModePlain},
		ns,
		{Name: "seccomp", Value: yes(h.seccomp), OK: h.seccomp},
		ll, cg,
		{Name: "pause", Value: yes(h.groups.CanFreeze()), OK: h.groups.CanFreeze()},
	}
	agent, err := box.FindAgent(driverName, d.cfg.Agent)
	if err != nil {
		facts = append(facts, Fact{Name: "agent", Value: err.Error(), Fix: "make build"})
	} else {
		facts = append(facts, Fact{Name: "agent", Value: agent, OK: true})
	}
	dir, err := state.Dir(d.cfg.StateDir)
	if err == nil {
		err = d.serr
	}
	if err != nil {
		return append(facts, Fact{Name: "state", Value: err.Error(), Fix: "set GLOVEBOX_STATE_DIR to a directory of your own"})
	}
	return append(facts, Fact{Name: "state", Value: dir, OK: true})
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
