//go:build linux

package dockerbox

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
)

// verify refuses a sandbox whose runtime mounted something else than what was
// checked: it goes by name, and what a name means may have changed. pid is a
// process inside. Only root can look.
//
// Security: links in the image are followed as programs inside follow them, and
// never to the host.
func (m *maker) verify(pid int) error {
	if len(m.binds) == 0 {
		return nil
	}
	root, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the sandbox's root: %w", err)
	}
	defer unix.Close(root) //nolint:errcheck // only looked through
	for i, b := range m.binds {
		st, err := statIn(root, b.Target)
		if err != nil || st.Dev != b.Dev || st.Ino != b.Ino {
			return m.d.refuse(backend.ErrInvalid, fmt.Sprintf("mounts[%d]", i),
				errors.Join(errors.New("it changed while the sandbox was made"), err).Error(), "leave it alone meanwhile")
		}
	}
	return nil
}

// statIn looks at a path below root.
func statIn(root int, path string) (st unix.Stat_t, err error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(root, strings.TrimPrefix(path, "/"), &how)
	if err != nil {
		return st, err
	}
	defer unix.Close(fd) //nolint:errcheck // only looked at
	return st, unix.Fstat(fd, &st)
}
