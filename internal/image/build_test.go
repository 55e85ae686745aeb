package image_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// builder is a store and a stand-in for mmdebstrap, a shell script.
func builder(t *testing.T, script string) (*image.Store, image.BuildOptions) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root builds without a range of ids")
	}
	t.Setenv("TMPDIR", t.TempDir())
	path := filepath.Join(t.TempDir(), "mmdebstrap")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return image.Open(filepath.Join(t.TempDir(), "state")), image.WithProgram(image.BuildOptions{}, path)
}

// archive writes a tar archive that a script can print.
func archive(t *testing.T, headers ...*tar.Header) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, h := range headers {
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		h.ModTime = time.Unix(1, 0)
		if h.Typeflag == tar.TypeReg {
			h.Size = 5
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, "hello"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func small(t *testing.T) string {
	t.Helper()
	return archive(t,
		&tar.Header{Name: "./", Typeflag: tar.TypeDir}, &tar.Header{Name: "./etc/", Typeflag: tar.TypeDir, Mode: 0o555},
		&tar.Header{Name: "./etc/motd", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 3, Gid: 4},
		&tar.Header{Name: "./etc/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/motd"},
		&tar.Header{Name: "./etc/hard", Typeflag: tar.TypeLink, Linkname: "./etc/motd"},
		&tar.Header{Name: "./dev/null", Typeflag: tar.TypeChar}, &tar.Header{Name: "./pipe", Typeflag: tar.TypeFifo})
}

func define(t *testing.T, name string) image.Definition {
	t.Helper()
	d := image.Definition{Name: name, Suite: "bookworm", Packages: []string{"bash"}}
	return d
}

// clean fails when a build left something besides images.
func clean(t *testing.T, s *image.Store) {
	t.Helper()
	for _, dir := range []string{s.Dir(), os.TempDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".build-") || strings.HasPrefix(e.Name(), "glovebox-") || strings.HasPrefix(e.Name(), ".removed-") {
				t.Errorf("left behind: %s", filepath.Join(dir, e.Name()))
			}
		}
	}
}

func TestStore_buildsOnce(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	s, opts := builder(t, "echo x >>"+count+"\necho 'Setting up bash (5) ...' >&2\ncat "+small(t))
	var phases []string
	opts.Progress = func(p image.Progress) { phases = append(phases, p.Phase+" "+p.Item) }
	img, built, err := s.Build(t.Context(), define(t, "tiny"), opts)
	if err != nil || !built {
		t.Fatal(built, err)
	}
	if !strings.Contains(strings.Join(phases, ","), "installing bash") {
		t.Errorf("progress %q", phases)
	}
	again, built, err := s.Build(t.Context(), define(t, "tiny"), opts)
	if err != nil || built || again.Hash != img.Hash {
		t.Fatal("a current image was built again", built, err)
	}
	if _, built, err = s.Build(t.Context(), image.Definition{Name: "tiny", Suite: "bookworm", Packages: []string{"bash", "git"}}, opts); err != nil || !built {
		t.Fatal("another definition was not built", err)
	}
	if data, err := os.ReadFile(count); err != nil || string(data) != "x\nx\n" {
		t.Fatalf("builds: %q, %v", data, err)
	}
	clean(t, s)
	all, err := s.List()
	if err != nil || len(all) != 1 || !all[0].Current {
		t.Fatalf("the same bytes are one version: %+v, %v", all, err)
	}
}

func TestStore_rootfs(t *testing.T) {
	s, opts := builder(t, "cat "+small(t))
	img, _, err := s.Build(t.Context(), define(t, "tiny"), opts)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(s.CurrentRootfs("tiny"), "etc/hard"))
	if err != nil || st.Mode() != 0o755|os.ModeSetuid || st.Size() != 5 {
		t.Errorf("file: %v, %v", st, err)
	}
	if st, err := os.Stat(filepath.Join(img.Rootfs(), "etc")); err != nil || st.Mode().Perm() != 0o555 {
		t.Errorf("directory: %v, %v", st, err)
	}
	for _, name := range []string{"proc", "dev", "sys", "run", "tmp", "var/tmp", "home/user", ".glovebox", "etc/hosts", "etc/hostname", "etc/resolv.conf"} {
		if _, err := os.Lstat(filepath.Join(img.Rootfs(), name)); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string]string{"passwd": "user:x:1000:1000:", "group": "user:x:1000:"} {
		if data, err := os.ReadFile(filepath.Join(img.Rootfs(), "etc", name)); err != nil || !strings.Contains(string(data), "\n"+want) {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	for _, name := range []string{"dev/null", "pipe"} {
		if _, err := os.Lstat(filepath.Join(img.Rootfs(), name)); err == nil {
			t.Errorf("%s was unpacked", name)
		}
	}
	if st, err := os.Stat(s.Dir()); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the store can be entered: %v, %v", st, err)
	}
}

