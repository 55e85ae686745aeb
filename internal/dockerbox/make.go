//go:build linux

package dockerbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/agent/boot"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/keeper"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// Directories in a sandbox's own.
const (
	runName = "run" // launch.ContainedDir inside
	etcName = "etc" // files that are mounted over the image's
)

// agentCaps are what the agent starts with; most of it goes before it serves.
func agentCaps() []string {
	return []string{"CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL", "CAP_CHOWN", "CAP_DAC_OVERRIDE"}
}

// maker makes one sandbox.
type maker struct {
	*box.Birth
	d        *Driver
	info     engine.Info
	img      chosen
	user     int // uids inside, which without a user namespace are the host's
	agent    int
	hostDisk bool          // the scratch is a tmpfs of the host's
	binds    []launch.Bind // the caller's mounts
	binary   string        // the agent's
}

// Make implements box.Driver.
func (d *Driver) Make(ctx context.Context, b *box.Birth) (*box.Made, error) {
	info, err := d.usable(ctx)
	if err != nil {
		return nil, err
	}
	m := &maker{Birth: b, d: d, info: info}
	if m.img, err = d.image(ctx, b.Spec.Template, true); err != nil {
		return nil, err
	}
	warning, err := d.runtimeWarning(info, m.img, b.Spec.Strict)
	if err != nil {
		return nil, err
	}
	if warning != "" {
		b.Warnings = append(b.Warnings, warning)
	}
	m.identities()
	c, err := m.container()
	if err != nil {
		return nil, err
	}
	return m.start(ctx, c)
}

// identities chooses the uids of user and agent.
func (m *maker) identities() {
	mapped := m.info.UsernsRemap || m.info.Rootless
	m.hostDisk = os.Geteuid() == 0 && !mapped
	base := 0
	switch {
	case mapped || m.d.o.Sentry:
	case m.Lease != nil:
		base = int(m.Lease.Base())
	default:
		// Nothing is leased without root. That two sandboxes have the same is
		// unlikely, and own_uid is not claimed then.
		base = 1<<28 + rand.IntN(1<<12)<<16
	}
	m.user, m.agent = base+launch.UserUID, base+launch.AgentUID
}

