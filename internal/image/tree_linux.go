package image

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncDisk writes out everything of the file system that dir is on.
func syncDisk(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read side
	return unix.Syncfs(int(f.Fd()))
}
