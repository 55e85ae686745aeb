package subprocess

import (
	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// device gives an agent, whose uids are not the host's, a node to make the
// network device of mode full with.
func (m *maker) device(s *start, cfg *launch.Config) error {
	if !cfg.Full || cfg.Mode != launch.ModeMapped {
		return nil
	}
	f, err := launch.Devices()
	if err == nil {
		cfg.DevicesFD = s.add(f)
	}
	return err
}

// AdviseNetwork implements box.NetworkAdviser.
func (d *driver) AdviseNetwork(mode backend.NetworkMode) (why, fix string) {
	switch {
	case mode == backend.NetworkFull && d.host.mode == launch.ModeRestricted:
		return "without namespaces a sandbox has no network of its own", "let this user make user namespaces, or use network none"
	case mode == backend.NetworkFull:
		return d.host.noDevice, d.host.noDeviceFix
	default:
		return "", ""
	}
}

var _ box.NetworkAdviser = (*driver)(nil)
