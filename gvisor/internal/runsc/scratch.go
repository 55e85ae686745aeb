//go:build linux

package runsc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Scratch is a tmpfs on the host whose directories are bind mounted into a
// sandbox: gVisor's own tmpfs has no limit on inodes.
type Scratch struct {
	// Size in bytes and Inodes, both limits of all its directories together.
	Size, Inodes int64
	Dirs         []ScratchDir
}

// ScratchDir is one directory of a Scratch.
type ScratchDir struct {
	Name     string // one path element
	Mode     os.FileMode
	UID, GID int // on the host
}

// Make makes and mounts the tmpfs on the directory dir, which it creates; its
// parent must be private to the owner. On error nothing is left.
//
// Security: nobody but the owner may enter the parent, since what is in the
// tmpfs belongs to the sandbox, set-uid files and all.
func (s *Scratch) Make(dir string) (err error) {
	if s.Size <= 0 || s.Inodes <= 0 {
		return errors.New("scratch: without a limit")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("scratch: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("scratch: %w", err), RemoveScratch(dir))
		}
	}()
	opts := "mode=0755,size=" + strconv.FormatInt(s.Size, 10) + ",nr_inodes=" + strconv.FormatInt(s.Inodes, 10)
	if err := unix.Mount("glovebox", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // a directory
	for _, d := range s.Dirs {
		if err := root.Mkdir(d.Name, 0o700); err != nil {
			return err
		}
		if err := root.Chown(d.Name, d.UID, d.GID); err != nil {
			return err
		}
		if err := root.Chmod(d.Name, d.Mode); err != nil {
			return err
		}
	}
	return nil
}

// RemoveScratch unmounts and removes what Make made at dir, in whatever state
// its maker left it, and never looks into it. It is idempotent. The memory is
// free once the sandbox has ended as well.
func RemoveScratch(dir string) error {
	for {
		err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == nil {
			continue // mounted twice
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("scratch: unmount %s: %w", dir, err)
		}
		break
	}
	// Not RemoveAll: an unmounted directory is empty.
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("scratch: remove %s: %w", dir, err)
	}
	return nil
}

// SweepScratch removes all directories in parent that keep does not want.
func SweepScratch(parent string, keep func(name string) bool) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("scratch: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() && !keep(e.Name()) {
			errs = append(errs, RemoveScratch(filepath.Join(parent, e.Name())))
		}
	}
	return errors.Join(errs...)
}
