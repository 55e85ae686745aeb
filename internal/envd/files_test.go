package envd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd"
	wirefs "github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem/filesystemconnect"
)

func TestFiles_entries(t *testing.T) {
	t.Parallel()
	target := "/etc"
	h := &hostileFiles{entries: []*wirefs.EntryInfo{
		{
			Name: "b", Path: "/home/user/b", Type: wirefs.FileType_FILE_TYPE_FILE, Size: 3, Mode: 0o4755,
			Owner: "user", Group: "users", ModifiedTime: timestamppb.New(time.Unix(100, 0)), Metadata: map[string]string{"k": "v"},
		},
		{Name: "a\n", Path: "/a", Type: wirefs.FileType_FILE_TYPE_DIRECTORY, SymlinkTarget: &target, ModifiedTime: &timestamppb.Timestamp{Seconds: 1 << 60}},
		{Name: "f", Path: "/f"},
	}}
	c := (&fake{}).serve(t, h, envd.Options{})
	i, err := c.Files().Stat(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	if i.Name() != "b" || i.Size() != 3 || i.Mode() != 0o755|fs.ModeSetuid || i.IsDir() || !i.ModTime().Equal(time.Unix(100, 0)) {
		t.Errorf("%v", fs.FormatFileInfo(i))
	}
	want := &backend.FileAttr{Owner: "user", Group: "users", Path: "/home/user/b", Metadata: map[string]string{"k": "v"}}
	if d := cmp.Diff(any(want), i.Sys()); d != "" {
		t.Error(d)
	}
	l, err := c.Files().List(t.Context(), ".")
	if err != nil || len(l) != 3 {
		t.Fatal(l, err)
	}
	attr, _ := l[0].Sys().(*backend.FileAttr)
	if l[0].Name() != "a\n" || !l[0].IsDir() || !attr.Symlink || attr.LinkTarget != "/etc" || !l[0].ModTime().IsZero() {
		t.Errorf("%v %+v", fs.FormatFileInfo(l[0]), attr)
	}
	if l[2].Mode().IsRegular() {
		t.Error("a file of no type is taken for a regular one")
	}
}

func TestFiles_refusesNames(t *testing.T) {
	t.Parallel()
	c := (&fake{}).serve(t, nil, envd.Options{})
	f := c.Files()
	w, _ := backend.As[backend.Watcher](f)
	calls := map[string]func(string) error{
		"stat":   func(n string) error { _, err := f.Stat(t.Context(), n); return err },
		"list":   func(n string) error { _, err := f.List(t.Context(), n); return err },
		"open":   func(n string) error { _, err := f.Open(t.Context(), n); return err },
		"write":  func(n string) error { return f.Write(t.Context(), n, strings.NewReader(""), 0) },
		"mkdir":  func(n string) error { return f.Mkdir(t.Context(), n, 0) },
		"from":   func(n string) error { return f.Rename(t.Context(), n, "x") },
		"to":     func(n string) error { return f.Rename(t.Context(), "x", n) },
		"remove": func(n string) error { return f.Remove(t.Context(), n) },
		"watch": func(n string) (err error) {
			for _, err = range w.Watch(t.Context(), n, backend.WatchOptions{}) {
			}
			return err
		},
	}
	for op, call := range calls {
		names := []string{"", "a\x00b", "\xff", strings.Repeat("x", 10_000)}
		if op == "remove" || op == "from" || op == "to" {
			names = append(names, ".", "/", "./", "a/..", "//")
		}
		for _, n := range names {
			if err := call(n); backend.KindOf(err) != backend.ErrInvalid {
				t.Errorf("%s %.20q: %v", op, n, err)
			}
		}
	}
}

// recorder is a file system that remembers what it was asked.
type recorder struct {
	filesystemconnect.UnimplementedFilesystemHandler
	calls []string
	err   error
}

func (r *recorder) note(h http.Header, format string, args ...any) error {
	r.calls = append(r.calls, fmt.Sprintf(format, args...)+" "+h.Get("Authorization")+h.Get("Glovebox-Mode"))
	return r.err
}

func (r *recorder) MakeDir(_ context.Context, q *connect.Request[wirefs.MakeDirRequest]) (*connect.Response[wirefs.MakeDirResponse], error) {
	return connect.NewResponse(&wirefs.MakeDirResponse{}), r.note(q.Header(), "mkdir %s", q.Msg.GetPath())
}

func (r *recorder) Move(_ context.Context, q *connect.Request[wirefs.MoveRequest]) (*connect.Response[wirefs.MoveResponse], error) {
	return connect.NewResponse(&wirefs.MoveResponse{}), r.note(q.Header(), "move %s %s", q.Msg.GetSource(), q.Msg.GetDestination())
}

func (r *recorder) Remove(_ context.Context, q *connect.Request[wirefs.RemoveRequest]) (*connect.Response[wirefs.RemoveResponse], error) {
	return connect.NewResponse(&wirefs.RemoveResponse{}), r.note(q.Header(), "remove %s", q.Msg.GetPath())
}

func (r *recorder) Stat(_ context.Context, q *connect.Request[wirefs.StatRequest]) (*connect.Response[wirefs.StatResponse], error) {
	return nil, r.note(q.Header(), "stat %s", q.Msg.GetPath())
}

func TestFiles_calls(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	c := (&fake{}).serve(t, r, envd.Options{})
	uf, _ := backend.As[backend.UserFiles](c.Files())
	err := errors.Join(
		c.Files().Mkdir(t.Context(), "a/b", 0o700),
		c.Files().Rename(t.Context(), "~x", "/y"),
		uf.FilesAs("root").Remove(t.Context(), "z"),
	)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"mkdir a/b 700", "move ./~x /y ", "remove z Basic cm9vdDo="}, r.calls); d != "" {
		t.Error(d)
	}
}

