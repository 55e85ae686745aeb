//go:build linux

package dockerbox

import (
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// device lets the agent make the network device of mode full. gVisor has a node
// of its own for that.
func (m *maker) device(c *engine.Container) {
	c.CapAdd = append(slices.Clip(c.CapAdd), box.DeviceCapability)
	if !m.d.o.Sentry {
		c.Devices = append(c.Devices, launch.DeviceNode)
	}
}

// AdviseNetwork implements box.NetworkAdviser.
func (d *Driver) AdviseNetwork(mode backend.NetworkMode) (why, fix string) {
	if mode != backend.NetworkFull || d.o.Sentry {
		return "", ""
	}
	if d.o.Remote {
		return "the engine is on another machine, whose devices are not known here", "use allowlist, or run glovebox on that machine"
	}
	return launch.DeviceProblem(false)
}

var _ box.NetworkAdviser = (*Driver)(nil)
