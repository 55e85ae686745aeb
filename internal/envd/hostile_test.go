package envd_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	wirefs "github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem/filesystemconnect"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	wireproc "github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

type startFunc = func(context.Context, *startRequest, *startStream) error

func endless(ev *wireproc.StartResponse) startFunc {
	return func(ctx context.Context, _ *startRequest, s *startStream) error {
		s.ResponseHeader().Set(wire.HeaderCommand, "c1")
		_ = s.Send(started(1))
		for ctx.Err() == nil {
			if err := s.Send(ev); err != nil {
				return err
			}
		}
		return ctx.Err()
	}
}

func headers(id, trailer string) startFunc {
	return func(_ context.Context, _ *startRequest, s *startStream) error {
		s.ResponseHeader().Set(wire.HeaderCommand, id)
		_ = s.Send(started(1))
		_ = s.Send(exited(0))
		s.ResponseTrailer().Set(wire.TrailerEnd, trailer)
		return nil
	}
}

func TestStart_hostileStreams(t *testing.T) {
	t.Parallel()
	negative := &gloveboxv1.End{Reason: gloveboxv1.End_REASON_EXITED, Usage: &gloveboxv1.Usage{CpuNs: -1}}
	tests := map[string]startFunc{
		"nothing":           ours(nil),
		"data first":        ours(exitEnd(0), stdout("x"), started(1), exited(0)),
		"end first":         ours(exitEnd(0), exited(0)),
		"process 0":         ours(exitEnd(0), started(0), exited(0)),
		"process too large": ours(exitEnd(0), started(1<<31), exited(0)),
		"two starts":        ours(exitEnd(0), started(1), started(2), exited(0)),
		"data after end":    ours(exitEnd(0), started(1), exited(0), stdout("x")),
		"two ends":          ours(exitEnd(0), started(1), exited(0), exited(0)),
		"no end":            ours(exitEnd(0), started(1), stdout("x")),
		"two accounts":      ours(exitEnd(0), started(1), exited(1)),
		"killed is success": ours(exitEnd(0), started(1), killed()),
		"code 256":          ours(exitEnd(256), started(1), exited(0)),
		"negative code":     ours(nil, started(1), exited(-1)),
		"no status":         ours(nil, started(1), end(&wireproc.ProcessEvent_EndEvent{Status: "signal: made up"})),
		"kill unexplained":  ours(nil, started(1), killed()),
		"negative usage":    ours(negative, started(1), exited(0)),
		"no reason":         ours(&gloveboxv1.End{}, started(1), exited(0)),
		"signal 99":         ours(&gloveboxv1.End{Reason: gloveboxv1.End_REASON_SIGNALED, Signal: 99}, started(1), killed()),
		"large message":     ours(exitEnd(0), started(1), stdout(strings.Repeat("x", 5<<20)), exited(0)),
		"keepalive flood":   endless(keepalive()),
		"empty data flood":  endless(stdout("")),
		"large trailer":     headers("c1", strings.Repeat("A", 100_000)),
		"trailer not coded": headers("c1", "§"),
		"command ID":        headers("../x", wire.Pack(exitEnd(0))),
		"long command ID":   headers(strings.Repeat("x", 200), wire.Pack(exitEnd(0))),
		"header flood":      headers(strings.Repeat("x", 1<<20), wire.Pack(exitEnd(0))),
		"stays after end": func(ctx context.Context, _ *startRequest, s *startStream) error {
			s.ResponseHeader().Set(wire.HeaderCommand, "c1")
			_ = s.Send(started(1))
			_ = s.Send(killed())
			<-ctx.Done()
			return ctx.Err()
		},
	}
	for name, start := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{processes: processes{start: start}}
			c := f.serve(t, nil, envd.Options{Grace: 100 * time.Millisecond})
			cmd := backend.Command{Args: []string{"x"}, Timeout: backend.UntilSandboxEnds}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			p, err := c.Start(ctx, cmd)
			if err == nil {
				var exit backend.Exit
				if exit, err = p.Wait(ctx); err == nil {
					t.Fatalf("believed: %v", exit)
				}
			}
			if k := backend.KindOf(err); k != backend.ErrLost && k != backend.ErrTooLarge {
				t.Errorf("kind %q: %v", k, err)
			}
		})
	}
}

// hostileFiles answers with entries a test makes up.
type hostileFiles struct {
	filesystemconnect.UnimplementedFilesystemHandler
	entries []*wirefs.EntryInfo
	events  []*wirefs.WatchDirResponse
}

func (h *hostileFiles) Stat(context.Context, *connect.Request[wirefs.StatRequest]) (*connect.Response[wirefs.StatResponse], error) {
	return connect.NewResponse(&wirefs.StatResponse{Entry: h.entries[0]}), nil
}

func (h *hostileFiles) ListDir(context.Context, *connect.Request[wirefs.ListDirRequest]) (*connect.Response[wirefs.ListDirResponse], error) {
	return connect.NewResponse(&wirefs.ListDirResponse{Entries: h.entries}), nil
}

func (h *hostileFiles) WatchDir(_ context.Context, _ *connect.Request[wirefs.WatchDirRequest], s *connect.ServerStream[wirefs.WatchDirResponse]) error {
	for _, e := range h.events {
		if err := s.Send(e); err != nil {
			return err
		}
	}
	return nil
}

