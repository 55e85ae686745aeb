//go:build unix

package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestSaveFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	work := filepath.Join(dir, "work")
	must(t, os.WriteFile(victim, []byte("precious"), 0o600))
	must(t, os.MkdirAll(filepath.Join(work, "sub"), 0o755))
	must(t, os.Symlink(victim, filepath.Join(work, "link")))
	must(t, os.Symlink(filepath.Join(dir, "absent"), filepath.Join(work, "dangling")))
	must(t, os.Symlink(dir, filepath.Join(work, "outdir")))
	must(t, syscall.Mkfifo(filepath.Join(work, "fifo"), 0o644))
	must(t, os.WriteFile(filepath.Join(work, "old"), []byte("old"), 0o600))
	for _, tc := range []struct {
		name, to string
		ok       bool
	}{
		{"a new file", "new", true},
		{"a file in a new directory", "a/b/new", true},
		{"an old file is replaced", "old", true},
		{"a symbolic link is left alone", "link", false},
		{"a dangling one too", "dangling", false},
		{"a FIFO", "fifo", false},
		{"a directory", "sub", false},
		{"through a link out of the directory", "outdir/planted", false},
	} {
		for _, absolute := range []bool{false, true} {
			to := filepath.Join(work, tc.to)
			if absolute && tc.name == "through a link out of the directory" {
				continue // the operator's own word
			}
			n, err := save(work, tc.to, absolute, "data", 100)
			if (err == nil) != tc.ok {
				t.Errorf("%s (absolute %v): %d, %v", tc.name, absolute, n, err)
			}
			if !tc.ok {
				continue
			}
			if data, rerr := os.ReadFile(to); rerr != nil || string(data) != "data" {
				t.Errorf("%s: %q, %v", tc.name, data, rerr)
			}
		}
	}
	if data, err := os.ReadFile(victim); err != nil || string(data) != "precious" {
		t.Errorf("the link's target is now %q, %v", data, err)
	}
	for _, planted := range []string{"planted", "absent"} {
		if _, err := os.Lstat(filepath.Join(dir, planted)); err == nil {
			t.Errorf("%s was made outside", planted)
		}
	}
	if _, err := save(work, "old", true, strings.Repeat("x", 101), 100); err == nil {
		t.Error("more than the limit was written")
	}
	if data, _ := os.ReadFile(filepath.Join(work, "old")); string(data) != "data" {
		t.Errorf("a failed write left %q", data)
	}
	left, err := filepath.Glob(filepath.Join(work, ".glovebox-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// save is saveFile with relative names taken below dir, which the process's
// working directory cannot be set to in a parallel test.
func save(dir, name string, absolute bool, data string, limit int64) (int64, error) {
	if absolute {
		return saveFile(filepath.Join(dir, name), strings.NewReader(data), limit)
	}
	return saveBelow(dir, name, strings.NewReader(data), limit)
}

func TestAnchor(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][2]string{
		"a/b": {".", "a/b"}, "./a": {".", "a"}, "../a/b": {"..", "a/b"}, "../../a": {"../..", "a"}, "/x/y": {"/x", "y"}, "a/../../b": {"..", "b"},
	} {
		if dir, rest := anchor(name); dir != want[0] || rest != want[1] {
			t.Errorf("anchor(%q) = %q, %q, want %q", name, dir, rest, want)
		}
	}
}

func TestSink_endsWithItsContext(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe() // nobody reads
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	s := newSink(ctx, w, "standard output", func(error) { t.Error("failed") })
	defer s.close()
	done := make(chan error, 1)
	go func() {
		_, err := s.Write([]byte("x"))
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("a second write succeeds")
	}
}

func TestSink_tellsWhyItCannotWrite(t *testing.T) {
	t.Parallel()
	for cause, want := range map[error]error{syscall.EPIPE: errClosedPipe, syscall.ENOSPC: syscall.ENOSPC} {
		r, w := io.Pipe()
		_ = r.CloseWithError(cause)
		var got error
		s := newSink(t.Context(), w, "standard output", func(err error) { got = err })
		if _, err := s.Write([]byte("x")); err == nil || !errors.Is(got, want) {
			t.Errorf("%v: told %v", cause, got)
		}
		s.close()
	}
}

// safeBuffer is a stream that several may use.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestOutlet_whoeverStillWritesChangesNothing(t *testing.T) {
	t.Parallel()
	for _, safe := range []bool{false, true} {
		var stream safeBuffer
		o := newOutlet(newSink(t.Context(), &stream, "standard output", func(err error) { t.Errorf("told %v", err) }), safe)
		began, done := make(chan struct{}), make(chan error)
		go func() {
			for n := 0; ; n++ {
				if _, err := o.Write([]byte("é\x1b")); err != nil {
					done <- err
					return
				}
				if n == 10 {
					close(began)
				}
			}
		}()
		<-began
		o.close()
		said := stream.String()
		if err := <-done; !errors.Is(err, errEnded) {
			t.Errorf("error %v", err)
		}
		o.close()
		if got := stream.String(); got != said || safe && !strings.HasSuffix(got, "^[\n") {
			t.Errorf("after the end %q came to %q", got[len(said):], said)
		}
	}
}

func TestOutlet_aStreamThatBlocksIsLeft(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe() // nobody reads
	defer r.Close()
	o := newOutlet(newSink(t.Context(), w, "standard output", func(err error) { t.Errorf("told %v", err) }), true)
	done := make(chan error, 1)
	go func() {
		_, err := o.Write([]byte("x"))
		done <- err
	}()
	o.close()
	if err := <-done; !errors.Is(err, errEnded) {
		t.Errorf("error %v", err)
	}
}

func TestTarPlace_aFileThatChangesWhileItIsCopied(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"abc": "abc\x00\x00", "abcdefgh": "abcde", "": "\x00\x00\x00\x00\x00"} {
		var out bytes.Buffer
		c := &copier{}
		to := tarPlace{tw: tar.NewWriter(&out), c: c}
		if n, err := to.file("f", element{perm: 0o644, size: 5}, strings.NewReader(given), 5); n != 5 || err != nil {
			t.Errorf("%q: %d %v", given, n, err)
		}
		if _, err := to.file("g", element{size: 6}, strings.NewReader("123456"), 5); err == nil {
			t.Error("more than the limit")
		}
		must(t, to.tw.Close())
		tr := tar.NewReader(&out)
		if _, err := tr.Next(); err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(tr); err != nil || string(data) != want {
			t.Errorf("%q came as %q, %v", given, data, err)
		}
		if (len(c.notes) > 0) != (len(given) < 5) {
			t.Errorf("%q: %q", given, c.notes)
		}
	}
}

func TestInterruptible(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = io.WriteString(w, "x")
		cancel()
	}()
	data, err := io.ReadAll(interruptible{ctx, r})
	if len(data) > 1 || !errors.Is(err, context.Canceled) {
		t.Errorf("%q %v", data, err)
	}
}

func TestRemote(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string][2]string{
		"a:b": {"a", "b"}, "a:": {"a", "."}, "a:/x:y": {"a", "/x:y"}, "./a:b": {}, "/a:b": {}, ".:b": {}, "-": {}, "a": {}, ":x": {},
	} {
		box, path, ok := remote(arg)
		if got := [2]string{box, path}; got != want || ok != (want[0] != "") {
			t.Errorf("%q is %q, %v", arg, got, ok)
		}
	}
}
