//go:build linux

package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// Saver is on bodies of sandboxes that can be saved.
type Saver interface {
	// Save writes the sandbox into dir, an empty directory: with memory all of
	// it, else its files alone. It goes on afterwards, whatever comes of that,
	// which is in any case within the context. detail is for Restorer.
	Save(ctx context.Context, dir string, memory bool, spec backend.Spec) (detail json.RawMessage, err error)
}

// Restorer is on drivers whose bodies are Savers. Their Make looks at
// Birth.From.
type Restorer interface {
	// Fits refuses a snapshot that cannot become a sandbox of spec here.
	Fits(ctx context.Context, spec backend.Spec, from *Saved) error
}

// Saved is a snapshot that a sandbox is made from.
type Saved struct {
	// Dir holds what Saver.Save wrote. It is there until the sandbox is made.
	Dir string `json:"-"`
	// Spec is what the saved sandbox was.
	Spec backend.Spec `json:"-"`
	// Memory says that its processes are part of it.
	Memory bool `json:"memory"`
	// Seam is how its agent is taken up.
	Seam wire.Seam `json:"seam,omitzero"`
	// Detail is the driver's.
	Detail json.RawMessage `json:"detail,omitempty"`

	Files []savedFile `json:"files"`

	lock *os.File // shared, on Dir
}

type savedFile struct {
	Name string `json:"name"` // below Dir
	Size int64  `json:"size"`
	Sum  uint32 `json:"sum"` // CRC-32C: it finds what a crash tore, not a forger
}

// seal makes what lies in s.Dir this user's alone and sums it up.
func (s *Saved) seal() (total int64, err error) {
	err = filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.Chmod(path, 0o700) //nolint:gosec // nobody else can reach it
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is no file", path)
		}
		st, err := d.Info()
		if err == nil {
			err = os.Chmod(path, 0o600|st.Mode().Perm()&0o100) //nolint:gosec // the same
		}
		var one savedFile
		if err == nil {
			one, err = sum(s.Dir, path)
		}
		s.Files = append(s.Files, one)
		total += one.Size
		return err
	})
	return total, err
}

func sum(dir, path string) (savedFile, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return savedFile{}, err
	}
	defer f.Close() //nolint:errcheck // read side
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(h, f)
	if err != nil {
		return savedFile{}, err
	}
	name, err := filepath.Rel(dir, path)
	return savedFile{Name: name, Size: n, Sum: h.Sum32()}, err
}

// check compares what is there with what was sealed.
func (s *Saved) check() error {
	if len(s.Files) == 0 {
		return errors.New("it is empty")
	}
	for _, want := range s.Files {
		if !filepath.IsLocal(want.Name) {
			return fmt.Errorf("the name %.60q", want.Name)
		}
		got, err := sum(s.Dir, filepath.Join(s.Dir, want.Name))
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s is not what was written", want.Name)
		}
	}
	return nil
}

func (s *Saved) close() {
	if s != nil && s.lock != nil {
		s.lock.Close() //nolint:errcheck // with it the lock ends
	}
}

// fromError is an error of Spec.From.
func (ex *Executor) fromError(kind backend.Kind, err error, fix string) error {
	return &backend.Error{Op: "create", Kind: kind, Backend: ex.name, Field: "from", Err: err, Fix: fix}
}

// fixTakeAgain is what helps when a snapshot cannot be used here.
const fixTakeAgain = "delete it, and take it again"

// from is spec as it is asked for when what it leaves open is the snapshot's,
// and the snapshot, which the caller closes; nil without one.
func (ex *Executor) from(ctx context.Context, spec backend.Spec) (backend.Spec, *Saved, error) {
	if spec.From == "" || !ex.caps.Has(backend.FeatureSnapshot) || ex.serr != nil {
		return spec, nil, nil
	}
	if !state.ValidSnapshotName(spec.From) {
		return spec, nil, ex.fromError(backend.ErrInvalid, fmt.Errorf("%.80q is no snapshot's name", spec.From), "see `glovebox snapshot ls`")
	}
	s, err := ex.openSaved(ctx, spec.From)
	if err != nil {
		return spec, nil, err
	}
	full := s.complete(spec)
	return full, s, ex.fits(full, s)
}

