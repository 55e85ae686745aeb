//go:build linux

package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem/filesystemconnect"
)

// rpc are the methods of filesystem.Filesystem.
type rpc struct{ s *Service }

var _ filesystemconnect.FilesystemHandler = (*rpc)(nil)

// user finds the account of a request and makes paths absolute in place.
func (r *rpc) user(h http.Header, paths ...*string) (Account, error) {
	acct, err := r.s.account(h)
	if err != nil {
		return acct, err
	}
	for _, p := range paths {
		if *p, err = r.s.resolve(*p, acct); err != nil {
			return acct, rpcError(connect.CodeInvalidArgument, err)
		}
	}
	return acct, nil
}

// entryOf describes path for an answer.
func (r *rpc) entryOf(path string) (*filesystem.EntryInfo, error) {
	e, err := r.s.names().entry(path, path)
	if err != nil && code(err) == connect.CodeNotFound {
		return nil, fail("file not found", err)
	}
	if err != nil {
		return nil, fail("error getting file info", err)
	}
	return e, nil
}

// Stat describes one path.
func (r *rpc) Stat(_ context.Context, req *connect.Request[filesystem.StatRequest]) (*connect.Response[filesystem.StatResponse], error) {
	path := req.Msg.GetPath()
	acct, err := r.user(req.Header(), &path)
	if err != nil {
		return nil, err
	}
	var res filesystem.StatResponse
	err = r.s.as(acct, func() (err error) {
		res.Entry, err = r.entryOf(path)
		return err
	})
	if err != nil {
		return nil, fail("error getting file info", err)
	}
	return connect.NewResponse(&res), nil
}

// MakeDir makes a directory that is not there yet, with its parents. The mode
// that a header may give is its own, not theirs.
func (r *rpc) MakeDir(_ context.Context, req *connect.Request[filesystem.MakeDirRequest]) (*connect.Response[filesystem.MakeDirResponse], error) {
	path := req.Msg.GetPath()
	acct, err := r.user(req.Header(), &path)
	if err != nil {
		return nil, err
	}
	mode, err := modeHeader(req.Header())
	if err != nil {
		return nil, rpcError(connect.CodeInvalidArgument, err)
	}
	var res filesystem.MakeDirResponse
	err = r.s.as(acct, func() error {
		info, err := os.Stat(path)
		switch {
		case err == nil && info.IsDir():
			return rpcError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists: %s", path))
		case err == nil:
			return rpcError(connect.CodeInvalidArgument, fmt.Errorf("path already exists but it is not a directory: %s", path))
		case !errors.Is(err, fs.ErrNotExist):
			return fail("error getting file info", err)
		}
		if err := ensureDir(path); err != nil {
			return fail("error creating directory", err)
		}
		if mode != nil {
			if err := os.Chmod(path, fs.FileMode(*mode)); err != nil {
				return fail("error creating directory", err)
			}
		}
		res.Entry, err = r.entryOf(path)
		return err
	})
	if err != nil {
		return nil, fail("error creating directory", err)
	}
	return connect.NewResponse(&res), nil
}

// Move renames, making the destination's parents and replacing a file there.
func (r *rpc) Move(ctx context.Context, req *connect.Request[filesystem.MoveRequest]) (*connect.Response[filesystem.MoveResponse], error) {
	from, to := req.Msg.GetSource(), req.Msg.GetDestination()
	acct, err := r.user(req.Header(), &from, &to)
	if err != nil {
		return nil, err
	}
	var res filesystem.MoveResponse
	err = r.s.as(acct, func() (err error) {
		if err := r.s.move(ctx, from, to); err != nil {
			return err
		}
		res.Entry, err = r.entryOf(to)
		return err
	})
	if err != nil {
		return nil, fail("error renaming", err)
	}
	return connect.NewResponse(&res), nil
}

func (s *Service) move(ctx context.Context, from, to string) error {
	// Looked at first, so that a missing source leaves no new directories.
	info, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return rpcError(connect.CodeNotFound, fmt.Errorf("source file not found: %w",
			&os.LinkError{Op: "rename", Old: from, New: to, Err: unix.ENOENT}))
	}
	if err != nil {
		return fail("error renaming", err)
	}
	if err := ensureDir(filepath.Dir(to)); err != nil {
		return fail("error creating directory", err)
	}
	err = os.Rename(from, to)
	if errors.Is(err, unix.EXDEV) && info.Mode().IsRegular() {
		// E2B has one file system; here /tmp and the home may be two.
		err = s.moveAcross(ctx, from, to)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return rpcError(connect.CodeNotFound, fmt.Errorf("source file not found: %w", err))
	case err != nil:
		return fail("error renaming", err)
	}
	return nil
}

// Remove deletes path and all below; nothing there is success.
func (r *rpc) Remove(ctx context.Context, req *connect.Request[filesystem.RemoveRequest]) (*connect.Response[filesystem.RemoveResponse], error) {
	path := req.Msg.GetPath()
	acct, err := r.user(req.Header(), &path)
	if err != nil {
		return nil, err
	}
	if err := r.s.as(acct, func() error { return removeAll(ctx, path) }); err != nil {
		return nil, fail("error removing file or directory", err)
	}
	return connect.NewResponse(&filesystem.RemoveResponse{}), nil
}
