package gvisor

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
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
	if ex.docker != nil {
		return ex.measureDocker(ctx), nil
	}
	d := ex.d
	return Report{Privilege: d.host.privilege, Capabilities: d.caps, Facts: d.facts(ctx), Health: d.Probe(ctx)}, nil
}

// Probe implements box.Driver: it makes a sandbox and runs a shell in it.
func (d *driver) Probe(ctx context.Context) backend.Health {
	h := box.ProbeShell(ctx, d.ex)
	for _, c := range []backend.Control{backend.ControlMemory, backend.ControlCPU, backend.ControlInodes} {
		if cl := d.caps.Claim(c); cl.Enforcement != backend.Enforced {
			h.Warnings = append(h.Warnings, fmt.Sprintf("%s is %s: %s", c, cl.Enforcement, cl.Note))
		}
	}
	switch {
	case !h.Available:
		if _, err := d.find(ctx); err != nil {
			h.Fix = fixRunsc
		} else if _, hold, err := d.rootfs(backend.Spec{}); err != nil {
			h.Fix = "run: glovebox image build " + baseImage
		} else if hold != nil {
			hold.Close() //nolint:errcheck // a lock that ends with it
		}
	case d.host.rootless():
		h.Fix = "run as root for hard memory and CPU limits"
	}
	return h
}

// facts are the measurements behind the claims.
func (d *driver) facts(ctx context.Context) []Fact {
	var facts []Fact
	add := func(name, value, fix string, err error) {
		f := Fact{Name: name, Value: value, OK: err == nil}
		if err != nil {
			f.Value, f.Fix = err.Error(), fix
		}
		facts = append(facts, f)
	}
	b, err := d.find(ctx)
	add("runsc", fmt.Sprintf("%s, %s", b.Path, b.Version), fixRunsc, err)
	add("platform", string(cmp.Or(d.cfg.Platform, PlatformSystrap)), "", nil)
	add("runs as", fmt.Sprintf("uid %d, %s", os.Geteuid(), d.host.privilege), "", nil)
	cg := Fact{Name: "cgroups", Value: d.host.groups.String(), OK: true}
	for _, c := range []string{"memory", "cpu"} {
		if _, ok := d.host.has(c); !ok {
			cg.OK, cg.Fix = false, fixGroups
		}
	}
	facts = append(facts, cg)
	root, hold, err := d.rootfs(backend.Spec{})
	if hold != nil {
		hold.Close() //nolint:errcheck // a lock that ends with it
	}
	add("root file system", root, "run: glovebox image build "+baseImage, err)
	agent, err := box.FindAgent(driverName, d.cfg.Agent)
	add("agent", agent, "make build", err)
	dir, err := state.Dir(d.cfg.StateDir)
	if err == nil {
		err = d.serr
	}
	add("state", dir, "set GLOVEBOX_STATE_DIR to a directory of your own", err)
	return facts
}
