package backendtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// files is a tree in memory, by clean absolute path.
type files struct {
	sb *sandbox

	mu    sync.Mutex
	nodes map[string]*node
}

type node struct {
	mode     fs.FileMode
	data     []byte
	modified time.Time
}

func newFiles(sb *sandbox) *files {
	f := &files{sb: sb, nodes: map[string]*node{}}
	f.mkdirs(backend.DefaultHome, 0o755)
	f.mkdirs("/tmp", 0o777)
	return f
}

// clean makes name absolute. A name that climbs over the root stays in it.
func (f *files) clean(name string) (string, error) {
	switch {
	case name == "" || strings.ContainsRune(name, 0):
		return "", &backend.Error{Op: "files", Kind: backend.ErrInvalid, Field: name, Err: errors.New("not a file's name")}
	case !path.IsAbs(name):
		return path.Join(backend.DefaultHome, path.Clean("/"+name)), nil
	case !f.sb.fake.caps.Has(backend.FeaturePrivateRoot):
		return "", &backend.Error{Op: "files", Kind: backend.ErrUnsupported, Field: name, Err: errors.New("absolute names cannot be used here")}
	}
	return path.Clean(name), nil
}

func fault(op, name string, kind backend.Kind, cause error) error {
	return &backend.Error{Op: op, Kind: kind, Err: &fs.PathError{Op: op, Path: name, Err: cause}}
}

// do carries out a call on a clean name under the lock.
func (f *files) do(ctx context.Context, op Op, name string, operation func(abs string) error) error {
	return f.sb.do(ctx, op, name, func() error {
		abs, err := f.clean(name)
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		return operation(abs)
	})
}

// get finds a node; the caller holds mu.
func (f *files) get(op, name, abs string) (*node, error) {
	n, ok := f.nodes[abs]
	if !ok {
		return nil, fault(op, name, backend.ErrNotFound, fs.ErrNotExist)
	}
	return n, nil
}

// mkdirs makes abs and its parents; the caller holds mu or is alone.
func (f *files) mkdirs(abs string, perm fs.FileMode) bool {
	if n, ok := f.nodes[abs]; ok {
		return n.mode.IsDir()
	}
	if abs != "/" && !f.mkdirs(path.Dir(abs), perm) {
		return false
	}
	f.nodes[abs] = &node{mode: fs.ModeDir | perm.Perm(), modified: f.sb.host.clock.Now()}
	return true
}

func (f *files) used() (n int64) {
	for _, node := range f.nodes {
		n += int64(len(node.data))
	}
	return n
}

// Open implements backend.Filesystem.
func (f *files) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	return f.openRange(ctx, name, 0, -1)
}

