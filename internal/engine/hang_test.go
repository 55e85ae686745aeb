//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/leak"
)

// quick makes an engine with short deadlines.
func quick(t *testing.T, host string) *Engine {
	t.Helper()
	e, err := Open(host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	e.limits = limits{
		ping: 300 * time.Millisecond, quick: 500 * time.Millisecond, normal: 500 * time.Millisecond, long: 700 * time.Millisecond,
		idle: 500 * time.Millisecond,
	}
	return e
}

func full64() string { return strings.Repeat("ab", 32) }

// everything calls each method that speaks to the daemon.
func everything(e *Engine) map[string]func(context.Context) error {
	c := Container{
		Name: "x", Image: "x", Args: []string{"x"}, Labels: map[string]string{"a": "b"}, Memory: 1, PIDs: 1,
	}
	id := full64()
	tarball := string(archive(map[string]string{"a": "b"}))
	return map[string]func(context.Context) error{
		"ping":     e.Ping,
		"info":     func(ctx context.Context) error { _, err := e.Info(ctx); return err },
		"create":   func(ctx context.Context) error { _, err := e.Create(ctx, c); return err },
		"start":    func(ctx context.Context) error { return e.Start(ctx, id) },
		"kill":     func(ctx context.Context) error { return e.Kill(ctx, id, "KILL") },
		"pause":    func(ctx context.Context) error { return e.Pause(ctx, id) },
		"unpause":  func(ctx context.Context) error { return e.Unpause(ctx, id) },
		"remove":   func(ctx context.Context) error { return e.Remove(ctx, id) },
		"inspect":  func(ctx context.Context) error { _, err := e.Inspect(ctx, id); return err },
		"list":     func(ctx context.Context) error { _, err := e.List(ctx, "a", ""); return err },
		"attach":   func(ctx context.Context) error { _, err := e.Attach(ctx, id); return err },
		"stats":    func(ctx context.Context) error { _, err := e.Stats(ctx, id); return err },
		"image":    func(ctx context.Context) error { _, err := e.Image(ctx, "x"); return err },
		"images":   func(ctx context.Context) error { _, err := e.Images(ctx, "a", ""); return err },
		"tag":      func(ctx context.Context) error { return e.Tag(ctx, "x", "y") },
		"rmi":      func(ctx context.Context) error { return e.RemoveImage(ctx, "x") },
		"pull":     func(ctx context.Context) error { return e.Pull(ctx, "x", nil) },
		"networks": func(ctx context.Context) error { _, err := e.Networks(ctx, "a", ""); return err },
		"rm net":   func(ctx context.Context) error { return e.RemoveNetwork(ctx, "x") },
		"import": func(ctx context.Context) error {
			_, err := e.Import(ctx, "x", map[string]string{"a": "b"}, strings.NewReader(tarball))
			return err
		},
		"export": func(ctx context.Context) error {
			_, err := e.Export(ctx, "x", "y", map[string]string{"a": "b"}, 1)
			return err
		},
		"network": func(ctx context.Context) error {
			_, err := e.CreateNetwork(ctx, Network{Name: "x", Labels: map[string]string{"a": "b"}})
			return err
		},
	}
}

// hungSocket is a socket whose owner accepts and never answers.
func hungSocket(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hung.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	return "unix://" + path
}

func TestHung_everyCallEnds(t *testing.T) {
	leak.Check(t)
	host := hungSocket(t)
	for name, f := range everything(quick(t, host)) {
		began := time.Now()
		be := wantKind(t, f(t.Context()), backend.ErrUnavailable, "")
		if took := time.Since(began); took > 5*time.Second || be.Fix == "" {
			t.Errorf("%s took %v: %v", name, took, be)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := quick(t, host).Ping(ctx); !errors.Is(err, context.Canceled) || backend.KindOf(err) != "" {
		t.Errorf("a cancelled call: %v", err)
	}
	// Many at once do not wait for each other.
	e := quick(t, host)
	began := time.Now()
	errs := make(chan error, 20)
	for range cap(errs) {
		go func() { errs <- e.Ping(t.Context()) }()
	}
	for range cap(errs) {
		wantKind(t, <-errs, backend.ErrUnavailable, "")
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("20 at once took %v", took)
	}
}

// fake is a daemon that answers as handle does.
func fake(t *testing.T, handle http.HandlerFunc) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fake.sock")
	serveOn(t, path, handle)
	return "unix://" + path
}

func serveOn(t *testing.T, path string, handle http.HandlerFunc) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	// Requests whose body nobody reads do not end with their connection.
	ctx, cancel := context.WithCancel(t.Context())
	s := &http.Server{Handler: handle, BaseContext: func(net.Listener) context.Context { return ctx }}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stop = func() { cancel(); s.Close(); <-done }
	t.Cleanup(stop)
	return stop
}

func ping(w http.ResponseWriter, r *http.Request) bool {
	w.Header().Set("Api-Version", "1.41")
	return strings.HasSuffix(r.URL.Path, "/_ping")
}

func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprint(w, body)
}

