// Package tree removes directories that programs of a sandbox have written to.
package tree

import (
	"io/fs"
	"os"
	"path/filepath"
)

// Remove removes dir and all that is in it. Programs may have left directories
// in it that cannot be searched, and links anywhere: no link is followed.
func Remove(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil {
		return nil
	}
	root, rerr := os.OpenRoot(dir)
	if rerr != nil {
		return err
	}
	OpenDirs(root, ".")
	if cerr := root.Close(); cerr != nil {
		return cerr
	}
	return os.RemoveAll(dir)
}

// OpenDirs makes the directories of root below name searchable, as far as it
// can; it follows no link out of root.
func OpenDirs(root *os.Root, name string) {
	_ = fs.WalkDir(root.FS(), name, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = root.Chmod(filepath.FromSlash(path), 0o700) // the removal tells
		}
		return nil
	})
}
