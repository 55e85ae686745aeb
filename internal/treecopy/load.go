//go:build linux

package treecopy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// linksDir holds, while files are made, one name of each that has several.
const linksDir = ".glovebox-links"

// Load makes in dir, which nobody else can reach, what Save wrote. Directories
// at its top may exist already.
func Load(ctx context.Context, dir string, index io.Reader, data *os.File) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("load %s: %w", dir, err)
	}
	l := &loader{at: fd, top: fd, links: -1, data: data, made: map[int]bool{}}
	defer l.close()
	err = l.all(ctx, index)
	if cerr := l.dropLinks(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("load %s: %w", dir, err)
	}
	return nil
}

// loader is the counterpart of saver.
type loader struct {
	top, at int
	links   int      // the directory linksDir; -1 for none yet
	open    []*entry // the directories above where it is, whose attributes come last
	data    *os.File
	made    map[int]bool
}

func (l *loader) close() {
	if l.at != l.top {
		unix.Close(l.at) //nolint:errcheck // read side
	}
	if l.links >= 0 {
		unix.Close(l.links) //nolint:errcheck // read side
	}
	unix.Close(l.top) //nolint:errcheck // read side
}

func (l *loader) all(ctx context.Context, index io.Reader) error {
	lines := bufio.NewScanner(index)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for lines.Scan() {
		if err := ctx.Err(); err != nil {
			return err
		}
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return err
		}
		if err := e.check(); err != nil {
			return err
		}
		if e.Depth > len(l.open) {
			return errors.New("an entry below no directory")
		}
		if err := l.leaveTo(e.Depth); err != nil {
			return err
		}
		if err := l.load(&e); err != nil {
			return fmt.Errorf("%q: %w", e.Name, err)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return l.leaveTo(0)
}

// leaveTo goes up to a depth, and gives each directory it leaves its attributes.
func (l *loader) leaveTo(depth int) error {
	for len(l.open) > depth {
		e := l.open[len(l.open)-1]
		l.open = l.open[:len(l.open)-1]
		up := l.top
		if len(l.open) > 0 {
			var err error
			if up, err = unix.Openat(l.at, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
				return err
			}
		}
		unix.Close(l.at) //nolint:errcheck // read side
		l.at = up
		if err := l.attributes(e); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) load(e *entry) error {
	name := string(e.Name)
	switch e.Kind {
	case directory:
		err := unix.Mkdirat(l.at, name, 0o700)
		if err != nil && (!errors.Is(err, unix.EEXIST) || e.Depth > 0) {
			return err
		}
		fd, err := unix.Openat(l.at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if l.at != l.top {
			unix.Close(l.at) //nolint:errcheck // read side
		}
		l.at = fd
		l.open = append(l.open, e)
		return nil
	case symlink:
		if err := unix.Symlinkat(string(e.Target), l.at, name); err != nil {
			return err
		}
	case fifo:
		if err := unix.Mkfifoat(l.at, name, 0o600); err != nil {
			return err
		}
	case regular:
		if err := l.file(e); err != nil {
			return err
		}
	case again:
		if !l.made[e.Link] {
			return errors.New("another name of no file")
		}
		return unix.Linkat(l.links, strconv.Itoa(e.Link), l.at, name, 0)
	default:
		return fmt.Errorf("the kind %.20q", e.Kind)
	}
	return l.attributes(e)
}

// attributes gives what e names its owner, its mode and its time, in the order
// in which none undoes another.
func (l *loader) attributes(e *entry) error {
	name := string(e.Name)
	if err := unix.Fchownat(l.at, name, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if e.Kind != symlink {
		// It is no link: it was made here, where nobody else is.
		if err := unix.Fchmodat(l.at, name, e.Mode, 0); err != nil {
			return err
		}
	}
	t := unix.NsecToTimespec(e.Time)
	return unix.UtimesNanoAt(l.at, name, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
}

func (l *loader) file(e *entry) error {
	fd, err := unix.Openat(l.at, string(e.Name), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "file")
	err = f.Truncate(e.Size)
	for _, r := range e.Runs {
		if err != nil {
			break
		}
		if _, err = f.Seek(r.Off, io.SeekStart); err == nil {
			_, err = io.CopyN(f, l.data, r.Len)
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil || e.Link == 0 {
		return err
	}
	if l.links < 0 {
		if err := unix.Mkdirat(l.top, linksDir, 0o700); err != nil {
			return err
		}
		if l.links, err = unix.Openat(l.top, linksDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
	}
	l.made[e.Link] = true
	return unix.Linkat(l.at, string(e.Name), l.links, strconv.Itoa(e.Link), 0)
}

// dropLinks removes what only Load needed.
func (l *loader) dropLinks() error {
	if l.links < 0 {
		return nil
	}
	for n := range l.made {
		if err := unix.Unlinkat(l.links, strconv.Itoa(n), 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return unix.Unlinkat(l.top, linksDir, unix.AT_REMOVEDIR)
}
