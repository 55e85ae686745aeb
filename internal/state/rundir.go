package state

import (
	"io/fs"
	"path/filepath"
)

// RunDir holds what all stores of a host share and a boot does not outlive, as
// root only: the leases of uid ranges and what sandboxes' uids must reach.
const RunDir = "/run/glovebox"

// SecureDir makes dir, a directory below RunDir, and refuses one that anybody
// else could change.
func SecureDir(dir string, perm fs.FileMode) error {
	if err := secureDir(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	return secureDir(dir, perm)
}
