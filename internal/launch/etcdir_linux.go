package launch

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxEtc bounds the files and the bytes that a prepared /etc copies.
const (
	maxEtcFiles = 20_000
	maxEtcBytes = 64 << 20
)

// etcKey is a file of every prepared /etc. Its lock, shared by all that use the
// directory, is what keeps that.
const etcKey = "passwd"

// PrepareEtc returns a directory below cache that is the /etc of every sandbox
// made of the host's own files: made once and bound, where putting it together
// for each sandbox would cost more than all its other mounts. It is made again
// when one of the entries it was made of has changed. cache must be writable to
// nobody else; sandboxes' uids must be able to reach it.
//
// The directory stays for as long as somebody holds hold open, or a copy of it:
// the agent, for its sandbox. The caller closes its own.
func PrepareEtc(cache, home, hostname string) (dir string, hold *os.File, err error) {
	h := sha256.New()
	fmt.Fprintln(h, "1", home, hostname)
	for _, name := range etcEntries {
		st, err := os.Lstat(filepath.Join("/etc", name))
		if err == nil {
			fmt.Fprintln(h, name, st.Mode(), st.Size(), st.ModTime().UnixNano())
		}
	}
	dir = filepath.Join(cache, "etc-"+hex.EncodeToString(h.Sum(nil))[:16])
	for range 20 {
		hold, err = holdEtc(dir)
		if errors.Is(err, fs.ErrNotExist) {
			hold, err = makeEtc(cache, dir, home, hostname)
		}
		// Another process may make or remove the same one meanwhile.
		if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
	}
	return dir, hold, err
}

// holdEtc takes a share of a prepared /etc, fs.ErrNotExist when there is none
// or it is about to be removed.
func holdEtc(dir string) (*os.File, error) {
	path := filepath.Join(dir, etcKey)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		f.Close() //nolint:errcheck // read side
		return nil, fs.ErrNotExist
	}
	held, err := f.Stat()
	now, lerr := os.Lstat(path)
	if err != nil || lerr != nil || !os.SameFile(held, now) {
		f.Close() //nolint:errcheck // read side
		return nil, fs.ErrNotExist
	}
	return f, nil
}

// makeEtc makes dir and takes a share of it.
func makeEtc(cache, dir, home, hostname string) (*os.File, error) {
	tmp, err := os.MkdirTemp(cache, ".etc-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // gone after the rename
	if err := fillEtc(tmp, home, hostname); err != nil {
		return nil, err
	}
	removeOldEtc(cache)
	hold, err := holdEtc(tmp)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(tmp, dir); err != nil {
		hold.Close() //nolint:errcheck // read side
		return nil, err
	}
	return hold, nil
}

// forgotten is the age at which what was never finished is removed.
const forgotten = time.Hour

// removeOldEtc removes what was prepared before and nobody holds.
func removeOldEtc(cache string) {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(cache, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "etc-"):
			removeEtc(path)
		case strings.HasPrefix(e.Name(), ".etc-"):
			if st, err := e.Info(); err == nil && time.Since(st.ModTime()) > forgotten {
				os.RemoveAll(path) //nolint:errcheck // the next change tries again
			}
		}
	}
}

// removeEtc removes dir unless somebody holds it. It is renamed first, so that
// no part of it is ever found under its name.
func removeEtc(dir string) {
	f, err := os.OpenFile(filepath.Join(dir, etcKey), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err == nil {
		defer f.Close() //nolint:errcheck // read side
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return
		}
	}
	old := filepath.Join(filepath.Dir(dir), ".etc-old-"+rand.Text())
	if os.Rename(dir, old) == nil {
		os.RemoveAll(old) //nolint:errcheck // the next change tries again
	}
}

func fillEtc(dir, home, hostname string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	c := copier{files: maxEtcFiles, bytes: maxEtcBytes}
	for _, name := range etcEntries {
		from, to := filepath.Join("/etc", name), filepath.Join(dir, name)
		if _, err := os.Lstat(from); err != nil {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := c.copy(from, to); err != nil {
			return fmt.Errorf("etc: %w", err)
		}
	}
	for name, data := range accountFiles(home, hostname) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	// Some programs look for mounts here.
	return os.Symlink("../proc/self/mounts", filepath.Join(dir, "mtab"))
}

// copier copies a tree of what anybody may read.
type copier struct {
	files int
	bytes int64
}

func (c *copier) copy(from, to string) error {
	st, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if c.files--; c.files < 0 {
		return unix.EFBIG
	}
	switch {
	case st.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case st.IsDir():
		if st.Mode().Perm()&0o005 != 0o005 {
			return nil
		}
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		entries, err := os.ReadDir(from)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := c.copy(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
				return err
			}
		}
		return nil
	case st.Mode().IsRegular() && st.Mode().Perm()&0o004 != 0:
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if c.bytes -= int64(len(data)); c.bytes < 0 {
			return unix.EFBIG
		}
		return os.WriteFile(to, data, st.Mode().Perm()&0o755|0o444)
	default:
		// Secrets, sockets and devices are not for sandboxes.
		return nil
	}
}
