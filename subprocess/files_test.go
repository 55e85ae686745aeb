//go:build linux

package subprocess_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
)

func TestFiles_roundTrip(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		ctx, files := t.Context(), sb.Files()
		data := bytes.Repeat(allBytes(), 40_000) // 10 MB
		if err := files.Write(ctx, "a/b/data", bytes.NewReader(data), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := backend.ReadFile(ctx, files, "a/b/data", int64(len(data)))
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		st, err := files.Stat(ctx, "a/b/data")
		if err != nil || st.Size() != int64(len(data)) || st.Mode() != 0o600 || st.Name() != "data" || time.Since(st.ModTime()).Abs() > time.Minute {
			t.Errorf("%+v %v", st, err)
		}
		if attr, ok := st.Sys().(*backend.FileAttr); !ok || attr.Owner != "user" || !strings.HasSuffix(attr.Path, "/a/b/data") {
			t.Errorf("%+v", st.Sys())
		}
		if err := files.Write(ctx, "a/b/data", strings.NewReader("short"), 0); err != nil {
			t.Fatal(err)
		}
		if out := sh(t, sb, "cat a/b/data; stat -c %a a/b/data").succeed(t).out; out != "short600\n" && out != "short644\n" {
			t.Errorf("replaced: %q", out)
		}
		for _, step := range []error{
			files.Mkdir(ctx, "d/e/f", 0o700), files.Mkdir(ctx, "d/e/f", 0o700),
			files.Rename(ctx, "a/b/data", "d/moved"), files.Remove(ctx, "a"), files.Remove(ctx, "a"), files.Remove(ctx, "never"),
		} {
			if step != nil {
				t.Error(step)
			}
		}
		list, err := files.List(ctx, "d")
		var names []string
		for _, i := range list {
			names = append(names, i.Name())
		}
		if err != nil || !slices.Equal(names, []string{"e", "moved"}) || !list[0].IsDir() {
			t.Errorf("%v %v", names, err)
		}
		if out := sh(t, sb, "cat d/moved; ls").succeed(t).out; out != "shortd\n" {
			t.Errorf("%q", out)
		}
	})
}

func TestFiles_errors(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		ctx, files := t.Context(), sb.Files()
		sh(t, sb, "mkfifo fifo; mkdir dir; touch dir/x file; ln -s /nowhere dangling; ln -s loop loop").succeed(t)
		open := func(name string) error {
			rc, err := files.Open(ctx, name)
			if err == nil {
				_, err = io.ReadAll(rc)
				rc.Close()
			}
			return err
		}
		stat := func(name string) error { _, err := files.Stat(ctx, name); return err }
		list := func(name string) error { _, err := files.List(ctx, name); return err }
		write := func(name string) error { return backend.WriteFile(ctx, files, name, []byte("x"), 0) }
		for _, tt := range []struct {
			what string
			err  error
			kind backend.Kind
			is   error
		}{
			{"open missing", open("missing"), backend.ErrNotFound, fs.ErrNotExist},
			{"stat missing", stat("missing"), backend.ErrNotFound, fs.ErrNotExist},
			{"list missing", list("missing"), backend.ErrNotFound, fs.ErrNotExist},
			{"open directory", open("dir"), backend.ErrInvalid, nil},
			{"open fifo", open("fifo"), backend.ErrInvalid, nil},
			{"open device", open("/dev/null"), backend.ErrInvalid, nil},
			{"open loop", open("loop"), "", nil},
			{"open dangling", open("dangling"), backend.ErrNotFound, fs.ErrNotExist},
			{"list file", list("file"), backend.ErrInvalid, nil},
			{"write over directory", write("dir"), backend.ErrInvalid, nil},
			{"write below file", write("file/x"), backend.ErrInvalid, nil},
			{"write system", write("/usr/bin/x"), backend.ErrDenied, fs.ErrPermission},
			{"mkdir over file", files.Mkdir(ctx, "file", 0), backend.ErrInvalid, nil},
			{"rename missing", files.Rename(ctx, "missing", "x"), backend.ErrNotFound, fs.ErrNotExist},
			{"remove home", files.Remove(ctx, "."), backend.ErrInvalid, nil},
			{"remove root", files.Remove(ctx, "/"), backend.ErrInvalid, nil},
			{"empty name", stat(""), backend.ErrInvalid, nil},
			{"NUL", stat("a\x00b"), backend.ErrInvalid, nil},
			{"long name", write(strings.Repeat("n", 300)), backend.ErrInvalid, nil},
		} {
			switch {
			case tt.err == nil:
				t.Errorf("%s: no error", tt.what)
			case tt.kind != "" && backend.KindOf(tt.err) != tt.kind:
				t.Errorf("%s: %s: %v", tt.what, backend.KindOf(tt.err), tt.err)
			case tt.is != nil && !errors.Is(tt.err, tt.is):
				t.Errorf("%s: not %v: %v", tt.what, tt.is, tt.err)
			}
		}
		if out := sh(t, sb, "ls -a | grep -v '^[.]*$'").succeed(t).out; out != "dangling\ndir\nfifo\nfile\nloop\n" {
			t.Errorf("what is there now: %q", out)
		}
	})
}

