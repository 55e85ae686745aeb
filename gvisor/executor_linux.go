package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/gvisor/internal/runsc"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/dockerbox"
	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// Executor makes sandboxes under gVisor. It is safe for concurrent use.
type Executor struct {
	*box.Executor
	d      *driver           // nil with Via docker
	docker *dockerbox.Driver // nil otherwise
}

// MaybeAgent turns this process into a sandbox's agent when it was started as
// one, and never returns then. Programs that use this package and ship no
// glovebox-agent call it first in main.
func MaybeAgent() { box.MaybeAgent() }

// Open readies the backend. It succeeds on valid configuration whatever the
// host offers; Probe says what that is. The caller closes the Executor.
func Open(ctx context.Context, cfg Config) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Via == ViaDocker {
		return openDocker(ctx, cfg)
	}
	h, err := look(cfg)
	if err != nil {
		return nil, &backend.Error{Op: "open", Kind: backend.ErrUnavailable, Backend: driverName, Err: err}
	}
	d := &driver{cfg: cfg, host: h, caps: h.capabilities(), launcher: runsc.NewLauncher()}
	dir, err := state.Dir(cfg.StateDir)
	if err == nil {
		d.store, err = state.Open(dir)
	}
	// An unwritable journal refuses Create, never Open or Destroy.
	d.serr = err
	d.ex = box.New(ctx, d, box.Options{Store: d.store, StoreErr: err, Config: cfg})
	return &Executor{Executor: d.ex, d: d}, nil
}

// driver makes the bundles that runsc is started on.
type driver struct {
	cfg   Config
	host  host
	caps  backend.Capabilities
	store *state.Store
	serr  error // why there is no store
	ex    *box.Executor

	launcher *runsc.Launcher

	mu     sync.Mutex
	runsc  *runsc.Binary // found at the first Create
	binary *os.File      // the agent, likewise
}

// Name implements box.Driver.
func (d *driver) Name() string { return driverName }

// Capabilities implements box.Driver.
func (d *driver) Capabilities() backend.Capabilities { return d.caps }

// Close implements box.Driver.
func (d *driver) Close() error {
	d.launcher.Close()
	if d.binary != nil {
		d.binary.Close() //nolint:errcheck // read side
	}
	return nil
}

// Needs implements box.Driver.
func (d *driver) Needs(backend.Spec) box.Needs {
	return box.Needs{Dir: true, Group: d.host.groups.Usable()}
}

// LookAt implements box.Driver.
func (d *driver) LookAt(spec backend.Spec) error {
	if _, err := box.FindAgent(driverName, d.cfg.Agent); err != nil {
		return err
	}
	if _, err := d.find(context.Background()); err != nil { //nolint:forbidigo // it is bounded, and Admit has no context
		return err
	}
	_, hold, err := d.rootfs(spec)
	if err != nil {
		return err
	}
	if hold != nil {
		hold.Close() //nolint:errcheck // a lock that ends with it
	}
	_, err = d.mounts().Mounts(spec.Mounts)
	return err
}

// minMemory is what a sandbox must have: gVisor's kernel is counted with its
// programs, and when they have used it up it ends with all of them.
const minMemory = 256 << 20

// Refuse implements box.Driver.
func (d *driver) Refuse(asked, spec backend.Spec) error {
	refuse := func(kind backend.Kind, field, why, fix string) error {
		return &backend.Error{Op: "create", Kind: kind, Backend: driverName, Field: field, Err: errors.New(why), Fix: fix}
	}
	if p := d.cfg.Privilege; p != PrivilegeAuto && p != d.host.privilege {
		return refuse(backend.ErrUnavailable, "privilege", fmt.Sprintf("%s cannot be had here, only %s", p, d.host.privilege), "leave it empty")
	}
	if d.host.rootless() && os.Geteuid() == 0 {
		return refuse(backend.ErrUnavailable, "privilege", "root cannot work rootless, and here it may not mount either",
			"run as root of the host, or as another user")
	}
	if d.cfg.CgroupParent != "" && !d.host.groups.Usable() {
		return refuse(backend.ErrUnavailable, "cgroup_parent", fmt.Sprintf("no groups can be made in %q", d.cfg.CgroupParent), "leave it empty, or give this user a group of that name")
	}
	if m := spec.Limits.Memory; m < minMemory {
		return refuse(backend.ErrUnsupported, "limits.memory", fmt.Sprintf("%d bytes are too few for gVisor's kernel and programs", m),
			"ask for 256 MiB or more, or choose another backend")
	}
	if err := box.CheckDisk(driverName, spec); err != nil {
		return err
	}
	if t := spec.Template; t != "" && d.cfg.Templates[t] == "" {
		return refuse(backend.ErrNotFound, "template", fmt.Sprintf("there is no template %q", t), "name it in templates")
	}
	return d.refuseRooted(asked)
}

