package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/gvisor/internal/runsc"
	"github.com/glovebox-dev/glovebox/internal/agent/boot"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/keeper"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/internal/oci"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// Names in a sandbox's own directory.
const (
	runtimeName = "rt"   // runsc's state
	bundleName  = "oci"  // config.json
	rootName    = "root" // what the root is made of
	etcName     = "etc"  // files over the image's
)

// boxID is what runsc calls a sandbox, each in a state directory of its own.
const boxID = "box"

// maker makes one sandbox.
type maker struct {
	d *driver
	*box.Birth
	body  *body
	spec  oci.Spec
	binds []launch.Bind // the mounts that were asked for, as they were checked
	// overlay is the size of the root's; 0 for one that is not written to.
	overlay int64
	shown   bool // the agent, inside
}

// Make implements box.Driver.
func (d *driver) Make(ctx context.Context, b *box.Birth) (*box.Made, error) {
	binary, err := d.find(ctx)
	if err != nil {
		return nil, err
	}
	agent, err := d.agent()
	if err != nil {
		return nil, err
	}
	m := &maker{d: d, Birth: b, body: &body{d: d, binary: binary, name: b.Name, dir: b.Dir}}
	return m.make(ctx, agent)
}

func (m *maker) make(ctx context.Context, agent *os.File) (*box.Made, error) {
	cfg := m.Contained(launch.UserUID, launch.AgentUID)
	cfg.NoLandlock = true // gVisor has none
	l := m.Spec.Limits
	box.SentryRlimits(cfg, l.Pids)
	if _, ok := m.d.host.has("memory"); !ok {
		cfg.MemoryWatch = l.Memory
	}
	if err := m.root(cfg); err != nil { //nolint:contextcheck // what it loads is bounded
		return nil, err
	}
	if err := m.runtime(); err != nil { //nolint:contextcheck // its undo outlives the caller's context
		return nil, err
	}
	start, err := m.bundle()
	if err != nil {
		return nil, err
	}
	if !m.shown {
		start.Exec = agent
	}
	p, err := m.d.launcher.Start(ctx, m.body.binary, &m.body.cfg, start)
	if err != nil {
		return nil, err
	}
	m.body.mu.Lock()
	m.body.proc = p
	m.body.mu.Unlock()
	conn := &stream{in: p.In, out: p.Out}
	m.Undo(func() { //nolint:contextcheck // it outlives the caller's context
		ctx, cancel := box.CleanupContext()
		defer cancel()
		conn.Close() //nolint:errcheck // on the way out
		m.body.Kill()
		m.body.Gone(ctx) //nolint:errcheck // the sweep tries again
	})
	hello, err := m.greet(ctx, conn, cfg)
	if err == nil {
		err = m.check(hello)
	}
	if err != nil {
		return nil, m.explain(ctx, err, p)
	}
	made := &box.Made{Body: m.body, Kernel: hello.Kernel, Achieved: backend.IsolationKernel, Amend: m.amend}
	if !m.Spec.Keep {
		made.Conn, made.Dial = conn, unixsock.Once(conn)
		return made, nil
	}
	procs, err := m.body.cfg.Processes()
	if err != nil {
		return nil, err
	}
	made.Proc, made.Detached = state.Proc{PID: procs.Sentry.PID, Start: procs.Sentry.Start}, true
	made.Stream = &keeper.Stream{Files: []*os.File{p.Out, p.In}}
	return made, nil
}

// check refuses a sandbox that is not what it claims to be.
func (m *maker) check(h launch.Hello) error {
	if !h.Sentry {
		return fmt.Errorf("the agent does not find gVisor's kernel but %q", box.Sanitize(h.Kernel))
	}
	if !m.d.host.joins() && len(m.binds) == 0 {
		return nil
	}
	procs, err := m.body.cfg.Processes()
	if err != nil {
		return err
	}
	if err := checkMounts(procs.Gofer.PID, m.binds); err != nil {
		return err
	}
	if !m.d.host.joins() {
		return nil
	}
	controllers := make([]string, 0, len(m.d.host.groups.V1))
	for c := range m.d.host.groups.V1 {
		controllers = append(controllers, c)
	}
	return procs.Contained(m.d.host.groupPath(m.Name), controllers...)
}

// explain adds what the runtime said when it ended before the agent answered.
func (m *maker) explain(ctx context.Context, err error, p *runsc.Process) error {
	if ctx.Err() != nil {
		return err
	}
	if o := m.body.Why(); o.OutOfMemory {
		return fmt.Errorf("%w: it was killed at the memory limit", err)
	}
	if words := p.Words(); words != "" {
		return fmt.Errorf("%w: %s", err, box.Sanitize(words))
	}
	return err
}

