package engine

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/docker/docker/api/types/container"
)

// maxAnswer bounds the daemon's answers that are decoded here.
const maxAnswer = 8 << 20

// Stats are a container's counters, as the daemon has them. Those of a
// container that does not run are zero.
type Stats struct {
	CPU         time.Duration
	UserCPU     time.Duration
	SystemCPU   time.Duration
	Throttled   time.Duration
	Memory      uint64 // what is in use, caches included
	MemoryCache uint64 // caches that can be dropped
	MemoryPeak  uint64 // 0 where the daemon does not know
	MemoryLimit uint64
	PIDs        uint64
	Read        time.Time
}

// Stats reads a container's counters once.
func (e *Engine) Stats(ctx context.Context, id string) (Stats, error) {
	var got container.StatsResponse
	err := e.onContainer(ctx, call{op: "stats", within: e.limits.quick}, id, func(ctx context.Context) error {
		r, err := e.api.ContainerStatsOneShot(ctx, id)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		return json.NewDecoder(io.LimitReader(r.Body, maxAnswer)).Decode(&got)
	})
	if err != nil {
		return Stats{}, err
	}
	cpu := got.CPUStats
	return Stats{
		CPU: nanos(cpu.CPUUsage.TotalUsage), UserCPU: nanos(cpu.CPUUsage.UsageInUsermode), SystemCPU: nanos(cpu.CPUUsage.UsageInKernelmode),
		Throttled: nanos(cpu.ThrottlingData.ThrottledTime),
		Memory:    got.MemoryStats.Usage, MemoryPeak: got.MemoryStats.MaxUsage, MemoryLimit: got.MemoryStats.Limit,
		// The first is cgroup v1's name, the second v2's.
		MemoryCache: max(got.MemoryStats.Stats["total_inactive_file"], got.MemoryStats.Stats["inactive_file"]),
		PIDs:        got.PidsStats.Current, Read: got.Read,
	}, nil
}

func nanos(n uint64) time.Duration { return time.Duration(min(n, 1<<62)) }
