package subprocess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// Executor makes sandboxes as child processes. It is safe for concurrent use.
type Executor struct {
	cfg   Config
	host  host
	caps  backend.Capabilities
	store *state.Store
	serr  error // why there is no store

	launcher *launcher
	stop     context.CancelFunc
	wg       sync.WaitGroup

	mu     sync.Mutex
	binary *os.File // the agent, opened at the first Create
	boxes  map[string]*Sandbox
	making sync.WaitGroup // Creates under way
	closed bool
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
	ex := &Executor{cfg: cfg, host: h, caps: h.capabilities(), launcher: newLauncher(), boxes: map[string]*Sandbox{}}
	dir, err := state.Dir(cfg.StateDir)
	if err == nil {
		ex.store, err = state.Open(dir)
	}
	// An unwritable journal refuses Create, never Open or Destroy.
	ex.serr = err
	sctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ex.stop = stop
	ex.wg.Go(envd.Warm)
	if ex.store != nil {
		ex.wg.Go(func() { ex.sweepLoop(sctx) })
	}
	return ex, nil
}

// Capabilities implements backend.Executor.
func (ex *Executor) Capabilities() backend.Capabilities { return ex.caps }

// Close implements backend.Executor.
func (ex *Executor) Close() error {
	ex.mu.Lock()
	if ex.closed {
		ex.mu.Unlock()
		return nil
	}
	ex.closed = true
	ex.mu.Unlock()
	ex.making.Wait()
	ex.stop()
	ex.mu.Lock()
	boxes := make([]*Sandbox, 0, len(ex.boxes))
	for _, sb := range ex.boxes {
		boxes = append(boxes, sb)
	}
	ex.mu.Unlock()
	ctx, cancel := cleanupContext()
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(boxes))
	for i, sb := range boxes {
		wg.Go(func() {
			if sb.keep && !sb.closed.Load() {
				sb.forget()
				return
			}
			errs[i] = sb.Destroy(ctx)
		})
	}
	wg.Wait()
	ex.wg.Wait()
	ex.launcher.close()
	if ex.binary != nil {
		ex.binary.Close() //nolint:errcheck // read side
	}
	if ex.store != nil {
		errs = append(errs, ex.store.Close())
	}
	return errors.Join(errs...)
}

// Create implements backend.Executor.
func (ex *Executor) Create(ctx context.Context, spec backend.Spec) (backend.Sandbox, error) {
	began := time.Now()
	ex.mu.Lock()
	if ex.closed {
		ex.mu.Unlock()
		return nil, &backend.Error{Op: "create", Kind: backend.ErrClosed, Backend: driverName}
	}
	ex.making.Add(1)
	ex.mu.Unlock()
	defer ex.making.Done()

	full, warnings, err := ex.admit(spec)
	if err != nil {
		return nil, err
	}
	binary, err := ex.agent()
	if err != nil {
		return nil, err
	}
	m := &maker{ex: ex, asked: spec, spec: full, warnings: warnings, binary: binary, began: began}
	sb, err := m.make(ctx)
	if err != nil {
		return nil, err
	}
	ex.mu.Lock()
	ex.boxes[sb.id] = sb
	ex.mu.Unlock()
	return sb, nil
}

// Admit implements backend.Admitter.
func (ex *Executor) Admit(spec backend.Spec) (backend.Spec, []string, error) {
	full, warnings, err := ex.admit(spec)
	if err == nil {
		err = ex.lookAt(full)
	}
	if err != nil {
		return spec, nil, err
	}
	return full, warnings, nil
}

// lookAt refuses what making the sandbox would refuse once it looks at the
// host's files: the same looks, without opening and copying anything.
func (ex *Executor) lookAt(spec backend.Spec) error {
	if _, err := findAgent(ex.cfg.Agent); err != nil {
		return err
	}
	if _, err := ex.checkRoot(spec); err != nil {
		return err
	}
	_, err := ex.checkBinds(spec.Mounts)
	return err
}

// admit is spec as it would be granted, with what to warn of, unless it can be
// refused without looking at what it names.
func (ex *Executor) admit(spec backend.Spec) (backend.Spec, []string, error) {
	full, warnings, err := ex.caps.Admit(driverName, spec)
	if err == nil {
		err = ex.refusal(spec, full)
	}
	if err == nil && ex.serr != nil {
		err = &backend.Error{Op: "create", Kind: backend.ErrUnavailable, Backend: driverName, Field: "state_dir", Err: ex.serr}
	}
	return full, warnings, err
}