// container is what the engine is asked for.
func (m *maker) container() (engine.Container, error) {
	l := m.Spec.Limits
	profile, err := m.d.seccomp()
	if err != nil {
		return engine.Container{}, err
	}
	way := launch.OverSocket
	if m.d.o.Stdio {
		way = launch.OverStdio
	}
	c := engine.Container{
		Name: m.Name, Image: m.img.ID, Args: []string{launch.ContainedBinary, boot.Argv0, way},
		Labels:   map[string]string{labelStore: m.Store.ID(), labelSandbox: m.ID, labelDriver: m.d.o.Name},
		Hostname: box.Hostname, CapAdd: agentCaps(), Seccomp: profile, Runtime: m.d.o.Runtime,
		Memory: l.Memory, CPUs: l.CPUs, PIDs: l.Pids + m.d.o.PidsReserve,
		Stdio: m.d.o.Stdio, StdinOnce: m.d.o.Stdio && !m.Spec.Keep,
		Env: withoutVariables(m.img.Env), Sysctls: map[string]string{},
	}
	if !m.d.o.Sentry {
		// Security: what of /proc and /sys tells about the host, and a kind of
		// socket that engines open to everybody.
		c.Masked = launch.MaskedPaths()
		c.Sysctls["net.ipv4.ping_group_range"] = "1 0"
	} else {
		// gVisor's own hard limits are lower than what the agent sets, and
		// raising one takes a capability that it does not have.
		c.Ulimits = ulimits(m.config().Rlimits)
	}
	if m.binary, err = box.FindAgent(m.d.o.Name, m.d.o.Agent); err != nil {
		return c, err
	}
	c.Binds = append(c.Binds, engine.Bind{Source: m.binary, Target: launch.ContainedBinary})
	for _, step := range []func(*engine.Container) error{m.shared, m.accounts, m.scratch, m.mounts} {
		if err := step(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// withoutVariables leaves an image's variables out.
//
// Security: the agent's own runtime, like any program's, obeys some of them.
// Programs get them from the agent.
func withoutVariables(env []string) (names []string) {
	for _, v := range env {
		if name, _, _ := strings.Cut(v, "="); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// ulimits are those of the commands' limits that the container must have, so that
// the agent can set them.
func ulimits(limits []launch.Rlimit) (out []engine.Ulimit) {
	names := map[int]string{unix.RLIMIT_MEMLOCK: "memlock"}
	for _, l := range limits {
		if name, ok := names[l.Resource]; ok {
			out = append(out, engine.Ulimit{Name: name, Soft: int64(l.Value), Hard: int64(l.Value)})
		}
	}
	return out
}

// shared is the directory that agent and launcher share.
//
// Security: until the agent has said hello everybody inside may enter it, and
// nothing runs inside but the agent; from then on nobody inside does.
func (m *maker) shared(c *engine.Container) error {
	if m.d.o.Stdio {
		return nil
	}
	dir := filepath.Join(m.Dir, runName)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return err
	}
	c.Binds = append(c.Binds, engine.Bind{Source: dir, Target: launch.ContainedDir, Writable: true})
	return nil
}

// closeShared lets nobody inside enter the shared directory any more: root
// inside is the owner neither of root's nor of another user's.
func (m *maker) closeShared() error {
	dir := filepath.Join(m.Dir, runName)
	if os.Geteuid() == 0 {
		owner := m.agent
		if m.info.UsernsRemap {
			owner = 0 // nobody's inside
		}
		if err := os.Chown(dir, owner, -1); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o700)
}

// accounts are files over the image's own: its accounts, with user as the uid
// that only this sandbox has, and what names the machine.
func (m *maker) accounts(c *engine.Container) error {
	files := launch.MachineFiles(box.Hostname)
	if m.Spec.Network.Mode == backend.NetworkAllowlist {
		files["resolv.conf"] = []byte(launch.EgressResolvConf)
		// The agent answers where programs expect it: the names of its own
		// network namespace.
		c.Sysctls["net.ipv4.ip_unprivileged_port_start"] = "0"
	}
	files["passwd"], files["group"] = launch.Accounts(backend.DefaultHome, m.user)
	dir := filepath.Join(m.Dir, etcName)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
		c.Binds = append(c.Binds, engine.Bind{Source: path, Target: "/etc/" + name})
	}
	return nil
}

// scratch is what can be written: one tmpfs for all of it where this process
// can mount one, else one for each place, which together have the limit.
func (m *maker) scratch(c *engine.Container) error {
	if m.hostDisk {
		parts, err := m.MountScratch(m.user)
		if err != nil {
			return err
		}
		for _, p := range parts {
			c.Binds = append(c.Binds, engine.Bind{Source: p.Source, Target: p.Target, Writable: true})
		}
		return nil
	}
	c.Tmpfs = map[string]string{}
	for target, share := range map[string]struct {
		part int64
		opts string
	}{
		backend.DefaultHome: {2, fmt.Sprintf("mode=755,uid=%d,gid=%d", m.user, m.user)},
		"/tmp":              {4, "mode=1777"},
		"/var/tmp":          {8, "mode=1777"},
		"/dev/shm":          {8, "mode=1777"},
	} {
		c.Tmpfs[target] = fmt.Sprintf("rw,exec,nosuid,nodev,size=%d,nr_inodes=%d,%s",
			m.Spec.Limits.Disk/share.part, max(m.Spec.Limits.Inodes/share.part, 16), share.opts)
	}
	return nil
}

// mounts are the caller's.
func (m *maker) mounts(c *engine.Container) (err error) {
	m.binds, err = m.d.mounts().Mounts(m.Spec.Mounts)
	for _, b := range m.binds {
		c.Binds = append(c.Binds, engine.Bind{Source: b.Source, Target: b.Target})
	}
	return err
}

// start makes the container, starts it and greets its agent.
func (m *maker) start(ctx context.Context, c engine.Container) (*box.Made, error) {
	b := &body{d: m.d, name: m.Name, dir: m.Dir}
	var l *net.UnixListener
	if !m.d.o.Stdio {
		var err error
		if l, err = box.ListenIn(filepath.Join(m.Dir, runName), launch.HostSocket); err != nil {
			return nil, err
		}
		defer l.Close() //nolint:errcheck // one connection is all there is
		if err := os.Chmod(filepath.Join(m.Dir, runName, launch.HostSocket), 0o666); err != nil {
			return nil, err
		}
	}
	m.Undo(func() { //nolint:contextcheck // an undo outlives the caller's context
		ctx, cancel := box.CleanupContext()
		defer cancel()
		b.undo(ctx)
	})
	made, err := m.create(ctx, c)
	b.id = made.ID
	if err != nil {
		return nil, err
	}
	for _, w := range made.Warnings {
		m.Warnings = append(m.Warnings, "engine: "+w)
	}
	conn, err := m.run(ctx, b, l)
	if err != nil {
		return nil, err
	}
	m.Undo(func() { conn.Close() }) //nolint:errcheck // on the way out
	cfg := m.config()
	hello, err := box.Greet(ctx, conn, cfg)
	if err != nil {
		return nil, m.explain(b, err) //nolint:contextcheck // its look has a deadline of its own
	}
	if os.Geteuid() == 0 && !m.d.o.Sentry {
		if err := m.verify(b.proc.PID); err != nil {
			return nil, err
		}
	}
	if m.d.o.Sentry && !hello.Sentry {
		return nil, m.d.refuse(backend.ErrUnavailable, "runtime", fmt.Sprintf("the kernel in it is not gVisor's but calls itself %s", box.Sanitize(hello.Kernel)), "make the runtime runsc")
	}
	return m.made(b, conn, hello)
}

// lateAnswer is how long the answer of an engine is waited for that nobody
// needs but to undo what it has done.
const lateAnswer = 5 * time.Second

// create makes the container. An engine goes on making it though the call is
// given up, and then it cannot be removed yet: so the answer is waited for.
func (m *maker) create(ctx context.Context, c engine.Container) (engine.Created, error) {
	type answer struct {
		made engine.Created
		err  error
	}
	if err := ctx.Err(); err != nil {
		return engine.Created{}, err
	}
	held, give := context.WithCancel(context.WithoutCancel(ctx))
	defer give()
	done := make(chan answer, 1)
	go func() {
		made, err := m.d.engine.Create(held, c)
		done <- answer{made, err}
	}()
	select {
	case a := <-done:
		return a.made, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-done:
		return a.made, ctx.Err()
	case <-time.After(lateAnswer):
		give()
		return (<-done).made, ctx.Err()
	}
}

// run starts the container and connects to its agent.
func (m *maker) run(ctx context.Context, b *body, l *net.UnixListener) (net.Conn, error) {
	if l == nil {
		s, err := m.d.engine.Attach(ctx, b.id)
		if err != nil {
			return nil, err
		}
		if err := m.d.engine.Start(ctx, b.id); err != nil {
			s.Close() //nolint:errcheck // on the way out
			return nil, m.withoutPaths(err)
		}
		st, err := m.d.engine.Inspect(ctx, b.id)
		if err == nil {
			b.proc, err = procOf(st.PID)
		}
		if err != nil {
			s.Close() //nolint:errcheck // on the way out
			return nil, err
		}
		return s, nil
	}
	// The agent may be there before the engine has said that it is.
	if err := m.d.engine.Start(ctx, b.id); err != nil {
		return nil, m.withoutPaths(err)
	}
	conn, err := m.accept(ctx, b, l)
	if err != nil {
		return nil, err
	}
	if b.proc, err = peer(conn); err != nil {
		conn.Close() //nolint:errcheck // on the way out
		return nil, err
	}
	return conn, nil
}

// withoutPaths takes paths of this host out of a runtime's words.
func (m *maker) withoutPaths(err error) error {
	be, ok := errors.AsType[*backend.Error](err)
	if !ok || be.Err == nil {
		return err
	}
	pairs := []string{m.Store.Dir(), "(state)", m.binary, "(agent)"}
	if m.info.RootDir != "" {
		pairs = append(pairs, m.info.RootDir, "(engine)")
	}
	out := *be
	out.Err = errors.New(strings.NewReplacer(pairs...).Replace(be.Err.Error()))
	return &out
}

// accept waits for the agent, which also may end.
func (m *maker) accept(ctx context.Context, b *body, l *net.UnixListener) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, box.HandshakeTimeout)
	defer cancel()
	ended := m.d.engine.Watch(ctx, b.id)
	got := make(chan struct {
		net.Conn
		error
	}, 1)
	go func() {
		c, err := l.Accept()
		got <- struct {
			net.Conn
			error
		}{c, err}
	}()
	select {
	case g := <-got:
		return g.Conn, g.error
	case end := <-ended:
		l.Close() //nolint:errcheck // it ends the other one
		if g := <-got; g.error == nil {
			g.Conn.Close() //nolint:errcheck // too late
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the agent did not come: %w", ctx.Err())
		}
		return nil, fmt.Errorf("the container ended at once: %s", ending(end))
	}
}

// explain says why an agent ended that did not say so itself.
func (m *maker) explain(b *body, err error) error {
	if o := b.Why(); o.Words != "" {
		return fmt.Errorf("%w: %s", err, o.Words)
	}
	return err
}

// config is what the agent is told.
func (m *maker) config() *launch.Config {
	cfg := m.Contained(m.user, m.agent)
	cfg.Listen = m.Spec.Keep && !m.d.o.Stdio
	cfg.NoLandlock = m.d.o.NoLandlock
	// The image's own variables, below the caller's.
	env := map[string]string{}
	for _, v := range m.img.Env {
		if k, v, ok := strings.Cut(v, "="); ok && k != "" && k != "HOME" {
			env[k] = v
		}
	}
	maps.Copy(env, m.Spec.Env)
	cfg.Env = env
	pids := m.Spec.Limits.Pids
	if m.d.o.Sentry {
		// gVisor knows no such limit, and lets one process more through than the
		// limit of processes says.
		cfg.Rlimits = slices.DeleteFunc(cfg.Rlimits, func(r launch.Rlimit) bool { return r.Resource == unix.RLIMIT_MSGQUEUE })
		pids = max(pids-1, 1)
	}
	if m.Lease != nil || m.d.o.Sentry {
		cfg.Rlimits = append(cfg.Rlimits, launch.Rlimit{Resource: unix.RLIMIT_NPROC, Value: uint64(pids)})
	}
	return cfg
}

// made hands the sandbox over.
func (m *maker) made(b *body, conn net.Conn, hello launch.Hello) (*box.Made, error) {
	groups, err := engine.HostGroups(b.id, b.proc.PID)
	if err == nil {
		b.groups = &groups
	}
	made := &box.Made{
		Body: b, Proc: b.proc, Detached: m.Spec.Keep, Kernel: hello.Kernel, Achieved: m.d.o.Capabilities.Isolation,
		Amend: m.amend,
	}
	if !m.d.o.Stdio {
		if err := m.closeShared(); err != nil {
			return nil, err
		}
		os.Remove(filepath.Join(m.Dir, runName, launch.HostSocket)) //nolint:errcheck // nobody listens there any more
	}
	if stream, ok := conn.(*engine.Stream); ok && m.Spec.Keep {
		d, err := stream.Detach()
		if err != nil {
			return nil, err
		}
		made.Stream = &keeper.Stream{
			Files: []*os.File{d.File}, Framing: keeper.DockerAttach, Ahead: d.Ahead, Left: d.Left, LeftError: d.LeftError,
		}
		return made, nil
	}
	if m.Spec.Keep {
		made.Dial = box.Dialer(filepath.Join(m.Dir, runName, launch.AgentSocket))
		made.Commit = func() error { return box.Commit(conn) }
		return made, nil
	}
	made.Conn, made.Dial = conn, box.Once(conn)
	return made, nil
}

// amend puts into a receipt what this driver alone knows.
func (m *maker) amend(r *backend.Receipt) {
	r.Privileges = "engine " + m.info.Version
	if m.info.Rootless {
		r.Privileges += ", rootless"
	}
	if m.info.UsernsRemap {
		r.Privileges += ", user namespace"
	}
	if m.info.Runc != "" && !m.d.o.Sentry {
		r.Privileges += ", runc " + m.info.Runc
	}
	note := func(c backend.Control, text string) {
		for i := range r.Limits {
			if r.Limits[i].Control == c {
				r.Limits[i].Note = text
			}
		}
	}
	note(backend.ControlMemory, "the agent is counted in")
	if !m.hostDisk {
		note(backend.ControlDisk, "half of it in the home directory, a quarter in /tmp, an eighth each in /var/tmp and /dev/shm")
		note(backend.ControlInodes, "shared out like the disk")
	}
	r.Timings["container"] = time.Since(m.Began)
}

// peer is the process at the other end of a Unix socket.
func peer(c net.Conn) (state.Proc, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return state.Proc{}, fmt.Errorf("the agent's connection is a %T", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return state.Proc{}, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return state.Proc{}, err
	}
	if cerr != nil {
		return state.Proc{}, cerr
	}
	return procOf(int(cred.Pid))
}

func procOf(pid int) (state.Proc, error) {
	start, err := state.StartTime(pid)
	if err != nil {
		return state.Proc{}, fmt.Errorf("the agent has gone: %w", err)
	}
	return state.Proc{PID: pid, Start: start}, nil
}
