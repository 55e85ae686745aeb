package plain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

// Stat implements backend.Filesystem. A link that leads nowhere, or out of the
// home, is described itself.
func (f *files) Stat(_ context.Context, name string) (fs.FileInfo, error) {
	local, err := f.local("stat", name)
	if err != nil {
		return nil, err
	}
	info, err := f.describe(local)
	if err != nil {
		return nil, f.fault("stat", name, err)
	}
	return info, nil
}

func (f *files) describe(local string) (*fileInfo, error) {
	root := f.sb.root
	info, err := root.Lstat(local)
	if err != nil {
		return nil, err
	}
	attr := &backend.FileAttr{Path: filepath.Join(f.sb.home, local)}
	name := filepath.Base(local)
	if local == "." {
		name = filepath.Base(f.sb.home)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		attr.Symlink = true
		if to, err := root.Readlink(local); err == nil { // else gone meanwhile: unknown
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(attr.Path), to)
			}
			attr.LinkTarget = to
		}
		if target, err := root.Stat(local); err == nil {
			info = target
		}
	}
	owner(info, attr)
	return &fileInfo{name: name, size: info.Size(), mode: info.Mode(), modified: info.ModTime(), attr: attr}, nil
}

type fileInfo struct {
	name     string
	size     int64
	mode     fs.FileMode
	modified time.Time
	attr     *backend.FileAttr
}

func (i *fileInfo) Name() string       { return i.name }
func (i *fileInfo) Size() int64        { return i.size }
func (i *fileInfo) Mode() fs.FileMode  { return i.mode }
func (i *fileInfo) ModTime() time.Time { return i.modified }
func (i *fileInfo) IsDir() bool        { return i.mode.IsDir() }
func (i *fileInfo) Sys() any           { return i.attr }

// List implements backend.Filesystem. A directory of more than 100 000 entries
// is ErrTooLarge.
func (f *files) List(ctx context.Context, name string) ([]fs.FileInfo, error) {
	local, err := f.local("list", name)
	if err != nil {
		return nil, err
	}
	names, err := f.entries(ctx, name, local)
	if err != nil {
		return nil, err
	}
	infos := make([]fs.FileInfo, 0, len(names))
	for _, entry := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		info, err := f.describe(filepath.Join(local, entry))
		switch {
		case err == nil:
			infos = append(infos, info)
		case !errors.Is(err, fs.ErrNotExist): // else removed meanwhile
			return nil, f.fault("list", name, err)
		}
	}
	return infos, nil
}

// entries are the names in a directory, sorted.
func (f *files) entries(ctx context.Context, name, local string) ([]string, error) {
	if info, err := f.sb.root.Stat(local); err != nil {
		return nil, f.fault("list", name, err)
	} else if !info.IsDir() {
		return nil, f.refuse("list", name, backend.ErrInvalid, errors.New("not a directory"))
	}
	dir, err := f.sb.root.OpenFile(local, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, f.fault("list", name, err)
	}
	defer dir.Close() //nolint:errcheck // read side
	var names []string
	for {
		batch, err := dir.Readdirnames(1024)
		names = append(names, batch...)
		switch {
		case errors.Is(err, io.EOF):
			slices.Sort(names)
			return names, nil
		case err != nil:
			return nil, f.fault("list", name, err)
		case len(names) > maxEntries:
			return nil, f.refuse("list", name, backend.ErrTooLarge, fmt.Errorf("more than %d entries", maxEntries))
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
}

// Mkdir implements backend.Filesystem.
func (f *files) Mkdir(_ context.Context, name string, perm fs.FileMode) error {
	local, err := f.local("mkdir", name)
	if err != nil {
		return err
	}
	perm = perm.Perm()
	if perm == 0 {
		perm = 0o755
	}
	if info, err := f.sb.root.Stat(local); err == nil {
		if !info.IsDir() {
			return f.refuse("mkdir", name, backend.ErrConflict, fs.ErrExist)
		}
		return nil
	}
	if err := f.sb.root.MkdirAll(local, perm); err != nil {
		return f.fault("mkdir", name, err)
	}
	if err := f.sb.root.Chmod(local, perm); err != nil && runtime.GOOS != "windows" {
		return f.fault("mkdir", name, err)
	}
	return nil
}

// Rename implements backend.Filesystem. Missing parents of to are made; a
// directory at to, or anything when from is one, is ErrConflict.
func (f *files) Rename(_ context.Context, from, to string) error {
	src, err := f.local("rename", from)
	if err != nil {
		return err
	}
	dst, err := f.local("rename", to)
	if err != nil {
		return err
	}
	info, err := f.sb.root.Lstat(src)
	if err != nil {
		return f.fault("rename", from, err)
	}
	if src == "." || dst == "." || below(dst, src) {
		return f.refuse("rename", to, backend.ErrInvalid, errors.New("not the home, and not below itself"))
	}
	if old, err := f.sb.root.Lstat(dst); err == nil && src != dst && (old.IsDir() || info.IsDir()) {
		return f.refuse("rename", to, backend.ErrConflict, fs.ErrExist)
	}
	if err := f.parents("rename", to, dst); err != nil {
		return err
	}
	return f.fault("rename", to, f.sb.root.Rename(src, dst))
}

// below tells whether name lies in dir.
func below(name, dir string) bool {
	return strings.HasPrefix(filepath.ToSlash(name), strings.TrimSuffix(filepath.ToSlash(dir), "/")+"/")
}

// Remove implements backend.Filesystem. The home itself is ErrInvalid.
func (f *files) Remove(_ context.Context, name string) error {
	local, err := f.local("remove", name)
	if err != nil {
		return err
	}
	if path.Clean(name) == "." {
		return f.refuse("remove", name, backend.ErrInvalid, errors.New("not the home itself"))
	}
	err = f.sb.root.RemoveAll(local)
	if errors.Is(err, fs.ErrPermission) {
		tree.OpenDirs(f.sb.root, filepath.ToSlash(local))
		err = f.sb.root.RemoveAll(local)
	}
	return f.fault("remove", name, err)
}
