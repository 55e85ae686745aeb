//go:build unix

package config

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// onlyOurs tells what lets somebody else change the file.
func onlyOurs(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return errors.New("is not a regular file")
	}
	if info.Mode().Perm()&0o022 != 0 {
		return errors.New("can be written by others")
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		return errors.New("belongs to somebody else")
	}
	return nil
}
