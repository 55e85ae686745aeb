//go:build linux

package box

import (
	"context"
	"slices"
	"sync"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
)

// evidence attributes the kernel's counters, which are the sandbox's, to its
// commands.
type evidence struct {
	mu     sync.Mutex
	oom    int64 // kills that an Exit has accounted for
	oomHit int64
	pids   int64
}

// judge amends exit with what the kernel counted outside the sandbox.
func (sb *Sandbox) judge(ctx context.Context, exit *backend.Exit) {
	stats, ok := sb.counters(ctx, *exit)
	if ok {
		sb.evidence.attribute(stats, exit)
		amendFrom(stats, &exit.Usage)
	}
	if exit.Reason == backend.ReasonMemoryLimit {
		hit(exit, backend.HitMemory)
	}
}

func (sb *Sandbox) counters(ctx context.Context, exit backend.Exit) (cgroup.Stats, bool) {
	if w, ok := sb.body.(Witness); ok {
		return w.Witness(ctx, exit)
	}
	return sb.body.Stats()
}

// attribute gives a SIGKILL that nobody sent the kernel's reason, and lists the
// limits that were reached since the last command ended.
func (e *evidence) attribute(s cgroup.Stats, exit *backend.Exit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.OOMKills > e.oom && exit.Reason == backend.ReasonSignaled && exit.Signal == backend.SIGKILL {
		exit.Reason = backend.ReasonMemoryLimit
		e.oom++
	}
	if exit.Reason == backend.ReasonMemoryLimit || s.OOMKills > e.oomHit {
		hit(exit, backend.HitMemory)
		e.oomHit = s.OOMKills
	}
	if s.Tasks == 0 {
		// Nothing else runs whose end they could explain.
		e.oom = s.OOMKills
	}
	if s.PidsDenied > e.pids {
		hit(exit, backend.HitPids)
		e.pids = s.PidsDenied
	}
}

func hit(exit *backend.Exit, h backend.Hit) {
	if !slices.Contains(exit.Hits, h) {
		exit.Hits = append(exit.Hits, h)
	}
}

// amend puts the kernel's counters in the place of the agent's estimates.
func (sb *Sandbox) amend(u *backend.Usage) {
	if s, ok := sb.body.Stats(); ok {
		amendFrom(s, u)
		if s.CPU > 0 {
			u.CPU = s.CPU
		}
	}
}

func amendFrom(s cgroup.Stats, u *backend.Usage) {
	if s.MemoryPeak > 0 {
		u.PeakMemory, u.Memory = s.MemoryPeak, s.Memory
	}
	if s.TasksPeak > 0 {
		u.PeakProcesses = s.TasksPeak
	}
}
