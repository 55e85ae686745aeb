package subprocess

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

// What a sandbox's outer group has on top of the limits asked for: the agent
// lives there, and what it writes for its host is counted there.
const (
	memoryReserve = 64 << 20
	pidsReserve   = 64
)

// handshakeTimeout bounds how long an agent may take to answer.
const handshakeTimeout = 20 * time.Second

// maker makes one sandbox. What it has made so far is undone in reverse order
// when a step fails.
type maker struct {
	ex       *Executor
	asked    backend.Spec // as the caller gave it
	spec     backend.Spec // with defaults
	warnings []string
	binary   *os.File
	began    time.Time

	id     string
	marker *state.Marker
	mark   state.Mark
	hold   *os.File // closed without a byte it ends a kept sandbox
	lease  *state.UIDLease
	token  string // of a kept sandbox's agent
	undo   []func()
}

func (m *maker) make(ctx context.Context) (_ *Sandbox, err error) {
	m.id = newID()
	if m.spec.Keep {
		m.token = newToken()
	}
	defer func() {
		if err != nil {
			for _, v := range slices.Backward(m.undo) {
				v()
			}
			err = m.classify(ctx, err)
		}
	}()
	sb := &Sandbox{ex: m.ex, id: m.id, keep: m.spec.Keep, spec: m.spec, ended: make(chan struct{})}
	if err := m.journal(ctx); err != nil {
		return nil, err
	}
	sb.marker, sb.lease, sb.token = m.marker, m.lease, m.token
	s := &start{binary: m.binary, bound: !m.spec.Keep}
	if m.lease != nil {
		s.baseUID = int(m.lease.Base())
	}
	defer func() {
		for _, f := range append(s.extra, s.conn) {
			if f != nil {
				f.Close() //nolint:errcheck // the child has its own
			}
		}
	}()
	if s.cfg, err = m.config(s); err != nil {
		return nil, err
	}
	if err := m.groups(sb, s); err != nil { //nolint:contextcheck // its undo outlives the caller's context
		return nil, err
	}
	dial, err := m.connection(sb, s)
	if err != nil {
		return nil, err
	}
	spawned := time.Now()
	p, err := m.ex.launcher.run(s)
	if err != nil {
		return nil, err
	}
	// While a copy of its end is open here, an agent's end would not be noticed.
	s.conn.Close()                                                          //nolint:errcheck // the child has its own
	m.undo = append(m.undo, func() { p.kill(); <-p.done; p.pidfd.Close() }) //nolint:errcheck // on the way out
	sb.proc, sb.pid = p, p.pid
	sb.deadline.Store(time.Now().Add(m.spec.Lifetime).UnixNano())
	sb.connect(dial)
	m.undo = append(m.undo, func() { <-sb.disconnect() })
	if err := m.handshake(ctx, sb); err != nil {
		return nil, err
	}
	sb.receipt = m.receipt(sb, spawned)
	if err := m.ready(ctx, sb); err != nil {
		return nil, err
	}
	sb.watch()
	return sb, nil
}

// newID is a fresh sandbox ID: a letter, then 16 of base 32.
func newID() string { return "s" + strings.ToLower(rand.Text())[:16] }

// journal writes down what is about to be made, before it is.
func (m *maker) journal(ctx context.Context) (err error) {
	name := groupName(m.ex.store.ID(), m.id)
	m.mark = state.Mark{Backend: driverName, PID: os.Getpid(), BootID: state.BootID(), Started: m.began, Keep: m.spec.Keep}
	if m.ex.host.groups.Usable() {
		m.mark.Cgroups = []string{name}
	}
	if m.marker, err = m.ex.store.Mark(m.id, m.mark); err != nil {
		return err
	}
	m.undo = append(m.undo, func() { m.marker.Release() }) //nolint:errcheck // the sweep tries again
	if m.ex.host.mode == launch.ModeMapped {
		if m.lease, err = state.LeaseUIDs(""); err != nil {
			return err
		}
		m.undo = append(m.undo, func() { m.lease.Release() }) //nolint:errcheck // a lock that ends with us
	}
	if dir := m.runDir(); dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		m.undo = append(m.undo, func() { tree.Remove(dir) }) //nolint:errcheck // the sweep tries again
	}
	if m.spec.Keep {
		return m.record(ctx)
	}
	return nil
}

// runDir is the sandbox's own directory on the host, "" when it needs none.
func (m *maker) runDir() string {
	if m.spec.Keep || m.ex.host.mode == launch.ModeRestricted || m.ex.host.mode == launch.ModePlain {
		return runDirOf(m.ex.store, m.id)
	}
	return ""
}

func groupName(store, id string) string { return "glovebox-" + store + "-" + id }

