// Package oci makes the bundle an OCI runtime starts a sandbox from: its
// config.json. What it writes depends on the Spec alone, byte for byte: nothing
// of the host (environment, umask, user, time) is taken over, and what the Spec
// does not name is not granted.
package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Spec is what a bundle is made from. The first process is uid 0 inside.
type Spec struct {
	// Args, Env and Dir of the first process; Dir is "/" when empty.
	Args, Env []string
	Dir       string
	// Root is the absolute path, on the host, of the root directory, which
	// stays read-only unless Writable.
	Root     string
	Writable bool
	Hostname string
	// Capabilities are the first process's, such as "CAP_SETUID"; nil for none.
	Capabilities []string
	// NoNewPrivileges keeps setuid programs from raising anybody.
	NoNewPrivileges bool
	Rlimits         []Rlimit
	Mounts          []Mount
	// CgroupsPath is where the runtime finds or makes the sandbox's group.
	CgroupsPath string
	Limits      Limits
	// UIDs and GIDs map the sandbox's ids to the host's, in a user namespace;
	// nil for no user namespace of the bundle's own.
	UIDs, GIDs []Mapping
	// NetworkPath is a network namespace to join; "" for a new one.
	NetworkPath string
	// Annotations are read by the runtime.
	Annotations map[string]string
}

// Rlimit is a resource limit, soft and hard alike, such as "RLIMIT_NPROC".
type Rlimit struct {
	Type  string
	Value uint64
}

// Limits of the whole sandbox. Zero is no limit.
type Limits struct {
	Memory int64 // bytes; no swap beyond
	Pids   int64
	CPUs   float64
}

// Mapping maps Size ids from Inside on to those from Host on.
type Mapping struct{ Inside, Host, Size uint32 }

// Kind is what a Mount mounts.
type Kind string

// Kinds of mounts.
const (
	Proc  Kind = "proc"
	Sysfs Kind = "sysfs"
	Tmpfs Kind = "tmpfs" // the runtime's own
	Bind  Kind = "bind"  // of a host path, and what is mounted below it
)

// Mount is one mount inside.
type Mount struct {
	Kind   Kind
	Target string // absolute, clean
	// Source of a Bind: absolute, on the host.
	Source   string
	ReadOnly bool
	// NoExec refuses to execute what lies there.
	NoExec bool
	// Devices lets device nodes work there.
	Devices bool
	// Size in bytes and Mode of a Tmpfs.
	Size int64
	Mode uint32
}

// cpuPeriod is the kernel's default scheduling period, in microseconds.
const cpuPeriod = 100_000

// Config is the text of config.json.
func (s *Spec) Config() ([]byte, error) {
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	c := specs.Spec{
		Version:     "1.1.0", // the first with all of this; runtimes refuse what is newer than they are
		Hostname:    s.Hostname,
		Root:        &specs.Root{Path: s.Root, Readonly: !s.Writable},
		Process:     s.process(),
		Linux:       s.linux(),
		Annotations: s.Annotations,
	}
	for _, m := range s.Mounts {
		c.Mounts = append(c.Mounts, m.mount())
	}
	return json.MarshalIndent(&c, "", "\t")
}

// Write puts config.json into the directory dir, which exists and should be
// private: the file tells its reader the sandbox's whole set-up.
func (s *Spec) Write(dir string) error {
	data, err := s.Config()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}

func (s *Spec) process() *specs.Process {
	p := &specs.Process{
		Args: s.Args, Env: s.Env, Cwd: s.Dir, NoNewPrivileges: s.NoNewPrivileges,
		User: specs.User{UID: 0, GID: 0},
		// Security: inheritable and ambient sets stay empty. With them uid 0
		// would keep its capabilities through exec though its bounding set is
		// empty.
		Capabilities: &specs.LinuxCapabilities{Bounding: s.Capabilities, Effective: s.Capabilities, Permitted: s.Capabilities},
	}
	if p.Cwd == "" {
		p.Cwd = "/"
	}
	for _, r := range s.Rlimits {
		p.Rlimits = append(p.Rlimits, specs.POSIXRlimit{Type: r.Type, Hard: r.Value, Soft: r.Value})
	}
	return p
}

