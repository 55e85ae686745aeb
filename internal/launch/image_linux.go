package launch

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// fileTree is a directory of the host that a root is made of, opened.
//
// Security: an image's author chose what lies below it, links to the host's own
// files among it, and may change it meanwhile. Nothing below it is reached but
// through these methods.
type fileTree struct{ fd int }

func openFileTree(dir string) (*fileTree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &fileTree{fd}, nil
}

func (f *fileTree) close() {
	unix.Close(f.fd) //nolint:errcheck // nothing to do about it
}

// open opens name without following a link and without leaving f. With O_PATH
// and O_NOFOLLOW a link at the very end is opened itself.
func (f *fileTree) open(name string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	for {
		fd, err := unix.Openat2(f.fd, name, &how)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// names lists the top level.
func (f *fileTree) names() ([]string, error) {
	fd, err := f.open(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(fd), "root file system")
	defer d.Close() //nolint:errcheck // read side
	return d.Readdirnames(-1)
}

// mount copies the mount at name, read-only, for target; link is what name
// points to when it is a link. A tree of descriptor 0 means that name is
// neither directory nor link.
func (f *fileTree) mount(name string) (t tree, link string, err error) {
	fd, err := f.open(name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return tree{}, "", err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing to do about it
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return tree{}, "", err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		t, err = cloneTree(fd, "", name, treeAttrs, true)
		return t, "", err
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", buf)
		if err != nil {
			return tree{}, "", err
		}
		return tree{}, string(buf[:n]), nil
	}
	return tree{}, "", nil
}

// read reads a file that is worth copying rather than mounting.
func (f *fileTree) read(name string) ([]byte, error) {
	fd, err := f.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close() //nolint:errcheck // read side
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxCopy {
		return nil, unix.EFBIG
	}
	return io.ReadAll(io.LimitReader(file, maxCopy))
}

// rootTrees copies the mounts that make the root: the host's system
// directories, or, of an image, every top-level entry that is not made here.
func rootTrees(root *fileTree, image bool) (trees []tree, links map[string]string, err error) {
	links = map[string]string{}
	names := systemDirs
	if image {
		if names, err = imageDirs(root); err != nil {
			return nil, nil, fmt.Errorf("root file system: %w", err)
		}
	}
	for _, name := range names {
		t, link, err := root.mount(name)
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return nil, nil, fmt.Errorf("root file system: %s: %w", name, err)
		case link != "":
			links[name] = link
		case t.fd > 0:
			trees = append(trees, t)
		}
	}
	if !image {
		return trees, links, nil
	}
	// An image's own variable data, such as package databases, is shown; what
	// must be writable is mounted over it.
	for _, name := range []string{"var/lib", "var/cache"} {
		t, _, err := root.mount(name)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
			// There is none, or it is somewhere else than it says.
		case err != nil:
			return nil, nil, fmt.Errorf("root file system: %s: %w", name, err)
		case t.fd > 0:
			trees = append(trees, t)
		}
	}
	return trees, links, nil
}

// imageDirs names the top-level entries of an image that are shown: not those
// that are made here, nor those whose names are taken while the root is made.
func imageDirs(root *fileTree) ([]string, error) {
	all, err := root.names()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, name := range all {
		switch name {
		case "proc", "sys", "dev", "tmp", "run", "home", "mnt", "etc", "var", "root", "lost+found", scratchName, etcName, emptyName, bootIDName:
		default:
			out = append(out, name)
		}
	}
	return out, nil
}