func TestStore_hostileArchive(t *testing.T) {
	outside := t.TempDir()
	for name, headers := range map[string][]*tar.Header{
		"dots":       {{Name: "../x", Typeflag: tar.TypeReg}},
		"deep dots":  {{Name: "a/../../x", Typeflag: tar.TypeReg}},
		"by a link":  {{Name: "a", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "a/x", Typeflag: tar.TypeReg}},
		"by dots":    {{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "../../../../../.." + outside}, {Name: "a/x", Typeflag: tar.TypeReg}},
		"link to it": {{Name: "a", Typeflag: tar.TypeLink, Linkname: "../../../../../../etc/passwd"}},
		"mode":       {{Name: "a", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "a/", Typeflag: tar.TypeDir, Mode: 0o777}, {Name: "a/x/y", Typeflag: tar.TypeReg}},
	} {
		t.Run(name, func(t *testing.T) {
			s, opts := builder(t, "cat "+archive(t, headers...))
			_, _, err := s.Build(t.Context(), define(t, "tiny"), opts)
			entries, rerr := os.ReadDir(outside)
			if rerr != nil || len(entries) != 0 {
				t.Fatalf("it wrote outside: %v, %v", entries, rerr)
			}
			if err == nil && name != "mode" {
				t.Error("it was accepted")
			}
			clean(t, s)
		})
	}
}

func TestStore_failures(t *testing.T) {
	for _, test := range []struct {
		name, script string
		kind         backend.Kind
		fix          string
	}{
		{"the archive cannot be reached", "echo 'E: Could not resolve deb.debian.org' >&2; exit 1", backend.ErrUnavailable, "apt-get update"},
		{"no such package", "echo 'E: Unable to locate package nope' >&2; exit 100", backend.ErrInvalid, "name packages"},
		{"a full disk", "echo 'tar: write error: No space left on device' >&2; exit 1", backend.ErrCapacity, "TMPDIR"},
		{"no namespaces", "echo 'unshare failed: Operation not permitted' >&2; exit 1", backend.ErrUnavailable, "CAP_SYS_ADMIN"},
		{"half an archive", "head -c 1000 " + "ARCHIVE" + "; echo 'E: oops' >&2; exit 3", backend.ErrInternal, ""},
		{"no archive", "exit 0", backend.ErrInternal, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, opts := builder(t, strings.ReplaceAll(test.script, "ARCHIVE", small(t)))
			_, _, err := s.Build(t.Context(), define(t, "tiny"), opts)
			if !errors.Is(err, test.kind) || !strings.Contains(fmt.Sprint(err), test.fix) {
				t.Errorf("error %v", err)
			}
			clean(t, s)
			if _, err := s.Get("tiny"); !errors.Is(err, backend.ErrNotFound) || !strings.Contains(err.Error(), "glovebox image build tiny") {
				t.Errorf("get: %v", err)
			}
		})
	}
	t.Run("no mmdebstrap", func(t *testing.T) {
		s, opts := builder(t, "")
		_, _, err := s.Build(t.Context(), define(t, "tiny"), image.WithProgram(opts, "/nonexistent/mmdebstrap"))
		if !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "apt-get install mmdebstrap") {
			t.Errorf("error %v", err)
		}
	})
}

// TestStore_canceled: the build's processes are gone when Build returns, those
// that would not go by themselves too.
func TestStore_canceled(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "running")
	if out, err := exec.Command("mkfifo", fifo).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// Who still has the pipe open is still running.
	s, opts := builder(t, "trap '' TERM INT HUP\nexec 3>"+fifo+"\necho ready >&3\n(setsid sleep 1000) &\nmkdir $TMPDIR/deep; sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, _, err := s.Build(ctx, define(t, "tiny"), opts)
		ended <- err
	}()
	f, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if n, err := f.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("a process of the build is left: %d, %v", n, err)
	}
	clean(t, s)
}

