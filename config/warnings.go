package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// Warnings are the shares of limits above which a result carries a warning.
type Warnings struct {
	Memory  Share `json:"memory" doc:"Of the memory limit."`
	Disk    Share `json:"disk" doc:"Of the disk limit."`
	Pids    Share `json:"pids" doc:"Of the limit on processes."`
	Timeout Share `json:"timeout" doc:"Of the command's wall time."`
	CPUTime Share `json:"cpu_time" doc:"Of the command's CPU time."`
}

// Check says which shares a command that ended by itself has passed. limits
// and timeout are those that were granted. What the backend warned of already
// is not said again.
func (w Warnings) Check(limits backend.Limits, timeout time.Duration, exit backend.Exit) []string {
	var out []string
	for _, c := range []struct {
		name        string
		share       Share
		used, limit int64
		text        func(int64) string
	}{
		{"memory", w.Memory, exit.Usage.PeakMemory, limits.Memory, func(n int64) string { return Size(n).String() }},
		{"disk", w.Disk, exit.Usage.Disk, limits.Disk, func(n int64) string { return Size(n).String() }},
		{"processes", w.Pids, exit.Usage.PeakProcesses, limits.Pids, func(n int64) string { return fmt.Sprint(n) }},
		{"wall time", w.Timeout, int64(exit.Usage.Wall), int64(timeout), func(n int64) string { return time.Duration(n).String() }},
		{"CPU time", w.CPUTime, int64(exit.Usage.CPU), int64(limits.CPUTime), func(n int64) string { return time.Duration(n).String() }},
	} {
		if c.share <= 0 || c.limit <= 0 || float64(c.used) < float64(c.limit)*float64(c.share) || said(exit.Warnings, c.name) {
			continue
		}
		out = append(out, fmt.Sprintf("%s reached %d%% of its limit of %s", c.name, int64(float64(c.used)/float64(c.limit)*100), c.text(c.limit)))
	}
	return out
}

func said(warnings []string, name string) bool {
	for _, w := range warnings {
		if strings.HasPrefix(w, name) {
			return true
		}
	}
	return false
}
