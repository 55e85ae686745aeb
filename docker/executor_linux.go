package docker

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/dockerbox"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/launch/landlock"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// Executor makes sandboxes as containers. It is safe for concurrent use.
type Executor struct {
	*box.Executor
	d *dockerbox.Driver
}

// minMemory is the least a container can be given: the agent is counted in.
const minMemory = 64 << 20

// pidsReserve is how many processes a container may have beyond the limit, for
// the agent's threads.
const pidsReserve = 32

// Open readies the backend. It succeeds on valid configuration whether or not
// there is an engine, and asks none; Probe does. The caller closes the Executor.
func Open(ctx context.Context, cfg Config) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e, err := engine.OpenWith(cfg.Host, engine.Options{TLSDir: cfg.TLSDir, Plain: cfg.Insecure, Elsewhere: cfg.Remote})
	if err != nil {
		return nil, err
	}
	var store *state.Store
	dir, serr := state.Dir(cfg.StateDir)
	if serr == nil {
		store, serr = state.Open(dir)
	}
	abi := landlock.ABI()
	o := dockerbox.Options{
		Name: driverName, Capabilities: capabilities(os.Geteuid() == 0, abi), Runtime: cfg.Runtime,
		MinMemory: minMemory, PidsReserve: pidsReserve, Image: cfg.Image, Templates: cfg.Templates, Built: cfg.BuiltTemplates,
		Agent: cfg.Agent, NoLandlock: abi == 0,
	}
	if e.Remote() {
		o.Remote, o.Stdio, o.NoLandlock = true, true, false
		o.Capabilities = remoteCapabilities()
	}
	d := dockerbox.New(e, store, o)
	// An unwritable journal refuses Create, never Open or Destroy.
	ex := box.New(ctx, d, box.Options{Store: store, StoreErr: serr, Config: cfg})
	d.Bind(ex)
	return &Executor{ex, d}, nil
}

// Sweep removes what is left of sandboxes whose owners are gone and, on an
// engine elsewhere, the images with the agent in them that nothing uses.
func (ex *Executor) Sweep(ctx context.Context) error {
	return errors.Join(ex.Executor.Sweep(ctx), ex.d.RemoveDerived(ctx))
}

// MaybeAgent turns this process into a sandbox's agent when it was started as
// one, and never returns then. Programs that use this package and ship no
// glovebox-agent call it first in main; they must be static.
func MaybeAgent() { box.MaybeAgent() }

// Measure finds out what this host's engine gives, by making a sandbox and
// running a program in it.
func Measure(ctx context.Context, cfg Config) (Report, error) {
	ex, err := Open(ctx, cfg)
	if err != nil {
		return Report{}, err
	}
	defer ex.Close() //nolint:errcheck,contextcheck // nothing of a measurement is kept; Close takes no context
	r := Report{Capabilities: ex.Capabilities(), Health: ex.d.Probe(ctx)}
	info, err := ex.d.Info(ctx)
	if err != nil {
		r.Facts = append(r.Facts, Fact{Name: "engine", Value: err.Error(), Fix: r.Health.Fix})
		return r, nil
	}
	r.Facts = append(r.Facts,
		Fact{Name: "engine", Value: fmt.Sprintf("%s, API %s, cgroup v%d by %s", info.Version, info.APIVersion, info.CgroupVersion, info.CgroupDriver), OK: true},
		Fact{Name: "engine is local", Value: yes(info.Local), OK: info.Local || ex.d.Elsewhere()},
		runc(info),
		Fact{Name: "engine's user namespace", Value: yes(info.UsernsRemap || info.Rootless), OK: true},
	)
	return r, nil
}

func runc(info engine.Info) Fact {
	f := Fact{Name: "runc", Value: info.Runc, OK: info.RuncProblem == ""}
	if !f.OK {
		f.Value += ": " + info.RuncProblem
		f.Fix = "update runc to 1.2.8, 1.3.3 or later, use images that glovebox built, or set userns-remap"
	}
	return f
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

var (
	_ backend.Executor = (*Executor)(nil)
	_ backend.Admitter = (*Executor)(nil)
)
