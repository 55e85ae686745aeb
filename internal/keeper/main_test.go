//go:build linux

package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd"
	"github.com/glovebox-dev/glovebox/internal/keeper"
	"github.com/glovebox-dev/glovebox/internal/state"
)

const (
	envRole = "GLOVEBOX_TEST_KEEPER_ROLE"
	idle    = 150 * time.Millisecond
	soon    = 10 * time.Second
)

func TestMain(m *testing.M) {
	if keeper.Wanted() {
		os.Exit(keeper.Main())
	}
	if role := os.Getenv(envRole); role != "" {
		os.Exit(play(role))
	}
	os.Exit(m.Run())
}

// self is this test binary, which can be a keeper.
func self() (string, error) { return os.Executable() }

// store is a state directory with a keeper that must be gone at the test's end.
type store struct {
	dir string
	k   *keeper.Keeper
}

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{dir: t.TempDir()}
	s.k = keeper.New(s.dir, self, idle)
	t.Cleanup(func() {
		eventually(t, "the keeper ends by itself", func() bool { return len(s.pids(t)) == 0 })
		if _, err := os.Lstat(filepath.Join(s.dir, "keeper.sock")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the keeper's socket: %v", err)
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(s.dir, "keeper.log"))
			t.Logf("the keeper's log: %s", log)
		}
	})
	return s
}

// pids are the store's keepers, by who has the lock open.
func (s *store) pids(t *testing.T) (pids []int) {
	t.Helper()
	var want unix.Stat_t
	if unix.Stat(filepath.Join(s.dir, "keeper.lock"), &want) != nil {
		return nil
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	suffix := fmt.Sprintf(":%d", want.Ino)
	for line := range strings.SplitSeq(string(locks), "\n") {
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "FLOCK" && strings.HasSuffix(f[5], suffix) {
			pid, err := strconv.Atoi(f[4])
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// eventually fails the test when ok does not come true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// sandbox is a process that stands for one, and its directory.
type sandbox struct {
	id   string
	dir  string
	proc state.Proc
	cmd  *exec.Cmd
}

// newSandbox has the process that others go by; it ends with the test.
func (s *store) newSandbox(t *testing.T, id string) *sandbox {
	t.Helper()
	sb := &sandbox{id: id, dir: filepath.Join(s.dir, "run", id), cmd: exec.CommandContext(t.Context(), "sleep", "1000")}
	if err := os.MkdirAll(sb.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sb.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := sb.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sb.kill)
	start, err := state.StartTime(sb.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	sb.proc = state.Proc{PID: sb.cmd.Process.Pid, Start: start}
	return sb
}

func (sb *sandbox) kill() {
	sb.cmd.Process.Kill()
	sb.cmd.Wait()
}

func (sb *sandbox) socket() string { return filepath.Join(sb.dir, "agent.sock") }

func (sb *sandbox) served() bool {
	_, err := os.Lstat(sb.socket())
	return err == nil
}

// client reaches what serves the sandbox's socket, by a path that is not too
// long.
func (sb *sandbox) client(t *testing.T) *envd.Transport {
	t.Helper()
	tr := envd.NewTransport(func(ctx context.Context) (net.Conn, error) {
		d, err := os.Open(sb.dir)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		var nd net.Dialer
		return nd.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/agent.sock", d.Fd()))
	})
	t.Cleanup(func() { tr.Close() })
	return tr
}

// get asks for a path and returns what is answered.
func get(t *testing.T, rt http.RoundTripper, path string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sandbox"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := rt.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

// agent serves h over one stream, as an agent does on its standard input and
// output, and ends with it. It returns the host's end.
func agent(t *testing.T, h http.Handler) (host *os.File, ended chan struct{}) {
	t.Helper()
	mine, theirs := pair(t)
	conn, err := net.FileConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	return mine, serveOn(t, h, conn)
}

func pair(t *testing.T) (a, b *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b = os.NewFile(uintptr(fds[0]), "a"), os.NewFile(uintptr(fds[1]), "b")
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func serveOn(t *testing.T, h http.Handler, conn net.Conn) chan struct{} {
	t.Helper()
	ended := make(chan struct{})
	l := &single{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
	l.conn <- &watched{conn, l}
	srv := &http.Server{Handler: h, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 2048}}
	srv.Protocols.SetUnencryptedHTTP2(true)
	go func() { defer close(ended); srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); conn.Close(); <-ended })
	return ended
}

type watched struct {
	net.Conn
	l *single
}

func (w *watched) Close() error {
	w.l.Close()
	return w.Conn.Close()
}

// single is a listener with one connection, and ends with it.
type single struct {
	conn   chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *single) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, io.EOF
	}
}

func (l *single) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *single) Addr() net.Addr { return &net.UnixAddr{} }

// hold has the keeper hold a stream for good.
func (s *store) hold(t *testing.T, sb *sandbox, stream *keeper.Stream) {
	t.Helper()
	h, err := s.k.Hold(t.Context(), keeper.Held{ID: sb.id, Proc: sb.proc, Stream: stream})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range stream.Files {
		f.Close()
	}
	if err := h.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, err error, want backend.Kind) {
	t.Helper()
	if backend.KindOf(err) != want {
		t.Errorf("%v is %q, want %q", err, backend.KindOf(err), want)
	}
}

// play is another process of the tests.
func play(role string) int {
	name, arg, _ := strings.Cut(role, ":")
	switch name {
	case "hold_and_wait": // until it is killed
		return holdAndWait(arg)
	case "hold": // and leave
		return holdAndLeave(arg)
	default:
		return 2
	}
}
