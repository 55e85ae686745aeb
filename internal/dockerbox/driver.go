//go:build linux

// Package dockerbox makes sandboxes as containers of a Docker engine, for every
// driver that does so: they differ in the runtime, in how the agent is reached
// and in what they claim.
package dockerbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/launch/seccomp"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// Labels of everything that is made on an engine.
const (
	labelStore   = "dev.glovebox.store"
	labelSandbox = "dev.glovebox.sandbox"
	labelDriver  = "dev.glovebox.driver"
)

// Options say which containers are made.
type Options struct {
	// Name is the driver's, Capabilities what it claims.
	Name         string
	Capabilities backend.Capabilities
	// Runtime of the engine; "" is its default.
	Runtime string
	// Stdio reaches the agent over the engine's attach stream, where the
	// runtime lets no socket through.
	Stdio bool
	// Remote: the engine is on another machine. It takes Stdio.
	Remote bool
	// Sentry requires the kernel to be gVisor's.
	Sentry bool
	// MinMemory is the least that limits.memory may be.
	MinMemory int64
	// PidsReserve is how many processes the container may have beyond the
	// limit: the agent's and the runtime's own.
	PidsReserve int64
	// Image is the image of sandboxes without a template; "" is the template
	// base. Templates maps template names to the engine's images.
	Image     string
	Templates map[string]string
	// Built maps further ones to images of the store.
	Built map[string]string
	// Agent is the configured agent.
	Agent string
	// NoLandlock: the kernel that programs see has none.
	NoLandlock bool
}

// Driver implements box.Driver.
type Driver struct {
	o      Options
	engine *engine.Engine
	store  *state.Store
	images *image.Store
	ex     backend.Executor

	mu      sync.Mutex
	info    engine.Info
	infoAt  time.Time
	profile []byte
	layer   layerHash // of the last agent that was looked at

	derived derivedImages // of engines elsewhere
	memory  memoryWatch   // of containers elsewhere
}

// New makes a driver over an engine and a store, which may be nil where there
// is none. It does no I/O. Bind must follow.
func New(e *engine.Engine, store *state.Store, o Options) *Driver {
	d := &Driver{o: o, engine: e, store: store, derived: derivedImages{turn: make(chan struct{}, 1), known: map[string]derivedImage{}}}
	if store != nil {
		d.images = image.Open(store.Dir())
	}
	return d
}

// Bind tells the driver the executor that is made over it.
func (d *Driver) Bind(ex backend.Executor) { d.ex = ex }

// Name implements box.Driver.
func (d *Driver) Name() string { return d.o.Name }

// Capabilities implements box.Driver.
func (d *Driver) Capabilities() backend.Capabilities { return d.o.Capabilities }

// Close implements box.Driver.
func (d *Driver) Close() error {
	d.memory.close()
	return d.engine.Close()
}

// Needs implements box.Driver.
func (d *Driver) Needs(backend.Spec) box.Needs {
	n := box.Needs{Dir: true, UIDs: d.leases()}
	if !d.o.Stdio {
		n.Socket = runName + "/" + launch.AgentSocket
	}
	return n
}

// leases tells whether each sandbox has host uids of its own: in gVisor the
// guest's uids are nobody's on the host.
func (d *Driver) leases() bool { return os.Geteuid() == 0 && !d.o.Sentry && !d.o.Remote }

// infoFor is how long what the engine says of itself is believed.
const infoFor = 30 * time.Second

