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
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// element is what a copy keeps of a file besides its content.
type element struct {
	perm    fs.FileMode // of the owner's nine bits only
	size    int64
	modTime time.Time
}

// elementOf is what is kept of a sandbox's file.
//
// Security: set-id and sticky bits stay behind, and its owner, which is us, can
// always read and remove it.
func elementOf(info fs.FileInfo) element {
	e := element{perm: info.Mode().Perm() | 0o600, size: info.Size(), modTime: info.ModTime()}
	if info.IsDir() {
		e.perm |= 0o700
	}
	return e
}

// out copies guest out to the host's name host, or as a tar stream to w.
func (c *copier) out(ctx context.Context, guest, host string, w io.Writer) error {
	info, err := c.files.Stat(ctx, guest)
	if err != nil {
		return err
	}
	base := path.Base(path.Clean(guest))
	if host == "-" {
		tw := tar.NewWriter(w)
		if info.IsDir() && contents(guest) {
			base = ""
		}
		err := c.outTop(ctx, tarPlace{tw: tw, c: c}, guest, base, info)
		if err != nil {
			return err // without its end the stream is seen to be cut
		}
		return tw.Close()
	}
	to, name, err := hostPlace(host, base, info.IsDir(), contents(guest))
	if err != nil {
		return err
	}
	err = c.outTop(ctx, to, guest, name, info)
	return errors.Join(err, to.close())
}

// outTop copies guest to name in to; "" is to itself.
func (c *copier) outTop(ctx context.Context, to place, guest, name string, info fs.FileInfo) error {
	if err := c.count(); err != nil {
		return err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return &backend.Error{Op: "cp", Kind: backend.ErrInvalid, Field: guest, Err: errors.New("it is neither a file nor a directory")}
	}
	if info.IsDir() && name == "" {
		return c.outDir(ctx, to, guest, 0)
	}
	return c.outOne(ctx, to, guest, name, info, 0)
}

// outDir copies what is in the directory guest.
func (c *copier) outDir(ctx context.Context, to place, guest string, depth int) error {
	if depth > maxDepth {
		return errTooDeep(guest)
	}
	list, err := c.files.List(ctx, guest)
	if err != nil {
		return err
	}
	for _, info := range list {
		name := info.Name()
		// Security: a name decides where we write, and comes from a stranger.
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || !filepath.IsLocal(name) || filepath.Base(name) != name {
			return &backend.Error{Op: "cp", Kind: backend.ErrLost, Field: guest, Err: fmt.Errorf("it lists the name %q", name)}
		}
		if err := c.count(); err != nil {
			return err
		}
		inside := path.Join(guest, name)
		if attr, ok := info.Sys().(*backend.FileAttr); info.Mode()&fs.ModeSymlink != 0 || ok && attr != nil && attr.Symlink {
			if !c.follow {
				c.skip(inside, notFollowed)
				continue
			}
			target, err := c.files.Stat(ctx, inside)
			// A few links to directories above them would be a tree without an end.
			if err != nil || !target.Mode().IsRegular() {
				c.skip(inside, "it is a symbolic link to nothing that is a file")
				continue
			}
			info = target
		}
		if err := c.outOne(ctx, to, inside, name, info, depth); err != nil {
			return err
		}
	}
	return nil
}

