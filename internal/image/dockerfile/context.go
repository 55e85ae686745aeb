package dockerfile

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// Bounds of what a build may take from its context.
const (
	maxFiles = 100_000
	maxBytes = 2 << 30
)

// Context is the directory that COPY takes files from.
//
// Security: a stranger may have made it. Everything is opened below it by
// os.Root, so that no link in it leads elsewhere; links are copied as links.
type Context struct {
	root   *os.Root
	ignore *patternmatcher.PatternMatcher
}

// OpenContext opens dir, with its .dockerignore. The caller closes it.
func OpenContext(dir string) (*Context, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	c := &Context{root: root}
	f, err := root.Open(".dockerignore")
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		defer f.Close() //nolint:errcheck // read side
		var patterns []string
		if patterns, err = ignorefile.ReadAll(io.LimitReader(f, maxSize)); err == nil {
			c.ignore, err = patternmatcher.New(patterns)
		}
	}
	if err != nil {
		root.Close() //nolint:errcheck // it was only a handle
		return nil, fmt.Errorf(".dockerignore: %w", err)
	}
	return c, nil
}

// Close closes the directory.
func (c *Context) Close() error { return c.root.Close() }

// item is one file of a copy, with its name inside.
type item struct {
	from, to string
	info     fs.FileInfo
}

// items are the files of a copy, sorted.
func (c *Context) items(cp *Copy) ([]item, error) {
	var out []item
	bytes := int64(0)
	many := len(cp.Sources) > 1
	for _, pattern := range cp.Sources {
		names, err := c.glob(pattern)
		if err != nil {
			return nil, err
		}
		names = slices.DeleteFunc(names, func(n string) bool { return n != "." && c.ignored(n) && !c.mayHoldKept(n) })
		if len(names) == 0 {
			return nil, fmt.Errorf("no file of the context is named %s", pattern)
		}
		for _, name := range names {
			got, err := c.below(name, cp.Dest, many || len(names) > 1)
			if err != nil {
				return nil, err
			}
			for _, it := range got {
				bytes += it.info.Size()
			}
			if out = append(out, got...); len(out) > maxFiles || bytes > maxBytes {
				return nil, errors.New("it is too much: 100,000 files and 2 GiB are the most")
			}
		}
	}
	slices.SortStableFunc(out, func(a, b item) int { return strings.Compare(a.to, b.to) })
	return out, nil
}

// glob is the names that match pattern, links that lead nowhere among them.
func (c *Context) glob(pattern string) ([]string, error) {
	if strings.ContainsAny(pattern, `*?[\`) {
		return fs.Glob(c.root.FS(), pattern)
	}
	switch _, err := c.root.Lstat(pattern); {
	case err == nil:
		return []string{pattern}, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	default:
		return nil, err
	}
}

// below is name and, of a directory, what is in it.
func (c *Context) below(name, dest string, many bool) ([]item, error) {
	st, err := c.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		to := dest
		if many || strings.HasSuffix(dest, "/") {
			to = path.Join(dest, path.Base(name))
		}
		return c.add(nil, name, to, st)
	}
	var out []item
	err = fs.WalkDir(c.root.FS(), name, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p != name && c.ignored(p) {
			if d.IsDir() && !c.mayHoldKept(p) {
				return fs.SkipDir
			}
			if !d.IsDir() {
				return nil
			}
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(p, name), "/")
		if name == "." {
			rel = strings.TrimPrefix(p, ".")
			if p != "." {
				rel = p
			}
		}
		if out, err = c.add(out, p, path.Join(dest, rel), info); err == nil && len(out) > maxFiles {
			err = errors.New("too many files")
		}
		return err
	})
	return out, err
}

func (c *Context) add(out []item, from, to string, info fs.FileInfo) ([]item, error) {
	switch {
	case info.IsDir(), info.Mode().IsRegular(), info.Mode()&fs.ModeSymlink != 0:
		return append(out, item{from, to, info}), nil
	default:
		return out, fmt.Errorf("%s is neither file, directory nor link", from)
	}
}

func (c *Context) ignored(name string) bool {
	if c.ignore == nil {
		return false
	}
	yes, err := c.ignore.MatchesOrParentMatches(name)
	return err == nil && yes
}

// mayHoldKept tells whether something below an ignored directory may be kept
// by a pattern that begins with an exclamation mark.
func (c *Context) mayHoldKept(string) bool { return c.ignore != nil && c.ignore.Exclusions() }

// WriteTar writes the files of a copy as a tar archive whose names begin at the
// root. The same files give the same bytes.
func (c *Context) WriteTar(w io.Writer, cp *Copy) error {
	items, err := c.items(cp)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	for _, it := range items {
		if err := c.write(tw, it, cp); err != nil {
			return fmt.Errorf("%s: %w", it.from, err)
		}
	}
	return tw.Close()
}

func (c *Context) write(tw *tar.Writer, it item, cp *Copy) error {
	name := strings.TrimPrefix(it.to, "/")
	if name == "" {
		return nil // the root itself
	}
	h := &tar.Header{Name: name, Mode: int64(it.info.Mode().Perm()), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if cp.Mode != 0 && !it.info.IsDir() {
		h.Mode = int64(cp.Mode)
	}
	setOwner(h, cp.Owner)
	switch {
	case it.info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return tw.WriteHeader(h)
	case it.info.Mode()&fs.ModeSymlink != 0:
		target, err := c.root.Readlink(it.from)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return tw.WriteHeader(h)
	}
	f, err := c.root.Open(it.from)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read side
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, errors.New("it changed meanwhile"))
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(tw, f, h.Size)
	return err
}

// setOwner notes USER[:GROUP]: numbers as they are, names for the tar inside,
// which knows what they are there.
func setOwner(h *tar.Header, owner string) {
	if owner == "" {
		return
	}
	user, group, both := strings.Cut(owner, ":")
	if !both {
		group = user
	}
	if n, err := strconv.Atoi(user); err == nil {
		h.Uid = n
	} else {
		h.Uname = user
	}
	if n, err := strconv.Atoi(group); err == nil {
		h.Gid = n
	} else {
		h.Gname = group
	}
}

// Hash is the hash of everything that decides what the steps make of base,
// which tells what they start from: the files that they copy included. c may
// be nil when nothing is copied.
func Hash(base string, f File, c *Context) (string, error) {
	h := sha256.New()
	field(h, "1", base, f.Dir, f.User)
	environment(h, f.Env)
	field(h, f.Start...)
	for _, s := range f.Steps {
		field(h, s.Dir, s.User)
		environment(h, s.Env)
		field(h, s.Run...)
		if s.Copy == nil {
			continue
		}
		if c == nil {
			return "", &Error{s.Line, errors.New("there is no context to copy from")}
		}
		field(h, s.Copy.Dest, s.Copy.Owner, strconv.Itoa(int(s.Copy.Mode)))
		if err := c.WriteTar(h, s.Copy); err != nil {
			return "", &Error{s.Line, err}
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// field writes texts so that no two lists look alike.
func field(h hash.Hash, texts ...string) {
	fmt.Fprintf(h, "%d;", len(texts))
	for _, t := range texts {
		fmt.Fprintf(h, "%d:%s", len(t), t)
	}
}

func environment(h hash.Hash, env map[string]string) {
	var all []string
	for k, v := range env {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	field(h, all...)
}
