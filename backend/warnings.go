package backend

import (
	"fmt"
	"time"
)

// Warnings are the shares of limits above which a result carries a warning. A
// share of zero warns of nothing.
type Warnings struct {
	Memory  float64 // of Limits.Memory
	Disk    float64 // of Limits.Disk
	Pids    float64 // of Limits.Pids
	Timeout float64 // of Command.Timeout
	CPUTime float64 // of Limits.CPUTime
}

// DefaultWarnings are the shares that Run warns at.
func DefaultWarnings() Warnings {
	return Warnings{Memory: 0.8, Disk: 0.9, Pids: 0.9, Timeout: 0.9, CPUTime: 0.9}
}

// Check says which shares a command has passed. limits and timeout are those
// that were granted. The peaks of memory and processes are the sandbox's: an
// earlier command's count for a later one of the same sandbox.
func (w Warnings) Check(limits Limits, timeout time.Duration, exit Exit) []string {
	var out []string
	for _, c := range []struct {
		name        string
		share       float64
		used, limit int64
	}{
		{"memory", w.Memory, exit.Usage.PeakMemory, limits.Memory},
		{"disk", w.Disk, exit.Usage.Disk, limits.Disk},
		{"processes", w.Pids, exit.Usage.PeakProcesses, limits.Pids},
		{"wall time", w.Timeout, int64(exit.Usage.Wall), int64(timeout)},
		{"CPU time", w.CPUTime, int64(exit.Usage.CPU), int64(limits.CPUTime)},
	} {
		reached := float64(c.used) / float64(max(c.limit, 1))
		if c.share > 0 && c.limit > 0 && reached >= c.share {
			out = append(out, fmt.Sprintf("%s reached %d%% of its limit", c.name, int64(reached*100)))
		}
	}
	return out
}
