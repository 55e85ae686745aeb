package launch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/sentry"
)

// RootCapabilities are those of a usual container's root, but for raw sockets,
// as Config.RootCaps has them.
func RootCapabilities() uint64 {
	return 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FSETID | 1<<unix.CAP_FOWNER | 1<<unix.CAP_MKNOD |
		1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETFCAP | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_NET_BIND_SERVICE |
		1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_KILL | 1<<unix.CAP_AUDIT_WRITE
}

// meet finds out which kernel a container's agent is on, before the filter, which
// refuses some of what it looks at, and does what depends on it.
func (sb *Sandbox) meet(cfg *Config) error {
	sb.Sentry, _ = sentry.Observe().GVisor()
	if err := sb.keepDevices(cfg); err != nil {
		return fmt.Errorf("devices: %w", err)
	}
	if err := sb.openRoot(cfg); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	return nil
}

// openRoot readies a root that the sandbox has for itself, with one cap on all
// that is written there, for commands whose root has capabilities.
//
// Security: on a kernel that is the host's too they would be the host's; the
// agent refuses whatever its launcher believes.
func (sb *Sandbox) openRoot(cfg *Config) error {
	if cfg.RootCaps == 0 {
		return nil
	}
	if !sb.Sentry {
		return errors.New("a root with capabilities needs a kernel of its own, and this one is not gVisor's")
	}
	sb.Confine.Elevate = true
	// gVisor mounts a tmpfs of its own there, without a cap.
	if err := unix.Unmount("/tmp", unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("/tmp: %w", err)
	}
	const shm = "/.glovebox/shm"
	for _, dir := range []string{"/tmp", "/var/tmp", shm, "/dev/shm"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
			return err
		}
	}
	if err := unix.Mount(shm, "/dev/shm", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("/dev/shm: %w", err)
	}
	if err := os.MkdirAll(cfg.Root.Home, 0o755); err != nil {
		return err
	}
	if err := os.Lchown(cfg.Root.Home, cfg.UserUID, cfg.UserUID); err != nil {
		return err
	}
	return writeEtc("/etc", cfg)
}

// writeEtc writes what other sandboxes have mounted over their image's files.
func writeEtc(dir string, cfg *Config) error {
	files := machineFiles(cfg.Hostname)
	maps.Copy(files, egressFiles(cfg))
	passwd, perr := readPlain(filepath.Join(dir, "passwd"))
	group, gerr := readPlain(filepath.Join(dir, "group"))
	if perr == nil && gerr == nil {
		files["passwd"], files["group"] = WithUser(passwd, group, cfg.Root.Home, cfg.UserUID)
	}
	for name, data := range files {
		path := filepath.Join(dir, name)
		// The image's own may be a link.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// maxPlain bounds what is read of an image.
const maxPlain = 1 << 20

// readPlain reads a regular file of bounded size.
func readPlain(path string) ([]byte, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxPlain {
		return nil, fmt.Errorf("%s is no file of at most 1 MiB", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read side
	return io.ReadAll(io.LimitReader(f, maxPlain))
}

// bound drops from the calling thread's bounding set all that is not in keep.
func (sb *Sandbox) bound(keep uint64) error {
	for c := range uintptr(64) {
		if keep&(1<<c) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			if errors.Is(err, unix.EINVAL) {
				break // past the last capability this kernel knows
			}
			return fmt.Errorf("bounding set: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil && !sb.lacks(err) {
		return fmt.Errorf("ambient capabilities: %w", err)
	}
	return nil
}