func TestFiles_errors(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	c := (&fake{}).serve(t, r, envd.Options{})
	stat := func() error { _, err := c.Files().Stat(t.Context(), "x"); return err }
	r.err = connect.NewError(connect.CodeNotFound, errors.New("no"))
	if err := stat(); !errors.Is(err, fs.ErrNotExist) || backend.KindOf(err) != backend.ErrNotFound {
		t.Errorf("%v", err)
	}
	if err := c.Files().Remove(t.Context(), "x"); err != nil {
		t.Errorf("removing what is absent: %v", err)
	}
	r.err = connect.NewError(connect.CodeAlreadyExists, errors.New("there"))
	if err := stat(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v", err)
	}
	if err := c.Files().Mkdir(t.Context(), "x", 0); err != nil {
		t.Errorf("making what is there: %v", err)
	}
	r.err = connect.NewError(connect.CodePermissionDenied, errors.New("no"))
	if err := stat(); !errors.Is(err, fs.ErrPermission) || backend.KindOf(err) != backend.ErrDenied {
		t.Errorf("%v", err)
	}
	r.err = connect.NewError(connect.CodeResourceExhausted, errors.New("full"))
	if err := c.Files().Mkdir(t.Context(), "x", 0); backend.KindOf(err) != backend.ErrTooLarge {
		t.Errorf("%v", err)
	}
}

