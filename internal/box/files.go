//go:build linux

package box

import (
	"context"
	"io"
	"io/fs"

	"github.com/glovebox-dev/glovebox/backend"
)

// someFiles are the files of a sandbox that cannot do all that its client can:
// one that has a single account, or whose files have no metadata.
type someFiles struct {
	fs   backend.Filesystem
	caps backend.Capabilities
}

// Open implements backend.Filesystem.
func (f someFiles) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	return f.fs.Open(ctx, name)
}

// Write implements backend.Filesystem.
func (f someFiles) Write(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	return f.fs.Write(ctx, name, r, perm)
}

// Stat implements backend.Filesystem.
func (f someFiles) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	return f.fs.Stat(ctx, name)
}

// List implements backend.Filesystem.
func (f someFiles) List(ctx context.Context, name string) ([]fs.FileInfo, error) {
	return f.fs.List(ctx, name)
}

// Mkdir implements backend.Filesystem.
func (f someFiles) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	return f.fs.Mkdir(ctx, name, perm)
}

// Rename implements backend.Filesystem.
func (f someFiles) Rename(ctx context.Context, from, to string) error {
	return f.fs.Rename(ctx, from, to)
}

// Remove implements backend.Filesystem.
func (f someFiles) Remove(ctx context.Context, name string) error { return f.fs.Remove(ctx, name) }

// As implements the optional interfaces.
func (f someFiles) As(target any) bool {
	switch t := target.(type) {
	case *backend.RangeOpener:
		return pass(f.fs, t)
	case *backend.MetadataWriter:
		return f.caps.Has(backend.FeatureMetadata) && pass(f.fs, t)
	case *backend.UserFiles:
		return f.caps.Has(backend.FeatureUsers) && pass(f.fs, t)
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

var _ backend.Filesystem = someFiles{}
