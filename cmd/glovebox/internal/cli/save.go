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
	return saveIn(root, rest, 0o644, r, limit)
}

// saveIn is saveFile for a name whose directory is there.
func saveIn(root *os.Root, name string, perm fs.FileMode, r io.Reader, limit int64) (n int64, err error) {
	switch info, err := root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("%s is there and is not a regular file", name)
	}
	// The process's umask takes away from perm what it should.
	f, err := openUnnamed(root, filepath.Dir(name), perm)
	if err != nil {
		return saveNamed(root, name, perm, r, limit)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if n, err = copyBounded(f, r, limit); err != nil {
		return n, err
	}
	if err = linkUnnamed(root, f, name); !errors.Is(err, fs.ErrExist) {
		return n, err
	}
	tmp := temporary(name)
	if err = linkUnnamed(root, f, tmp); err != nil {
		return n, err
	}
	if err = root.Rename(tmp, name); err != nil {
		err = errors.Join(err, root.Remove(tmp))
	}
	return n, err
}

// saveNamed is saveIn where a file cannot be without a name: being killed on
// the way leaves the temporary one.
func saveNamed(root *os.Root, name string, perm fs.FileMode, r io.Reader, limit int64) (int64, error) {
	tmp := temporary(name)
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return 0, err
	}
	n, err := copyBounded(f, r, limit)
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(tmp, name)
	}
	if err != nil {
		return n, errors.Join(err, root.Remove(tmp))
	}
	return n, nil
}

// temporary is a name that nothing has, beside name.
func temporary(name string) string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return filepath.Join(filepath.Dir(name), ".glovebox-"+hex.EncodeToString(random[:]))
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
		return n, &tooLargeError{limit}
	}
	return n, err
}

// tooLargeError is a file of more bytes than were allowed.
type tooLargeError struct{ limit int64 }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("the file is larger than %d bytes, the limit on the sandbox's disk", e.limit)
}
