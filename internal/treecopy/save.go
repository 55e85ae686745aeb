//go:build linux

package treecopy

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Save writes what lies below dir, but not dir itself, into index and data. It
// fails with ErrTooLarge above max bytes of contents.
func Save(ctx context.Context, dir string, index io.Writer, data *os.File, most int64) (Totals, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Totals{}, fmt.Errorf("save %s: %w", dir, err)
	}
	out := bufio.NewWriterSize(index, 64<<10)
	s := &saver{at: fd, out: json.NewEncoder(out), data: data, most: most, links: map[inode]int{}}
	defer func() { unix.Close(s.at) }() //nolint:errcheck // read side
	err = s.walk(ctx)
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return s.totals, fmt.Errorf("save %s: %w", dir, err)
	}
	return s.totals, nil
}

type inode struct{ dev, ino uint64 }

// level is a directory on the way down to where the saver is.
type level struct {
	id    inode
	names []string // still to be saved
}

// saver holds one directory open and knows those above it: a tree may be deeper
// than there are descriptors.
type saver struct {
	at     int
	levels []level
	out    *json.Encoder
	data   *os.File
	most   int64
	links  map[inode]int
	totals Totals
}

func (s *saver) walk(ctx context.Context) error {
	if err := s.enter(); err != nil {
		return err
	}
	for len(s.levels) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		here := &s.levels[len(s.levels)-1]
		if len(here.names) == 0 {
			if err := s.leave(); err != nil {
				return err
			}
			continue
		}
		name := here.names[0]
		here.names = here.names[1:]
		if err := s.save(name); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

// enter lists the open directory.
func (s *saver) enter() error {
	var st unix.Stat_t
	if err := unix.Fstat(s.at, &st); err != nil {
		return err
	}
	dup, err := unix.FcntlInt(uintptr(s.at), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(dup), "directory")
	names, err := f.Readdirnames(-1)
	f.Close() //nolint:errcheck // read side
	slices.Sort(names)
	s.levels = append(s.levels, level{inode{st.Dev, st.Ino}, names})
	return err
}

// leave goes up. The tree stands still, so that is where we came from, and is
// looked at all the same.
func (s *saver) leave() error {
	s.levels = s.levels[:len(s.levels)-1]
	if len(s.levels) == 0 {
		return nil
	}
	return s.step("..", s.levels[len(s.levels)-1].id)
}

func (s *saver) step(name string, want inode) error {
	fd, err := unix.Openat(s.at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || (inode{st.Dev, st.Ino}) != want {
		unix.Close(fd) //nolint:errcheck // read side
		return cmp.Or(err, errors.New("a directory was moved"))
	}
	unix.Close(s.at) //nolint:errcheck // read side
	s.at = fd
	return nil
}

func (s *saver) save(name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(s.at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	e := entry{
		Depth: len(s.levels) - 1, Name: []byte(name), Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, Time: st.Mtim.Nano(),
	}
	id := inode{st.Dev, st.Ino}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.Kind = directory
	case unix.S_IFLNK:
		e.Kind = symlink
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(s.at, name, target)
		if err != nil {
			return err
		}
		e.Target = target[:n]
	case unix.S_IFIFO:
		e.Kind = fifo
	case unix.S_IFREG:
		return s.file(&e, id, st.Nlink > 1)
	default:
		s.totals.Left++
		return nil
	}
	if err := s.put(&e); err != nil || e.Kind != directory {
		return err
	}
	if err := s.step(name, id); err != nil {
		return err
	}
	return s.enter()
}

func (s *saver) put(e *entry) error {
	s.totals.Entries++
	return s.out.Encode(e)
}

// file saves a regular file, once for all of its names.
func (s *saver) file(e *entry, id inode, several bool) error {
	if several {
		if n, ok := s.links[id]; ok {
			e.Kind, e.Link = again, n
			return s.put(e)
		}
		e.Link = len(s.links) + 1
		s.links[id] = e.Link
	}
	e.Kind = regular
	// Security: what it was a moment ago it still is; if not, nothing is
	// followed or waited for.
	fd, err := unix.Openat(s.at, string(e.Name), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "file")
	defer f.Close() //nolint:errcheck // read side
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || (inode{st.Dev, st.Ino}) != id || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return cmp.Or(err, errors.New("it was replaced"))
	}
	e.Size = st.Size
	if e.Runs, err = runs(f, st.Size); err != nil {
		return err
	}
	for _, r := range e.Runs {
		if s.totals.Bytes += r.Len; s.totals.Bytes > s.most {
			return ErrTooLarge
		}
		if _, err := f.Seek(r.Off, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(s.data, f, r.Len); err != nil {
			return err
		}
	}
	return s.put(e)
}

// runs are the parts of a file that are no holes.
func runs(f *os.File, size int64) ([]run, error) {
	var out []run
	for at := int64(0); at < size; {
		from, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole to the end
		}
		if err != nil {
			return nil, err
		}
		to, err := f.Seek(from, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		to = min(to, size)
		if to <= from {
			break
		}
		out = append(out, run{from, to - from})
		at = to
	}
	return out, nil
}
