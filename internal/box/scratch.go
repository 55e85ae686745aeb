//go:build linux

package box

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// scratchName is the scratch's directory in a sandbox's own.
const scratchName = "scratch"

// MountScratch mounts a tmpfs of the spec's disk and inodes in the sandbox's own
// directory, and gives its parts to be bound into the sandbox: one cap for all
// places that can be written, inodes included, which runtimes' own tmpfs do not
// have. uid is user's, on the host. It needs root; it is undone with the
// sandbox, by RemoveScratch.
//
// Security: the sandbox's own directory keeps other users of the host away from
// what is in it.
func (b *Birth) MountScratch(uid int) ([]launch.Part, error) {
	dir := filepath.Join(b.Dir, scratchName)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	b.Undo(func() { RemoveScratch(b.Dir) }) //nolint:errcheck // the sweep tries again
	opts := fmt.Sprintf("mode=755,size=%d,nr_inodes=%d", b.Spec.Limits.Disk, b.Spec.Limits.Inodes)
	if err := unix.Mount("glovebox", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return nil, fmt.Errorf("scratch: %w", err)
	}
	return launch.MakeScratch(dir, backend.DefaultHome, uid)
}

// ScratchDir is where MountScratch mounts, in a sandbox's own directory.
func ScratchDir(own string) string { return filepath.Join(own, scratchName) }

// RemoveScratch takes away what MountScratch made in a sandbox's own directory,
// in whatever state its maker left it, and never looks into it. It is
// idempotent. The memory is free once the sandbox has ended as well.
func RemoveScratch(own string) error {
	dir := filepath.Join(own, scratchName)
	for {
		err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil: // mounted twice
			continue
		case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EPERM):
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
