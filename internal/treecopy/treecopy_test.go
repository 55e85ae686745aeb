//go:build linux

package treecopy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/treecopy"
)

// save copies dir into an index and a file of contents.
func save(t *testing.T, dir string, most int64) (index []byte, data *os.File, err error) {
	t.Helper()
	data, err = os.Create(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { data.Close() })
	var out bytes.Buffer
	_, err = treecopy.Save(t.Context(), dir, &out, data, most)
	if _, serr := data.Seek(0, 0); serr != nil {
		t.Fatal(serr)
	}
	return out.Bytes(), data, err
}

// describe lists what is below dir, contents and holes included.
func describe(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		fmt.Fprintf(&out, "%q %o %d:%d %v", rel, st.Mode, st.Uid, st.Gid, time.Unix(st.Mtim.Unix()))
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			fmt.Fprintf(&out, " -> %q %v", to, err)
		case d.Type().IsRegular():
			content, err := os.ReadFile(path)
			first, ok := inodes[st.Ino]
			if !ok {
				inodes[st.Ino], first = rel, rel
			}
			fmt.Fprintf(&out, " %d %x %v same as %q, sparse %t", st.Size, content[:min(20, len(content))], err, first, st.Blocks*512 < st.Size)
		}
		out.WriteString("\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestCopy_isTheSame(t *testing.T) {
	t.Parallel()
	from, to, outside := t.TempDir(), t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(from, name) }
	must(t,
		os.MkdirAll(at("a/b/c"), 0o755), os.WriteFile(at("a/b/f"), []byte("hello"), 0o640), os.Link(at("a/b/f"), at("a/g")),
		os.Link(at("a/b/f"), at("z")), os.Symlink(outside, at("out")), os.Symlink("/etc/passwd", at("a/passwd")), unix.Mkfifo(at("p"), 0o622),
		os.WriteFile(at("a/new\nline \"\xff\xfe"), []byte("x"), 0o600), os.WriteFile(at("-rf"), nil, 0o600), os.WriteFile(at("empty"), nil, 0o4755),
		os.Mkdir(at("none"), 0o700), os.WriteFile(at("none/f"), []byte("y"), 0o400), os.Chmod(at("none"), 0o1511), os.Chmod(at("empty"), 0o4755|os.ModeSetuid),
	)
	t.Cleanup(func() { // so that whoever runs this can remove it
		for _, dir := range []string{from, to} {
			os.Chmod(filepath.Join(dir, "none"), 0o700)
		}
	})
	sparse, err := os.Create(at("sparse"))
	must(t, err)
	_, err = sparse.WriteAt([]byte("middle"), 5<<20)
	must(t, err, sparse.Truncate(64<<20), sparse.Close())
	old := time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC)
	must(t, os.Chtimes(at("a/b/f"), old, old), os.Chtimes(at("a/b/c"), old, old), os.Chtimes(at("a"), old, old))
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(sock)
	want := describe(t, from)
	must(t, unix.Bind(sock, &unix.SockaddrUnix{Name: at("sock")})) // left out

	index, data, err := save(t, from, 64<<20)
	must(t, err)
	if st, err := data.Stat(); err != nil || st.Size() > 1<<20 {
		t.Errorf("holes were copied: %v %v", st.Size(), err)
	}
	must(t, treecopy.Load(t.Context(), to, bytes.NewReader(index), data))
	if got := describe(t, to); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("a link was followed: %v %v", left, err)
	}
}

// TestCopy_deep: deeper than paths and descriptors go.
func TestCopy_deep(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	const levels = 3000
	dir, err := unix.Open(from, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	must(t, err)
	for range levels {
		must(t, unix.Mkdirat(dir, "dddd", 0o755))
		next, err := unix.Openat(dir, "dddd", unix.O_DIRECTORY|unix.O_RDONLY, 0)
		must(t, err)
		unix.Close(dir)
		dir = next
	}
	unix.Close(dir)
	index, data, err := save(t, from, 1)
	must(t, err, treecopy.Load(t.Context(), to, bytes.NewReader(index), data))
	again, _, err := save(t, to, 1)
	must(t, err)
	if n := bytes.Count(again, []byte("\n")); n != levels {
		t.Errorf("%d levels", n)
	}
}

func TestSave_isBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "f"), make([]byte, 100), 0o600))
	if _, _, err := save(t, dir, 99); !errors.Is(err, treecopy.ErrTooLarge) {
		t.Error(err)
	}
	if _, _, err := save(t, dir, 100); err != nil {
		t.Error(err)
	}
}

// FuzzLoad: whatever an index says, nothing is made outside of the directory.
func FuzzLoad(f *testing.F) {
	for _, s := range []string{
		`{"d":0,"k":"dir","n":"YQ=="}` + "\n" + `{"d":1,"k":"file","n":"Yg==","s":5,"r":[{"o":0,"n":5}]}`,
		`{"d":0,"k":"file","n":"Li4="}`, `{"d":0,"k":"file","n":"Li4veA=="}`, `{"d":0,"k":"link","n":"YQ==","l":"Li4="}` + "\n" + `{"d":1,"k":"file","n":"eA=="}`,
		`{"d":0,"k":"link","n":"YQ==","l":"Li4="}` + "\n" + `{"d":0,"k":"dir","n":"YQ=="}` + "\n" + `{"d":1,"k":"file","n":"eA=="}`,
		`{"d":0,"k":"again","n":"YQ==","i":1}`, `{"d":0,"k":"fifo","n":"YQ==","m":4294967295}`, `{"d":9,"k":"dir","n":"YQ=="}`,
		`{"d":0,"k":"file","n":"YQ==","s":9223372036854775807,"r":[{"o":9223372036854775800,"n":7}]}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, index string) {
		top := t.TempDir()
		dir := filepath.Join(top, "dir")
		must(t, os.Mkdir(dir, 0o700))
		data, err := os.Create(filepath.Join(top, "data"))
		must(t, err)
		defer data.Close()
		_, err = data.WriteString("contents")
		must(t, err)
		_, err = data.Seek(0, 0)
		must(t, err)
		_ = treecopy.Load(context.Background(), dir, strings.NewReader(index), data) //nolint:usetesting // also for a fuzzer's workers
		left, err := os.ReadDir(top)
		if err != nil || len(left) != 2 {
			t.Errorf("%v %v", left, err)
		}
	})
}
