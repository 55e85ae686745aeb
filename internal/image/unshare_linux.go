package image

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

// canUnshare tells why mmdebstrap cannot build for this user, who is not root.
func canUnshare() error {
	no := func(why, fix string) error {
		return &backend.Error{Op: "image", Kind: backend.ErrUnavailable, Err: errors.New(why), Fix: fix}
	}
	for path, fix := range map[string]string{
		"/proc/sys/user/max_user_namespaces":         "run it as root, or: sysctl user.max_user_namespaces=10000",
		"/proc/sys/kernel/unprivileged_userns_clone": "run it as root, or: sysctl kernel.unprivileged_userns_clone=1",
	} {
		if data, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(data)) == "0" {
			return no("this host lets only root make user namespaces", fix)
		}
	}
	if _, err := exec.LookPath("newuidmap"); err != nil {
		return no("newuidmap is not installed, and without it only root can build images", "run it as root, or: apt-get install uidmap")
	}
	names := []string{strconv.Itoa(os.Geteuid())}
	if u, err := user.Current(); err == nil {
		names = append(names, u.Username)
	}
	for _, path := range []string{"/etc/subuid", "/etc/subgid"} {
		if !hasRange(path, names) {
			return no("you have no range of ids in "+path,
				"run it as root, or have root run: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 "+names[len(names)-1])
		}
	}
	return nil
}

// hasRange tells whether a file such as /etc/subuid gives one of names at least
// what Debian's accounts need.
func hasRange(path string, names []string) bool {
	data, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 {
			continue
		}
		n, err := strconv.Atoi(f[2])
		for _, name := range names {
			if f[0] == name && err == nil && n >= 65536 {
				return true
			}
		}
	}
	return false
}
