package subprocess

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// mounts is how mounts and roots are checked here.
func (d *driver) mounts() box.MountCheck {
	return box.MountCheck{Driver: driverName, StateDir: d.store.Dir(), SamePath: d.host.mode == launch.ModeRestricted}
}

// binds are the mounts as the agent is told of them.
func (m *maker) binds(s *start) ([]launch.Bind, error) {
	out, err := m.d.mounts().Mounts(m.Spec.Mounts)
	if err != nil || m.d.host.mode != launch.ModeMapped {
		return out, err
	}
	for i := range out {
		if out[i].FD, err = openBind(s, out[i]); err != nil {
			return nil, &backend.Error{Op: "create", Kind: backend.ErrInvalid, Backend: driverName, Field: fmt.Sprintf("mounts[%d]", i), Err: err}
		}
	}
	return out, nil
}

// openBind opens a mount for a sandbox whose uids may not reach its source, and
// makes sure that it is what was checked.
func openBind(s *start, b launch.Bind) (int, error) {
	f, err := launch.OpenTree(b.Source)
	if err != nil {
		return 0, err
	}
	fd := s.add(f)
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	if st.Dev != b.Dev || st.Ino != b.Ino {
		return 0, errors.New("it changed while the sandbox was made")
	}
	return fd, nil
}

// checkRoot is the root file system of a sandbox made by spec, as a path
// without links; "" when it is made of the host's directories.
func (d *driver) checkRoot(spec backend.Spec) (string, error) {
	dir, field := d.cfg.Rootfs, "rootfs"
	if spec.Template != "" {
		dir, field = d.cfg.Templates[spec.Template], "template"
	}
	if dir == "" {
		return "", nil
	}
	return d.mounts().Rootfs(field, dir)
}
