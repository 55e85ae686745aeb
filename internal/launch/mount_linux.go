package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// tree is a detached copy of a mount, to be attached later.
type tree struct {
	fd     int
	target string // relative to the new root
	dir    bool
}

// OpenTree copies the mount at source with everything below it, read-only, for a
// sandbox whose uids cannot reach source. It needs CAP_SYS_ADMIN on the host.
// The caller closes the file.
func OpenTree(source string) (*os.File, error) {
	t, err := openTree(source, "")
	if err != nil {
		return nil, errno(err)
	}
	return os.NewFile(uintptr(t.fd), source), nil
}

// treeAttrs are what a part of the host gets when it is shown: read-only,
// without devices and without set-user-id bits.
const treeAttrs = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// openTree copies the mount at source with everything below it and gives it
// treeAttrs.
func openTree(source, target string) (tree, error) {
	return openTreeAttr(source, target, treeAttrs, true)
}

func openTreeAttr(source, target string, attrs uint64, recursive bool) (tree, error) {
	return cloneTree(unix.AT_FDCWD, source, target, attrs, recursive)
}

// cloneTree copies the mount at source below the directory dirfd, or of dirfd
// itself when source is empty.
func cloneTree(dirfd int, source, target string, attrs uint64, recursive bool) (tree, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	what := source
	if source == "" {
		what, flags = target, flags|unix.AT_EMPTY_PATH
	}
	deep := uint(0)
	if recursive {
		deep = unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(dirfd, source, flags|deep)
	if err != nil {
		return tree{}, fmt.Errorf("copy mount %s: %w", what, err)
	}
	if attrs != 0 {
		attr := unix.MountAttr{Attr_set: attrs}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|deep, &attr); err != nil {
			unix.Close(fd) //nolint:errcheck // on the way out
			return tree{}, fmt.Errorf("restrict mount %s: %w", what, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd) //nolint:errcheck // on the way out
		return tree{}, err
	}
	return tree{fd: fd, target: target, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR}, nil
}

// attach puts t at its target below root, made if missing.
func (t tree) attach(root string) error {
	defer unix.Close(t.fd) //nolint:errcheck // the mount lives on
	if err := mountpoint(root, t.target, t.dir); err != nil {
		return err
	}
	base, err := openFileTree(root)
	if err != nil {
		return err
	}
	defer base.close()
	// Opened, and not named once more: an image may change under our hands.
	at, err := base.open(strings.Trim(filepath.Clean(t.target), "/"), unix.O_PATH)
	if err != nil {
		return fmt.Errorf("mount %s: %w", t.target, err)
	}
	defer unix.Close(at) //nolint:errcheck // nothing to do about it
	if err := unix.MoveMount(t.fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", t.target, err)
	}
	return nil
}

// mountpoint makes a directory or an empty file to mount on. It never follows a
// symbolic link on the way: an image chose what lies below root.
func mountpoint(root, target string, dir bool) error {
	parts := strings.Split(strings.Trim(filepath.Clean(target), "/"), "/")
	at := root
	for i, part := range parts {
		at = filepath.Join(at, part)
		st, err := os.Lstat(at)
		last := i == len(parts)-1
		switch {
		case err == nil && st.Mode()&os.ModeSymlink != 0:
			return fmt.Errorf("mount %s: %s is a symbolic link", target, strings.TrimPrefix(at, root))
		case err == nil && last && st.IsDir() != dir:
			return fmt.Errorf("mount %s: a directory and a file cannot be mounted on each other", target)
		case err == nil:
			continue
		case !errors.Is(err, os.ErrNotExist):
			return err
		}
		if last && !dir {
			err = os.WriteFile(at, nil, 0o644)
		} else {
			err = os.Mkdir(at, 0o755)
		}
		if err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
	}
	return nil
}

// mountTmpfs mounts a tmpfs at a path that exists.
func mountTmpfs(at string, flags uintptr, options string) error {
	if err := unix.Mount("tmpfs", at, "tmpfs", flags, options); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	return nil
}
