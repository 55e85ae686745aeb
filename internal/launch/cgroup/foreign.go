//go:build linux

package cgroup

import (
	"path/filepath"
	"time"
)

// Foreign is a group that a container runtime made, by its directories. Its
// methods read what the kernel counts there and change nothing.
type Foreign struct {
	V2 string            // "" without the unified hierarchy, or where it has no controllers
	V1 map[string]string // by controller
}

// Stats reads what there is; what is not counted is 0.
func (f Foreign) Stats() Stats {
	s := Stats{}
	if dir := f.V1["memory"]; dir != "" {
		s.OOMKills = keyed(filepath.Join(dir, "memory.oom_control"), "oom_kill")
		s.MemoryPeak, s.Memory = number(filepath.Join(dir, "memory.max_usage_in_bytes")), number(filepath.Join(dir, "memory.usage_in_bytes"))
	} else if f.V2 != "" {
		s.OOMKills = keyed(filepath.Join(f.V2, "memory.events"), "oom_kill")
		s.MemoryPeak, s.Memory = number(filepath.Join(f.V2, "memory.peak")), number(filepath.Join(f.V2, "memory.current"))
	}
	pids := f.V1["pids"]
	if pids == "" {
		pids = f.V2
	}
	if pids != "" {
		s.PidsDenied = keyed(filepath.Join(pids, "pids.events"), "max")
		s.Tasks, s.TasksPeak = number(filepath.Join(pids, "pids.current")), number(filepath.Join(pids, "pids.peak"))
	}
	if dir := f.V1["cpuacct"]; dir != "" {
		s.CPU = time.Duration(number(filepath.Join(dir, "cpuacct.usage")))
	} else if f.V2 != "" {
		s.CPU = time.Duration(keyed(filepath.Join(f.V2, "cpu.stat"), "usage_usec")) * time.Microsecond
	}
	return s
}
