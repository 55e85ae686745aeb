//go:build unix

package plain_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// home is where a sandbox's files lie on the host.
func home(t *testing.T, sb backend.Sandbox) string {
	t.Helper()
	info, err := sb.Files().Stat(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*backend.FileAttr).Path
}

func TestFiles_roundTrip(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	f := sb.Files()
	write(t, sb, "a/b/c", "first, and longer", 0o600)
	write(t, sb, "a/b/c", "second", 0o751)
	if got := read(t, sb, "./a//b/c"); got != "second" {
		t.Errorf("read %q", got)
	}
	info, err := f.Stat(t.Context(), "a/b/c")
	if err != nil || info.Mode() != 0o751 || info.Size() != 6 || info.Name() != "c" {
		t.Errorf("%v %v", info, err)
	}
	if attr := info.Sys().(*backend.FileAttr); attr.UID != uint32(os.Getuid()) || !strings.HasSuffix(attr.Path, "/a/b/c") {
		t.Errorf("%+v", attr)
	}
	if exit, out, _ := run(t, sb, sh("cat a/b/c")); out != "second" {
		t.Errorf("the command sees %q, %s", out, exit)
	}
	for range 2 {
		if err := f.Mkdir(t.Context(), "d/e", 0o750); err != nil {
			t.Error(err)
		}
	}
	if err := f.Rename(t.Context(), "a/b/c", "new/name"); err != nil {
		t.Error(err)
	}
	infos, err := f.List(t.Context(), ".")
	if err != nil || len(infos) != 3 || infos[0].Name() != "a" || infos[2].Name() != "new" || !infos[2].IsDir() {
		t.Errorf("%v %v", infos, err)
	}
	for range 2 {
		if err := f.Remove(t.Context(), "new"); err != nil {
			t.Error(err)
		}
	}
	_, err = f.Stat(t.Context(), "new/name")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	wantKind(t, err, backend.ErrNotFound, "")
}

