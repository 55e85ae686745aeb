package launch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxEtc bounds the files and the bytes that a prepared /etc copies.
const (
	maxEtcFiles = 20_000
	maxEtcBytes = 64 << 20
)

// PrepareEtc returns a directory below cache that is the /etc of every sandbox
// made of the host's own files: made once and bound, where putting it together
// for each sandbox would cost more than all its other mounts. It is made again
// when one of the entries it was made of has changed. cache must be writable to
// nobody else; sandboxes' uids must be able to reach it.
func PrepareEtc(cache, home, hostname string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, "1", home, hostname)
	for _, name := range etcEntries {
		st, err := os.Lstat(filepath.Join("/etc", name))
		if err == nil {
			fmt.Fprintln(h, name, st.Mode(), st.Size(), st.ModTime().UnixNano())
		}
	}
	dir := filepath.Join(cache, "etc-"+hex.EncodeToString(h.Sum(nil))[:16])
	if _, err := os.Stat(filepath.Join(dir, "passwd")); err == nil {
		return dir, nil
	}
	tmp, err := os.MkdirTemp(cache, ".etc-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // gone after the rename
	if err := fillEtc(tmp, home, hostname); err != nil {
		return "", err
	}
	removeOldEtc(cache)
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return "", err
	}
	return dir, nil
}

// removeOldEtc removes what was prepared before; sandboxes that have it keep it.
func removeOldEtc(cache string) {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "etc-") {
			os.RemoveAll(filepath.Join(cache, e.Name())) //nolint:errcheck // the next change tries again
		}
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
