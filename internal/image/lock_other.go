//go:build !unix

package image

import (
	"errors"
	"os"
)

func tryLock(*os.File, bool) (bool, error) { return false, errors.ErrUnsupported }

func sameOpen(*os.File, string) bool { return false }