func TestFiles_hostileEntries(t *testing.T) {
	t.Parallel()
	good := func() *wirefs.EntryInfo {
		return &wirefs.EntryInfo{Name: "x", Path: "/x", Type: wirefs.FileType_FILE_TYPE_FILE, Mode: 0o644}
	}
	tests := map[string]func(e *wirefs.EntryInfo){
		"slash":         func(e *wirefs.EntryInfo) { e.Name = "a/b" },
		"dot dot":       func(e *wirefs.EntryInfo) { e.Name = ".." },
		"empty":         func(e *wirefs.EntryInfo) { e.Name = "" },
		"NUL":           func(e *wirefs.EntryInfo) { e.Name = "a\x00" },
		"long":          func(e *wirefs.EntryInfo) { e.Name = strings.Repeat("x", 5000) },
		"size":          func(e *wirefs.EntryInfo) { e.Size = -1 },
		"huge size":     func(e *wirefs.EntryInfo) { e.Size = 1<<63 - 1 },
		"mode":          func(e *wirefs.EntryInfo) { e.Mode = 1 << 31 },
		"relative path": func(e *wirefs.EntryInfo) { e.Path = "x" },
		"metadata":      func(e *wirefs.EntryInfo) { e.Metadata = map[string]string{"k": strings.Repeat("v", 5000)} },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := good()
			spoil(bad)
			h := &hostileFiles{entries: []*wirefs.EntryInfo{bad}}
			c := (&fake{}).serve(t, h, envd.Options{})
			if i, err := c.Files().Stat(t.Context(), "x"); backend.KindOf(err) != backend.ErrLost {
				t.Errorf("Stat: %v, %v", i, err)
			}
			if l, err := c.Files().List(t.Context(), "x"); backend.KindOf(err) != backend.ErrLost {
				t.Errorf("List: %v, %v", l, err)
			}
		})
	}
	t.Run("too many", func(t *testing.T) {
		t.Parallel()
		c := (&fake{}).serve(t, &hostileFiles{entries: make([]*wirefs.EntryInfo, 1<<20)}, envd.Options{})
		if _, err := c.Files().List(t.Context(), "x"); backend.KindOf(err) != backend.ErrLost {
			t.Errorf("%v", err)
		}
	})
	t.Run("too large", func(t *testing.T) {
		t.Parallel()
		entries := make([]*wirefs.EntryInfo, 5000)
		for i := range entries {
			entries[i] = good()
			entries[i].Name = strings.Repeat("x", 4000)
		}
		c := (&fake{}).serve(t, &hostileFiles{entries: entries}, envd.Options{})
		if _, err := c.Files().List(t.Context(), "x"); backend.KindOf(err) != backend.ErrTooLarge {
			t.Errorf("%v", err)
		}
	})
}

func changed(name string) *wirefs.WatchDirResponse {
	return &wirefs.WatchDirResponse{Event: &wirefs.WatchDirResponse_Filesystem{
		Filesystem: &wirefs.FilesystemEvent{Name: name, Type: wirefs.EventType_EVENT_TYPE_CREATE},
	}}
}

func ready() *wirefs.WatchDirResponse {
	return &wirefs.WatchDirResponse{Event: &wirefs.WatchDirResponse_Start{Start: &wirefs.WatchDirResponse_StartEvent{}}}
}

func TestWatch_hostileEvents(t *testing.T) {
	t.Parallel()
	for name, events := range map[string][]*wirefs.WatchDirResponse{
		"event first":   {changed("x")},
		"two starts":    {ready(), ready()},
		"absolute name": {ready(), changed("/etc")},
		"climbing name": {ready(), changed("a/../../b")},
		"empty name":    {ready(), changed("")},
		"ends":          {ready(), changed("x")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := (&fake{}).serve(t, &hostileFiles{events: events}, envd.Options{})
			w, _ := backend.As[backend.Watcher](c.Files())
			var last error
			for _, err := range w.Watch(t.Context(), "d", backend.WatchOptions{}) {
				last = err
			}
			if backend.KindOf(last) != backend.ErrLost {
				t.Errorf("%v", last)
			}
		})
	}
}

func TestCalls_hostileAnswers(t *testing.T) {
	t.Parallel()
	tests := map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://elsewhere/", http.StatusFound)
		},
		"teapot": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
		"html":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"garbage": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/proto")
			_, _ = w.Write([]byte{0xff, 0xff, 0xff})
		},
		"gzip": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/proto")
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte{0x1f, 0x8b})
		},
		"endless error": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		},
		"cut short": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/proto")
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusOK)
			panic(http.ErrAbortHandler)
		},
	}
	for name, h := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := (&fake{}).serveHandler(t, h, envd.Options{})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if _, err := c.Files().Stat(ctx, "x"); backend.KindOf(err) != backend.ErrLost {
				t.Errorf("Stat: %v", err)
			}
		})
	}
}

func TestErrors_showNoControlCharacters(t *testing.T) {
	t.Parallel()
	f := &fake{processes: processes{start: func(context.Context, *startRequest, *startStream) error {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("a\x1b]52;c;\x07\nb"+strings.Repeat("x", 10_000)))
	}}}
	c := f.serve(t, nil, envd.Options{Backend: "b", Sandbox: "s1"})
	_, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}})
	if backend.KindOf(err) != backend.ErrInvalid {
		t.Fatal(err)
	}
	if s := err.Error(); strings.ContainsAny(s, "\x1b\x07\n") || len(s) > 1000 || !strings.HasPrefix(s, "start s1: sandbox: a?]52") {
		t.Errorf("%q", s)
	}
}
