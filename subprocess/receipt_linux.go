package subprocess

import (
	"fmt"
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/subprocess/internal/plain"
)

// amend puts into a receipt what this driver alone knows.
func (m *maker) amend(r *backend.Receipt) {
	r.Privileges = privileges(m.d.host.mode)
	if m.d.host.mode == launch.ModePlain {
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
}

// memoryNote says what is counted.
func (m *maker) memoryNote() string {
	if _, ok := m.d.host.groups.Has("memory"); ok {
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
	case launch.ModeContained: // a container runtime's
	}
	return string(m)
}