func TestFiles_read(t *testing.T) {
	t.Parallel()
	data := strings.Repeat("0123456789", 10_000)
	for _, ranges := range []bool{true, false} {
		f := &fake{files: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/files" || r.URL.Query().Get("path") != "d/f" || r.URL.Query().Get("username") != "root" {
				http.Error(w, `{"message":"no"}`, http.StatusNotFound)
				return
			}
			if !ranges {
				_, _ = io.WriteString(w, data)
				return
			}
			http.ServeContent(w, r, "f", time.Time{}, strings.NewReader(data))
		}}
		c := f.serve(t, nil, envd.Options{User: "root"})
		ro, _ := backend.As[backend.RangeOpener](c.Files())
		for _, tt := range []struct {
			off, n int64
			want   string
		}{
			{0, -1, data},
			{5, 10, data[5:15]},
			{99_990, -1, data[99_990:]},
			{99_995, 100, data[99_995:]},
			{10, 0, ""},
			{100_000, -1, ""},
			{1 << 40, 5, ""},
			{0, 3, data[:3]},
		} {
			rc, err := ro.OpenRange(t.Context(), "d/f", tt.off, tt.n)
			if err != nil {
				t.Errorf("%d+%d: %v", tt.off, tt.n, err)
				continue
			}
			got, err := io.ReadAll(rc)
			if err != nil || string(got) != tt.want {
				t.Errorf("ranges %v, %d+%d: %d bytes, %v", ranges, tt.off, tt.n, len(got), err)
			}
			_ = rc.Close()
			_ = rc.Close()
		}
		if _, err := ro.OpenRange(t.Context(), "d/f", -1, 1); backend.KindOf(err) != backend.ErrInvalid {
			t.Errorf("%v", err)
		}
		if _, err := c.Files().Open(t.Context(), "other"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
	}
}