// outOne copies a file or directory.
func (c *copier) outOne(ctx context.Context, to place, guest, name string, info fs.FileInfo, depth int) error {
	switch {
	case info.IsDir():
		sub, err := to.dir(name, elementOf(info))
		if err != nil {
			return err
		}
		c.done.Dirs++
		return errors.Join(c.outDir(ctx, sub, guest, depth+1), sub.close())
	case !info.Mode().IsRegular():
		c.skip(guest, "it is neither a file nor a directory")
		return nil
	}
	r, err := c.files.Open(ctx, guest)
	if errors.Is(err, backend.ErrInvalid) && depth > 0 {
		c.skip(guest, "it is no longer a file")
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := to.file(name, elementOf(info), r, c.size)
	if large := (*tooLargeError)(nil); errors.As(err, &large) {
		return errors.Join(c.tooLarge(), r.Close())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", guest, err)
	}
	c.size -= n
	c.done.Bytes += n
	c.done.Files++
	return nil
}

// below is a directory of the host.
type below struct{ root *os.Root }

// hostPlace is the directory and the name in it that host means for something
// called base; "" is the directory itself.
//
// Security: as with saveFile, a relative name stays below where it starts,
// whatever symbolic links lie there.
func hostPlace(host, base string, isDir, inside bool) (below, string, error) {
	dir, rest := anchor(host)
	switch {
	case rest == "..":
		dir, rest = filepath.Join(dir, ".."), "."
	case filepath.Clean(host) == filepath.Dir(filepath.Clean(host)): // the root
		rest = "."
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return below{}, "", err
	}
	defer root.Close() //nolint:errcheck // nothing is written through it any more
	there, err := root.Stat(rest)
	switch {
	case err == nil && there.IsDir():
		sub, err := root.OpenRoot(rest)
		if isDir && inside {
			base = ""
		}
		return below{sub}, base, err
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return below{}, "", err
	case err == nil && isDir:
		return below{}, "", fmt.Errorf("%s is there and is not a directory", host)
	case !isDir && slashed(host):
		return below{}, "", fmt.Errorf("%s is not a directory", host)
	case isDir:
		if err := root.MkdirAll(rest, 0o755); err != nil {
			return below{}, "", err
		}
		sub, err := root.OpenRoot(rest)
		return below{sub}, "", err
	}
	parent := filepath.Dir(rest)
	if err := root.MkdirAll(parent, 0o755); err != nil {
		return below{}, "", err
	}
	sub, err := root.OpenRoot(parent)
	return below{sub}, filepath.Base(rest), err
}

func (b below) dir(name string, e element) (place, error) {
	switch info, err := b.root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
		if err := b.root.Mkdir(name, e.perm); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("%s is there and is not a directory", name)
	}
	sub, err := b.root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return below{sub}, nil
}

func (b below) file(name string, e element, r io.Reader, limit int64) (int64, error) {
	return saveIn(b.root, name, e.perm, r, limit)
}

func (b below) close() error { return b.root.Close() }

// tarPlace is a directory in a tar stream.
type tarPlace struct {
	tw     *tar.Writer
	c      *copier
	prefix string
}

func (t tarPlace) dir(name string, e element) (place, error) {
	sub := tarPlace{t.tw, t.c, path.Join(t.prefix, name)}
	h := &tar.Header{Typeflag: tar.TypeDir, Name: sub.prefix + "/", Mode: int64(e.perm), ModTime: e.modTime}
	return sub, t.tw.WriteHeader(h)
}

// file needs a size beforehand: what a file has grown by since is left out,
// what it has shrunk by is filled with zeros, as tar does.
func (t tarPlace) file(name string, e element, r io.Reader, limit int64) (int64, error) {
	if e.size > limit {
		return 0, &tooLargeError{limit}
	}
	full := path.Join(t.prefix, name)
	h := &tar.Header{Typeflag: tar.TypeReg, Name: full, Size: e.size, Mode: int64(e.perm), ModTime: e.modTime}
	if err := t.tw.WriteHeader(h); err != nil {
		return 0, err
	}
	n, err := io.Copy(t.tw, io.LimitReader(r, e.size))
	if err != nil || n == e.size {
		return n, err
	}
	t.c.notes = append(t.c.notes, fmt.Sprintf("%s has shrunk while it was copied and ends with zeros", full))
	_, err = io.CopyN(t.tw, zeros{}, e.size-n)
	return e.size, err
}

func (t tarPlace) close() error { return nil }

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

var (
	_ place = below{}
	_ place = tarPlace{}
)
