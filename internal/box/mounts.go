//go:build linux

package box

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// maxMounts bounds the mounts of a sandbox, each of which can be a descriptor of
// its agent's.
const maxMounts = 100

// MountCheck is how a driver's mounts are checked.
type MountCheck struct {
	Driver   string
	StateDir string // of the store, which may never be shown
	// SamePath: without a mount namespace a mount keeps its path, and sockets
	// in it are closed by other means.
	SamePath bool
}

// Mounts checks the mounts that were asked for. What is looked at here is
// recorded by device and inode: nothing else may be mounted.
func (c MountCheck) Mounts(mounts []backend.Mount) ([]launch.Bind, error) {
	if n := len(mounts); n > maxMounts {
		return nil, &backend.Error{
			Op: "create", Kind: backend.ErrTooLarge, Backend: c.Driver, Field: "mounts",
			Err: fmt.Errorf("%d mounts, at most %d", n, maxMounts), Fix: "mount a directory that holds them",
		}
	}
	out := make([]launch.Bind, 0, len(mounts))
	for i, mount := range mounts {
		b, err := c.mount(fmt.Sprintf("mounts[%d]", i), mount)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

func (c MountCheck) mount(field string, mount backend.Mount) (launch.Bind, error) {
	refuse := func(kind backend.Kind, err error, fix string) (launch.Bind, error) {
		return launch.Bind{}, &backend.Error{Op: "create", Kind: kind, Backend: c.Driver, Field: field, Err: err, Fix: fix}
	}
	source, err := filepath.EvalSymlinks(mount.HostPath)
	if err != nil {
		return refuse(backend.ErrInvalid, err, "name a directory or file that exists")
	}
	if why := c.forbidden(source); why != "" {
		return refuse(backend.ErrDenied, fmt.Errorf("%s: %s", mount.HostPath, why), "mount a directory that holds only what the code needs")
	}
	var st unix.Stat_t
	if err := unix.Lstat(source, &st); err != nil {
		return refuse(backend.ErrInvalid, err, "")
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && kind != unix.S_IFREG {
		return refuse(backend.ErrDenied, fmt.Errorf("%s is neither a directory nor a regular file", mount.HostPath), "")
	}
	if c.SamePath && mount.Target != source {
		return refuse(backend.ErrUnsupported, errors.New("without a mount namespace a mount keeps its path"), "use "+source+" as its target")
	}
	if kind == unix.S_IFDIR && !c.SamePath {
		if sock := findSocket(source); sock != "" {
			return refuse(backend.ErrDenied, fmt.Errorf("%s holds the socket %s", mount.HostPath, sock),
				"a socket is a way out of the sandbox: mount a directory without one")
		}
	}
	return launch.Bind{Source: source, Target: mount.Target, Dev: st.Dev, Ino: st.Ino, Dir: kind == unix.S_IFDIR}, nil
}

// Rootfs checks a directory that is to be a sandbox's root, and gives its path
// without links. field names it in errors.
func (c MountCheck) Rootfs(field, dir string) (string, error) {
	fail := func(kind backend.Kind, err error) (string, error) {
		return "", &backend.Error{Op: "create", Kind: kind, Backend: c.Driver, Field: field, Err: err, Fix: "name a directory that holds a root file system"}
	}
	source, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fail(backend.ErrInvalid, err)
	}
	if st, err := os.Stat(filepath.Join(source, "etc")); err != nil || !st.IsDir() {
		return fail(backend.ErrInvalid, fmt.Errorf("%s has no etc directory", dir))
	}
	if why := c.forbidden(source); why != "" && !strings.HasPrefix(source, c.StateDir+"/") {
		return fail(backend.ErrDenied, fmt.Errorf("%s: %s", dir, why))
	}
	return source, nil
}

// forbidden says why a host path may never be shown, "" when it may.
func (c MountCheck) forbidden(path string) string {
	stateDir := c.StateDir
	if path == "/" {
		return "the whole host"
	}
	if real, err := filepath.EvalSymlinks(stateDir); err == nil {
		stateDir = real
	}
	for _, root := range []string{"/proc", "/sys", "/dev", "/run", "/var/run", stateDir} {
		switch {
		case path == root || strings.HasPrefix(path, root+"/"):
			return "it lies in " + describeRoot(root, stateDir)
		case strings.HasPrefix(root, path+"/"):
			return "it holds " + describeRoot(root, stateDir)
		}
	}
	return ""
}

func describeRoot(root, stateDir string) string {
	if root == stateDir {
		return "glovebox's own state"
	}
	return root
}

// socketSearch bounds how many entries of a mount are looked at for sockets.
const socketSearch = 2000

// findSocket is a socket among the first entries of dir; a read-only mount does
// not keep anyone from connecting to it.
func findSocket(dir string) string {
	seen, found := 0, ""
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { //nolint:errcheck // a bounded look
		if err != nil {
			return fs.SkipDir
		}
		if seen++; seen > socketSearch {
			return fs.SkipAll
		}
		if d.Type()&fs.ModeSocket != 0 {
			found = strings.TrimPrefix(path, dir+"/")
			return fs.SkipAll
		}
		return nil
	})
	return found
}
