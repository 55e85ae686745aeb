//go:build !linux

package cli

import (
	"errors"
	"io/fs"
	"os"
)

// openUnnamed is not to be had here.
func openUnnamed(*os.Root, string, fs.FileMode) (*os.File, error) { return nil, errors.ErrUnsupported }

func linkUnnamed(*os.Root, *os.File, string) error { return errors.ErrUnsupported }
