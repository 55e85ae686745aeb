package engine

import (
	"fmt"
	"strings"
)

// Remains is what is on this host of one container, whatever its daemon says:
// a failed start can leave processes that no daemon knows.
type Remains struct {
	ID        string
	Processes []HostProcess
	Groups    []string // directories of cgroups, the deepest first
	Mounts    []string // mount points
}

// Empty tells that nothing is left.
func (r Remains) Empty() bool { return len(r.Processes)+len(r.Groups)+len(r.Mounts) == 0 }

// String lists what is there, for errors and logs.
func (r Remains) String() string {
	var parts []string
	for _, p := range r.Processes {
		parts = append(parts, fmt.Sprintf("process %d (%s)", p.PID, p.Command))
	}
	for _, g := range r.Groups {
		parts = append(parts, "cgroup "+g)
	}
	for _, m := range r.Mounts {
		parts = append(parts, "mount "+m)
	}
	return strings.Join(parts, ", ")
}

// HostProcess is a process that belongs to a container: a shim, a runtime, or
// one inside.
type HostProcess struct {
	PID     int
	Start   uint64 // its start time, in ticks since boot
	Command string // its name, fit to be shown
	Inside  bool   // in the container's control group
}

// Groups are the directories of a container's control groups on this host.
type Groups struct {
	V2 string            // "" without the unified hierarchy
	V1 map[string]string // by controller
}