// root puts the sandbox's root together and tells the agent what is left to it.
func (m *maker) root(cfg *launch.Config) error {
	dir, hold, err := m.d.rootfs(m.Spec)
	if err != nil {
		return err
	}
	if hold != nil {
		m.body.image = hold
		m.Undo(func() { hold.Close() }) //nolint:errcheck // a lock that ends with it
	}
	if m.d.rooted(m.Spec) {
		return m.ownRoot(cfg, dir)
	}
	r, err := newRoot(filepath.Join(m.Dir, rootName), dir)
	if err != nil {
		return err
	}
	if err := r.cover(filepath.Join(m.Dir, etcName), cfg); err != nil {
		return err
	}
	if m.d.host.rootless() {
		cfg.Scratch.Mount = scratchDir
	} else {
		if err := m.prepareSaving(r, dir); err != nil {
			return err
		}
		parts, err := m.MountScratch(launch.UserUID)
		if err != nil {
			return err
		}
		for _, p := range parts {
			r.mounts = append(r.mounts, oci.Mount{Kind: oci.Bind, Source: p.Source, Target: p.Target})
		}
		if err := m.loadFiles(); err != nil {
			return err
		}
	}
	if err := m.user(r); err != nil {
		return err
	}
	m.spec = oci.Spec{Root: r.dir, Mounts: r.mounts, Hostname: cfg.Hostname}
	return nil
}

// user adds the mounts that were asked for.
func (m *maker) user(r *rootMaker) error {
	binds, err := m.d.mounts().Mounts(m.Spec.Mounts)
	if err != nil {
		return err
	}
	m.binds = binds
	for i, b := range binds {
		field := fmt.Sprintf("mounts[%d]", i)
		refuse := func(kind backend.Kind, err error, fix string) error {
			return &backend.Error{Op: "create", Kind: kind, Backend: driverName, Field: field, Err: err, Fix: fix}
		}
		if m.d.host.rootless() && inScratch(b.Target) {
			return refuse(backend.ErrUnsupported, errors.New("without root nothing can be mounted in what the sandbox writes to"),
				"choose a target such as /mnt/data, or run as root")
		}
		if err := r.place(b.Target, b.Dir); err != nil {
			return refuse(backend.ErrInvalid, err, "choose a target such as /mnt/data")
		}
		r.bind(b.Source, b.Target)
		one := oci.Spec{Root: r.dir, Mounts: r.mounts}
		if missing, err := one.Missing(); err != nil || len(missing) > 0 {
			if err == nil {
				err = fmt.Errorf("the root file system has no %s, and none can be made there", b.Target)
			}
			return refuse(backend.ErrInvalid, err, "choose a target such as /mnt/data")
		}
	}
	return nil
}

// inScratch tells whether target lies where the agent mounts the scratch.
func inScratch(target string) bool {
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm", backend.DefaultHome} {
		if target == dir || strings.HasPrefix(target, dir+"/") {
			return true
		}
	}
	return false
}

// runtime makes the directory and the groups that runsc works with.
func (m *maker) runtime() error {
	h := m.d.host
	m.body.cfg = m.d.runtimeConfig(m.Name, m.Dir)
	m.body.cfg.Overlay, m.body.cfg.SUID = m.overlay, m.overlay > 0
	m.Undo(func() {
		ctx, cancel := box.CleanupContext()
		defer cancel()
		m.body.d.remove(ctx, &m.body.cfg, m.body.group, m.Name, m.Dir) //nolint:errcheck // the sweep tries again
	})
	if err := os.Mkdir(m.body.cfg.Dir, 0o700); err != nil {
		return err
	}
	if !h.groups.Usable() {
		return nil
	}
	l := m.Spec.Limits
	g, err := h.groups.New(m.Name, cgroup.Limits{Memory: l.Memory, Pids: h.threads(m.d.cfg.Platform, l.Pids), CPUs: l.CPUs})
	if err != nil {
		return err
	}
	m.body.group = g
	return nil
}

// threads bounds the host's tasks of a sandbox with so many processes: far
// enough away never to be met, since gVisor's kernel crashes there.
func (h host) threads(p Platform, pids int64) int64 {
	each := int64(4)
	if p == PlatformPtrace {
		each = 8
	}
	return max(1024, 256+each*pids)
}

// maxRuntimeDir is how long a runtime directory's path may be, for a socket.
const maxRuntimeDir = 107 - len("/runsc-"+boxID+".sock")

