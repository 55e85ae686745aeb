//go:build linux

package box

import (
	"context"
	"io"
	"io/fs"

	"github.com/glovebox-dev/glovebox/backend"
)

// oneUser is the files of a sandbox that has one account: everything its
// client's have but UserFiles.
type oneUser struct{ fs backend.Filesystem }

// Open implements backend.Filesystem.
func (f oneUser) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	return f.fs.Open(ctx, name)
}

// Write implements backend.Filesystem.
func (f oneUser) Write(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	return f.fs.Write(ctx, name, r, perm)
}

// Stat implements backend.Filesystem.
func (f oneUser) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	return f.fs.Stat(ctx, name)
}

// List implements backend.Filesystem.
func (f oneUser) List(ctx context.Context, name string) ([]fs.FileInfo, error) {
	return f.fs.List(ctx, name)
}

// Mkdir implements backend.Filesystem.
func (f oneUser) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	return f.fs.Mkdir(ctx, name, perm)
}

// Rename implements backend.Filesystem.
func (f oneUser) Rename(ctx context.Context, from, to string) error {
	return f.fs.Rename(ctx, from, to)
}

// Remove implements backend.Filesystem.
func (f oneUser) Remove(ctx context.Context, name string) error { return f.fs.Remove(ctx, name) }

// As implements the optional interfaces.
func (f oneUser) As(target any) bool {
	switch t := target.(type) {
	case *backend.RangeOpener:
		return pass(f.fs, t)
	case *backend.MetadataWriter:
		return pass(f.fs, t)
	case *backend.Watcher:
		return pass(f.fs, t)
	default:
		return false
	}
}

func pass[T any](v any, target *T) (ok bool) {
	*target, ok = backend.As[T](v)
	return ok
}

var _ backend.Filesystem = oneUser{}