func TestFiles_conflicts(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	f := sb.Files()
	write(t, sb, "file", "x", 0)
	write(t, sb, "dir/file", "x", 0)
	err := f.Mkdir(t.Context(), "file", 0)
	wantKind(t, err, backend.ErrConflict, "")
	if !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	wantKind(t, f.Rename(t.Context(), "file", "dir"), backend.ErrConflict, "")
	wantKind(t, f.Rename(t.Context(), "dir", "dir/below"), backend.ErrInvalid, "")
	wantKind(t, f.Rename(t.Context(), ".", "x"), backend.ErrInvalid, "")
	wantKind(t, f.Rename(t.Context(), "absent", "x"), backend.ErrNotFound, "")
	wantKind(t, f.Remove(t.Context(), "."), backend.ErrInvalid, "")
	_, err = f.List(t.Context(), "file")
	wantKind(t, err, backend.ErrInvalid, "")
	wantKind(t, f.Write(t.Context(), "dir", strings.NewReader(""), 0), backend.ErrInvalid, "")
	wantKind(t, f.Write(t.Context(), "file/below", strings.NewReader(""), 0), backend.ErrInvalid, "")
	if err := f.Write(t.Context(), "partial", broken{}, 0); err == nil || err.Error() != "broken" {
		t.Errorf("the reader's own error became %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Write(ctx, "late", strings.NewReader("x"), 0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestFiles_refuseNames(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	f := sb.Files()
	for name, kind := range map[string]backend.Kind{
		"":                        backend.ErrInvalid,
		"..":                      backend.ErrInvalid,
		"../x":                    backend.ErrInvalid,
		"a/../../x":               backend.ErrInvalid,
		"a/..":                    backend.ErrInvalid,
		"a\x00b":                  backend.ErrInvalid,
		strings.Repeat("a/", 4e3): backend.ErrInvalid,
		strings.Repeat("a", 300):  backend.ErrInvalid,
		"/etc/passwd":             backend.ErrUnsupported,
	} {
		_, err := f.Open(t.Context(), name)
		wantKind(t, err, kind, "")
		wantKind(t, f.Write(t.Context(), name, strings.NewReader("x"), 0), kind, "")
		wantKind(t, f.Mkdir(t.Context(), name, 0), kind, "")
		wantKind(t, f.Remove(t.Context(), name), kind, "")
		wantKind(t, f.Rename(t.Context(), name, "x"), kind, "")
		wantKind(t, f.Rename(t.Context(), "x", name), kindOfTarget(kind, name), "")
	}
}

// kindOfTarget is NotFound where only the missing source stands in the way.
func kindOfTarget(kind backend.Kind, name string) backend.Kind {
	if len(name) == 300 {
		return backend.ErrNotFound
	}
	return kind
}

func TestFiles_linksDoNotLeadOut(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	f := sb.Files()
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("host"), 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, sb, "inside", "mine", 0)
	in := home(t, sb)
	for name, target := range map[string]string{
		"abs": secret, "dir": outside, "up": "../../..", "rel": "../tmp/../../x", "ok": "inside", "dangling": "nowhere", "loop": "loop",
	} {
		if err := os.Symlink(target, filepath.Join(in, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"abs", "dir/secret", "up/etc/passwd", "rel"} {
		_, err := f.Open(t.Context(), name)
		wantKind(t, err, backend.ErrDenied, "")
		if !errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), outside) {
			t.Errorf("%s: %v", name, err)
		}
		wantKind(t, f.Write(t.Context(), name, strings.NewReader("evil"), 0), backend.ErrDenied, "")
	}
	for _, name := range []string{"dir/new", "dir/new/below"} {
		wantKind(t, f.Write(t.Context(), name, strings.NewReader("evil"), 0), backend.ErrDenied, "")
		wantKind(t, f.Mkdir(t.Context(), name, 0), backend.ErrDenied, "")
	}
	wantKind(t, f.Rename(t.Context(), "inside", "dir/moved"), backend.ErrDenied, "")
	wantKind(t, f.Remove(t.Context(), "dir/secret"), backend.ErrDenied, "")
	_, err := f.List(t.Context(), "dir")
	wantKind(t, err, backend.ErrDenied, "")
	_, err = f.Open(t.Context(), "loop")
	wantKind(t, err, backend.ErrInvalid, "")

	// A link is described itself unless its target is inside.
	infos, err := f.List(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		attr := info.Sys().(*backend.FileAttr)
		if attr.Symlink != (info.Name() != "inside") || attr.Symlink == (attr.LinkTarget == "") {
			t.Errorf("%s: %+v", info.Name(), attr)
		}
		if regular := info.Name() == "ok" || info.Name() == "inside"; info.Mode().IsRegular() != regular {
			t.Errorf("%s has mode %s", info.Name(), info.Mode())
		}
	}
	if read(t, sb, "ok") != "mine" {
		t.Error("a link inside is not followed")
	}
	// Removing a link, and the sandbox, leaves its target.
	if err := f.Remove(t.Context(), "dir"); err != nil {
		t.Error(err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "host" {
		t.Errorf("the host's file: %q %v", data, err)
	}
}

func TestFiles_specialFilesDoNotHang(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	f := sb.Files()
	if err := syscall.Mkfifo(filepath.Join(home(t, sb), "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := f.Open(t.Context(), "fifo")
		wantKind(t, err, backend.ErrInvalid, "")
		wantKind(t, f.Write(t.Context(), "fifo", strings.NewReader("x"), 0), backend.ErrInvalid, "")
		_, err = f.List(t.Context(), "fifo")
		wantKind(t, err, backend.ErrInvalid, "")
		_, err = f.Open(t.Context(), ".")
		wantKind(t, err, backend.ErrInvalid, "")
		if info, err := f.Stat(t.Context(), "fifo"); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
			t.Errorf("%v %v", info, err)
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("hangs")
	}
}

// TestFiles_swappedForFIFO: what is swapped in after the look must not hang.
func TestFiles_swappedForFIFO(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	in := home(t, sb)
	file, fifo, it, next := filepath.Join(in, "file"), filepath.Join(in, "fifo"), filepath.Join(in, "it"), filepath.Join(in, "next")
	write(t, sb, "file", "x", 0)
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Link(file, it)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			_ = os.Link([]string{file, fifo}[i%2], next)
			_ = os.Rename(next, it)
			_ = os.Remove(next) // a rename between two links of one file does nothing
		}
	}()
	done := make(chan struct{})
	opened := 0
	go func() {
		defer close(done)
		for range 5000 {
			rc, err := sb.Files().Open(t.Context(), "it")
			if err != nil {
				wantKind(t, err, backend.ErrInvalid, "")
				continue
			}
			opened++
			if data, err := io.ReadAll(rc); err != nil || string(data) != "x" {
				t.Errorf("%q %v", data, err)
			}
			_ = rc.Close()
		}
	}()
	select {
	case <-done:
		if opened == 0 || opened == 5000 {
			t.Errorf("%d of 5000 were files: nothing was swapped", opened)
		}
	case <-time.After(30 * time.Second):
		t.Error("hangs")
		if f, err := os.OpenFile(fifo, os.O_RDWR, 0); err == nil { // frees who hangs
			<-done
			_ = f.Close()
		}
	}
}

func TestFiles_readerEndsWithItsSandbox(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	write(t, sb, "a", "x", 0)
	rc, err := sb.Files().Open(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = rc.Read(make([]byte, 1))
	wantKind(t, err, backend.ErrClosed, "")
}
