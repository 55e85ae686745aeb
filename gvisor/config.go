// Package gvisor runs sandboxes under gVisor, a kernel in user space: the
// program runsc is started on an OCI bundle of glovebox's own, with no container
// engine between, and the agent is the sandbox's first process.
//
// As root each sandbox has control groups and a disk of its own with limits on
// bytes and files. Without root ("rootless") there are no control groups unless
// one was delegated, and the capabilities say what that leaves open. The level
// is kernel, and measured: a sandbox whose agent does not recognise gVisor's
// kernel is refused.
//
// A sandbox's root is made of the template's top-level directories, read-only,
// in a directory of the sandbox's own, so that nothing is ever made in a root
// that others share.
package gvisor

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

// driverName is the driver's in capabilities, receipts and errors.
const driverName = "gvisor"

// Platform is how gVisor's kernel gets hold of its programs.
type Platform string

// The platforms. KVM is not offered.
const (
	PlatformDefault Platform = ""
	PlatformSystrap Platform = "systrap"
	PlatformPtrace  Platform = "ptrace" // slower, for hosts where systrap fails
)

// Privilege is how the backend itself may work on this host.
type Privilege string

// The privileges.
const (
	PrivilegeAuto     Privilege = ""         // what this process has
	PrivilegeRoot     Privilege = "root"     // control groups and a disk with limits
	PrivilegeRootless Privilege = "rootless" // an unprivileged user's
)

// Via is what starts the sandboxes.
type Via string

// The ways.
const (
	ViaRunsc  Via = "" // runsc itself
	ViaDocker Via = "docker"
)

// Config is the backend's configuration. The zero value is the default.
type Config struct {
	// Runsc is the path of gVisor's runsc. Empty: the one on the PATH, else
	// /usr/local/bin/runsc.
	Runsc string `json:"runsc,omitempty"`
	// Platform is systrap when empty.
	Platform Platform `json:"platform,omitempty"`
	// Via is runsc itself when empty. Docker makes the sandboxes as containers of
	// an engine that has runsc; Runsc, Platform, Rootfs, Privilege and
	// CgroupParent are not for it, and Templates name the engine's images.
	Via Via `json:"via,omitempty"`
	// Host is the engine's address, Runtime its runtime that is runsc, and Image
	// the image of sandboxes without a template, with Via docker. Empty:
	// DOCKER_HOST, else the default socket; runsc-nonet; the template base.
	Host    string `json:"host,omitempty"`
	Runtime string `json:"runtime,omitempty"`
	Image   string `json:"image,omitempty"`
	// Rootfs is a directory with a root file system for sandboxes without a
	// template. Empty: the image "base", which `glovebox image build base` makes.
	Rootfs string `json:"rootfs,omitempty"`
	// Templates maps template names to root file system directories.
	Templates map[string]string `json:"templates,omitempty"`
	// RootTemplates are those of the templates whose sandboxes have a root with
	// capabilities: the whole root can be written, in an overlay of the disk's
	// size, uid 0 has a usual container's capabilities, and programs with
	// set-user-id bits raise privileges, all of it inside gVisor's kernel. Not
	// with Via docker.
	RootTemplates []string `json:"root_templates,omitempty"`
	// BuiltTemplates maps further ones to images that glovebox has built, with
	// Via docker; the engine is given those that it lacks.
	BuiltTemplates map[string]string `json:"built_templates,omitempty"`
	// Agent is the path of a static glovebox-agent or glovebox binary. Empty:
	// glovebox-agent beside this executable, else this executable when it
	// calls MaybeAgent, else glovebox-agent or glovebox on the PATH.
	Agent string `json:"agent,omitempty"`
	// Privilege is the only way of working that is accepted; where it cannot be
	// had, Create is ErrUnavailable. Empty takes what this process has.
	Privilege Privilege `json:"privilege,omitempty"`
	// StateDir holds markers and what sandboxes are made of. Empty:
	// GLOVEBOX_STATE_DIR, else /var/lib/glovebox as root and the XDG state
	// directory otherwise.
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
	refuse := func(field, fix string, err error) error {
		return &backend.Error{Op: "config", Kind: backend.ErrInvalid, Field: field, Err: err, Fix: fix}
	}
	switch c.Platform {
	case PlatformDefault, PlatformSystrap, PlatformPtrace:
	default:
		return refuse("platform", "", fmt.Errorf("unknown platform %q, known are systrap and ptrace", c.Platform))
	}
	switch c.Privilege {
	case PrivilegeAuto, PrivilegeRoot, PrivilegeRootless:
	default:
		return refuse("privilege", "", fmt.Errorf("unknown privilege %q, known are root and rootless", c.Privilege))
	}
	switch c.Via {
	case ViaRunsc:
		if len(c.BuiltTemplates) > 0 {
			return refuse("built_templates", "name their directories in templates", errors.New("it is the engine's"))
		}
		for field, v := range map[string]string{"host": c.Host, "runtime": c.Runtime, "image": c.Image} {
			if v != "" {
				return refuse(field, "set via: docker, or leave it out", errors.New("it is the engine's"))
			}
		}
	case ViaDocker:
		for field, set := range map[string]bool{
			"runsc": c.Runsc != "", "platform": c.Platform != "", "rootfs": c.Rootfs != "",
			"privilege": c.Privilege != "", "cgroup_parent": c.CgroupParent != "", "root_templates": len(c.RootTemplates) > 0,
		} {
			if set {
				return refuse(field, "leave it out, or leave via out", errors.New("through Docker the engine decides it"))
			}
		}
	default:
		return refuse("via", "leave it empty", fmt.Errorf("unknown way %q, known is docker", c.Via))
	}
	for i, name := range c.RootTemplates {
		if c.Templates[name] == "" {
			return refuse(fmt.Sprintf("root_templates[%d]", i), "name it in templates too", fmt.Errorf("there is no template %q", name))
		}
	}
	for field, p := range map[string]string{"agent": c.Agent, "rootfs": c.Rootfs, "state_dir": c.StateDir, "runsc": c.Runsc} {
		if p != "" && (!filepath.IsAbs(p) || strings.ContainsRune(p, 0)) {
			return refuse(field, "", fmt.Errorf("%q is not an absolute path", p))
		}
	}
	return nil
}
