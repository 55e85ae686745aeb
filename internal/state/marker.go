package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// maxMark bounds a marker's content; the least that is ever written is
// markBlock, so that an update is one write that leaves nothing of the old.
const (
	maxMark   = 64 << 10
	markBlock = 4 << 10
	newPrefix = ".new-"
)

// Mark is what a marker says of a sandbox, for the sweep that cleans up after
// it: written before anything is made, so what it names may not exist.
type Mark struct {
	Backend string    `json:"backend"`
	PID     int       `json:"pid"` // of the process that makes it
	BootID  string    `json:"boot_id,omitempty"`
	Started time.Time `json:"started"`
	Keep    bool      `json:"keep,omitempty"`

	// What the sandbox is made of, as the backend names it.
	Cgroups []string `json:"cgroups,omitempty"`
	Procs   []Proc   `json:"procs,omitempty"`
	// Detached says that the sandbox has an owner as long as one of Procs runs,
	// though no process of its own can hold the marker's lock.
	Detached bool `json:"detached,omitempty"`
}

// owned tells whether the mark's own processes stand in for the lock.
func (m Mark) owned() bool {
	return m.Detached && m.BootID == BootID() && slices.ContainsFunc(m.Procs, Proc.runs)
}

// Proc is a process that cannot be mistaken for a later one with its number.
type Proc struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // see StartTime
}

// runs tells whether the process is there, ended or not.
func (p Proc) runs() bool {
	now, err := StartTime(p.PID)
	return err == nil && p.Start != 0 && now == p.Start && !ended(p.PID)
}

// Marker is a sandbox's marker file with its lock. It is safe for concurrent
// use. Whoever got it calls Release or Close.
type Marker struct {
	id   string
	path string
	lock *os.File // read only, so that a child that gets it cannot write

	mu     sync.Mutex
	mark   Mark
	err    error
	size   int64
	closed bool
}

// Mark writes the marker of a sandbox that is about to be made, locked. One
// that exists is ErrConflict.
func (s *Store) Mark(id string, m Mark) (*Marker, error) {
	if !backend.ValidID(id) {
		return nil, invalidID(id)
	}
	dir := filepath.Join(s.dir, sandboxDir)
	path := filepath.Join(dir, id)
	// A sweep may take the new file's lock, and remove it, in the moment
	// between its making and its locking: then there is another try.
	for range 10 {
		mk, err := newMarker(id, filepath.Join(dir, newPrefix+randomName(16)), path, m)
		switch {
		case err == nil:
			return mk, nil
		case errors.Is(err, errTaken):
		case errors.Is(err, fs.ErrExist):
			return nil, &backend.Error{
				Op: "state", Kind: backend.ErrConflict, Sandbox: id, Err: fmt.Errorf("%s exists", path),
			}
		default:
			return nil, diskError("mark the sandbox", path, err)
		}
	}
	return nil, &backend.Error{Op: "state", Kind: backend.ErrUnavailable, Sandbox: id, Err: errTaken}
}

var errTaken = errors.New("the new marker was swept away")

func invalidID(id string) error {
	return &backend.Error{Op: "state", Kind: backend.ErrInvalid, Field: "id", Err: fmt.Errorf("%.60q is not a sandbox's ID", id)}
}

func newMarker(id, tmp, path string, m Mark) (mk *Marker, err error) {
	f, err := os.OpenFile(tmp, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		os.Remove(tmp) //nolint:errcheck // a sweep removes it otherwise
		if err != nil {
			f.Close() //nolint:errcheck // read side
		}
	}()
	ok, err := tryLock(f)
	if err == nil && !ok {
		err = errTaken
	}
	if err != nil {
		return nil, err
	}
	mk = &Marker{id: id, path: path, lock: f}
	if err := mk.write(tmp, m); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = errTaken
		}
		return nil, err
	}
	if err := os.Link(tmp, path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = errTaken
		}
		return nil, err
	}
	return mk, nil
}

// write replaces the content with one write, padded so that nothing of what
// was longer stays.
func (mk *Marker) write(path string, m Mark) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(data) > maxMark {
		return fmt.Errorf("%d bytes are more than a marker holds", len(data))
	}
	size := max(int64(len(data)), markBlock, mk.size)
	data = append(data, bytes.Repeat([]byte{' '}, int(size)-len(data))...)
	f, err := os.OpenFile(path, os.O_WRONLY|noFollow, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		mk.mark, mk.size = m, size
	}
	return err
}

// ID is the sandbox's.
func (mk *Marker) ID() string { return mk.id }

// Content is what the marker says, as far as it can be read: an error means
// that only the ID is known.
func (mk *Marker) Content() (Mark, error) {
	mk.mu.Lock()
	defer mk.mu.Unlock()
	return mk.mark, mk.err
}

// File carries the lock. A process that inherits it holds the lock until it
// ends, though the Marker be closed. The Marker keeps owning it.
func (mk *Marker) File() *os.File { return mk.lock }

