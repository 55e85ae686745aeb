package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// Bounds of an image, whoever made it.
const (
	maxFiles = 2_000_000
	maxBytes = 64 << 30
)

// contents is what was unpacked.
type contents struct {
	files int
	bytes int64
}

// dirAttr is what a directory gets once it is full.
type dirAttr struct {
	name string
	mode fs.FileMode
	time time.Time
}

// unpacker fills root from tar archives.
//
// Security: an archive may be a stranger's image. Every name is resolved below
// root by os.Root, and what is neither file, directory nor link is left out.
type unpacker struct {
	root   *os.Root
	owners bool // as root, files get their owners
	dirs   []dirAttr
	got    contents
}

// unpack fills the directory dir, which is empty, from a tar archive.
func unpack(ctx context.Context, r io.Reader, dir string) (contents, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return contents{}, err
	}
	defer root.Close() //nolint:errcheck // it was only a handle
	u := &unpacker{root: root, owners: os.Geteuid() == 0}
	tr := tar.NewReader(r)
	for {
		if ctx.Err() != nil {
			return u.got, ctx.Err()
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return u.got, fmt.Errorf("read the archive: %w", err)
		}
		if err := u.entry(h, tr); err != nil {
			return u.got, fmt.Errorf("unpack %q: %w", h.Name, err)
		}
	}
	// The archive goes on a little after its last entry.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return u.got, fmt.Errorf("read the archive: %w", err)
	}
	if err := u.finish(); err != nil {
		return u.got, err
	}
	return u.got, complete(root)
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	name := path.Clean(strings.TrimLeft(h.Name, "/"))
	if u.got.files++; u.got.files > maxFiles {
		return errors.New("too many files")
	}
	if strings.HasPrefix(name, "../") || name == ".." {
		return errors.New("it leaves the root file system")
	}
	// What is mounted over stays empty.
	for _, dir := range []string{"dev", "proc", "sys"} {
		if strings.HasPrefix(name, dir+"/") {
			return nil
		}
	}
	mode := h.FileInfo().Mode()
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(name, mode, h)
	case tar.TypeReg:
		return u.file(name, mode, h, r)
	case tar.TypeSymlink:
		if err := u.clear(name); err != nil {
			return err
		}
		if err := u.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return u.own(name, h)
	case tar.TypeLink:
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Link(path.Clean(strings.TrimLeft(h.Linkname, "/")), name)
	default:
		return nil // devices, FIFOs and sockets are no part of an image
	}
}

func (u *unpacker) dir(name string, mode fs.FileMode, h *tar.Header) error {
	if name == "." {
		u.dirs = append(u.dirs, dirAttr{name, mode, h.ModTime})
		return u.own(name, h)
	}
	if st, err := u.root.Lstat(name); err != nil || !st.IsDir() {
		if err := u.clear(name); err != nil {
			return err
		}
		if err := u.root.Mkdir(name, 0o700); err != nil {
			return err
		}
	}
	u.dirs = append(u.dirs, dirAttr{name, mode, h.ModTime})
	return u.own(name, h)
}

func (u *unpacker) file(name string, mode fs.FileMode, h *tar.Header, r io.Reader) error {
	if u.got.bytes += h.Size; u.got.bytes > maxBytes {
		return errors.New("the image is too large")
	}
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := u.own(name, h); err != nil {
		return err
	}
	// After the owner, whose change takes set-user-id bits away.
	if err := u.root.Chmod(name, mode); err != nil {
		return err
	}
	return u.root.Chtimes(name, h.ModTime, h.ModTime)
}

// clear removes what a later entry of the same name replaces, and makes the
// directory that it lies in, should the archive have left that out.
func (u *unpacker) clear(name string) error {
	switch _, err := u.root.Lstat(name); {
	case err == nil:
		return u.root.RemoveAll(name)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if dir := path.Dir(name); dir != "." {
		return u.root.MkdirAll(dir, 0o755)
	}
	return nil
}

func (u *unpacker) own(name string, h *tar.Header) error {
	if !u.owners {
		return nil
	}
	return u.root.Lchown(name, h.Uid, h.Gid)
}

// finish gives directories their modes, which may not let anybody write, and
// their times, which filling them changed.
func (u *unpacker) finish() error {
	for _, d := range slices.Backward(u.dirs) {
		st, err := u.root.Lstat(d.name)
		if err != nil || !st.IsDir() {
			continue // replaced by a later entry
		}
		if err := u.root.Chmod(d.name, d.mode); err != nil {
			return fmt.Errorf("unpack %q: %w", d.name, err)
		}
		if err := u.root.Chtimes(d.name, d.time, d.time); err != nil {
			return fmt.Errorf("unpack %q: %w", d.name, err)
		}
	}
	return nil
}
