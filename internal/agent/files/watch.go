//go:build linux

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
)

// watch turns the kernel's events about one directory, and those below it when
// recursive, into E2B's. All of it runs on one goroutine.
type watch struct {
	s       *Service
	acct    Account
	root    string
	deep    bool
	entries bool // events carry the entry
	notify  *fsnotify.Watcher
	dirs    map[string]struct{} // watched, the root included
	emit    func(*filesystem.FilesystemEvent) error

	announced int // entries announced for the event at hand
}

// watchRequest is what WatchDir and CreateWatcher have in common.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

// newWatch starts watching; the caller calls close, then giveBack once nothing
// of the watch is kept any more, whatever happens else.
func (s *Service) newWatch(acct Account, path string, req watchRequest) (*watch, error) {
	if err := s.startWatch(); err != nil {
		return nil, err
	}
	w := &watch{
		s: s, acct: acct, root: path, deep: req.GetRecursive(), entries: req.GetIncludeEntry(),
		dirs: map[string]struct{}{},
	}
	err := s.as(acct, func() error { return w.open(req.GetAllowNetworkMounts()) })
	if err != nil {
		w.close()
		s.giveBack()
		return nil, fail("error creating watcher", err)
	}
	return w, nil
}

// startWatch counts a watch in; giveBack counts it out. Where there is no room,
// watchers go that have ended and whose client knows that.
func (s *Service) startWatch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return rpcError(connect.CodeUnavailable, errClosed)
	}
	if s.kept >= s.opts.MaxWatchers {
		for id, p := range s.watchers {
			if p.told() {
				delete(s.watchers, id)
				s.kept--
			}
		}
	}
	if s.kept >= s.opts.MaxWatchers {
		return rpcError(connect.CodeResourceExhausted,
			fmt.Errorf("error creating watcher: there are %d, the most there may be; remove one first", s.kept))
	}
	s.kept++
	s.wg.Add(1)
	return nil
}

func (w *watch) close() {
	if w.notify != nil {
		_ = w.notify.Close() // it only reports that it was closed before
	}
	w.s.mu.Lock()
	w.s.watched -= len(w.dirs)
	w.s.mu.Unlock()
	w.s.wg.Done()
}

// giveBack gives the place of a watch back.
func (s *Service) giveBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept--
}

func (w *watch) open(allowNetwork bool) error {
	info, err := os.Stat(w.root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return rpcError(connect.CodeNotFound, fmt.Errorf("path %s not found: %w", w.root, err))
	case err != nil:
		return fail(fmt.Sprintf("error statting path %s", w.root), err)
	case !info.IsDir():
		return rpcError(connect.CodeInvalidArgument, fmt.Errorf("path %s not a directory", w.root))
	}
	var st unix.Statfs_t
	if err := unix.Statfs(w.root, &st); err != nil {
		return fail("error checking mount status", err)
	}
	if network(st.Type) && !allowNetwork {
		return rpcError(connect.CodeInvalidArgument, fmt.Errorf("cannot watch path on network filesystem: %s", w.root))
	}
	if w.notify, err = fsnotify.NewWatcher(); err != nil {
		return fail("error creating watcher", err)
	}
	if err := w.add(w.root); err != nil {
		return err
	}
	if w.deep {
		return w.below(w.root, false)
	}
	return nil
}

// network reports whether inotify misses what others do on this file system.
func network(magic int64) bool {
	switch uint32(magic) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC:
		return true
	}
	return false
}

// add watches one directory, with the user's rights.
func (w *watch) add(dir string) error {
	if _, ok := w.dirs[dir]; ok {
		return nil
	}
	w.s.mu.Lock()
	full := w.s.watched >= w.s.opts.MaxWatched
	if !full {
		w.s.watched++
		w.dirs[dir] = struct{}{}
	}
	w.s.mu.Unlock()
	if full {
		return w.tooMany(dir)
	}
	if err := w.notify.Add(dir); err != nil {
		w.forget(dir)
		return fail(fmt.Sprintf("error adding path %s to watcher", dir), err)
	}
	return nil
}

func (w *watch) tooMany(dir string) error {
	return rpcError(connect.CodeResourceExhausted,
		fmt.Errorf("error adding path %s to watcher: only %d directories may be watched", dir, w.s.opts.MaxWatched))
}

func (w *watch) forget(dir string) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	delete(w.dirs, dir)
	w.s.watched--
}