func TestFiles_namesThatTryToLeave(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		ctx, files := t.Context(), sb.Files()
		sh(t, sb, "ln -s / rootlink; ln -s ../../../../../../.. up").succeed(t)
		for _, name := range []string{"../../../../../../etc/shadow", "/etc/shadow", "rootlink/etc/shadow", "up/etc/shadow", "/proc/1/environ", "/proc/self/environ"} {
			if data, err := backend.ReadFile(ctx, files, name, 1<<20); err == nil {
				t.Errorf("%s can be read: %.100q", name, data)
			}
		}
		for _, name := range []string{"../../../../../../etc/x", "/etc/x", "rootlink/x", "up/x", "/proc/sys/kernel/hostname", "/dev/x"} {
			if err := backend.WriteFile(ctx, files, name, []byte("x"), 0); err == nil {
				t.Errorf("%s can be written", name)
			}
		}
	})
}

func TestFiles_ranges(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		ctx := t.Context()
		if err := backend.WriteFile(ctx, sb.Files(), "f", []byte("0123456789"), 0); err != nil {
			t.Fatal(err)
		}
		ro := as[backend.RangeOpener](t, sb.Files())
		for _, tt := range []struct {
			off, n int64
			want   string
		}{{0, -1, "0123456789"}, {3, 4, "3456"}, {8, 100, "89"}, {10, -1, ""}, {99, 5, ""}, {4, 0, ""}} {
			rc, err := ro.OpenRange(ctx, "f", tt.off, tt.n)
			if err != nil {
				t.Errorf("%+v: %v", tt, err)
				continue
			}
			got, err := io.ReadAll(rc)
			rc.Close()
			if err != nil || string(got) != tt.want {
				t.Errorf("%+v: %q %v", tt, got, err)
			}
		}
		_, err := ro.OpenRange(ctx, "f", -1, 5)
		wantKind(t, err, backend.ErrInvalid)
	})
}

func TestFiles_metadata(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		ctx := t.Context()
		mw := as[backend.MetadataWriter](t, sb.Files())
		meta := map[string]string{"source": "https://example.com/a b", "n": "1"}
		if err := mw.WriteMeta(ctx, "f", strings.NewReader("x"), 0, meta); err != nil {
			t.Fatal(err)
		}
		st, err := sb.Files().Stat(ctx, "f")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(meta, st.Sys().(*backend.FileAttr).Metadata); diff != "" { //nolint:forcetypeassert // documented
			t.Error(diff)
		}
		for _, bad := range []map[string]string{{strings.Repeat("k", 300): "v"}, {"k": "line\n"}, {"": "v"}, {"k": strings.Repeat("v", 5000)}} {
			if err := mw.WriteMeta(ctx, "g", strings.NewReader("x"), 0, bad); backend.KindOf(err) != backend.ErrInvalid && backend.KindOf(err) != backend.ErrTooLarge {
				t.Errorf("%.20q: %v", bad, err)
			}
		}
	})
}

func TestFiles_users(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		ctx := t.Context()
		uf, ok := backend.As[backend.UserFiles](sb.Files())
		if ok != h.caps.Has(backend.FeatureUsers) {
			t.Fatalf("several accounts: %v, claimed: %v", ok, !ok)
		}
		if !ok {
			return
		}
		root := uf.FilesAs("root")
		if err := backend.WriteFile(ctx, root, "/tmp/roots", []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		if st, err := root.Stat(ctx, "/tmp/roots"); err != nil || st.Sys().(*backend.FileAttr).Owner != "root" { //nolint:forcetypeassert // documented
			t.Errorf("%+v %v", st, err)
		}
		_, err := backend.ReadFile(ctx, sb.Files(), "/tmp/roots", 100)
		wantKind(t, err, backend.ErrDenied)
		if data, err := backend.ReadFile(ctx, root, "/tmp/roots", 100); err != nil || string(data) != "secret" {
			t.Errorf("%q %v", data, err)
		}
		_, err = uf.FilesAs("mallory").Stat(ctx, "/tmp")
		wantKind(t, err, backend.ErrNotFound)
	})
}

func TestFiles_watch(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		sh(t, sb, "mkdir -p w/sub").succeed(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		want := []backend.WatchEvent{
			{Name: "a", Op: backend.WatchCreate},
			{Name: "a", Op: backend.WatchWrite},
			{Name: "a", Op: backend.WatchChmod},
			{Name: "a", Op: backend.WatchRename},
			{Name: "b", Op: backend.WatchCreate},
			{Name: "b", Op: backend.WatchRemove},
			{Name: "sub/c", Op: backend.WatchCreate},
		}
		for ev, err := range as[backend.Watcher](t, sb.Files()).Watch(ctx, "w", backend.WatchOptions{Recursive: true}) {
			if err != nil {
				t.Fatalf("%v, still to come %v", err, want)
			}
			if ev.Op == backend.WatchReady {
				sh(t, sb, "cd w; echo x >a; chmod 600 a; mv a b; rm b; mkdir sub/c").succeed(t)
				continue
			}
			if len(want) > 0 && ev == want[0] {
				want = want[1:]
			}
			if len(want) == 0 {
				break
			}
		}
		if len(want) > 0 {
			t.Errorf("missing %v", want)
		}
	})
}
