package cli

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// saveFile writes at most limit bytes of r to the host's file name, all or
// nothing. A larger one is an error.
//
// Security: the content is a stranger's, and so may be the directory the
// operator works in. A relative name stays below the directory it is relative
// to, whatever symbolic links lie there; what stands at the name itself is
// replaced when it is a regular file and left alone when it is anything else.
func saveFile(name string, r io.Reader, limit int64) (int64, error) {
	dir, rest := anchor(name)
	return saveBelow(dir, rest, r, limit)
}

// saveBelow is saveFile for a name that may not leave dir.
func saveBelow(dir, rest string, r io.Reader, limit int64) (int64, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close() //nolint:errcheck // nothing was written through it
	if filepath.Dir(rest) != "." {
		if err := root.MkdirAll(filepath.Dir(rest), 0o755); err != nil {
			return 0, err
		}
	}
	switch info, err := root.Lstat(rest); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("%s is there and is not a regular file", rest)
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	tmp := filepath.Join(filepath.Dir(rest), ".glovebox-"+hex.EncodeToString(random[:]))
	// The process's umask takes away from 0644 what it should.
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return 0, err
	}
	n, err := copyBounded(f, r, limit)
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(tmp, rest)
	}
	if err != nil {
		return 0, errors.Join(err, root.Remove(tmp))
	}
	return n, nil
}

// anchor splits name into the directory that it may not leave and the name in
// it. An absolute name, and what a name says with leading dots, is the
// operator's own word.
func anchor(name string) (dir, rest string) {
	name = filepath.Clean(name)
	if filepath.IsAbs(name) {
		return filepath.Dir(name), filepath.Base(name)
	}
	dir, rest = ".", name
	up := ".." + string(filepath.Separator)
	for strings.HasPrefix(rest, up) {
		dir, rest = filepath.Join(dir, ".."), rest[len(up):]
	}
	return dir, rest
}

func copyBounded(w io.Writer, r io.Reader, limit int64) (int64, error) {
	n, err := io.Copy(w, io.LimitReader(r, limit+1))
	if err == nil && n > limit {
		return n, fmt.Errorf("the file is larger than %d bytes, the limit on the sandbox's disk", limit)
	}
	return n, err
}
