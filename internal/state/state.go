// Package state is the host's record of what glovebox made on it: a marker file
// with a lock for every sandbox, a journal in SQLite for those that outlive
// their creator, and host-wide leases of uid ranges. A marker's lock is held by
// whatever must be alive for the sandbox to be, so that a sweep can tell from
// the kernel, and not from a record, whose owner is gone.
package state

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/statedir"
)

// EnvDir names the environment variable with the state directory.
const EnvDir = statedir.Env

const (
	storeFile   = "store"
	sandboxDir  = "sandboxes"
	journalFile = "journal.db"
	storeIDLen  = 8
)

var storeID = regexp.MustCompile(`^[a-z0-9]{8}$`)

// Dir is the state directory of this process: see statedir.Dir.
func Dir(override string) (string, error) { return statedir.Dir(override, os.Getenv) }

// Store is one state directory. It is safe for concurrent use, by any number
// of processes.
type Store struct {
	dir string
	id  string

	mu      sync.Mutex
	closed  bool
	journal *Journal
}

// Open makes the directory unless it is there, checks that nobody else can
// write to it, and reads or makes the store's ID. It opens no database. Errors
// are ErrInvalid, or ErrCapacity on a full disk, and name path and fix.
func Open(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, &backend.Error{
			Op: "state", Kind: backend.ErrInvalid, Field: "state_dir", Err: fmt.Errorf("%q is not an absolute path", dir),
		}
	}
	if err := secureDir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := secureDir(filepath.Join(dir, sandboxDir), 0o700); err != nil {
		return nil, err
	}
	id, err := readStoreID(filepath.Join(dir, storeFile))
	if errors.Is(err, fs.ErrNotExist) {
		id, err = makeStoreID(dir)
	}
	if err != nil {
		return nil, err
	}
	return &Store{dir: dir, id: id}, nil
}

// ID is the store's random name, eight lower-case letters and digits, which
// stands in the name of everything its sandboxes are made of.
func (s *Store) ID() string { return s.id }

// Dir is the store's directory.
func (s *Store) Dir() string { return s.dir }

// Close closes the journal if it was opened. Markers stay as they are. It is
// idempotent.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.journal == nil {
		return nil
	}
	err := s.journal.db.Close()
	s.journal = nil
	return err
}

func readStoreID(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return "", diskError("read the store's id", path, err)
	}
	defer f.Close() //nolint:errcheck // read side
	if err := secureFile(f); err != nil {
		return "", err
	}
	data, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil {
		return "", diskError("read the store's id", path, err)
	}
	id := strings.TrimSuffix(string(data), "\n")
	if !storeID.MatchString(id) {
		return "", &backend.Error{
			Op: "state", Kind: backend.ErrInvalid, Field: "state_dir", Err: fmt.Errorf("%s does not hold a store's id", path),
			Fix: "restore it, or remove the directory once nothing named glovebox runs",
		}
	}
	return id, nil
}

// makeStoreID writes the ID aside and links it into place, so that of several
// processes one wins and none sees half a file.
func makeStoreID(dir string) (string, error) {
	path := filepath.Join(dir, storeFile)
	id := randomName(storeIDLen)
	tmp := filepath.Join(dir, "."+storeFile+"-"+randomName(12))
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", diskError("make the store's id", path, err)
	}
	defer os.Remove(tmp) //nolint:errcheck // gone already at worst
	_, err = f.WriteString(id + "\n")
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return "", diskError("make the store's id", path, err)
	}
	switch err := os.Link(tmp, path); {
	case err == nil:
		return id, nil
	case errors.Is(err, fs.ErrExist):
		return readStoreID(path)
	default:
		return "", diskError("make the store's id", path, err)
	}
}

// randomName is n letters and digits in lower case.
func randomName(n int) string {
	return strings.ToLower(rand.Text())[:n]
}

// secureDir makes dir and what is missing above it, and refuses one that
// anybody else could change.
func secureDir(dir string, perm fs.FileMode) error {
	if err := os.MkdirAll(dir, perm); err != nil {
		return diskError("make the state directory", dir, err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return diskError("look at the state directory", dir, err)
	}
	refuse := func(path, why, fix string) error {
		return &backend.Error{
			Op: "state", Kind: backend.ErrInvalid, Field: "state_dir", Err: fmt.Errorf("%s %s", path, why), Fix: fix,
		}
	}
	elsewhere := "set " + EnvDir + " to a directory of your own"
	switch {
	case !info.IsDir():
		return refuse(dir, "is a symbolic link, or no directory", elsewhere)
	case !ownedBySelf(info):
		return refuse(dir, "belongs to another user", elsewhere)
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0:
		return refuse(dir, "can be written by others", "chmod go-w "+dir)
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return diskError("look at the state directory", dir, err)
	}
	for ; ; parent = filepath.Dir(parent) {
		info, err := os.Lstat(parent)
		if err != nil {
			return diskError("look at the state directory", parent, err)
		}
		if runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
			return refuse(parent, "can be written by anybody, so that they could replace "+dir, elsewhere)
		}
		if parent == filepath.Dir(parent) {
			return nil
		}
	}
}

// secureFile refuses an open file that is not a regular one of our own.
func secureFile(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return diskError("look at", f.Name(), err)
	}
	if !info.Mode().IsRegular() || !ownedBySelf(info) {
		return &backend.Error{
			Op: "state", Kind: backend.ErrInvalid, Field: "state_dir",
			Err: fmt.Errorf("%s is not a regular file of this user", f.Name()), Fix: "remove it",
		}
	}
	return nil
}

// diskError classifies what the file system said of path. A missing file
// passes as fs.ErrNotExist.
func diskError(op, path string, err error) error {
	e := &backend.Error{Op: "state", Kind: backend.ErrInvalid, Field: "state_dir", Err: fmt.Errorf("%s: %s: %w", op, path, cause(err))}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, errQuota):
		e.Kind, e.Fix = backend.ErrCapacity, "free some space there, or set "+EnvDir+" to another disk"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		e.Kind, e.Fix = backend.ErrCapacity, "raise the limit of open files"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		e.Fix = "make it writable, or set " + EnvDir + " to a directory that is"
	case errors.Is(err, errors.ErrUnsupported):
		e.Kind = backend.ErrUnsupported
	}
	return e
}

// cause is err without the path it repeats.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	if le, ok := errors.AsType[*os.LinkError](err); ok {
		return le.Err
	}
	return err
}