// TestHung_afterItsPing: where the daemon hangs once it has the request, what
// changes something may have been done, and what only asks has not.
func TestHung_afterItsPing(t *testing.T) {
	leak.Check(t)
	host := fake(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case ping(w, r):
		case strings.HasSuffix(r.URL.Path, "/images/x/json"):
			answer(w, 200, `{"Id":"sha256:x"}`)
		default:
			<-r.Context().Done()
		}
	})
	for name, f := range everything(quick(t, host)) {
		want := backend.ErrLost
		switch name {
		case "ping", "image":
			want = ""
		case "info", "inspect", "list", "attach", "stats", "images", "pull", "networks", "network":
			want = backend.ErrUnavailable
		}
		if err := f(t.Context()); backend.KindOf(err) != want {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

func TestErrors_ofTheDaemon(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status int
		body   string
		kind   backend.Kind
	}{
		"full":        {500, `{"message":"write /var/lib/docker/x: no space left on device"}`, backend.ErrCapacity},
		"trouble":     {500, `{"message":"boom"}`, backend.ErrUnavailable},
		"conflict":    {409, `{"message":"the name is taken"}`, backend.ErrConflict},
		"denied":      {403, `{"message":"no"}`, backend.ErrDenied},
		"invalid":     {400, `{"message":"what?"}`, backend.ErrInvalid},
		"hostile":     {500, `{"message":"\u001b]0;x\u0007\n` + strings.Repeat("A", 100_000) + `"}`, backend.ErrUnavailable},
		"not JSON":    {500, "\x00\xff", backend.ErrUnavailable},
		"unavailable": {503, `{"message":"later"}`, backend.ErrUnavailable},
	} {
		host := fake(t, func(w http.ResponseWriter, r *http.Request) {
			if !ping(w, r) {
				answer(w, tt.status, tt.body)
			}
		})
		err := quick(t, host).Kill(t.Context(), full64(), "KILL")
		wantKind(t, err, tt.kind, "")
		if s := err.Error(); strings.ContainsAny(s, "\x1b\x07\n\x00") || len(s) > maxMessage+200 {
			t.Errorf("%s: %q", name, s)
		}
	}
}

func TestErrors_noDaemon(t *testing.T) {
	t.Parallel()
	host := "unix://" + filepath.Join(t.TempDir(), "none.sock")
	for name, f := range everything(quick(t, host)) {
		if be := wantKind(t, f(t.Context()), backend.ErrUnavailable, ""); !strings.Contains(be.Fix, "DOCKER_HOST") {
			t.Errorf("%s: %v", name, be)
		}
	}
	e := quick(t, host)
	err := e.classify(t.Context(), call{op: "ping"}, &dialError{err: &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)}})
	if be := wantKind(t, err, backend.ErrUnavailable, ""); !strings.Contains(be.Fix, "root") || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v", be)
	}
	old := fake(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.40") })
	if be := wantKind(t, quick(t, old).Ping(t.Context()), backend.ErrUnavailable, ""); !strings.Contains(be.Fix, "20.10") {
		t.Errorf("%v", be)
	}
	for _, host := range []string{"ssh://host", "nonsense", "foo://bar"} {
		_, err := Open(host)
		wantKind(t, err, backend.ErrInvalid, "host")
	}
}

// TestWait_survivesTheDaemon: the daemon goes away amid a wait, and comes back
// to say that the container has ended.
func TestWait_survivesTheDaemon(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "docker.sock")
	var status atomic.Value
	status.Store("running")
	waiting := make(chan struct{}, 10)
	handle := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case ping(w, r):
		case strings.HasSuffix(r.URL.Path, "/wait"):
			w.(http.Flusher).Flush()
			if status.Load() == "exited" {
				answer(w, 200, `{"StatusCode":7}`)
				return
			}
			waiting <- struct{}{}
			<-r.Context().Done()
		default:
			answer(w, 200, fmt.Sprintf(`{"Id":"x","State":{"Status":%q,"ExitCode":7},"Config":{},"HostConfig":{}}`, status.Load()))
		}
	}
	stop := serveOn(t, path, handle)
	e := quick(t, "unix://"+path)
	end := e.Watch(t.Context(), full64())
	<-waiting
	stop()
	status.Store("exited")
	serveOn(t, path, handle)
	select {
	case got := <-end:
		if got.Err != nil || got.State.ExitCode != 7 {
			t.Errorf("%+v", got)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the end was not seen")
	}
	status.Store("running")
	ctx, cancel := context.WithCancel(t.Context())
	end = e.Watch(ctx, full64())
	<-waiting
	cancel()
	if got := <-end; !errors.Is(got.Err, context.Canceled) {
		t.Errorf("a cancelled wait: %+v", got)
	}
}