// config is what the agent is told.
func (m *maker) config(s *start) (launch.Config, error) {
	l := m.spec.Limits
	mode := m.ex.host.mode
	cfg := launch.Config{
		Protocol: launch.Protocol, Mode: mode, Sandbox: m.id, Hostname: "sandbox", Listen: m.spec.Keep, DeadlineNS: int64(m.spec.Lifetime),
		Root:      launch.Root{Home: backend.DefaultHome},
		Scratch:   launch.Scratch{Bytes: l.Disk, Inodes: l.Inodes},
		Env:       m.spec.Env,
		Token:     m.token,
		NoSeccomp: !m.ex.host.seccomp, NoLandlock: m.ex.host.landlock == 0,
		Rlimits: []launch.Rlimit{
			{Resource: unix.RLIMIT_NOFILE, Value: uint64(l.OpenFiles)},
			{Resource: unix.RLIMIT_CORE, Value: 0},
			{Resource: unix.RLIMIT_FSIZE, Value: m.fileSize()},
			{Resource: unix.RLIMIT_MEMLOCK, Value: 8 << 20},
			{Resource: unix.RLIMIT_MSGQUEUE, Value: 819200},
		},
	}
	if mode != launch.ModePlain {
		cfg.LimitMemory, cfg.LimitCPUs = l.Memory, l.CPUs
	}
	var err error
	if cfg.Root.Dir, err = m.ex.checkRoot(m.spec); err != nil {
		return cfg, err
	}
	if cfg.Root.Dir != "" && mode == launch.ModeMapped {
		f, err := launch.OpenTree(cfg.Root.Dir)
		if err != nil {
			return cfg, &backend.Error{Op: "create", Kind: backend.ErrInvalid, Backend: driverName, Field: "rootfs", Err: err}
		}
		cfg.Root.DirFD = s.add(f)
	}
	if cfg.Root.Dir == "" && (mode == launch.ModeMapped || mode == launch.ModeSingle) {
		etc, hold, err := m.ex.etc(cfg.Root.Home, cfg.Hostname)
		if err != nil {
			return cfg, err
		}
		cfg.Root.Etc = etc
		cfg.HoldFDs = append(cfg.HoldFDs, s.add(hold))
	}
	if mode == launch.ModeRestricted || mode == launch.ModePlain {
		cfg.Scratch.Dir = filepath.Join(m.runDir(), "home")
		cfg.Root.Home = cfg.Scratch.Dir
		if err := os.MkdirAll(cfg.Scratch.Dir, 0o700); err != nil {
			return cfg, err
		}
	}
	if _, ok := m.ex.host.groups.Has("memory"); !ok && mode != launch.ModePlain {
		cfg.MemoryWatch = l.Memory
	}
	if _, ok := m.ex.host.groups.Has("pids"); !ok && mode != launch.ModePlain {
		cfg.Rlimits = append(cfg.Rlimits, launch.Rlimit{Resource: unix.RLIMIT_NPROC, Value: m.processLimit()})
	}
	cfg.Mounts, err = m.binds(s)
	return cfg, err
}

// fileSize is RLIMIT_FSIZE. By default it lies above the disk, so that a file
// which fills it meets ENOSPC and not a signal.
func (m *maker) fileSize() uint64 {
	if m.asked.Limits.FileSize == 0 {
		return uint64(m.spec.Limits.Disk) + 1<<20
	}
	return uint64(m.spec.Limits.FileSize)
}

// processLimit is RLIMIT_NPROC: in a user namespace of its own it counts the
// sandbox's tasks, agent included; without one all of this uid's.
func (m *maker) processLimit() uint64 {
	n := uint64(m.spec.Limits.Pids)
	if m.ex.host.mode == launch.ModeSingle {
		return n + agentThreads
	}
	return n + tasksOf(os.Getuid()) + agentThreads
}

// agentThreads is about how many threads an agent has.
const agentThreads = 16

// tasksOf counts the threads of a uid on this host.
func tasksOf(uid int) uint64 {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	var n uint64
	for _, e := range entries {
		var st unix.Stat_t
		if e.Name()[0] < '0' || e.Name()[0] > '9' || unix.Stat("/proc/"+e.Name(), &st) != nil || int(st.Uid) != uid {
			continue
		}
		tasks, err := os.ReadDir("/proc/" + e.Name() + "/task")
		if err == nil {
			n += uint64(len(tasks))
		}
	}
	return n
}