// Update replaces what the marker says.
func (mk *Marker) Update(m Mark) error {
	mk.mu.Lock()
	defer mk.mu.Unlock()
	if mk.closed {
		return &backend.Error{Op: "state", Kind: backend.ErrClosed, Sandbox: mk.id}
	}
	if err := mk.write(mk.path, m); err != nil {
		return diskError("update the marker", mk.path, err)
	}
	return nil
}

// Release removes the marker, everything it named being gone, and lets its
// lock go. It may be called repeatedly; after Close it does nothing. When the
// file cannot be removed the lock is let go all the same, for a sweep to try.
func (mk *Marker) Release() error {
	mk.mu.Lock()
	defer mk.mu.Unlock()
	if mk.closed {
		return nil
	}
	err := os.Remove(mk.path)
	mk.closed = true
	mk.lock.Close() //nolint:errcheck // read side
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diskError("remove the marker", mk.path, err)
	}
	return nil
}

// Close leaves the marker and gives up this process's hold of its lock. It may
// be called repeatedly.
func (mk *Marker) Close() error {
	mk.mu.Lock()
	defer mk.mu.Unlock()
	if mk.closed {
		return nil
	}
	mk.closed = true
	return mk.lock.Close()
}

// Remove removes the marker of a sandbox of which nothing is left, whoever
// holds its lock: its creator may still do so when another process ended it.
// What is absent is fine.
func (s *Store) Remove(id string) error {
	if !backend.ValidID(id) {
		return invalidID(id)
	}
	path := filepath.Join(s.dir, sandboxDir, id)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diskError("remove the marker", path, err)
	}
	return nil
}

// Dead yields the markers whose owners are gone, each locked by the call, so
// that no two sweeps handle the same one. The loop's body calls Release once
// everything is cleaned up, else Close. A marker that cannot be looked at is
// an error, and the loop goes on.
func (s *Store) Dead() iter.Seq2[*Marker, error] {
	return func(yield func(*Marker, error) bool) {
		names, err := s.names(true)
		if err != nil && !yield(nil, err) {
			return
		}
		for _, name := range names {
			mk, live, err := s.open(name)
			if live || err == nil && mk == nil {
				continue
			}
			if !yield(mk, err) {
				return
			}
		}
	}
}

// Live maps the sandboxes that have an owner (their markers are locked, or
// detached with a process that runs) to what those say, zero where that cannot
// be read.
func (s *Store) Live() (map[string]Mark, error) {
	names, err := s.names(false)
	if err != nil {
		return nil, err
	}
	live := map[string]Mark{}
	for _, name := range names {
		mk, alive, err := s.open(name)
		switch {
		case alive:
			live[name] = mk.mark
		case err != nil:
			return nil, err
		case mk != nil:
			mk.Close() //nolint:errcheck // read side
		}
	}
	return live, nil
}

// names lists the markers. With tidy it removes files of markers that were
// never finished.
func (s *Store) names(tidy bool) ([]string, error) {
	dir := filepath.Join(s.dir, sandboxDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, diskError("list the markers", dir, err)
	}
	var names []string
	for _, e := range entries {
		switch {
		case backend.ValidID(e.Name()):
			names = append(names, e.Name())
		case tidy && strings.HasPrefix(e.Name(), newPrefix):
			tidyUp(filepath.Join(dir, e.Name()))
		}
	}
	return names, nil
}

func tidyUp(path string) {
	f, err := os.OpenFile(path, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return
	}
	defer f.Close() //nolint:errcheck // read side
	if ok, err := tryLock(f); ok && err == nil {
		os.Remove(path) //nolint:errcheck // the next sweep tries again
	}
}

// open takes a marker's lock. live: it is held by somebody else, and the
// Marker only carries what it says. A marker that is gone is nil.
func (s *Store) open(id string) (mk *Marker, live bool, err error) {
	path := filepath.Join(s.dir, sandboxDir, id)
	f, err := os.OpenFile(path, os.O_RDONLY|noFollow, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, diskError("open the marker", path, err)
	}
	keep := false
	defer func() {
		if !keep {
			f.Close() //nolint:errcheck // read side
		}
	}()
	if err := secureFile(f); err != nil {
		return nil, false, err
	}
	locked, err := tryLock(f)
	if err != nil {
		return nil, false, diskError("lock the marker", path, err)
	}
	mk = &Marker{id: id, path: path, lock: f}
	mk.mark, mk.size, mk.err = readMark(f)
	if !locked {
		return mk, true, nil
	}
	// Its owner may have released it since it was opened.
	if !stillThere(f, path) {
		return nil, false, nil
	}
	if mk.err == nil && mk.mark.owned() {
		return mk, true, nil
	}
	keep = true
	return mk, false, nil
}

// stillThere tells whether path is the open file.
func stillThere(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}

func readMark(f *os.File) (m Mark, size int64, err error) {
	data, err := io.ReadAll(io.LimitReader(f, maxMark+1))
	if err == nil && len(data) > maxMark {
		err = errors.New("it is too large")
	}
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return Mark{}, int64(len(data)), fmt.Errorf("state: the marker %s cannot be read, only its name counts: %w", f.Name(), err)
	}
	return m, int64(len(data)), nil
}
