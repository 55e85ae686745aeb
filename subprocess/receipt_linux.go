package subprocess

import (
	"fmt"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/subprocess/internal/plain"
)

// receipt is what the sandbox really got.
func (m *maker) receipt(sb *Sandbox, spawned time.Time) backend.Receipt {
	r := m.ex.caps.Receipt(m.asked, m.spec)
	r.Sandbox, r.Backend, r.Measured = m.id, driverName, true
	r.Deadline = time.Unix(0, sb.deadline.Load())
	r.Kernel, r.Privileges = sb.kernel, privileges(m.ex.host.mode)
	r.Warnings = m.warnings
	r.Timings = map[string]time.Duration{"create": time.Since(m.began), "start": time.Since(spawned)}
	r.PolicyHash = backend.PolicyHash(m.spec, m.ex.cfg)
	if m.ex.host.mode == launch.ModePlain {
		r.Network = backend.NetworkFull
		r.Warnings = append(slices.Clip(r.Warnings), plain.Warning)
	}
	if note := m.memoryNote(); note != "" {
		for i := range r.Limits {
			if r.Limits[i].Control == backend.ControlMemory {
				r.Limits[i].Note = note
			}
		}
	}
	return r
}

// memoryNote says what is counted.
func (m *maker) memoryNote() string {
	if _, ok := m.ex.host.groups.Has("memory"); ok {
		return fmt.Sprintf("user code alone; the agent has a reserve of %d MiB on top", memoryReserve>>20)
	}
	return ""
}

func privileges(m launch.Mode) string {
	switch m {
	case launch.ModeMapped:
		return "root"
	case launch.ModeSingle:
		return "user namespace"
	case launch.ModeRestricted:
		return "unprivileged"
	case launch.ModePlain:
		return "none"
	}
	return string(m)
}
