package image

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// scratchPrefix begins the names of temporary directories of builds.
const scratchPrefix = "glovebox-image-"

// scratchName is the file in a stage that names its temporary directory.
const scratchName = "scratch"

// prepare makes the store's directory.
func (s *Store) prepare() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return diskError("make the image store", err)
	}
	return nil
}

// lock keeps others from changing name's versions. It waits as long as ctx
// lets it and calls waiting when it has to. The caller closes the file.
func (s *Store) lock(ctx context.Context, name string, waiting func()) (*os.File, error) {
	if err := s.prepare(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, lockPrefix+name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, diskError("lock the image", err)
	}
	const poll = 100 * time.Millisecond
	for first := true; ; first = false {
		ok, err := tryLock(f, false)
		if ok {
			return f, nil
		}
		if err == nil && first && waiting != nil {
			waiting()
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(poll):
		}
		if err != nil {
			f.Close() //nolint:errcheck // nothing was written
			return nil, err
		}
	}
}

// stage is a version that is being built, aside.
type stage struct {
	s       *Store
	dir     string   // in the store
	scratch string   // a temporary directory elsewhere that others can enter
	held    *os.File // its lock tells that somebody is still at it
}

func (s *Store) stage() (*stage, error) {
	s.sweep()
	st := &stage{s: s, dir: filepath.Join(s.dir, buildPrefix+rand.Text())}
	if err := os.Mkdir(st.dir, 0o700); err != nil {
		return nil, diskError("make a directory to build in", err)
	}
	err := st.prepare()
	if err != nil {
		st.discard()
		return nil, diskError("make a directory to build in", err)
	}
	return st, nil
}

func (st *stage) prepare() error {
	f, err := os.OpenFile(filepath.Join(st.dir, scratchName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	st.held = f
	if ok, err := tryLock(f, false); err != nil || !ok {
		return errors.Join(err, errors.New("the build's lock cannot be taken"))
	}
	// Noted before it is made, so that it is found whenever we are killed.
	st.scratch = filepath.Join(tempDir(), scratchPrefix+rand.Text())
	if _, err := f.WriteString(st.scratch); err != nil {
		return err
	}
	if err := os.Mkdir(st.scratch, 0o711); err != nil {
		return err
	}
	return os.Mkdir(filepath.Join(st.dir, rootfsName), 0o755)
}

// tempDir is where programs may put hundreds of megabytes for a minute.
func tempDir() string {
	if os.Getenv("TMPDIR") == "" {
		if st, err := os.Stat("/var/tmp"); err == nil && st.IsDir() {
			return "/var/tmp" // /tmp may be memory
		}
	}
	return os.TempDir()
}

// commit puts the version into its place and makes it the current one.
func (st *stage) commit(img Image) (Image, error) {
	data, err := json.MarshalIndent(img, "", " ")
	if err != nil {
		return img, fmt.Errorf("image: %w", err)
	}
	fail := func(err error) (Image, error) { return img, diskError("keep the image", err) }
	if err := os.WriteFile(filepath.Join(st.dir, manifestName), append(data, '\n'), 0o644); err != nil {
		return fail(err)
	}
	if err := os.Remove(filepath.Join(st.dir, scratchName)); err != nil {
		return fail(err)
	}
	if err := removeTree(st.scratch); err != nil {
		return fail(err)
	}
	st.scratch = ""
	// A file that is named but was not written yet would survive a power cut.
	if err := syncDisk(st.dir); err != nil {
		return fail(err)
	}
	parent := filepath.Join(st.s.dir, img.Name)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fail(err)
	}
	img.Dir = filepath.Join(parent, img.Hash)
	switch err := os.Rename(st.dir, img.Dir); {
	case errors.Is(err, fs.ErrExist), isNotEmpty(err):
		// The same bytes were built before: only what they were built of is new.
		if err := os.Rename(filepath.Join(st.dir, manifestName), filepath.Join(img.Dir, manifestName)); err != nil {
			return fail(err)
		}
		st.discard()
	case err != nil:
		return fail(err)
	}
	if err := st.s.setCurrent(img); err != nil {
		return fail(err)
	}
	img.Current = true
	return img, nil
}

func (s *Store) setCurrent(img Image) error {
	link := filepath.Join(s.dir, img.Name, currentName)
	tmp := filepath.Join(s.dir, img.Name, "."+rand.Text())
	if err := os.Symlink(img.Hash, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, link); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}

// discard removes everything of the stage. It is idempotent, and after commit
// only lets go of the lock.
func (st *stage) discard() {
	if st.scratch != "" {
		_ = removeTree(st.scratch) // the next build's sweep tries again
	}
	_ = removeTree(st.dir) // likewise
	if st.held != nil {
		st.held.Close() //nolint:errcheck // nothing to do about it
	}
}

// sweep removes what builds and removals that were killed left behind.
func (s *Store) sweep() {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), removePrefix):
			_ = removeTree(path) // the next one tries again
		case strings.HasPrefix(e.Name(), buildPrefix):
			sweepStage(path)
		}
	}
}

func sweepStage(dir string) {
	f, err := os.Open(filepath.Join(dir, scratchName))
	if err != nil {
		// Just being made, or just being put into place.
		if st, serr := os.Stat(dir); serr == nil && time.Since(st.ModTime()) > time.Hour {
			_ = removeTree(dir) // the next one tries again
		}
		return
	}
	defer f.Close() //nolint:errcheck // read side
	if ok, err := tryLock(f, false); err != nil || !ok {
		return
	}
	name := make([]byte, 4096)
	n, _ := f.Read(name) // an empty one names nothing
	if scratch := string(name[:n]); filepath.IsAbs(scratch) && strings.HasPrefix(filepath.Base(scratch), scratchPrefix) {
		if removeTree(scratch) != nil {
			return // its note must stay
		}
	}
	_ = removeTree(dir) // the next one tries again
}
