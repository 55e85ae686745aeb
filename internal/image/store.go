package image

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/statedir"
)

// Names in the store's directory and in an image's.
const (
	imagesDir    = "images"
	lockPrefix   = ".lock-"
	buildPrefix  = ".build-"
	removePrefix = ".removed-"
	currentName  = "current"
	manifestName = "image.json"
	rootfsName   = "rootfs"
	archiveName  = "rootfs.tar.gz"

	maxManifest = 4 << 20
)

var hashPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Store keeps images on this host's disk. It is safe for concurrent use, by
// several processes too: a version is built aside, renamed into place and never
// changed.
//
// Security: an image has set-user-id programs of whoever made it, so nobody but
// the owner may enter the store. Drivers open a root file system themselves
// before they give up their rights; gVisor's gofer and a mapped sandbox need no
// more.
type Store struct{ dir string }

// Open is the store below the state directory dir. It does not touch the disk.
func Open(dir string) *Store { return &Store{filepath.Join(dir, imagesDir)} }

// Default is the store below the state directory that getenv tells.
func Default(getenv func(string) string) (*Store, error) {
	dir, err := statedir.Dir("", getenv)
	if err != nil {
		return nil, err
	}
	return Open(dir), nil
}

// Dir is the store's directory.
func (s *Store) Dir() string { return s.dir }

// CurrentRootfs is where the root file system of name's current version is, or
// will be. The path has a symbolic link in it, so what is opened by it is the
// version that is current then.
func (s *Store) CurrentRootfs(name string) string {
	return filepath.Join(s.dir, name, currentName, rootfsName)
}

// Rootfs is the image's root file system. Nobody may write to it.
func (i Image) Rootfs() string { return filepath.Join(i.Dir, rootfsName) }

// Archive opens the image's tar archive. The caller closes it.
func (i Image) Archive() (io.ReadCloser, error) {
	f, err := os.Open(filepath.Join(i.Dir, archiveName))
	if err != nil {
		return nil, diskError("open the archive", err)
	}
	gz, err := gzip.NewReader(f)
	if err != nil {
		f.Close() //nolint:errcheck // read side
		return nil, diskError("open the archive", err)
	}
	return &unzipped{gz, f}, nil
}

// unzipped is an archive that is decompressed as it is read.
type unzipped struct {
	*gzip.Reader
	f *os.File
}

// Close closes the file as well.
func (u *unzipped) Close() error { return errors.Join(u.Reader.Close(), u.f.Close()) }

// Get is the image of that name, or with NAME:HASH a version of it of which
// HASH is the beginning. One that is not there is ErrNotFound, with the fix.
func (s *Store) Get(ref string) (Image, error) {
	name, hash, versioned := strings.Cut(ref, ":")
	if !namePattern.MatchString(name) {
		return Image{}, invalid("name", fmt.Errorf("%q names no image", ref))
	}
	if !versioned {
		target, err := os.Readlink(filepath.Join(s.dir, name, currentName))
		if err != nil {
			return Image{}, missing(ref, name)
		}
		img, err := s.read(name, target)
		if errors.Is(err, fs.ErrNotExist) {
			return Image{}, missing(ref, name)
		}
		return img, err
	}
	all, err := s.versions(name)
	if err != nil {
		return Image{}, err
	}
	all = slices.DeleteFunc(all, func(i Image) bool { return !strings.HasPrefix(i.Hash, hash) })
	if len(all) != 1 || len(hash) < 4 {
		return Image{}, missing(ref, name)
	}
	return all[0], nil
}

func missing(ref, name string) error {
	return &backend.Error{
		Op: "image", Kind: backend.ErrNotFound, Err: fmt.Errorf("the image %s is not built", ref),
		Fix: "run: glovebox image build " + name,
	}
}

// List is all images by name, the current version of each first.
func (s *Store) List() ([]Image, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, diskError("list the images", err)
	}
	var out []Image
	for _, e := range entries {
		if !e.IsDir() || !namePattern.MatchString(e.Name()) {
			continue
		}
		all, err := s.versions(e.Name())
		if err != nil {
			return nil, err
		}
		out = append(out, all...)
	}
	return out, nil
}

// versions is all versions of name, the current one first, then the newest.
func (s *Store) versions(name string) ([]Image, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, diskError("list the images", err)
	}
	var out []Image
	for _, e := range entries {
		if !e.IsDir() || !hashPattern.MatchString(e.Name()) {
			continue
		}
		img, err := s.read(name, e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		out = append(out, img)
	}
	slices.SortFunc(out, func(a, b Image) int {
		switch {
		case a.Current != b.Current && a.Current:
			return -1
		case a.Current != b.Current:
			return 1
		}
		return b.Created.Compare(a.Created)
	})
	return out, nil
}

// read is one version of name; fs.ErrNotExist when there is none.
func (s *Store) read(name, hash string) (Image, error) {
	var img Image
	if !hashPattern.MatchString(hash) {
		return img, fs.ErrNotExist
	}
	dir := filepath.Join(s.dir, name, hash)
	f, err := os.Open(filepath.Join(dir, manifestName))
	if err != nil {
		return img, err
	}
	defer f.Close() //nolint:errcheck // read side
	if err := json.NewDecoder(io.LimitReader(f, maxManifest)).Decode(&img); err != nil {
		return img, fmt.Errorf("image %s:%s: %w", name, hash[:shortHash], err)
	}
	if img.Name != name || img.Hash != hash {
		return img, fmt.Errorf("image %s:%s: its manifest is another image's", name, hash[:shortHash])
	}
	img.Dir = dir
	target, _ := os.Readlink(filepath.Join(s.dir, name, currentName)) // then none is current
	img.Current = target == hash
	return img, nil
}

// Hold keeps img from being removed until the file is closed, here and in every
// process that got a copy of it. A driver holds an image for each sandbox.
func (s *Store) Hold(img Image) (*os.File, error) {
	f, err := os.Open(img.Dir)
	if err != nil {
		return nil, missing(img.Name+":"+img.Short(), img.Name)
	}
	ok, err := tryLock(f, true)
	if err == nil && (!ok || !sameOpen(f, img.Dir)) {
		err = missing(img.Name+":"+img.Short(), img.Name) // it is being removed
	}
	if err != nil {
		f.Close() //nolint:errcheck // read side
		return nil, err
	}
	return f, nil
}

func diskError(what string, err error) error {
	e := &backend.Error{Op: "image", Kind: backend.ErrInternal, Err: fmt.Errorf("%s: %w", what, err)}
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.Kind, e.Fix = backend.ErrDenied, "run it as root, or set "+statedir.Env+" to a directory of yours"
	case isNoSpace(err):
		e.Kind, e.Fix = backend.ErrCapacity, "free some space, or set "+statedir.Env+" to a directory on a larger disk"
	}
	return e
}