// refusal refuses what Capabilities.Admit cannot know about.
func (ex *Executor) refusal(asked, spec backend.Spec) error {
	refuse := func(kind backend.Kind, field, why, fix string) error {
		return &backend.Error{Op: "create", Kind: kind, Backend: driverName, Field: field, Err: errors.New(why), Fix: fix}
	}
	if p := ex.cfg.Privilege; p != PrivilegeAuto && p != privilegeOf(ex.host.mode) {
		return refuse(backend.ErrUnavailable, "privilege", fmt.Sprintf("%s cannot be had here, only %s: %s", p, privilegeOf(ex.host.mode), ex.host.why), "leave it empty")
	}
	if ex.cfg.CgroupParent != "" && !ex.host.groups.Usable() {
		return refuse(backend.ErrUnavailable, "cgroup_parent", fmt.Sprintf("no groups can be made in %q", ex.cfg.CgroupParent), "leave it empty, or give this user a group of that name")
	}
	if ex.host.mode != launch.ModePlain && ex.caps.Isolation == backend.IsolationNone {
		why := "this host has no seccomp"
		if ex.host.seccomp {
			why = "this host has neither user namespaces (" + ex.host.why + ") nor Landlock"
		}
		return refuse(backend.ErrUnavailable, "", why, "choose another backend, or accept no isolation with privilege: none")
	}
	switch {
	case ex.cfg.Rootfs != "" && !ex.caps.Has(backend.FeatureTemplates):
		return refuse(backend.ErrUnsupported, "rootfs", "without namespaces a sandbox has the host's root", "leave rootfs empty, or let glovebox make namespaces")
	case spec.OnExpiry == backend.ExpiryPause:
		return refuse(backend.ErrUnsupported, "on_expiry", "nobody would pause a sandbox whose creator has gone", "use destroy, and pause it before its deadline")
	case len(spec.Secrets) > 0:
		return refuse(backend.ErrUnsupported, "secrets", "secrets are for a network proxy, which there is none of", "leave them out, or pass what the code may know in env")
	case spec.IdempotencyKey != "":
		return refuse(backend.ErrUnsupported, "idempotency_key", "repeated creates are not recognised", "leave it out")
	}
	total := memoryNow()
	if total > 0 && asked.Limits.Memory > total {
		return refuse(backend.ErrCapacity, "limits.memory",
			fmt.Sprintf("%d bytes are asked for, this host has %d", asked.Limits.Memory, total), "ask for less")
	}
	// Written pages count as memory: within the scratch a full disk must be
	// ENOSPC and not the memory limit.
	if l := spec.Limits; l.Disk > l.Memory/2 && ex.host.mode != launch.ModeRestricted && ex.host.mode != launch.ModePlain {
		return refuse(backend.ErrUnsupported, "limits.disk",
			fmt.Sprintf("the scratch is in memory and can have at most half of it, %d bytes", l.Memory/2),
			"raise limits.memory to twice the disk, or choose another backend")
	}
	if t := spec.Template; t != "" && ex.cfg.Templates[t] == "" {
		return refuse(backend.ErrNotFound, "template", fmt.Sprintf("there is no template %q", t), "name it in templates")
	}
	return nil
}

// agent opens the agent's binary, once. It is run by descriptor: the path may
// not be reachable for a sandbox's uids.
func (ex *Executor) agent() (*os.File, error) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.binary != nil {
		return ex.binary, nil
	}
	path, err := findAgent(ex.cfg.Agent)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, &backend.Error{Op: "agent", Kind: backend.ErrUnavailable, Backend: driverName, Field: "agent", Err: err}
	}
	st, err := f.Stat()
	if err == nil && st.Mode().Perm()&0o005 == 0o005 {
		ex.binary = f
		return f, nil
	}
	defer f.Close() //nolint:errcheck // read side
	if err == nil {
		ex.binary, err = memoryCopy(f)
	}
	return ex.binary, err
}

// etc is the prepared /etc of sandboxes made of the host's files. As root it
// lies where a sandbox's uids can reach it, otherwise in the state directory.
// It stays while hold, which the caller closes, or a copy of it is open.
func (ex *Executor) etc(home, hostname string) (dir string, hold *os.File, err error) {
	cache := ex.store.Dir()
	if ex.host.mode == launch.ModeMapped {
		cache = filepath.Join(state.RunDir, "etc")
		if err := state.SecureDir(cache, 0o755); err != nil {
			return "", nil, err
		}
	}
	ex.mu.Lock()
	defer ex.mu.Unlock()
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

func (ex *Executor) drop(id string) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	delete(ex.boxes, id)
}

var (
	_ backend.Executor = (*Executor)(nil)
	_ backend.Admitter = (*Executor)(nil)
)
