// Package subprocess runs sandboxes as locked-down child processes of this
// host: namespaces, cgroups, seccomp and Landlock, with nothing but the kernel
// needed. How much of that a host and a user can have is measured, and decides
// the isolation level: process with namespaces, restricted without.
package subprocess

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

// Privilege is how the backend itself may work on this host.
type Privilege string

// The privileges, strongest containment first.
const (
	PrivilegeAuto       Privilege = ""           // the strongest this process can have
	PrivilegeRoot       Privilege = "root"       // namespaces, cgroups, a host uid range per sandbox
	PrivilegeUserns     Privilege = "userns"     // namespaces of an unprivileged user
	PrivilegeRestricted Privilege = "restricted" // Landlock, seccomp and rlimits only
	PrivilegeNone       Privilege = "none"       // contains nothing; must be asked for by name
)

// Config is the backend's configuration. The zero value is the default.
type Config struct {
	// Agent is the path of a static glovebox-agent or glovebox binary. Empty:
	// glovebox-agent beside this executable, else this executable when it
	// calls MaybeAgent, else glovebox-agent or glovebox on the PATH.
	Agent string `json:"agent,omitempty"`
	// Rootfs is a directory with a root file system for sandboxes without a
	// template. Empty: made of the host's own system directories, read-only.
	Rootfs string `json:"rootfs,omitempty"`
	// Templates maps template names to root file system directories.
	Templates map[string]string `json:"templates,omitempty"`
	// Privilege is the only way of working that is accepted; where it cannot be
	// had, Create is ErrUnavailable. Empty takes the strongest there is.
	Privilege Privilege `json:"privilege,omitempty"`
	// StateDir holds markers and the journal. Empty: GLOVEBOX_STATE_DIR, else
	// /var/lib/glovebox as root and the XDG state directory otherwise.
	StateDir string `json:"state_dir,omitempty"`
	// CgroupParent is the group, below each hierarchy's root, that sandboxes'
	// groups are made in; where none can be made, Create is ErrUnavailable.
	// Empty: the hierarchy's root, as root alone.
	CgroupParent string `json:"cgroup_parent,omitempty"`
}

// DefaultConfig is the zero Config.
func DefaultConfig() Config { return Config{} }

// Validate tells what is wrong with c, without I/O.
func (c Config) Validate() error {
	switch c.Privilege {
	case PrivilegeAuto, PrivilegeRoot, PrivilegeUserns, PrivilegeRestricted, PrivilegeNone:
	default:
		return &backend.Error{
			Op: "config", Kind: backend.ErrInvalid, Field: "privilege",
			Err: fmt.Errorf("unknown privilege %q, known are root, userns, restricted, none", c.Privilege),
		}
	}
	for field, p := range map[string]string{"agent": c.Agent, "rootfs": c.Rootfs, "state_dir": c.StateDir} {
		if p != "" && (!filepath.IsAbs(p) || strings.ContainsRune(p, 0)) {
			return &backend.Error{
				Op: "config", Kind: backend.ErrInvalid, Field: field,
				Err: fmt.Errorf("%q is not an absolute path", p),
			}
		}
	}
	return nil
}
