//go:build linux

package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Code inside can nest directories deeper than a path is long or than there
// are descriptors. Below maxDescend a directory is therefore first moved up
// beside the top of what is removed; no path and no recursion grows with it.
const maxDescend = 16

// remover deletes one tree. Links are never followed, and a directory swapped
// for a link meanwhile is not entered.
type remover struct {
	ctx   context.Context //nolint:containedctx // one call's
	top   *os.File        // the directory being emptied
	moved int             // directories moved up into top
	err   error           // the first failure
}

// removeAll deletes path and everything below it; nothing there is success.
func removeAll(ctx context.Context, path string) error {
	err := os.Remove(path)
	if gone(err) {
		return nil
	}
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.EBUSY) {
		return cause(path, err)
	}
	rm := &remover{ctx: ctx}
	rm.top, err = openDirAt(unix.AT_FDCWD, path)
	if err != nil {
		return cause(path, err)
	}
	defer func() { _ = rm.top.Close() }()
	rm.empty(rm.top, 0)
	if rm.err != nil {
		return cause(path, rm.err)
	}
	if err := os.Remove(path); !gone(err) {
		return cause(path, err)
	}
	return nil
}

func gone(err error) bool {
	return err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// cause names path in an error about something in it.
func cause(path string, err error) error {
	if pe := new(fs.PathError); errors.As(err, &pe) {
		err = pe.Err
	}
	return &fs.PathError{Op: "unlinkat", Path: path, Err: err}
}

// openDirAt opens a directory to be emptied. The user's own ones are made
// writable first where they are not, as the caches of some tools: E2B removes
// with root's rights, the owner can do the same.
func openDirAt(dirfd int, name string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dirfd, name, flags, 0)
	if errors.Is(err, unix.EACCES) && unix.Fchmodat(dirfd, name, 0o700, 0) == nil {
		fd, err = unix.Openat(dirfd, name, flags, 0)
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Mode&0o700 != 0o700 {
		_ = unix.Fchmod(fd, 0o700) // if it may not, deleting will tell
	}
	return os.NewFile(uintptr(fd), filepath.Base(name)), nil
}

// empty deletes what is in dir, in rounds of bounded size until nothing is
// left or nothing more can be deleted. What was moved up into the top comes by
// in a later round.
func (rm *remover) empty(dir *os.File, depth int) {
	for {
		if _, err := dir.Seek(0, 0); err != nil {
			rm.note(err)
			return
		}
		entries, err := dir.Readdirnames(512)
		if len(entries) == 0 {
			rm.note(ignoreEOF(err))
			return
		}
		progress := false
		for _, name := range entries {
			if err := rm.ctx.Err(); err != nil {
				rm.err = err
				return
			}
			progress = rm.one(dir, name, depth) || progress
		}
		if !progress || rm.err != nil {
			return
		}
	}
}

// one deletes the entry name of dir and reports whether it is gone from there.
func (rm *remover) one(dir *os.File, name string, depth int) bool {
	fd := int(dir.Fd())
	err := unix.Unlinkat(fd, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return true
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		rm.note(err)
		return false
	}
	switch rerr := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); {
	case rerr == nil, errors.Is(rerr, unix.ENOENT):
		return true
	case errors.Is(rerr, unix.ENOTDIR): // what unlink said about it counts
		rm.note(err)
		return false
	case !errors.Is(rerr, unix.ENOTEMPTY) && !errors.Is(rerr, unix.EEXIST):
		rm.note(rerr)
		return false
	}
	if depth >= maxDescend {
		return rm.moveUp(fd, name)
	}
	sub, err := openDirAt(fd, name)
	if err != nil {
		rm.note(err)
		return false
	}
	rm.empty(sub, depth+1)
	_ = sub.Close()
	if err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		rm.note(err)
		return false
	}
	return true
}

func (rm *remover) moveUp(fd int, name string) bool {
	for {
		rm.moved++
		up := ".removed-" + strconv.Itoa(rm.moved)
		err := unix.Renameat2(fd, name, int(rm.top.Fd()), up, unix.RENAME_NOREPLACE)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return true
		case errors.Is(err, unix.EEXIST):
			continue
		}
		rm.note(err)
		return false
	}
}

func (rm *remover) note(err error) {
	if rm.err == nil {
		rm.err = err
	}
}

// ignoreEOF is what ended a listing, nil for its end and for a directory that
// was itself removed meanwhile.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