// maxAnnounced bounds how many entries of one new directory tree are announced.
const maxAnnounced = 1000

// below watches the directories in dir. What was made in a new directory
// before it was watched is announced, so nothing is missed; it may be announced
// twice. Directories that vanish or may not be read are left out.
func (w *watch) below(dir string, announce bool) error {
	subs, err := w.subdirs(dir, announce)
	for _, sub := range subs {
		if err != nil {
			break
		}
		err = w.addBelow(sub, announce)
	}
	return err
}

// subdirs gives the directories in dir. It is closed before any of them is
// looked at, so that deep trees do not use up the descriptors.
func (w *watch) subdirs(dir string, announce bool) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, nil //nolint:nilerr // gone or not readable: nothing to watch
	}
	defer func() { _ = f.Close() }()
	var subs []string
	for {
		found, err := f.ReadDir(256)
		for _, e := range found {
			path := filepath.Join(dir, e.Name())
			if announce && w.announced < maxAnnounced {
				w.announced++
				if err := w.send(path, filesystem.EventType_EVENT_TYPE_CREATE); err != nil {
					return nil, err
				}
			}
			if e.IsDir() {
				subs = append(subs, path)
			}
		}
		if len(subs) > w.s.opts.MaxWatched {
			return nil, w.tooMany(dir)
		}
		if err != nil || w.s.ctx.Err() != nil {
			return subs, nil //nolint:nilerr // the end, or the directory is gone
		}
	}
}

func (w *watch) addBelow(path string, announce bool) error {
	err := w.add(path)
	if c := connect.CodeOf(err); err != nil && (c == connect.CodeNotFound || c == connect.CodePermissionDenied || c == connect.CodeInvalidArgument) {
		return nil
	}
	if err != nil {
		return err
	}
	return w.below(path, announce)
}

// handle sends what one kernel event means.
func (w *watch) handle(e fsnotify.Event) error {
	for _, op := range []struct {
		op   fsnotify.Op
		kind filesystem.EventType
	}{
		{fsnotify.Create, filesystem.EventType_EVENT_TYPE_CREATE},
		{fsnotify.Rename, filesystem.EventType_EVENT_TYPE_RENAME},
		{fsnotify.Chmod, filesystem.EventType_EVENT_TYPE_CHMOD},
		{fsnotify.Write, filesystem.EventType_EVENT_TYPE_WRITE},
		{fsnotify.Remove, filesystem.EventType_EVENT_TYPE_REMOVE},
	} {
		if !e.Op.Has(op.op) {
			continue
		}
		if err := w.sendAs(e.Name, op.kind); err != nil {
			return err
		}
	}
	if e.Op.Has(fsnotify.Rename) || e.Op.Has(fsnotify.Remove) {
		w.drop(e.Name)
	}
	if w.deep && e.Op.Has(fsnotify.Create) {
		return w.s.as(w.acct, func() error {
			if info, err := os.Lstat(e.Name); err != nil || !info.IsDir() {
				return nil //nolint:nilerr // gone already
			}
			w.announced = 0
			return w.addBelow(e.Name, true)
		})
	}
	return nil
}

// drop ends watching dir and all below it, which now is elsewhere or gone: the
// kernel would go on reporting under the old name.
func (w *watch) drop(dir string) {
	if _, ok := w.dirs[dir]; !ok || dir == w.root {
		return
	}
	for d := range w.dirs {
		if d == dir || strings.HasPrefix(d, dir+"/") {
			_ = w.notify.Remove(d) // it may have ended by itself
			w.forget(d)
		}
	}
}

// sendAs is send for the goroutine that has the agent's rights.
func (w *watch) sendAs(path string, kind filesystem.EventType) error {
	if !w.entries {
		return w.send(path, kind)
	}
	return w.s.as(w.acct, func() error { return w.send(path, kind) })
}

func (w *watch) send(path string, kind filesystem.EventType) error {
	name, err := filepath.Rel(w.root, path)
	if err != nil {
		return fail("error getting relative path", err)
	}
	ev := &filesystem.FilesystemEvent{Name: valid(name), Type: kind}
	switch kind { //nolint:exhaustive // the others have no entry any more
	case filesystem.EventType_EVENT_TYPE_CREATE, filesystem.EventType_EVENT_TYPE_WRITE, filesystem.EventType_EVENT_TYPE_CHMOD:
		if w.entries {
			ev.Entry, _ = w.s.names().entry(path, path) // none when it vanished
		}
	}
	return w.emit(ev)
}
