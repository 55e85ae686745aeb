//go:build !unix

package config

import (
	"errors"
	"io/fs"
)

// onlyOurs tells what lets somebody else change the file. The directory's
// access list is what protects it here.
func onlyOurs(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return errors.New("is not a regular file")
	}
	return nil
}