// groups makes the sandbox's cgroups and opens what the agent needs of them.
func (m *maker) groups(sb *Sandbox, s *start) error {
	if m.spec.Keep {
		held := []*os.File{m.marker.File()}
		if m.lease != nil {
			held = append(held, m.lease.File())
		}
		for _, f := range held {
			second, err := dup(f)
			if err != nil {
				return err
			}
			s.cfg.HoldFDs = append(s.cfg.HoldFDs, s.add(second))
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.cfg.ReadyFD, m.hold = s.add(r), w
		m.undo = append(m.undo, func() { w.Close() }) //nolint:errcheck // on the way out
	}
	if !m.ex.host.groups.Usable() {
		return nil
	}
	l := m.spec.Limits
	g, err := m.ex.host.groups.New(groupName(m.ex.store.ID(), m.id), cgroup.Limits{
		Memory: l.Memory, MemoryReserve: memoryReserve, Pids: l.Pids, PidsReserve: pidsReserve, CPUs: l.CPUs,
	})
	if err != nil {
		return err
	}
	sb.group, s.group = g, g
	m.undo = append(m.undo, func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		g.Remove(ctx) //nolint:errcheck // the sweep tries again
	})
	joins, err := g.JoinFiles()
	if err != nil {
		return err
	}
	for _, f := range joins {
		s.cfg.JoinFDs = append(s.cfg.JoinFDs, s.add(f))
	}
	if m.ex.host.mode == launch.ModeMapped {
		dir, err := g.Delegate(s.baseUID + launch.AgentUID)
		if err != nil {
			return err
		}
		if dir != nil {
			s.cfg.GroupFD = s.add(dir)
		}
	}
	return nil
}

// dup is a second descriptor of the same open file, so that both can be closed.
func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// connection makes what the agent serves on: one end of a socket pair for a
// bound sandbox, a listening socket in a private directory for a kept one.
func (m *maker) connection(sb *Sandbox, s *start) (dial func(context.Context) (net.Conn, error), err error) {
	if !m.spec.Keep {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		s.conn = os.NewFile(uintptr(fds[1]), "agent")
		ours := os.NewFile(uintptr(fds[0]), "host")
		defer ours.Close() //nolint:errcheck // duplicated by FileConn
		conn, err := net.FileConn(ours)
		if err != nil {
			return nil, errors.Join(err, s.conn.Close())
		}
		sb.conn = conn
		m.undo = append(m.undo, func() { conn.Close() }) //nolint:errcheck // on the way out
		return once(conn), nil
	}
	l, err := listenIn(m.runDir(), "agent.sock")
	if err != nil {
		return nil, err
	}
	s.conn = l
	return dialer(filepath.Join(m.runDir(), "agent.sock")), nil
}

// once hands out a connection that cannot be made again.
func once(conn net.Conn) func(context.Context) (net.Conn, error) {
	ch := make(chan net.Conn, 1)
	ch <- conn
	return func(context.Context) (net.Conn, error) {
		select {
		case c := <-ch:
			return c, nil
		default:
			return nil, errors.New("the connection to the agent has ended")
		}
	}
}

// handshake reads what the agent measured and refuses a sandbox that is not
// what was asked for.
func (m *maker) handshake(ctx context.Context, sb *Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	line, err := sb.proc.errs.first(ctx)
	if err != nil {
		return err
	}
	var hello launch.Hello
	if err := json.Unmarshal(line, &hello); err != nil {
		// It says nothing else while it lives.
		sb.proc.kill()
		<-sb.proc.done
		return fmt.Errorf("the agent ended: %s", sanitize(string(line)+sb.proc.errs.words()))
	}
	sb.kernel = m.ex.host.kernel
	h := m.ex.host
	spaces := h.mode == launch.ModeMapped || h.mode == launch.ModeSingle
	switch {
	case h.mode == launch.ModePlain:
	case spaces && hello.PID != 1:
		return errors.New("the agent is not the first process of a pid namespace")
	case !hello.Seccomp || !hello.NoNewPrivs:
		return errors.New("the agent has no system call filter")
	case h.landlock > 0 && hello.LandlockABI == 0:
		return errors.New("the agent has no Landlock domain")
	}
	return nil
}

// sanitize bounds what a dying agent said. It is ours, but ran where user code
// runs.
func sanitize(s string) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s))
	if s == "" {
		return "it said nothing"
	}
	return s[:min(len(s), 600)]
}

// classify turns a failed step into the error Create returns.
func (m *maker) classify(ctx context.Context, err error) error {
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	var be *backend.Error
	if errors.As(err, &be) && be.Kind != backend.ErrLost {
		return err
	}
	e := &backend.Error{Op: "create", Kind: backend.ErrUnavailable, Backend: driverName, Err: err}
	switch {
	case errors.Is(err, unix.EPERM) && m.ex.host.mode == launch.ModeSingle:
		e.Fix = "unprivileged user namespaces are restricted here; run `glovebox doctor`"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.EAGAIN):
		e.Kind, e.Fix = backend.ErrCapacity, "end some sandboxes, or raise the host's limits"
	}
	return e
}