// fixRunsc says where runsc comes from.
const fixRunsc = "install gVisor's runsc, as `scripts/setup` does, or name it in the backend's runsc"

// find looks for runsc, once it was found no more.
func (d *driver) find(ctx context.Context) (runsc.Binary, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.runsc != nil {
		return *d.runsc, nil
	}
	b, err := runsc.Find(ctx, d.cfg.Runsc)
	if err != nil {
		return b, &backend.Error{Op: "create", Kind: backend.ErrUnavailable, Backend: driverName, Field: "runsc", Err: err, Fix: fixRunsc}
	}
	d.runsc = &b
	return b, nil
}

// agent opens the agent's binary, once.
func (d *driver) agent() (*os.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.binary != nil {
		return d.binary, nil
	}
	path, err := box.FindAgent(driverName, d.cfg.Agent)
	if err != nil {
		return nil, err
	}
	if d.binary, err = os.Open(path); err != nil {
		return nil, &backend.Error{Op: "agent", Kind: backend.ErrUnavailable, Backend: driverName, Field: "agent", Err: err}
	}
	return d.binary, nil
}

// baseImage is what sandboxes without a template are made from.
const baseImage = "base"

// rootfs is the root file system of a sandbox made by spec, as a path without
// links. hold, which the caller closes, keeps it there; nil for a directory that
// is not of the image store.
func (d *driver) rootfs(spec backend.Spec) (dir string, hold *os.File, err error) {
	dir, field := d.cfg.Rootfs, "rootfs"
	if spec.Template != "" {
		dir, field = d.cfg.Templates[spec.Template], "template"
	}
	images, err := image.Default(os.Getenv)
	if err != nil {
		return "", nil, err
	}
	if dir == "" {
		img, err := images.Get(baseImage)
		if err != nil {
			return "", nil, baseMissing(err)
		}
		dir = img.Rootfs()
	}
	if dir, err = d.mounts().Rootfs(field, dir); err != nil {
		return "", nil, err
	}
	hold, err = holdImage(images, dir)
	return dir, hold, err
}

func baseMissing(err error) error {
	e := &backend.Error{Op: "create", Kind: backend.ErrUnavailable, Backend: driverName, Field: "rootfs", Err: err}
	if be, ok := errors.AsType[*backend.Error](err); ok {
		e.Err, e.Fix = be.Err, be.Fix
	}
	return e
}

// holdImage keeps the image that dir is the root file system of, if it is one.
func holdImage(images *image.Store, dir string) (*os.File, error) {
	rel, ok := strings.CutPrefix(dir, images.Dir()+"/")
	parts := strings.Split(rel, "/")
	if !ok || len(parts) != 3 {
		return nil, nil //nolint:nilnil // documented
	}
	img, err := images.Get(parts[0] + ":" + parts[1])
	if err != nil {
		return nil, err
	}
	return images.Hold(img)
}

// mounts is how mounts and roots are checked here.
func (d *driver) mounts() box.MountCheck {
	c := box.MountCheck{Driver: driverName}
	if d.store != nil {
		c.StateDir = d.store.Dir()
	}
	return c
}

var (
	_ backend.Executor = (*Executor)(nil)
	_ backend.Admitter = (*Executor)(nil)
	_ box.Driver       = (*driver)(nil)
)
