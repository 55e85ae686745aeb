package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
)

// host is what was found out about this machine and this process's rights.
type host struct {
	privilege Privilege
	groups    cgroup.Host // where groups can be made, if anywhere
	parent    string      // Config.CgroupParent
}

// look finds out cheaply what can be had; Create proves it by doing it.
func look(cfg Config) (host, error) {
	h := host{privilege: PrivilegeRootless, parent: cfg.CgroupParent}
	if cfg.Privilege != PrivilegeRootless && os.Geteuid() == 0 && mayMount() {
		h.privilege = PrivilegeRoot
	}
	if h.privilege == PrivilegeRootless && cfg.CgroupParent == "" {
		return h, nil
	}
	groups, err := cgroup.Detect(cfg.CgroupParent)
	if err != nil {
		return h, err
	}
	if h.privilege == PrivilegeRootless {
		// runsc joins v1 groups by itself, and only as root.
		groups.V1 = nil
	}
	h.groups = groups
	return h, nil
}

// mayMount tells whether root here may mount, which root of an ordinary
// container may not.
func mayMount() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&hdr, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

func (h host) rootless() bool { return h.privilege == PrivilegeRootless }

// joins tells whether runsc moves the sandbox into v1 groups.
func (h host) joins() bool { return len(h.groups.V1) > 0 }

// has names what limits a resource: "cgroup v1 memory".
func (h host) has(controller string) (mechanism string, ok bool) {
	v, ok := h.groups.Has(controller)
	return fmt.Sprintf("cgroup v%d %s", v, controller), ok
}

// groupPath is the sandbox's group as a bundle names it.
func (h host) groupPath(name string) string { return filepath.Join("/", h.parent, name) }

// foreign is a sandbox's group as runsc uses it.
func (h host) foreign(name string) cgroup.Foreign {
	f := cgroup.Foreign{V1: map[string]string{}}
	for c, dir := range h.groups.V1 {
		f.V1[c] = filepath.Join(dir, name)
	}
	if h.groups.V2 != "" {
		f.V2 = filepath.Join(h.groups.V2, name)
	}
	// runsc makes one where that hierarchy is apart from cpu's.
	if dir := filepath.Join(cgroupRoot, "cpuacct", h.groupPath(name)); h.joins() {
		if _, err := os.Stat(dir); err == nil {
			f.V1["cpuacct"] = dir
		}
	}
	return f
}

// cgroupRoot is where the hierarchies are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// orphans lists the groups whose names begin with prefix, in every hierarchy:
// runsc makes some in those that nobody else uses.
func (h host) orphans(prefix string) []string {
	names := h.groups.List(prefix)
	if !h.joins() {
		return names
	}
	dirs, _ := filepath.Glob(filepath.Join(cgroupRoot, "*", h.parent, prefix+"*"))
	for _, dir := range dirs {
		if name := filepath.Base(dir); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
