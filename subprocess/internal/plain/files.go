package plain

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

const (
	// maxName bounds a file's name: each of its elements is opened in turn.
	maxName = 4096
	// maxEntries bounds a listing, which is held in memory.
	maxEntries = 100_000
)

// files is a sandbox's home. What commands make of it is theirs, so every name
// goes through an os.Root, which no link leads out of.
type files struct{ sb *sandbox }

// local is name as the root takes it.
func (f *files) local(op, name string) (string, error) {
	if err := f.sb.alive(op); err != nil {
		return "", err
	}
	refuse := func(kind backend.Kind, why string) error {
		return f.sb.fault(op, kind, "", &fs.PathError{Op: op, Path: name, Err: errors.New(why)},
			"use a name relative to the sandbox's home")
	}
	switch {
	case name == "" || len(name) > maxName || strings.ContainsRune(name, 0):
		return "", refuse(backend.ErrInvalid, "not a file's name")
	case path.IsAbs(name) || filepath.IsAbs(name):
		return "", refuse(backend.ErrUnsupported, "absolute names cannot be used here")
	case slices.Contains(strings.Split(name, "/"), ".."):
		return "", refuse(backend.ErrInvalid, "the name has a .. in it")
	}
	local, err := filepath.Localize(path.Clean(name))
	if err != nil {
		return "", refuse(backend.ErrInvalid, "not a file's name on this system")
	}
	return local, nil
}

// fault is the error of op on name, without the host's path of it.
func (f *files) fault(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if aerr := f.sb.alive(op); aerr != nil && errors.Is(err, os.ErrClosed) {
		return aerr
	}
	cause := causeOf(err)
	kind := kindOf(cause, backend.ErrInternal)
	if f.sb.escapes != nil && errors.Is(cause, f.sb.escapes) {
		kind, cause = backend.ErrDenied, escape{}
	}
	return f.refuse(op, name, kind, cause)
}

func (f *files) refuse(op, name string, kind backend.Kind, cause error) error {
	return f.sb.fault(op, kind, "", &fs.PathError{Op: op, Path: name, Err: cause}, "")
}

// escape is the error of a link that leads out of the home.
type escape struct{}

func (escape) Error() string        { return "leads out of the sandbox's home" }
func (escape) Is(target error) bool { return target == fs.ErrPermission }

// errNotRegular is the error of FIFOs, devices, sockets and directories.
var errNotRegular = errors.New("not a regular file")

// Open implements backend.Filesystem.
func (f *files) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	local, err := f.local("open", name)
	if err != nil {
		return nil, err
	}
	file, err := f.regular("open", name, local, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	return &reader{ctx: ctx, file: file, f: f, name: name}, nil
}

// regular opens a regular file. Looking first spares devices their opening;
// what is swapped in between opens without waiting and is found out after.
func (f *files) regular(op, name, local string, flag int, perm fs.FileMode) (*os.File, error) {
	root := f.sb.root
	info, err := root.Stat(local)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return nil, f.refuse(op, name, backend.ErrInvalid, errNotRegular)
	case err != nil && (flag&os.O_CREATE == 0 || !errors.Is(err, fs.ErrNotExist)):
		return nil, f.fault(op, name, err)
	}
	file, err := root.OpenFile(local, flag|nonblock, perm)
	if err != nil {
		return nil, f.fault(op, name, err)
	}
	info, err = file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		_ = file.Close()
		return nil, f.refuse(op, name, backend.ErrInvalid, causeOf(err))
	}
	return file, nil
}

// reader is an open file; it ends with its context and its sandbox.
type reader struct {
	ctx  context.Context //nolint:containedctx // the open's, as the contract has it
	file *os.File
	f    *files
	name string
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if err := r.f.sb.alive("read"); err != nil {
		return 0, err
	}
	n, err := r.file.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.f.fault("read", r.name, err)
	}
	return n, err
}

func (r *reader) Close() error { return r.f.fault("close", r.name, r.file.Close()) }

// Write implements backend.Filesystem. When r fails, what came before stays.
func (f *files) Write(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	local, err := f.local("write", name)
	if err != nil {
		return err
	}
	perm = perm.Perm()
	if perm == 0 {
		perm = 0o644
	}
	if err := f.parents("write", name, local); err != nil {
		return err
	}
	file, err := f.regular("write", name, local, os.O_WRONLY|os.O_CREATE, perm)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // closed below where it counts
	if err := file.Truncate(0); err != nil {
		return f.fault("write", name, err)
	}
	// The mode at the making is subject to this process's mask.
	if err := file.Chmod(perm); err != nil && runtime.GOOS != "windows" {
		return f.fault("write", name, err)
	}
	src := &source{ctx: ctx, r: r}
	if _, err := io.Copy(struct{ io.Writer }{file}, src); err != nil {
		if src.err != nil {
			return src.err
		}
		return f.fault("write", name, err)
	}
	return f.fault("write", name, file.Close())
}

// source tells the caller's errors from the disk's.
type source struct {
	ctx context.Context //nolint:containedctx // the write's
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (n int, err error) {
	if err = s.ctx.Err(); err == nil {
		n, err = s.r.Read(p)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// parents makes the missing directories above local.
func (f *files) parents(op, name, local string) error {
	dir := filepath.Dir(local)
	if dir == "." {
		return nil
	}
	err := f.sb.root.MkdirAll(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return f.refuse(op, name, backend.ErrInvalid, errors.New("a file stands above it"))
	}
	return f.fault(op, name, err)
}

var _ backend.Filesystem = (*files)(nil)