func TestFiles_closeDoesNotDrain(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	gone := make(chan struct{})
	f := &fake{files: func(w http.ResponseWriter, _ *http.Request) {
		defer close(gone)
		for {
			n, err := w.Write(make([]byte, 64<<10))
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}}
	c := f.serve(t, nil, envd.Options{})
	rc, err := c.Files().Open(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(rc, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if err := rc.Close(); err != nil {
		t.Error(err)
	}
	<-gone
	if n := sent.Load(); n > 16<<20 {
		t.Errorf("%d bytes were sent", n)
	}
	if _, err := rc.Read(make([]byte, 1)); err == nil {
		t.Error("a closed file can be read")
	}
}

func TestFiles_cutDownloadIsLost(t *testing.T) {
	t.Parallel()
	f := &fake{files: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write(make([]byte, 10))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}}
	c := f.serve(t, nil, envd.Options{})
	if b, err := backend.ReadFile(t.Context(), c.Files(), "x", 1<<20); backend.KindOf(err) != backend.ErrLost {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestFiles_write(t *testing.T) {
	t.Parallel()
	data := strings.Repeat("data", 100_000)
	for _, version := range []string{"", "0.6.13", "0.5.6"} {
		for name, r := range map[string]io.Reader{
			"sized": strings.NewReader(data), "streamed": iotest.OneByteReader(strings.NewReader("tiny")), "empty": strings.NewReader(""), "nil": nil,
		} {
			var got []byte
			var header http.Header
			f := &fake{files: func(w http.ResponseWriter, r *http.Request) {
				header = r.Header
				body := io.Reader(r.Body)
				if mr, err := r.MultipartReader(); err == nil {
					p, err := mr.NextPart()
					if err != nil || p.FormName() != "file" {
						t.Errorf("part: %v", err)
						return
					}
					body = p
				}
				got, _ = io.ReadAll(body)
				_, _ = io.WriteString(w, `[{"name":"f"}]`)
			}}
			c := f.serve(t, nil, envd.Options{EnvdVersion: version})
			mw, _ := backend.As[backend.MetadataWriter](c.Files())
			if err := mw.WriteMeta(t.Context(), "d/f", r, 0o600, map[string]string{"Key": "v"}); err != nil {
				t.Fatal(version, name, err)
			}
			want := map[string]string{"sized": data, "streamed": "tiny"}[name]
			multipart := strings.HasPrefix(header.Get("Content-Type"), "multipart/")
			if string(got) != want || header.Get("X-Metadata-Key") != "v" || header.Get("Glovebox-Mode") != "600" || multipart != (version == "0.5.6") {
				t.Errorf("%s, %s: %d bytes, header %v", version, name, len(got), header)
			}
		}
	}
}

func TestFiles_writeFails(t *testing.T) {
	t.Parallel()
	t.Run("reader", func(t *testing.T) {
		t.Parallel()
		aborted := make(chan error, 1)
		f := &fake{files: func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			aborted <- err
		}}
		c := f.serve(t, nil, envd.Options{})
		bad := errors.New("bad disk")
		err := c.Files().Write(t.Context(), "f", io.MultiReader(strings.NewReader("x"), iotest.ErrReader(bad)), 0)
		if !errors.Is(err, bad) {
			t.Errorf("%v", err)
		}
		if err := <-aborted; err == nil {
			t.Error("the server took a part for the whole")
		}
	})
	t.Run("full disk", func(t *testing.T) {
		t.Parallel()
		f := &fake{files: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInsufficientStorage)
		}}
		c := f.serve(t, nil, envd.Options{})
		r := &after{r: zeros{}}
		err := c.Files().Write(t.Context(), "f", r, 0)
		r.over.Store(true)
		if backend.KindOf(err) != backend.ErrTooLarge {
			t.Errorf("%v", err)
		}
		if r.late.Load() {
			t.Error("read after Write returned")
		}
	})
	t.Run("metadata", func(t *testing.T) {
		t.Parallel()
		c := (&fake{}).serve(t, nil, envd.Options{})
		mw, _ := backend.As[backend.MetadataWriter](c.Files())
		for _, m := range []map[string]string{
			{"": "v"}, {"a b": "v"}, {"a:": "v"}, {"k": "\n"}, {"k": "é"}, {strings.Repeat("k", 247): "v"}, {"k": strings.Repeat("v", 4096)},
		} {
			if err := mw.WriteMeta(t.Context(), "f", bytes.NewReader(nil), 0, m); backend.KindOf(err) != backend.ErrInvalid {
				t.Errorf("%.30v: %v", m, err)
			}
		}
	})
	t.Run("context", func(t *testing.T) {
		t.Parallel()
		f := &fake{files: func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }}
		c := f.serve(t, nil, envd.Options{})
		r, w := io.Pipe()
		defer w.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := c.Files().Write(ctx, "f", r, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// after notes reads that come too late.
type after struct {
	r          io.Reader
	over, late atomic.Bool
}

func (a *after) Read(p []byte) (int, error) {
	if a.over.Load() {
		a.late.Store(true)
	}
	return a.r.Read(p)
}

// watching serves a watch until the client leaves.
type watching struct {
	filesystemconnect.UnimplementedFilesystemHandler
	left chan struct{}
}

func (w *watching) WatchDir(ctx context.Context, r *connect.Request[wirefs.WatchDirRequest], s *connect.ServerStream[wirefs.WatchDirResponse]) error {
	defer close(w.left)
	if !r.Msg.GetRecursive() {
		return connect.NewError(connect.CodeNotFound, errors.New("no"))
	}
	_ = s.Send(ready())
	_ = s.Send(&wirefs.WatchDirResponse{Event: &wirefs.WatchDirResponse_Keepalive{}})
	_ = s.Send(changed("a/b"))
	<-ctx.Done()
	return ctx.Err()
}

func TestWatch(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(context.CancelFunc) bool{
		"context ends": func(cancel context.CancelFunc) bool { cancel(); return true },
		"loop ends":    func(context.CancelFunc) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &watching{left: make(chan struct{})}
			c := (&fake{}).serve(t, h, envd.Options{})
			w, _ := backend.As[backend.Watcher](c.Files())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var got []backend.WatchEvent
			for ev, err := range w.Watch(ctx, "d", backend.WatchOptions{Recursive: true}) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, ev)
				if len(got) == 2 && !stop(cancel) {
					break
				}
			}
			if d := cmp.Diff([]backend.WatchEvent{{Op: backend.WatchReady}, {Name: "a/b", Op: backend.WatchCreate}}, got); d != "" {
				t.Error(d)
			}
			<-h.left
		})
	}
	h := &watching{left: make(chan struct{})}
	c := (&fake{}).serve(t, h, envd.Options{})
	w, _ := backend.As[backend.Watcher](c.Files())
	for _, err := range w.Watch(t.Context(), "d", backend.WatchOptions{}) {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
	}
}