// Info is what the engine says of itself, asked for again now and then.
func (d *Driver) Info(ctx context.Context) (engine.Info, error) {
	d.mu.Lock()
	info, at := d.info, d.infoAt
	d.mu.Unlock()
	if !at.IsZero() && time.Since(at) < infoFor {
		return info, nil
	}
	info, err := d.engine.Info(ctx)
	if err != nil {
		return info, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.info, d.infoAt = info, time.Now()
	return info, nil
}

// seccomp is the profile of every container, as JSON.
func (d *Driver) seccomp() (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.profile == nil {
		p, err := seccomp.Profile(seccomp.Policy{})
		if err != nil {
			return "", err
		}
		d.profile = p
	}
	return string(d.profile), nil
}

func (d *Driver) refuse(kind backend.Kind, field, why, fix string) error {
	return &backend.Error{Op: "create", Kind: kind, Backend: d.o.Name, Field: field, Err: errors.New(why), Fix: fix}
}

// Refuse implements box.Driver.
func (d *Driver) Refuse(_, spec backend.Spec) error {
	if d.o.Remote && len(spec.Mounts) > 0 {
		return d.refuse(backend.ErrUnsupported, "mounts[0]", "the engine is on another machine, where nothing of this host can be shown",
			"write the files into the sandbox, put them into a template's image, or use an engine of this machine")
	}
	if spec.Limits.Memory < d.o.MinMemory {
		return d.refuse(backend.ErrUnsupported, "limits.memory",
			fmt.Sprintf("%d bytes are too few: the agent and all that runs are counted together", spec.Limits.Memory),
			fmt.Sprintf("give it at least %d MiB", d.o.MinMemory>>20))
	}
	return box.CheckDisk(d.o.Name, spec)
}

// lookTimeout bounds the looks of one that only asks.
const lookTimeout = 5 * time.Second

// LookAt implements box.Driver.
func (d *Driver) LookAt(spec backend.Spec) error {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout) //nolint:forbidigo // Admit has no context
	defer cancel()
	if _, err := box.FindAgent(d.o.Name, d.o.Agent); err != nil {
		return err
	}
	if _, err := d.mounts().Mounts(spec.Mounts); err != nil {
		return err
	}
	info, err := d.usable(ctx)
	if err != nil {
		return err
	}
	if err := d.fits(info, spec); err != nil {
		return err
	}
	img, err := d.image(ctx, spec.Template, false)
	if err != nil {
		return err
	}
	if _, err := d.account(spec, img); err != nil {
		return err
	}
	_, err = d.runtimeWarning(info, img, spec.Strict)
	return err
}

func (d *Driver) mounts() box.MountCheck {
	return box.MountCheck{Driver: d.o.Name, StateDir: d.store.Dir()}
}

// usable is what the engine says of itself, unless sandboxes cannot be made
// on it.
func (d *Driver) usable(ctx context.Context) (engine.Info, error) {
	info, err := d.Info(ctx)
	if err != nil {
		return info, err
	}
	unavailable := func(why, fix string) error { return d.refuse(backend.ErrUnavailable, "host", why, fix) }
	switch {
	case d.o.Remote && !sameMachine(info):
		return info, unavailable(fmt.Sprintf("the engine's machine is %s on %s, the agent is for %s on linux", box.Sanitize(info.Arch), box.Sanitize(info.OS), runtime.GOARCH),
			"name an engine of the same kind of machine")
	case !info.Local && !d.o.Remote:
		return info, unavailable("the engine is on another machine, or in a container of its own, though its address says it is here",
			"set remote: true for the docker backend, name an engine of this machine, or run glovebox where the engine runs")
	case !info.MemoryLimit || !info.PIDsLimit:
		return info, unavailable("the engine can limit neither memory nor processes", "enable the memory and pids control groups")
	case !info.Seccomp:
		return info, unavailable("the engine has no seccomp", "use an engine that was built with it")
	case d.o.Runtime != "":
		if _, ok := info.Runtime(d.o.Runtime); !ok {
			return info, d.refuse(backend.ErrUnavailable, "runtime", fmt.Sprintf("the engine has no runtime %q", d.o.Runtime), "run scripts/setup, or add it to the engine's runtimes")
		}
	}
	return info, nil
}

// runtimeWarning tells what is wrong with the engine's runtime for an image that
// is not ours, which is an error under strict.
//
// Security: containers of an old runc can escape through what their image does
// while they start; the images that we build do nothing then.
func (d *Driver) runtimeWarning(info engine.Info, img chosen, strict bool) (string, error) {
	if info.RuncProblem == "" || d.o.Sentry || img.ours {
		return "", nil
	}
	if strict {
		return "", d.refuse(backend.ErrDenied, "strict", info.RuncProblem, "update runc, use an image that glovebox built, or leave strict out")
	}
	return "runtime: " + info.RuncProblem, nil
}

// Probe implements box.Driver.
func (d *Driver) Probe(ctx context.Context) backend.Health {
	began := time.Now()
	h := backend.Health{Isolation: d.o.Capabilities.Isolation, Measured: true}
	info, err := d.usable(ctx)
	if err == nil {
		h = box.ProbeShell(ctx, d.ex)
		h.Measured = !d.o.Remote
		if info.RuncProblem != "" && !d.o.Sentry {
			h.Warnings = append(h.Warnings, info.RuncProblem)
		}
		return h
	}
	h.Reason, h.Took = err.Error(), time.Since(began)
	if be, ok := errors.AsType[*backend.Error](err); ok {
		h.Fix = be.Fix
	}
	return h
}
