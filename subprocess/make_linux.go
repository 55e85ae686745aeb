package subprocess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// What a sandbox's outer group has on top of the limits asked for: the agent
// lives there, and what it writes for its host is counted there.
const (
	memoryReserve = 64 << 20
	pidsReserve   = 64
)

// maker makes one sandbox.
type maker struct {
	d *driver
	*box.Birth
	hold *os.File // closed without a byte it ends a kept sandbox
}

// Make implements box.Driver.
func (d *driver) Make(ctx context.Context, b *box.Birth) (*box.Made, error) {
	binary, err := d.agent()
	if err != nil {
		return nil, err
	}
	m := &maker{d: d, Birth: b}
	made, err := m.make(ctx, binary)
	if errors.Is(err, unix.EPERM) && d.host.mode == launch.ModeSingle && backend.KindOf(err) == "" {
		return nil, box.Unavailable(driverName, "unprivileged user namespaces are restricted here; run `glovebox doctor`", "%w", err)
	}
	return made, err
}

func (m *maker) make(ctx context.Context, binary *os.File) (_ *box.Made, err error) {
	s := &start{binary: binary, bound: !m.Spec.Keep}
	if m.Lease != nil {
		s.baseUID = int(m.Lease.Base())
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
	body := &body{d: m.d}
	if err := m.groups(body, s); err != nil { //nolint:contextcheck // its undo outlives the caller's context
		return nil, err
	}
	made := &box.Made{Body: body.freezable(), Kernel: m.d.host.kernel, Amend: m.amend}
	if err := m.connection(made, s); err != nil {
		return nil, err
	}
	p, err := m.d.launcher.run(s)
	if err != nil {
		return nil, err
	}
	// While a copy of its end is open here, an agent's end would not be noticed.
	s.conn.Close()                                         //nolint:errcheck // the child has its own
	m.Undo(func() { p.kill(); <-p.done; p.pidfd.Close() }) //nolint:errcheck // on the way out
	body.child = p
	if err := m.handshake(ctx, p); err != nil {
		return nil, err
	}
	return made, m.outlive(made, p)
}

// outlive says which process a sweep has to end, where one that outlives its
// creator can be left, and how a kept sandbox is let go.
func (m *maker) outlive(made *box.Made, p *process) error {
	spaces := m.d.host.mode == launch.ModeMapped || m.d.host.mode == launch.ModeSingle
	if !m.Spec.Keep && spaces {
		return nil // dies with its creator
	}
	start, err := state.StartTime(p.pid)
	if err != nil {
		return fmt.Errorf("the agent has gone: %w", err)
	}
	made.Proc = state.Proc{PID: p.pid, Start: start}
	if m.Spec.Keep {
		made.Commit = func() error {
			if _, err := m.hold.Write([]byte{1}); err != nil {
				return fmt.Errorf("the agent has gone: %w", err)
			}
			return m.hold.Close()
		}
	}
	return nil
}

// config is what the agent is told.
func (m *maker) config(s *start) (launch.Config, error) {
	l := m.Spec.Limits
	mode := m.d.host.mode
	cfg := launch.Config{
		Protocol: launch.Protocol, Mode: mode, Sandbox: m.ID, Hostname: box.Hostname, Listen: m.Spec.Keep, DeadlineNS: int64(m.Spec.Lifetime),
		Root:      launch.Root{Home: backend.DefaultHome},
		Scratch:   launch.Scratch{Bytes: l.Disk, Inodes: l.Inodes},
		Env:       m.Spec.Env,
		Token:     m.Token,
		Egress:    m.Spec.Network.Mode == backend.NetworkAllowlist,
		Full:      m.Spec.Network.Mode == backend.NetworkFull && mode != launch.ModePlain,
		NoSeccomp: !m.d.host.seccomp, NoLandlock: m.d.host.landlock == 0,
		Rlimits: box.Rlimits(m.Asked, m.Spec),
	}
	if mode != launch.ModePlain {
		cfg.LimitMemory, cfg.LimitCPUs = l.Memory, l.CPUs
	}
	if err := m.device(s, &cfg); err != nil {
		return cfg, err
	}
	var err error
	if cfg.Root.Dir, err = m.d.checkRoot(m.Spec); err != nil {
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
		etc, hold, err := m.d.etc(cfg.Root.Home, cfg.Hostname)
		if err != nil {
			return cfg, err
		}
		cfg.Root.Etc = etc
		cfg.HoldFDs = append(cfg.HoldFDs, s.add(hold))
	}
	if mode == launch.ModeRestricted || mode == launch.ModePlain {
		cfg.Scratch.Dir = filepath.Join(m.Dir, "home")
		cfg.Root.Home = cfg.Scratch.Dir
		if err := os.MkdirAll(cfg.Scratch.Dir, 0o700); err != nil {
			return cfg, err
		}
	}
	if _, ok := m.d.host.groups.Has("memory"); !ok && mode != launch.ModePlain {
		cfg.MemoryWatch = l.Memory
	}
	if _, ok := m.d.host.groups.Has("pids"); !ok && mode != launch.ModePlain {
		cfg.Rlimits = append(cfg.Rlimits, launch.Rlimit{Resource: unix.RLIMIT_NPROC, Value: m.processLimit()})
	}
	cfg.Mounts, err = m.binds(s)
	return cfg, err
}

// processLimit is RLIMIT_NPROC: in a user namespace of its own it counts the
// sandbox's tasks, agent included; without one all of this uid's.
func (m *maker) processLimit() uint64 {
	n := uint64(m.Spec.Limits.Pids)
	if m.d.host.mode == launch.ModeSingle {
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
func (m *maker) groups(body *body, s *start) error {
	if m.Spec.Keep {
		held := []*os.File{m.Marker.File()}
		if m.Lease != nil {
			held = append(held, m.Lease.File())
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
		m.Undo(func() { w.Close() }) //nolint:errcheck // on the way out
	}
	if !m.d.host.groups.Usable() {
		return nil
	}
	l := m.Spec.Limits
	g, err := m.d.host.groups.New(m.Name, cgroup.Limits{
		Memory: l.Memory, MemoryReserve: memoryReserve, Pids: l.Pids, PidsReserve: pidsReserve, CPUs: l.CPUs,
	})
	if err != nil {
		return err
	}
	body.group, s.group = g, g
	m.Undo(func() {
		ctx, cancel := box.CleanupContext()
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
	if m.d.host.mode == launch.ModeMapped {
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
func (m *maker) connection(made *box.Made, s *start) error {
	if m.Spec.Keep {
		l, err := unixsock.Listen(m.Dir, box.Socket, 0o600)
		if err != nil {
			return err
		}
		defer l.Close() //nolint:errcheck // duplicated
		made.Dial = unixsock.Dialer(filepath.Join(m.Dir, box.Socket))
		s.conn, err = l.File()
		return err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.conn = os.NewFile(uintptr(fds[1]), "agent")
	ours := os.NewFile(uintptr(fds[0]), "host")
	defer ours.Close() //nolint:errcheck // duplicated by FileConn
	conn, err := net.FileConn(ours)
	if err != nil {
		return err
	}
	made.Conn, made.Dial = conn, unixsock.Once(conn)
	m.Undo(func() { conn.Close() }) //nolint:errcheck // on the way out
	return nil
}

// handshake reads what the agent measured and refuses a sandbox that is not
// what was asked for.
func (m *maker) handshake(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, box.HandshakeTimeout)
	defer cancel()
	line, err := p.errs.first(ctx)
	if err != nil {
		return err
	}
	var hello launch.Hello
	if err := json.Unmarshal(line, &hello); err != nil {
		// It says nothing else while it lives.
		p.kill()
		<-p.done
		return fmt.Errorf("the agent ended: %s", box.Sanitize(string(line)+p.errs.words()))
	}
	h := m.d.host
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
