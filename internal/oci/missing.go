package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// Target is a place in a root directory that something is to be mounted on.
type Target struct {
	Path string // as inside
	Dir  bool   // a directory, else a file
}

// Missing lists the targets of bind mounts that do not exist in Root or, below
// another bind mount, in its source. A runtime would create them there, on the
// host, for everybody who shares the directory: so whoever starts a sandbox from
// a Root that is not its own checks first. Targets of other kinds need not
// exist, but a bind mount below one of those is missing unless the directory
// underneath has its target too, since that is where runsc looks.
//
// A target that is reached through a symbolic link, or is of the wrong type, is
// an error: what such a link leads to is for the sandbox to say.
func (s *Spec) Missing() ([]Target, error) {
	var out []Target
	for i, m := range s.Mounts {
		if m.Kind != Bind {
			continue
		}
		st, err := os.Stat(m.Source)
		if err != nil {
			return nil, fmt.Errorf("bundle: %w", err)
		}
		base, rel := s.holder(s.Mounts[:i], m.Target)
		found, err := lookup(base, rel, st.IsDir())
		if err != nil {
			return nil, fmt.Errorf("bundle: mount target %s: %w", m.Target, err)
		}
		if !found {
			out = append(out, Target{Path: m.Target, Dir: st.IsDir()})
		}
	}
	return out, nil
}

// holder is the host directory that target lies in, once the mounts before it
// are made, and its path therein.
func (s *Spec) holder(before []Mount, target string) (base, rel string) {
	base, rel = s.Root, target
	for _, m := range slices.Backward(before) {
		if m.Kind == Bind && strings.HasPrefix(target, m.Target+"/") {
			return m.Source, strings.TrimPrefix(target, m.Target)
		}
	}
	return base, rel
}

// lookup tells whether rel exists below base and is what it should be.
func lookup(base, rel string, dir bool) (found bool, err error) {
	root, err := os.OpenRoot(base)
	if err != nil {
		return false, err
	}
	defer root.Close() //nolint:errcheck // a directory
	parts := strings.Split(strings.TrimPrefix(path.Clean(rel), "/"), "/")
	for i := range parts {
		st, err := root.Lstat(path.Join(parts[:i+1]...))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		last := i == len(parts)-1
		switch {
		case st.Mode()&fs.ModeSymlink != 0:
			return false, errors.New("it is reached through a symbolic link")
		case (!last || dir) && !st.IsDir():
			return false, errors.New("it is not a directory")
		case last && !dir && st.IsDir():
			return false, errors.New("it is a directory")
		}
	}
	return true, nil
}
