package cli

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openUnnamed makes a file in dir that has no name yet, so that nothing of it
// is left when we are killed. Not every file system can.
func openUnnamed(root *os.Root, dir string, perm fs.FileMode) (*os.File, error) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		return nil, err // it could not be given a name
	}
	return root.OpenFile(dir, os.O_WRONLY|unix.O_TMPFILE, perm)
}

// linkUnnamed gives such a file a name that nothing has.
func linkUnnamed(root *os.Root, f *os.File, name string) error {
	d, err := root.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // read side
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), int(d.Fd()), filepath.Base(name), unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &fs.PathError{Op: "link", Path: name, Err: err}
	}
	return nil
}
