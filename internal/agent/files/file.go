//go:build linux

package files

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"
)

// copyBuffer is the size of the buffers that files are streamed through.
const copyBuffer = 64 << 10

// file is an open regular file. Unlike os.File it never waits in the poller:
// what is not ready is an error, so no special file can hold a request.
type file struct {
	fd   int
	path string
	stat unix.Stat_t
}

var errNotRegular = errors.New("not a regular file")

// openFile opens the regular file at path, following links. Anything else is
// errNotRegular, and opening it neither waits nor has effects on it. It runs
// with the user's rights.
func openFile(path string, flags int, perm uint32) (*file, error) {
	f := &file{path: path}
	// A device or FIFO must not be opened at all if it can be helped; what is
	// swapped in afterwards is caught below.
	err := unix.Stat(path, &f.stat)
	if err == nil && f.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, f.kind()
	}
	if err != nil && (flags&unix.O_CREAT == 0 || !errors.Is(err, unix.ENOENT)) {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	f.fd, err = openat2(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, perm)
	if errors.Is(err, unix.ENXIO) {
		return nil, errNotRegular
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err := unix.Fstat(f.fd, &f.stat); err != nil {
		_ = f.Close()
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if f.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = f.Close()
		return nil, f.kind()
	}
	return f, nil
}

// kind is the error for what f is instead of a regular file.
func (f *file) kind() error {
	if f.stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EISDIR
	}
	return errNotRegular
}

// openat2 refuses the links below /proc/<pid>/fd and their like: those lead to
// what this very process has open, whatever the user may do. Where the system
// call is missing, the kernel's checks on the file itself remain.
func openat2(path string, flags int, perm uint32) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(perm)
	}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			return unix.Open(path, flags, perm)
		}
		return fd, err
	}
}

func (f *file) Read(p []byte) (int, error) {
	n, err := retry(func() (int, error) { return unix.Read(f.fd, p) })
	switch {
	case err != nil:
		return 0, &fs.PathError{Op: "read", Path: f.path, Err: err}
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

func (f *file) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := retry(func() (int, error) { return unix.Write(f.fd, p[done:]) })
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return done, &fs.PathError{Op: "write", Path: f.path, Err: err}
		}
		done += n
	}
	return done, nil
}

// Seek finds the end by the size: files in /proc cannot seek there.
func (f *file) Seek(offset int64, whence int) (int64, error) {
	if whence == io.SeekEnd {
		if err := unix.Fstat(f.fd, &f.stat); err != nil {
			return 0, &fs.PathError{Op: "stat", Path: f.path, Err: err}
		}
		offset, whence = f.stat.Size+offset, io.SeekStart
	}
	return unix.Seek(f.fd, offset, whence)
}

func (f *file) Close() error { return unix.Close(f.fd) }

func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// copyTo streams r into w until its end, limit bytes or ctx ends.
func (s *Service) copyTo(ctx context.Context, w io.Writer, r io.Reader, limit int64) (int64, error) {
	buf, _ := s.buffers.Get().(*[copyBuffer]byte)
	defer s.buffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{w}, &ctxReader{ctx, io.LimitReader(r, limit)}, buf[:])
}

type ctxReader struct {
	ctx context.Context //nolint:containedctx // one copy's
	r   io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