func (s *Spec) linux() *specs.Linux {
	l := &specs.Linux{CgroupsPath: s.CgroupsPath, Resources: s.Limits.resources()}
	for _, t := range []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace,
	} {
		n := specs.LinuxNamespace{Type: t}
		if t == specs.NetworkNamespace {
			n.Path = s.NetworkPath
		}
		l.Namespaces = append(l.Namespaces, n)
	}
	if len(s.UIDs) > 0 {
		l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		l.UIDMappings, l.GIDMappings = mappings(s.UIDs), mappings(s.GIDs)
	}
	return l
}

func mappings(in []Mapping) []specs.LinuxIDMapping {
	out := make([]specs.LinuxIDMapping, 0, len(in))
	for _, m := range in {
		out = append(out, specs.LinuxIDMapping{ContainerID: m.Inside, HostID: m.Host, Size: m.Size})
	}
	return out
}

func (l Limits) resources() *specs.LinuxResources {
	r := &specs.LinuxResources{}
	if l.Memory > 0 {
		none := uint64(0)
		r.Memory = &specs.LinuxMemory{Limit: &l.Memory, Swap: &l.Memory, Swappiness: &none}
	}
	if l.Pids > 0 {
		r.Pids = &specs.LinuxPids{Limit: &l.Pids}
	}
	if l.CPUs > 0 {
		quota, period := max(int64(l.CPUs*cpuPeriod), 1000), uint64(cpuPeriod)
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	return r
}

func (m Mount) mount() specs.Mount {
	out := specs.Mount{Destination: m.Target, Type: string(m.Kind), Source: m.Source}
	if m.Kind != Bind {
		out.Source = string(m.Kind)
	} else {
		out.Options = append(out.Options, "rbind", "rprivate")
	}
	out.Options = append(out.Options, "nosuid")
	if !m.Devices {
		out.Options = append(out.Options, "nodev")
	}
	if m.NoExec {
		out.Options = append(out.Options, "noexec")
	}
	if m.ReadOnly {
		out.Options = append(out.Options, "ro")
	} else {
		out.Options = append(out.Options, "rw")
	}
	if m.Kind == Tmpfs {
		if m.Size > 0 {
			out.Options = append(out.Options, fmt.Sprintf("size=%d", m.Size))
		}
		if m.Mode != 0 {
			out.Options = append(out.Options, fmt.Sprintf("mode=%04o", m.Mode))
		}
	}
	return out
}

func (s *Spec) validate() error {
	switch {
	case len(s.Args) == 0 || s.Args[0] == "":
		return errors.New("no program")
	case !absolute(s.Root):
		return fmt.Errorf("root %q is not an absolute path", s.Root)
	case s.Dir != "" && !absolute(s.Dir):
		return fmt.Errorf("directory %q is not an absolute path", s.Dir)
	case strings.ContainsAny(s.CgroupsPath, ": \n") || slices.Contains(strings.Split(s.CgroupsPath, "/"), ".."):
		return fmt.Errorf("cgroup path %q", s.CgroupsPath)
	case (len(s.UIDs) == 0) != (len(s.GIDs) == 0):
		return errors.New("uids and gids are mapped together or not at all")
	case s.Limits.Memory < 0 || s.Limits.Pids < 0 || s.Limits.CPUs < 0:
		return errors.New("a limit is negative")
	}
	for _, text := range slices.Concat(s.Args, s.Env, []string{s.Hostname, s.Dir, s.Root}) {
		if strings.ContainsRune(text, 0) {
			return fmt.Errorf("%q holds a zero byte", text)
		}
	}
	for _, m := range s.Mounts {
		if err := m.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (m Mount) validate() error {
	switch {
	case !absolute(m.Target) || m.Target == "/":
		return fmt.Errorf("mount target %q is not an absolute path below the root", m.Target)
	case m.Kind != Proc && m.Kind != Sysfs && m.Kind != Tmpfs && m.Kind != Bind:
		return fmt.Errorf("mount of kind %q", m.Kind)
	case m.Kind == Bind && !absolute(m.Source):
		return fmt.Errorf("mount source %q is not an absolute path", m.Source)
	case m.Kind != Bind && m.Source != "":
		return fmt.Errorf("a %s has no source", m.Kind)
	case m.Kind != Tmpfs && (m.Size != 0 || m.Mode != 0), m.Size < 0, m.Mode > 0o7777:
		return fmt.Errorf("size %d or mode %o of a %s", m.Size, m.Mode, m.Kind)
	}
	return nil
}

func absolute(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0)
}
