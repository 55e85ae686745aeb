//go:build linux

package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
)

// ListDir lists a directory, depth levels deep (0 is 1), not entering links.
// Entries that vanish meanwhile and directories that the user may not read are
// left out. Beyond the service's bounds it is resource_exhausted.
func (r *rpc) ListDir(ctx context.Context, req *connect.Request[filesystem.ListDirRequest]) (*connect.Response[filesystem.ListDirResponse], error) {
	path := req.Msg.GetPath()
	acct, err := r.user(req.Header(), &path)
	if err != nil {
		return nil, err
	}
	l := &listing{
		ctx: ctx, names: r.s.names(), depth: max(req.Msg.GetDepth(), 1),
		entries: r.s.opts.MaxEntries, bytes: r.s.opts.MaxListing,
	}
	if err := r.s.as(acct, func() error { return l.root(path) }); err != nil {
		return nil, fail("error reading directory", err)
	}
	return connect.NewResponse(&filesystem.ListDirResponse{Entries: l.out}), nil
}

// listing collects one answer.
type listing struct {
	ctx            context.Context //nolint:containedctx // one call's
	names          *names
	depth          uint32
	entries, bytes int // what may still be added
	out            []*filesystem.EntryInfo
}

// root lists path, which may be a link to a directory. The entries' paths are
// below path as it was asked for.
func (l *listing) root(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fail("path not found", err)
	}
	if err != nil {
		// "too many links" is no kernel error and has no code of its own.
		if code(err) == connect.CodeInternal {
			return rpcError(connect.CodeFailedPrecondition, fmt.Errorf("error resolving symlink: %w", err))
		}
		return fail("error resolving symlink", err)
	}
	info, err := os.Stat(real)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail("directory not found", err)
	case err != nil:
		return fail("error getting file info", err)
	case !info.IsDir():
		return rpcError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", path))
	}
	return l.dir(real, path, 1)
}

// dir lists one directory and what is below it. Names count against the bounds
// as they are read, before anything is known about them.
func (l *listing) dir(path, shown string, depth uint32) error {
	found, err := l.read(path)
	if err != nil {
		if depth > 1 && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) ||
			errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENAMETOOLONG)) {
			return nil
		}
		return err
	}
	for _, name := range found {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		e, err := l.names.entry(filepath.Join(path, name), filepath.Join(shown, name))
		if err != nil {
			continue // vanished, or no longer reachable
		}
		if l.bytes -= size(e); l.bytes < 0 {
			return tooMuch("larger")
		}
		l.out = append(l.out, e)
		if e.GetType() == filesystem.FileType_FILE_TYPE_DIRECTORY && !e.GetIsSymlink() && depth < l.depth {
			if err := l.dir(filepath.Join(path, name), filepath.Join(shown, name), depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// read gives the sorted names in the directory path, not following a link.
func (l *listing) read(path string) ([]string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	defer func() { _ = dir.Close() }()
	var found []string
	for {
		some, err := dir.Readdirnames(1024)
		found = append(found, some...)
		if l.entries -= len(some); l.entries < 0 {
			return nil, tooMuch("more entries")
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return nil, err
		}
		if err := l.ctx.Err(); err != nil {
			return nil, err
		}
	}
	slices.Sort(found)
	return found, nil
}

func tooMuch(what string) error {
	return rpcError(connect.CodeResourceExhausted,
		fmt.Errorf("error reading directory: %s than one answer may hold; list its subdirectories or a smaller depth", what))
}

// size is roughly what e costs in memory beside its fixed part.
func size(e *filesystem.EntryInfo) int {
	n := len(e.GetName()) + len(e.GetPath()) + len(e.GetSymlinkTarget())
	for k, v := range e.GetMetadata() {
		n += len(k) + len(v)
	}
	return n
}
