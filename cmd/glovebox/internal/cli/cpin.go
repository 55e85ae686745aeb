package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/glovebox-dev/glovebox/backend"
)

// in copies the host's file or directory to guest, or a tar stream from r.
func (c *copier) in(ctx context.Context, host, guest string, r io.Reader) error {
	there, err := c.files.Stat(ctx, guest)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	into := err == nil && there.IsDir()
	if host == "-" {
		if err == nil && !into {
			return &backend.Error{Op: "cp", Kind: backend.ErrInvalid, Field: guest, Err: errors.New("it is there and is not a directory")}
		}
		return c.inTar(ctx, r, guest)
	}
	info, err := os.Stat(host)
	if err != nil {
		return err
	}
	abs, err := filepath.Abs(host)
	if err != nil {
		return err
	}
	target := guest
	if into && !(info.IsDir() && contents(filepath.ToSlash(host))) {
		target = path.Join(guest, filepath.Base(abs))
	}
	if !info.IsDir() {
		if !into && strings.HasSuffix(guest, "/") {
			return &backend.Error{Op: "cp", Kind: backend.ErrNotFound, Field: guest, Err: errors.New("it is not a directory")}
		}
		return c.inOperators(ctx, host, target)
	}
	root, err := os.OpenRoot(host)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // read side
	return c.inDir(ctx, root, ".", target, 0)
}

// inOperators copies the file that the operator named.
func (c *copier) inOperators(ctx context.Context, host, guest string) error {
	f, err := openRegular(host)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read side
	return c.write(ctx, f, guest)
}

// inDir copies a directory of the host.
//
// Security: the tree may be a stranger's. A link in it could show the sandbox
// any file of ours, so links are left out, and when they are followed they may
// not leave the tree.
func (c *copier) inDir(ctx context.Context, root *os.Root, dir, guest string, depth int) error {
	if depth > maxDepth {
		return errTooDeep(dir)
	}
	if err := c.mkdir(ctx, guest); err != nil {
		return err
	}
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	list, err := d.ReadDir(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, item := range list {
		name, to := filepath.Join(dir, item.Name()), path.Join(guest, item.Name())
		info, err := root.Lstat(name)
		if err == nil && info.Mode()&fs.ModeSymlink != 0 {
			if !c.follow {
				c.skip(name, notFollowed)
				continue
			}
			if info, err = root.Stat(name); err != nil || !info.Mode().IsRegular() {
				c.skip(name, "it is a symbolic link to nothing that is a file, or out of the directory")
				continue
			}
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // it has gone meanwhile
		case err != nil:
			return err
		case info.IsDir():
			err = c.inDir(ctx, root, name, to, depth+1)
		case info.Mode().IsRegular():
			err = c.inFile(ctx, root, name, to)
		default:
			c.skip(name, "it is neither a file nor a directory")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) mkdir(ctx context.Context, guest string) error {
	c.done.Dirs++
	if c := path.Clean(guest); c == "." || c == "/" {
		return nil // the home and the root are there
	}
	return c.files.Mkdir(ctx, guest, 0)
}

func (c *copier) inFile(ctx context.Context, root *os.Root, name, guest string) error {
	// What has become a FIFO meanwhile must not hold us up.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read side
	return c.write(ctx, f, guest)
}

// write copies an open file of ours.
func (c *copier) write(ctx context.Context, f *os.File, guest string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", f.Name())
	}
	return c.send(ctx, f, guest, info.Mode().Perm())
}

func (c *copier) send(ctx context.Context, r io.Reader, guest string, perm fs.FileMode) error {
	n := &counting{r: r}
	if err := c.files.Write(ctx, guest, n, perm|0o600); err != nil {
		return err
	}
	c.done.Files++
	c.done.Bytes += n.n
	return nil
}

// inTar unpacks a tar stream below guest.
func (c *copier) inTar(ctx context.Context, r io.Reader, guest string) error {
	if err := c.mkdir(ctx, guest); err != nil {
		return err
	}
	tr := tar.NewReader(interruptible{ctx, r})
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return ctx.Err()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return &backend.Error{Op: "cp", Kind: backend.ErrInvalid, Err: fmt.Errorf("the tar stream: %w", err)}
		}
		name := path.Clean(h.Name)
		if path.IsAbs(name) || name == ".." || strings.HasPrefix(name, "../") {
			return &backend.Error{Op: "cp", Kind: backend.ErrInvalid, Err: fmt.Errorf("the tar stream has the name %q, outside of %s", h.Name, guest)}
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = c.mkdir(ctx, path.Join(guest, name))
		case tar.TypeReg:
			err = c.send(ctx, tr, path.Join(guest, name), fs.FileMode(h.Mode).Perm())
		case tar.TypeXGlobalHeader:
		default:
			c.skip(name, "it is neither a file nor a directory")
		}
		if err != nil {
			return err
		}
	}
}

// counting counts what is read.
type counting struct {
	r io.Reader
	n int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// interruptible is r until ctx ends, though r may block for ever: a read under
// way is then left behind.
type interruptible struct {
	ctx context.Context //nolint:containedctx // io.Reader has no room for one
	r   io.Reader
}

func (i interruptible) Read(p []byte) (int, error) {
	type answer struct {
		n   int
		err error
	}
	c := make(chan answer, 1)
	buf := make([]byte, len(p))
	go func() {
		n, err := i.r.Read(buf)
		c <- answer{n, err}
	}()
	select {
	case got := <-c:
		return copy(p, buf[:got.n]), got.err
	case <-i.ctx.Done():
		return 0, context.Cause(i.ctx)
	}
}