func (f *files) openRange(ctx context.Context, name string, off, n int64) (io.ReadCloser, error) {
	var data []byte
	err := f.do(ctx, OpOpen, name, func(abs string) error {
		node, err := f.get("open", name, abs)
		if err != nil {
			return err
		}
		if node.mode.IsDir() || off < 0 {
			return fault("open", name, backend.ErrInvalid, errors.New("not a regular file, or a negative offset"))
		}
		data = node.data[min(off, int64(len(node.data))):]
		if n >= 0 {
			data = data[:min(n, int64(len(data)))]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &reader{ctx: ctx, sb: f.sb, name: name, r: bytes.NewReader(data), closed: f.sb.host.opened("file " + name)}, nil
}

type reader struct {
	ctx    context.Context //nolint:containedctx // the open's, as the contract has it
	sb     *sandbox
	name   string
	r      *bytes.Reader
	closed func()
}

func (r *reader) Read(p []byte) (n int, err error) {
	var end error
	err = r.sb.do(r.ctx, OpRead, r.name, func() error {
		n, end = r.r.Read(p)
		return nil
	})
	if err == nil {
		err = end
	}
	return n, err
}

func (r *reader) Close() error {
	r.closed()
	return nil
}

// Write implements backend.Filesystem.
func (f *files) Write(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	if perm == 0 {
		perm = 0o644
	}
	limit := f.sb.spec.Limits.Disk
	return f.sb.do(ctx, OpWrite, name, func() error {
		abs, err := f.clean(name)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(r, limit+1))
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		old := f.nodes[abs]
		if old != nil && old.mode.IsDir() || !f.mkdirs(path.Dir(abs), 0o755) {
			return fault("write", name, backend.ErrInvalid, errors.New("a directory stands there, or a file above it"))
		}
		used := f.used() + int64(len(data))
		if old != nil {
			used -= int64(len(old.data))
		}
		if used > limit {
			return fault("write", name, backend.ErrTooLarge, errors.New("no space left"))
		}
		f.nodes[abs] = &node{mode: perm.Perm(), data: data, modified: f.sb.host.clock.Now()}
		return nil
	})
}

// Stat implements backend.Filesystem.
func (f *files) Stat(ctx context.Context, name string) (info fs.FileInfo, err error) {
	err = f.do(ctx, OpStat, name, func(abs string) error {
		n, err := f.get("stat", name, abs)
		if err == nil {
			info = describe(abs, n)
		}
		return err
	})
	return info, err
}

// List implements backend.Filesystem.
func (f *files) List(ctx context.Context, name string) (infos []fs.FileInfo, err error) {
	err = f.do(ctx, OpReadDir, name, func(abs string) error {
		n, err := f.get("list", name, abs)
		if err != nil {
			return err
		}
		if !n.mode.IsDir() {
			return fault("list", name, backend.ErrInvalid, errors.New("not a directory"))
		}
		for _, p := range slices.Sorted(maps.Keys(f.nodes)) {
			if p != "/" && path.Dir(p) == abs {
				infos = append(infos, describe(p, f.nodes[p]))
			}
		}
		return nil
	})
	return infos, err
}

// Mkdir implements backend.Filesystem.
func (f *files) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	if perm == 0 {
		perm = 0o755
	}
	return f.do(ctx, OpMkdir, name, func(abs string) error {
		if !f.mkdirs(abs, perm) {
			return fault("mkdir", name, backend.ErrConflict, fs.ErrExist)
		}
		return nil
	})
}

// Rename implements backend.Filesystem.
func (f *files) Rename(ctx context.Context, from, to string) error {
	return f.do(ctx, OpRename, from, func(abs string) error {
		target, err := f.clean(to)
		if err != nil {
			return err
		}
		n, err := f.get("rename", from, abs)
		if err != nil {
			return err
		}
		if old, ok := f.nodes[target]; ok && (old.mode.IsDir() || n.mode.IsDir()) {
			return fault("rename", to, backend.ErrConflict, fs.ErrExist)
		}
		if abs == "/" || below(target, abs) || !f.mkdirs(path.Dir(target), 0o755) {
			return fault("rename", to, backend.ErrInvalid, errors.New("not below itself, nor below a file"))
		}
		moved := map[string]*node{}
		maps.DeleteFunc(f.nodes, func(p string, n *node) bool {
			if !below(p, abs) {
				return false
			}
			moved[target+strings.TrimPrefix(p, abs)] = n
			return true
		})
		maps.Copy(f.nodes, moved)
		return nil
	})
}

// Remove implements backend.Filesystem.
func (f *files) Remove(ctx context.Context, name string) error {
	return f.do(ctx, OpRemove, name, func(abs string) error {
		maps.DeleteFunc(f.nodes, func(p string, _ *node) bool { return p != "/" && below(p, abs) })
		return nil
	})
}

// below tells whether p is dir or lies in it.
func below(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

type fileInfo struct {
	name string
	node node
	attr *backend.FileAttr
}

func describe(abs string, n *node) fs.FileInfo {
	return fileInfo{name: path.Base(abs), node: *n, attr: &backend.FileAttr{
		Owner: backend.DefaultUser, Group: backend.DefaultUser, UID: 1000, GID: 1000, Path: abs,
	}}
}

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Size() int64        { return int64(len(i.node.data)) }
func (i fileInfo) Mode() fs.FileMode  { return i.node.mode }
func (i fileInfo) ModTime() time.Time { return i.node.modified }
func (i fileInfo) IsDir() bool        { return i.node.mode.IsDir() }
func (i fileInfo) Sys() any           { return i.attr }

var _ backend.Filesystem = (*files)(nil)
