package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

// RemoveOptions says how images are removed.
type RemoveOptions struct {
	// InUse names the sandboxes that use an image, besides those that hold it.
	// It may be nil.
	InUse func(ctx context.Context, img Image) ([]string, error)
	// Force removes what is in use.
	Force bool
	// Importer removes it from the engine as well. It may be nil.
	Importer Importer
	// Old removes only versions that are not current.
	Old bool
}

// Remove removes the versions that ref, NAME or NAME:HASH, means and returns
// them. An image that a sandbox uses is ErrConflict, and then none is removed.
func (s *Store) Remove(ctx context.Context, ref string, opts RemoveOptions) ([]Image, error) {
	name, _, versioned := strings.Cut(ref, ":")
	first, err := s.Get(ref)
	if err != nil && (versioned || !errors.Is(err, backend.ErrNotFound)) {
		return nil, err
	}
	notFound := err
	lock, err := s.lock(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	defer lock.Close() //nolint:errcheck // nothing was written
	all := []Image{first}
	if !versioned {
		if all, err = s.versions(name); err != nil {
			return nil, err
		}
		if len(all) == 0 {
			return nil, notFound
		}
	}
	var doomed []Image
	for _, img := range all {
		if opts.Old && img.Current {
			continue
		}
		hold, err := s.unused(ctx, img, opts)
		if err != nil {
			return nil, err
		}
		defer hold.Close() //nolint:errcheck // read side
		doomed = append(doomed, img)
	}
	for i, img := range doomed {
		if err := s.remove(ctx, img, opts.Importer); err != nil {
			return doomed[:i], err
		}
	}
	return doomed, nil
}

// unused takes img for us alone. The caller closes the file.
func (s *Store) unused(ctx context.Context, img Image, opts RemoveOptions) (*os.File, error) {
	f, err := os.Open(img.Dir)
	if err != nil {
		return nil, diskError("open the image", err)
	}
	refuse := func(err error) (*os.File, error) {
		f.Close() //nolint:errcheck // read side
		return nil, err
	}
	ok, err := tryLock(f, false)
	if opts.Force {
		return f, nil
	}
	if err != nil {
		return refuse(diskError("lock the image", err))
	}
	var users []string
	if opts.InUse != nil {
		if users, err = opts.InUse(ctx, img); err != nil {
			return refuse(err)
		}
	}
	if ok && len(users) == 0 {
		return f, nil
	}
	who := "a sandbox uses it"
	if n := len(users); n > 0 {
		who = "sandboxes use it: " + strings.Join(users[:min(n, 10)], ", ")
	}
	return refuse(&backend.Error{
		Op: "image", Kind: backend.ErrConflict, Err: fmt.Errorf("%s:%s: %s", img.Name, img.Short(), who),
		Fix: "end them, or use --force",
	})
}

func (s *Store) remove(ctx context.Context, img Image, engine Importer) error {
	if engine != nil {
		if err := engine.Remove(ctx, img.Ref()); err != nil {
			return err
		}
	}
	if img.Current {
		if err := os.Remove(filepath.Join(s.dir, img.Name, currentName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return diskError("remove the image", err)
		}
	}
	// Renamed first, so that no part of it is ever found under its name.
	aside := filepath.Join(s.dir, removePrefix+rand.Text())
	if err := os.Rename(img.Dir, aside); err != nil {
		return diskError("remove the image", err)
	}
	_ = os.Remove(filepath.Join(s.dir, img.Name)) // while another version is there it stays
	if err := removeTree(aside); err != nil {
		return diskError("remove the image", err)
	}
	return nil
}

// removeTree removes dir with all that is below it, directories that their
// owner may not write to included.
func removeTree(dir string) error {
	if os.RemoveAll(dir) == nil || os.Geteuid() == 0 {
		return os.RemoveAll(dir)
	}
	// what cannot be entered cannot be removed either, and is told below
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(path, 0o700) //nolint:gosec // it is ours and about to go
		}
		return nil
	})
	err := os.RemoveAll(dir)
	if err == nil {
		return nil
	}
	// In mmdebstrap's user namespace there are files of other users than us.
	program, lerr := exec.LookPath("mmdebstrap")
	if lerr != nil {
		return err
	}
	if (&exec.Cmd{Path: program, Args: []string{program, "--unshare-helper", "rm", "-rf", "--", dir}}).Run() != nil {
		return err
	}
	return nil
}
