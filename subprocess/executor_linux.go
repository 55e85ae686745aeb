package subprocess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// Executor makes sandboxes as child processes. It is safe for concurrent use.
type Executor struct {
	*box.Executor
	d *driver
}

// Open readies the backend. It succeeds on valid configuration whatever the
// host offers; Probe says what that is. The caller closes the Executor.
func Open(ctx context.Context, cfg Config) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h, err := look(cfg)
	if err != nil {
		return nil, &backend.Error{Op: "open", Kind: backend.ErrUnavailable, Backend: driverName, Err: err}
	}
	d := &driver{cfg: cfg, host: h, caps: h.capabilities(), launcher: newLauncher()}
	dir, err := state.Dir(cfg.StateDir)
	if err == nil {
		d.store, err = state.Open(dir)
	}
	// An unwritable journal refuses Create, never Open or Destroy.
	d.serr = err
	d.ex = box.New(ctx, d, box.Options{Store: d.store, StoreErr: err, Config: cfg})
	return &Executor{d.ex, d}, nil
}

// driver makes the child processes that sandboxes are.
type driver struct {
	cfg   Config
	host  host
	caps  backend.Capabilities
	store *state.Store
	serr  error // why there is no store
	ex    *box.Executor

	launcher *launcher

	mu     sync.Mutex
	binary *os.File // the agent, opened at the first Create
}

// Name implements box.Driver.
func (d *driver) Name() string { return driverName }

// Capabilities implements box.Driver.
func (d *driver) Capabilities() backend.Capabilities { return d.caps }

// Close implements box.Driver.
func (d *driver) Close() error {
	d.launcher.close()
	if d.binary != nil {
		d.binary.Close() //nolint:errcheck // read side
	}
	return nil
}

// Needs implements box.Driver.
func (d *driver) Needs(spec backend.Spec) box.Needs {
	return box.Needs{
		UIDs:  d.host.mode == launch.ModeMapped,
		Dir:   spec.Keep || d.host.mode == launch.ModeRestricted || d.host.mode == launch.ModePlain,
		Group: d.host.groups.Usable(),
	}
}

// LookAt implements box.Driver.
func (d *driver) LookAt(spec backend.Spec) error {
	if _, err := box.FindAgent(driverName, d.cfg.Agent); err != nil {
		return err
	}
	if _, err := d.checkRoot(spec); err != nil {
		return err
	}
	_, err := d.mounts().Mounts(spec.Mounts)
	return err
}

// Refuse implements box.Driver.
func (d *driver) Refuse(_, spec backend.Spec) error {
	refuse := func(kind backend.Kind, field, why, fix string) error {
		return &backend.Error{Op: "create", Kind: kind, Backend: driverName, Field: field, Err: errors.New(why), Fix: fix}
	}
	if p := d.cfg.Privilege; p != PrivilegeAuto && p != privilegeOf(d.host.mode) {
		return refuse(backend.ErrUnavailable, "privilege", fmt.Sprintf("%s cannot be had here, only %s: %s", p, privilegeOf(d.host.mode), d.host.why), "leave it empty")
	}
	if d.cfg.CgroupParent != "" && !d.host.groups.Usable() {
		return refuse(backend.ErrUnavailable, "cgroup_parent", fmt.Sprintf("no groups can be made in %q", d.cfg.CgroupParent), "leave it empty, or give this user a group of that name")
	}
	if d.host.mode != launch.ModePlain && d.caps.Isolation == backend.IsolationNone {
		why := "this host has no seccomp"
		if d.host.seccomp {
			why = "this host has neither user namespaces (" + d.host.why + ") nor Landlock"
		}
		return refuse(backend.ErrUnavailable, "", why, "choose another backend, or accept no isolation with privilege: none")
	}
	if d.cfg.Rootfs != "" && !d.caps.Has(backend.FeatureTemplates) {
		return refuse(backend.ErrUnsupported, "rootfs", "without namespaces a sandbox has the host's root", "leave rootfs empty, or let glovebox make namespaces")
	}
	if d.host.mode != launch.ModeRestricted && d.host.mode != launch.ModePlain {
		if err := box.CheckDisk(driverName, spec); err != nil {
			return err
		}
	}
	if t := spec.Template; t != "" && d.cfg.Templates[t] == "" {
		return refuse(backend.ErrNotFound, "template", fmt.Sprintf("there is no template %q", t), "name it in templates")
	}
	return nil
}

// agent opens the agent's binary, once. It is run by descriptor: the path may
// not be reachable for a sandbox's uids.
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
	f, err := os.Open(path)
	if err != nil {
		return nil, &backend.Error{Op: "agent", Kind: backend.ErrUnavailable, Backend: driverName, Field: "agent", Err: err}
	}
	st, err := f.Stat()
	if err == nil && st.Mode().Perm()&0o005 == 0o005 {
		d.binary = f
		return f, nil
	}
	defer f.Close() //nolint:errcheck // read side
	if err == nil {
		d.binary, err = memoryCopy(f)
	}
	return d.binary, err
}

// etc is the prepared /etc of sandboxes made of the host's files. As root it
// lies where a sandbox's uids can reach it, otherwise in the state directory.
// It stays while hold, which the caller closes, or a copy of it is open.
func (d *driver) etc(home, hostname string) (dir string, hold *os.File, err error) {
	cache := d.store.Dir()
	if d.host.mode == launch.ModeMapped {
		cache = filepath.Join(state.RunDir, "etc")
		if err := state.SecureDir(cache, 0o755); err != nil {
			return "", nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return launch.PrepareEtc(cache, home, hostname)
}

// memoryCopy puts a binary that a sandbox's uids may not execute where they may.
func memoryCopy(f *os.File) (*os.File, error) {
	fd, err := unix.MemfdCreate("agent", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	m := os.NewFile(uintptr(fd), "agent")
	if _, err = m.ReadFrom(f); err == nil {
		_, err = unix.FcntlInt(m.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		m.Close() //nolint:errcheck // on the way out
		return nil, err
	}
	// Writing a descriptor that is open for writing cannot be executed.
	ro, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", m.Fd()))
	m.Close() //nolint:errcheck // the read-only one stays
	if err != nil {
		return nil, err
	}
	return ro, nil
}

var (
	_ backend.Executor = (*Executor)(nil)
	_ backend.Admitter = (*Executor)(nil)
	_ box.Driver       = (*driver)(nil)
)
