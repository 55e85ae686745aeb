//go:build linux

// Package cgroup makes the control groups of a sandbox on hosts with version
// 1, version 2 or both, reads the kernel's evidence from them and kills what is
// in them. It works on descriptors and a thread of the caller's rather than on
// process numbers: a sandbox's first process is inside from its first
// instruction, and no attach waits for the kernel's grace period.
//
// A sandbox has an outer group, which holds its agent, and in it a group
// "user" with the limits that were asked for; the outer group has a reserve on
// top. Commands have groups of their own below "user" in the v2 tree, where
// there is one, whether or not it has controllers.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is where groups can be made on this host.
type Host struct {
	// V1 maps a controller (memory, pids, cpu) to the directory of its own
	// hierarchy in which groups are made. Empty on a pure v2 host.
	V1 map[string]string
	// V2 is the directory of the unified hierarchy in which groups are made;
	// "" when it is not mounted or not writable.
	V2 string
	// Controllers that V2 can give its groups.
	Controllers []string
	// mounts says where the hierarchies of V1 are mounted.
	mounts map[string]mount
}

// mount is where a hierarchy, or the part of it below root, is mounted.
type mount struct{ point, root string }

// controllers are those that limits need.
var controllers = []string{"memory", "pids", "cpu"} //nolint:gochecknoglobals // a constant table

// Detect finds the hierarchies that this process may make groups in, below
// parent (a path within each hierarchy), the mount's root when that is empty.
// The root, and not the group this process runs in, so that other processes
// find the groups again; and in the v2 tree a group with processes may not hold
// groups with limits.
func Detect(parent string) (Host, error) {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return Host{}, fmt.Errorf("cgroup: %w", err)
	}
	defer mounts.Close() //nolint:errcheck // read side
	h := Host{V1: map[string]string{}, mounts: map[string]mount{}}
	sc := bufio.NewScanner(mounts)
	for sc.Scan() {
		root, point, fstype, super, ok := parseMount(sc.Text())
		if !ok {
			continue
		}
		switch fstype {
		case "cgroup2":
			if dir := join(point, root, parent); h.V2 == "" && writable(dir) {
				h.V2 = dir
			}
		case "cgroup":
			for _, c := range controllers {
				if _, have := h.V1[c]; !have && slices.Contains(super, c) {
					if dir := join(point, root, parent); writable(dir) {
						h.V1[c] = dir
						h.mounts[c] = mount{point, root}
					}
				}
			}
		}
	}
	if h.V2 != "" {
		data, _ := os.ReadFile(filepath.Join(h.V2, "cgroup.controllers"))
		for c := range strings.FieldsSeq(string(data)) {
			if slices.Contains(controllers, c) && h.V1[c] == "" {
				h.Controllers = append(h.Controllers, c)
			}
		}
	}
	return h, sc.Err()
}

// join maps a group's path to a directory below the mount at point, whose own
// root within the hierarchy is root; "" is that root itself. A group that is
// not below it is not reached through this mount: then the answer is "".
func join(point, root, group string) string {
	if group == "" {
		return point
	}
	rel, err := filepath.Rel(root, filepath.Join("/", group))
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return ""
	}
	return filepath.Join(point, rel)
}

func writable(dir string) bool { return dir != "" && unix.Access(dir, unix.W_OK|unix.X_OK) == nil }

// parseMount takes what matters from a line of mountinfo (proc(5)).
func parseMount(line string) (root, point, fstype string, super []string, ok bool) {
	before, after, found := strings.Cut(line, " - ")
	f, g := strings.Fields(before), strings.Fields(after)
	if !found || len(f) < 5 || len(g) < 3 {
		return "", "", "", nil, false
	}
	return f[3], f[4], g[0], strings.Split(g[2], ","), true
}

// homes maps each v1 controller to the directory of the group that the calling
// thread is in. The thread's and not the process's: what /proc/self tells is
// the main thread's, which may be on a visit to a sandbox just now.
func (h Host) homes() (map[string]string, error) {
	data, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return nil, err
	}
	homes := map[string]string{}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for c := range strings.SplitSeq(parts[1], ",") {
			if m, ok := h.mounts[c]; ok {
				// Where this process was put into a group that it cannot see,
				// the mount's root is the nearest it can go back to.
				if homes[c] = join(m.point, m.root, parts[2]); homes[c] == "" {
					homes[c] = m.point
				}
			}
		}
	}
	return homes, nil
}

// Has tells whether limits of a controller can be set, and by which version.
func (h Host) Has(controller string) (version int, ok bool) {
	if h.V1[controller] != "" {
		return 1, true
	}
	if slices.Contains(h.Controllers, controller) {
		return 2, true
	}
	return 0, false
}

// Usable tells whether any group can be made.
func (h Host) Usable() bool { return h.V2 != "" || len(h.V1) > 0 }

// String names the layout: "v1", "v2", "v1+v2" or "none".
func (h Host) String() string {
	switch {
	case len(h.V1) > 0 && h.V2 != "":
		return "v1+v2"
	case len(h.V1) > 0:
		return "v1"
	case h.V2 != "":
		return "v2"
	default:
		return "none"
	}
}

// dirs are the distinct parent directories, v2 last.
func (h Host) dirs() []string {
	var out []string
	for _, c := range controllers {
		if d := h.V1[c]; d != "" && !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	if h.V2 != "" {
		out = append(out, h.V2)
	}
	return out
}

// List names the groups here that start with prefix.
func (h Host) List(prefix string) []string {
	var out []string
	for _, dir := range h.dirs() {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() && strings.HasPrefix(e.Name(), prefix) && !slices.Contains(out, e.Name()) {
				out = append(out, e.Name())
			}
		}
	}
	return out
}

// enable turns controllers on for the groups in dir.
func enable(dir string, want []string) error {
	if len(want) == 0 {
		return nil
	}
	file := filepath.Join(dir, "cgroup.subtree_control")
	have, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var missing []string
	for _, c := range want {
		if !slices.Contains(strings.Fields(string(have)), c) {
			missing = append(missing, "+"+c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := os.WriteFile(file, []byte(strings.Join(missing, " ")), 0); err != nil {
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("cgroup: %s holds processes, so its groups can have no limits: %w", dir, err)
		}
		return err
	}
	return nil
}
