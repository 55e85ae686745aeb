//go:build linux

package files

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// maxPath is the kernel's PATH_MAX. Longer paths fail there anyway; refusing
// them here keeps error texts short.
const maxPath = 4096

// resolve makes a request's path absolute and clean, as E2B does: ~ and
// relative paths are below the user's home, an empty one is the default
// working directory. Where it leads is the kernel's business, with the user's
// rights.
func (s *Service) resolve(path string, acct Account) (string, error) {
	if len(path) > maxPath {
		return "", fmt.Errorf("path is too long: %d bytes, the limit is %d", len(path), maxPath)
	}
	if strings.IndexByte(path, 0) >= 0 {
		return "", fmt.Errorf("path contains invalid characters: %q", path)
	}
	if path == "" && s.opts.Workdir != nil {
		path = s.opts.Workdir()
	}
	if strings.HasPrefix(path, "~") {
		if len(path) > 1 && path[1] != '/' && path[1] != '\\' {
			return "", fmt.Errorf("failed to expand path '%s' for user '%s': %w", path, acct.Name,
				errors.New("cannot expand user-specific home dir"))
		}
		path = filepath.Join(acct.Home, path[1:])
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(acct.Home, path)
	}
	path = filepath.Clean(path)
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("path must be absolute: %s", path)
	}
	return path, nil
}

// valid is s as a protobuf or JSON string may hold it.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
