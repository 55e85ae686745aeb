package gvisor

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/oci"
)

// rooted tells whether sandboxes of spec have a root with capabilities.
func (d *driver) rooted(spec backend.Spec) bool {
	return spec.Template != "" && slices.Contains(d.cfg.RootTemplates, spec.Template)
}

// rootedCapabilities are what is claimed of a sandbox whose root has
// capabilities: what only other accounts are held to is no longer enforced.
func (d *driver) rootedCapabilities() backend.Capabilities {
	caps := d.caps
	caps.Claims = maps.Clone(caps.Claims)
	maps.Copy(caps.Claims, map[backend.Control]backend.Claim{
		backend.ControlPrivileges: box.Missing("the template asks for a root with capabilities, inside gVisor's kernel alone"),
		backend.ControlReadOnly:   box.Missing("the template asks for a root that can be written; the image stays as it is"),
		backend.ControlDisk:       box.Enforced("size of gVisor's overlay, in memory"),
		backend.ControlInodes:     box.Missing("gVisor's overlay does not limit the number of files; the memory limit does"),
		backend.ControlSyscalls:   box.Enforced("gVisor's kernel"),
		backend.ControlPids: box.BestEffort("RLIMIT_NPROC of each account, in gVisor's kernel",
			"root can be many accounts; the host's limit on gVisor's threads ends such a sandbox"),
		backend.ControlAgent: box.BestEffort("own uid, not dumpable, no CAP_SYS_PTRACE inside",
			"what root inside makes of its sandbox's agent is said by that sandbox alone; an agent that is gone ends it"),
	})
	return caps
}

// refuseRooted refuses what a root with capabilities does not allow.
func (d *driver) refuseRooted(asked backend.Spec) error {
	if !d.rooted(asked) {
		return nil
	}
	_, _, err := d.rootedCapabilities().Admit(driverName, asked)
	return err
}

// ownRoot has the sandbox's root be the image's with an overlay of its own,
// which gVisor's kernel keeps, so that nothing of what is written there, owners,
// modes and device nodes included, is ever the host's.
func (m *maker) ownRoot(cfg *launch.Config, image string) error {
	cfg.RootCaps, cfg.NoSeccomp = launch.RootCapabilities(), true
	r := &rootMaker{dir: image, path: image, shared: true, mounts: []oci.Mount{
		{Kind: oci.Proc, Target: "/proc"},
		{Kind: oci.Sysfs, Target: "/sys", ReadOnly: true},
		{Kind: oci.Tmpfs, Target: "/dev", Devices: true},
	}}
	if err := m.user(r); err != nil {
		return err
	}
	m.spec = oci.Spec{Root: image, Writable: true, Mounts: r.mounts, Hostname: cfg.Hostname}
	m.overlay = m.Spec.Limits.Disk
	return nil
}

// rootedCaps are what the agent of such a sandbox starts with: what it needs,
// what it gives to others, and to mount.
func rootedCaps() []string {
	caps := box.AgentCapabilities(true)
	for _, c := range []struct {
		bit  uint
		name string
	}{
		{unix.CAP_FSETID, "CAP_FSETID"},
		{unix.CAP_FOWNER, "CAP_FOWNER"},
		{unix.CAP_MKNOD, "CAP_MKNOD"},
		{unix.CAP_SETFCAP, "CAP_SETFCAP"},
		{unix.CAP_NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"},
		{unix.CAP_SYS_CHROOT, "CAP_SYS_CHROOT"},
		{unix.CAP_AUDIT_WRITE, "CAP_AUDIT_WRITE"},
	} {
		if launch.RootCapabilities()&(1<<c.bit) != 0 {
			caps = append(caps, c.name)
		}
	}
	return caps
}

// amendRooted puts into a receipt what such a sandbox really has.
func (m *maker) amendRooted(r *backend.Receipt) {
	if m.overlay == 0 {
		return
	}
	caps := m.d.rootedCapabilities()
	own := caps.Receipt(m.Asked, m.Spec)
	r.Controls, r.Limits = own.Controls, own.Limits
	if _, warnings, err := caps.Admit(driverName, m.Asked); err == nil {
		for _, w := range warnings {
			if !slices.Contains(r.Warnings, w) {
				r.Warnings = append(r.Warnings, w)
			}
		}
	}
}