// openSaved finds a snapshot and keeps it from being removed.
func (ex *Executor) openSaved(ctx context.Context, name string) (_ *Saved, err error) {
	j, err := ex.store.Journal(ctx)
	if err != nil {
		return nil, err
	}
	none := ex.fromError(backend.ErrNotFound, fmt.Errorf("there is no snapshot %q", name), "see `glovebox snapshot ls`")
	get := func() (state.Snapshot, error) {
		rec, err := j.Snapshot(ctx, name)
		if backend.KindOf(err) == backend.ErrNotFound || err == nil && (!rec.Ready || rec.Backend != ex.name) {
			err = none
		}
		return rec, err
	}
	rec, err := get()
	if err != nil {
		return nil, err
	}
	s := &Saved{Dir: filepath.Join(ex.store.SnapshotDir(), rec.Dir)}
	if s.lock, err = os.OpenFile(s.Dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0); err != nil {
		return nil, ex.fromError(backend.ErrUnavailable, err, fixTakeAgain)
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := waitLock(ctx, s.lock, unix.LOCK_SH); err != nil {
		return nil, err
	}
	// It may have been removed before it was locked, and even made anew.
	if now, err := get(); err != nil || now.Dir != rec.Dir {
		return nil, none
	}
	if err := errors.Join(json.Unmarshal(rec.Detail, s), json.Unmarshal(rec.Spec, &s.Spec)); err != nil {
		return nil, ex.fromError(backend.ErrInternal, err, fixTakeAgain)
	}
	return s, nil
}

// complete gives spec what it leaves open.
func (s *Saved) complete(spec backend.Spec) backend.Spec {
	if spec.Template == "" {
		spec.Template = s.Spec.Template
	}
	l, was := &spec.Limits, s.Spec.Limits
	if was.FileSize == was.Disk {
		was.FileSize = 0 // none of its own
	}
	l.Memory, l.CPUs, l.Pids = or(l.Memory, was.Memory), or(l.CPUs, was.CPUs), or(l.Pids, was.Pids)
	l.Disk, l.Inodes, l.OpenFiles = or(l.Disk, was.Disk), or(l.Inodes, was.Inodes), or(l.OpenFiles, was.OpenFiles)
	l.FileSize, l.CPUTime, l.Output = or(l.FileSize, was.FileSize), or(l.CPUTime, was.CPUTime), or(l.Output, was.Output)
	return spec
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// fits refuses what a snapshot can never become. spec is complete.
func (ex *Executor) fits(spec backend.Spec, s *Saved) error {
	if s == nil {
		return nil
	}
	refuse := func(field, why, fix string) error {
		return &backend.Error{Op: "create", Kind: backend.ErrUnsupported, Backend: ex.name, Field: field, Err: errors.New(why), Fix: fix}
	}
	const leaveOut = "leave it out: it is the snapshot's then"
	l, was := spec.Limits, s.Spec.Limits
	for _, c := range []struct {
		name     string
		now, was int64
		files    bool // the files alone need it
		more     bool // more than the snapshot's is fine
	}{
		{"limits.memory", l.Memory, was.Memory, false, true},
		{"limits.disk", l.Disk, was.Disk, true, true},
		{"limits.inodes", l.Inodes, was.Inodes, true, true},
		{"limits.pids", l.Pids, was.Pids, false, false},
		{"limits.open_files", l.OpenFiles, was.OpenFiles, false, false},
		{"limits.file_size", or(l.FileSize, was.FileSize), was.FileSize, false, false},
	} {
		switch {
		case !s.Memory && !c.files:
		case c.now < c.was && c.more:
			return refuse(c.name, fmt.Sprintf("the snapshot needs at least %d", c.was), leaveOut)
		case c.now != c.was && !c.more:
			return refuse(c.name, fmt.Sprintf("the processes of the snapshot have %d", c.was), leaveOut)
		}
	}
	mode := or(spec.Network.Mode, backend.NetworkNone)
	switch {
	case !s.Memory:
		return nil
	case spec.Template != s.Spec.Template:
		return refuse("template", fmt.Sprintf("the snapshot is of template %q", s.Spec.Template), leaveOut)
	case mode != or(s.Spec.Network.Mode, backend.NetworkNone):
		return refuse("network.mode", fmt.Sprintf("the snapshot's is %s, and its processes go on with it", s.Spec.Network.Mode), "ask for the same mode, with rules of its own")
	case len(spec.Mounts) > 0:
		return refuse("mounts", "processes that go on cannot be given mounts", "leave them out, or take a snapshot of files only")
	}
	return nil
}

// fitsHere has the driver look whether this host can go on with a snapshot.
func (ex *Executor) fitsHere(ctx context.Context, spec backend.Spec, s *Saved) error {
	if s == nil {
		return nil
	}
	driver, ok := ex.driver.(Restorer)
	if !ok {
		return ex.fromError(backend.ErrUnsupported, errors.New("snapshots are not kept here"), "choose a backend with snapshots")
	}
	return driver.Fits(ctx, spec, s)
}

// whole refuses a snapshot that is not what was written.
func (ex *Executor) whole(s *Saved) error {
	if err := s.check(); err != nil {
		return ex.fromError(backend.ErrUnavailable, fmt.Errorf("the snapshot is damaged: %w", err), fixTakeAgain)
	}
	return nil
}
