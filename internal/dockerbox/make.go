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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/keeper"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// Directories in a sandbox's own.
const (
	runName = "run" // launch.ContainedDir inside
	etcName = "etc" // files that are mounted over the image's
)

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
	account  string        // that commands run as, as the image says
	slot     *os.File      // holds the uids that it has on an engine elsewhere; nil when they are shared
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
	if m.account, err = d.account(b.Spec, m.img); err != nil {
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
	if d.o.Remote {
		return m.far(ctx)
	}
	c, err := m.container()
	if err != nil {
		return nil, err
	}
	return m.start(ctx, c)
}

// identities chooses the uids of user and agent.
func (m *maker) identities() {
	mapped := m.info.UsernsRemap || m.info.Rootless
	m.hostDisk = os.Geteuid() == 0 && !mapped && !m.d.o.Remote
	base := 0
	switch {
	case mapped || m.d.o.Sentry:
	case m.d.o.Remote:
		base = farUIDs(m.Store.ID(), 0)
	case m.Lease != nil:
		base = int(m.Lease.Base())
	default:
		// Nothing is leased without root. That two sandboxes have the same is
		// unlikely, and own_uid is not claimed then.
		base = 1<<28 + rand.IntN(1<<12)<<16
	}
	m.user, m.agent = base+launch.UserUID, base+launch.AgentUID
}

// start makes the container, starts it and greets its agent.
func (m *maker) start(ctx context.Context, c engine.Container) (*box.Made, error) {
	b := &body{d: m.d, name: m.Name, dir: m.Dir}
	var l *net.UnixListener
	if !m.d.o.Stdio {
		var err error
		if l, err = unixsock.Listen(filepath.Join(m.Dir, runName), launch.HostSocket, 0o666); err != nil {
			return nil, err
		}
		defer l.Close() //nolint:errcheck // one connection is all there is
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
	if m.d.o.Sentry {
		box.SentryRlimits(cfg, m.Spec.Limits.Pids)
	} else if m.Lease != nil || m.slot != nil {
		cfg.Rlimits = append(cfg.Rlimits, launch.Rlimit{Resource: unix.RLIMIT_NPROC, Value: uint64(m.Spec.Limits.Pids)})
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
		Amend: m.amend, User: m.account, Dir: m.img.Dir,
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
		made.Dial = unixsock.Dialer(filepath.Join(m.Dir, runName, launch.AgentSocket))
		made.Commit = func() error { return box.Commit(conn) }
		return made, nil
	}
	made.Conn, made.Dial = conn, unixsock.Once(conn)
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
	cred, err := unixsock.Peer(c)
	if err != nil {
		return state.Proc{}, err
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
