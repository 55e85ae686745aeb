//go:build !unix

package state

import (
	"errors"
	"io/fs"
	"os"
)

const noFollow = 0

var errQuota = errors.ErrUnsupported //nolint:gochecknoglobals // a constant

// tryLock cannot be had: a lock that outlives its taker in a child is flock's.
func tryLock(*os.File) (bool, error) { return false, errors.ErrUnsupported }

func ownedBySelf(fs.FileInfo) bool { return true }