// TestStore_concurrent: of several builders one builds.
func TestStore_concurrent(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	s, opts := builder(t, "echo x >>"+count+"\ncat "+small(t))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, _, err := s.Build(t.Context(), define(t, "tiny"), opts); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if data, err := os.ReadFile(count); err != nil || string(data) != "x\n" {
		t.Errorf("builds: %q, %v", data, err)
	}
}

func TestStore_sweepsWhatWasKilled(t *testing.T) {
	s, opts := builder(t, "cat "+small(t))
	scratch := filepath.Join(os.TempDir(), "glovebox-image-DEAD")
	dead := filepath.Join(s.Dir(), ".build-DEAD")
	other := filepath.Join(t.TempDir(), "other")
	for _, dir := range []string{filepath.Join(scratch, "x"), dead, filepath.Join(s.Dir(), ".build-EVIL"), other} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for dir, to := range map[string]string{dead: scratch, filepath.Join(s.Dir(), ".build-EVIL"): other} {
		if err := os.WriteFile(filepath.Join(dir, "scratch"), []byte(to), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Build(t.Context(), define(t, "tiny"), opts); err != nil {
		t.Fatal(err)
	}
	clean(t, s)
	if _, err := os.Stat(other); err != nil {
		t.Errorf("a directory that is none of a build's: %v", err)
	}
}

func TestRemove(t *testing.T) {
	s, opts := builder(t, "cat "+small(t))
	img, _, err := s.Build(t.Context(), define(t, "tiny"), opts)
	if err != nil {
		t.Fatal(err)
	}
	hold, err := s.Hold(img)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(t.Context(), "tiny", image.RemoveOptions{}); !errors.Is(err, backend.ErrConflict) {
		t.Errorf("a held image: %v", err)
	}
	if err := hold.Close(); err != nil {
		t.Fatal(err)
	}
	used := func(context.Context, image.Image) ([]string, error) { return []string{"sb1"}, nil }
	if _, err := s.Remove(t.Context(), "tiny", image.RemoveOptions{InUse: used}); !errors.Is(err, backend.ErrConflict) || !strings.Contains(err.Error(), "sb1") {
		t.Errorf("an image that a sandbox uses: %v", err)
	}
	if gone, err := s.Remove(t.Context(), "tiny", image.RemoveOptions{Old: true}); err != nil || len(gone) != 0 {
		t.Errorf("a current image is not old: %v, %v", gone, err)
	}
	if gone, err := s.Remove(t.Context(), "tiny:"+img.Short(), image.RemoveOptions{InUse: used, Force: true}); err != nil || len(gone) != 1 {
		t.Errorf("by force: %v, %v", gone, err)
	}
	if _, err := s.Remove(t.Context(), "tiny", image.RemoveOptions{}); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("once more: %v", err)
	}
	if _, err := s.Hold(img); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("hold: %v", err)
	}
	clean(t, s)
}

// TestBuild_sameHash builds the smallest Debian twice, from the archive.
func TestBuild_sameHash(t *testing.T) {
	testenv.NeedRoot(t)
	testenv.NeedProgram(t, "mmdebstrap")
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	d := image.Definition{Name: "tiny", Suite: "bookworm"}
	var hashes []string
	for range 2 {
		s := image.Open(filepath.Join(t.TempDir(), "state"))
		img, _, err := s.Build(t.Context(), d, image.BuildOptions{})
		if errors.Is(err, backend.ErrUnavailable) {
			t.Skipf("the archive cannot be reached: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, img.Hash)
		passwd, err := os.ReadFile(filepath.Join(img.Rootfs(), "etc/passwd"))
		if err != nil || !strings.Contains(string(passwd), "user:x:1000:1000::/home/user:/bin/bash") {
			t.Errorf("passwd: %q, %v", passwd, err)
		}
		for _, name := range []string{"proc", "dev", "sys", "run", "tmp", "var/tmp", "home/user", ".glovebox", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/group"} {
			if _, err := os.Stat(filepath.Join(img.Rootfs(), name)); err != nil {
				t.Error(err)
			}
		}
		if len(img.Packages) < 50 {
			t.Errorf("%d packages", len(img.Packages))
		}
		if _, err := s.Remove(t.Context(), "tiny", image.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	}
	if hashes[0] != hashes[1] {
		t.Errorf("two builds differ: %s", hashes)
	}
}