// runtimeConfig is how runsc is called for a sandbox.
func (d *driver) runtimeConfig(name, dir string) runsc.Config {
	own := filepath.Join(dir, runtimeName)
	if len(own) > maxRuntimeDir {
		// Nobody can guess the name, so nobody can have made it before.
		own = filepath.Join("/tmp", name)
	}
	return runsc.Config{ID: boxID, Dir: own, Platform: string(d.cfg.Platform), Rootless: d.host.rootless(), Groups: d.host.joins()}
}

// The agent's own limits. No command's may be above them: it has no capability
// to raise any.
const (
	agentFiles      = 1 << 16
	agentTasks      = 1024
	commandsMemlock = 8 << 20
)

// bundle writes what runsc is started on.
func (m *maker) bundle() (runsc.Start, error) {
	start := runsc.Start{Bundle: filepath.Join(m.Dir, bundleName), Group: m.body.group, Bound: !m.Spec.Keep}
	m.spec.Args = []string{launch.ContainedBinary, boot.Argv0, launch.OverStdio}
	m.spec.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	m.spec.Capabilities = box.AgentCapabilities(m.d.host.rootless())
	if m.overlay > 0 {
		m.spec.Capabilities = rootedCaps()
	}
	m.spec.NoNewPrivileges = m.overlay == 0
	if m.Spec.Network.Mode == backend.NetworkFull {
		m.spec.Capabilities = append(m.spec.Capabilities, box.DeviceCapability)
	}
	m.spec.Rlimits = []oci.Rlimit{
		{Type: "RLIMIT_NOFILE", Value: agentFiles},
		{Type: "RLIMIT_NPROC", Value: uint64(m.Spec.Limits.Pids) + agentTasks},
		{Type: "RLIMIT_MEMLOCK", Value: commandsMemlock},
	}
	if m.d.host.joins() {
		m.spec.CgroupsPath = m.d.host.groupPath(m.Name)
	}
	if m.restores() {
		start.Image = filepath.Join(m.From.Dir, savedImage)
	}
	missing, err := m.spec.Missing()
	if err != nil {
		return start, err
	}
	if len(missing) > 0 {
		return start, fmt.Errorf("the root file system has no %s", missing[0].Path)
	}
	if err := os.Mkdir(start.Bundle, 0o700); err != nil {
		return start, err
	}
	return start, m.spec.Write(start.Bundle)
}

// amend puts into a receipt what this driver alone knows.
func (m *maker) amend(r *backend.Receipt) {
	r.Privileges = string(m.d.host.privilege)
	m.amendRooted(r)
	if _, ok := m.d.host.has("memory"); !ok {
		return
	}
	for i := range r.Limits {
		if r.Limits[i].Control == backend.ControlMemory {
			r.Limits[i].Note = "gVisor's kernel is counted too, about 20 MiB and more with many processes; at the limit the whole sandbox may end"
		}
	}
}

// TakeUp implements box.Driver.
func (d *driver) TakeUp(ctx context.Context, rec state.Record) (*box.Made, error) {
	name, dir := box.Name(d.store, rec.ID), box.Dir(d.store, rec.ID)
	b := &body{d: d, cfg: d.runtimeConfig(name, dir), name: name, dir: dir, sentry: state.Proc{PID: rec.AgentPID, Start: rec.AgentStart}}
	if d.host.groups.Usable() {
		b.group = d.host.groups.Find(name)
	}
	var err error
	if b.binary, err = d.find(ctx); err != nil {
		return nil, err
	}
	return &box.Made{Body: b, Dial: unixsock.Dialer(rec.Socket)}, nil
}

// Orphans implements box.Driver.
func (d *driver) Orphans(context.Context) ([]string, error) {
	prefix := box.Name(d.store, "")
	names := d.host.orphans(prefix)
	dirs, _ := filepath.Glob(filepath.Join("/tmp", prefix+"*"))
	seen := map[string]bool{}
	var ids []string
	for _, name := range append(names, dirs...) {
		id := strings.TrimPrefix(filepath.Base(name), prefix)
		if !seen[id] && backend.ValidID(id) {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Clean implements box.Driver.
func (d *driver) Clean(ctx context.Context, id string, _ state.Mark) error {
	name, dir := box.Name(d.store, id), box.Dir(d.store, id)
	cfg := d.runtimeConfig(name, dir)
	var group *cgroup.Group
	if d.host.groups.Usable() {
		group = d.host.groups.Find(name)
	}
	return d.remove(ctx, &cfg, group, name, dir)
}
