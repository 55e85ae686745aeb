//go:build linux

package dockerbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/agent/boot"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

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
		Hostname: box.Hostname, CapAdd: box.AgentCapabilities(false), Seccomp: profile, Runtime: m.d.o.Runtime,
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
	if m.d.o.Remote {
		m.farFiles(&c)
		return c, m.scratch(&c)
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
	if m.Spec.Network.Mode == backend.NetworkFull {
		files["resolv.conf"] = []byte(launch.FullResolvConf)
		m.device(c)
	}
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
