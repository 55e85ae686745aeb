package subprocess

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

// checkBinds checks the mounts that were asked for. What is looked at here is
// recorded by device and inode, and the agent refuses anything else.
func (d *driver) checkBinds(mounts []backend.Mount) ([]launch.Bind, error) {
	if n := len(mounts); n > maxMounts {
		return nil, &backend.Error{
			Op: "create", Kind: backend.ErrTooLarge, Backend: driverName, Field: "mounts",
			Err: fmt.Errorf("%d mounts, at most %d", n, maxMounts), Fix: "mount a directory that holds them",
		}
	}
	out := make([]launch.Bind, 0, len(mounts))
	for i, mount := range mounts {
		b, err := d.checkBind(fmt.Sprintf("mounts[%d]", i), mount)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

func (d *driver) checkBind(field string, mount backend.Mount) (launch.Bind, error) {
	refuse := func(kind backend.Kind, err error, fix string) (launch.Bind, error) {
		return launch.Bind{}, &backend.Error{Op: "create", Kind: kind, Backend: driverName, Field: field, Err: err, Fix: fix}
	}
	source, err := filepath.EvalSymlinks(mount.HostPath)
	if err != nil {
		return refuse(backend.ErrInvalid, err, "name a directory or file that exists")
	}
	if why := forbidden(source, d.store.Dir()); why != "" {
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
	if d.host.mode == launch.ModeRestricted && mount.Target != source {
		return refuse(backend.ErrUnsupported, errors.New("without a mount namespace a mount keeps its path"), "use "+source+" as its target")
	}
	if kind == unix.S_IFDIR && d.host.mode != launch.ModeRestricted {
		if sock := findSocket(source); sock != "" {
			return refuse(backend.ErrDenied, fmt.Errorf("%s holds the socket %s", mount.HostPath, sock),
				"a socket is a way out of the sandbox: mount a directory without one")
		}
	}
	return launch.Bind{Source: source, Target: mount.Target, Dev: st.Dev, Ino: st.Ino, Dir: kind == unix.S_IFDIR}, nil
}

// binds are the mounts as the agent is told of them.
func (m *maker) binds(s *start) ([]launch.Bind, error) {
	out, err := m.d.checkBinds(m.Spec.Mounts)
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
	fail := func(kind backend.Kind, err error) (string, error) {
		return "", &backend.Error{Op: "create", Kind: kind, Backend: driverName, Field: field, Err: err, Fix: "name a directory that holds a root file system"}
	}
	source, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fail(backend.ErrInvalid, err)
	}
	if st, err := os.Stat(filepath.Join(source, "etc")); err != nil || !st.IsDir() {
		return fail(backend.ErrInvalid, fmt.Errorf("%s has no etc directory", dir))
	}
	state := d.store.Dir()
	if why := forbidden(source, state); why != "" && !strings.HasPrefix(source, state+"/") {
		return fail(backend.ErrDenied, fmt.Errorf("%s: %s", dir, why))
	}
	return source, nil
}

// forbidden says why a host path may never be shown, "" when it may.
func forbidden(path, stateDir string) string {
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
