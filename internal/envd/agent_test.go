//go:build linux

package envd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/user"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/agent"
	"github.com/glovebox-dev/glovebox/internal/agent/files"
	"github.com/glovebox-dev/glovebox/internal/envd"
	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

func TestMain(m *testing.M) {
	// As the first process of a sandbox does, the agent takes orphans in.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// realAgent is a client of the agent in this process, unconfined, with a home
// of its own.
func realAgent(tb testing.TB, opts envd.Options) (*envd.Client, string) {
	tb.Helper()
	home := tb.TempDir()
	u, err := user.Current()
	if err != nil {
		tb.Fatal(err)
	}
	me := agent.Account{Name: u.Username, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Home: home}
	reaper, err := spawn.New(spawn.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	srv, err := agent.New(agent.Options{Version: "test", OnlyUser: &me, Reaper: reaper})
	if err != nil {
		tb.Fatal(err)
	}
	svc := files.New(files.Options{
		Lookup: func(name string) (files.Account, error) {
			a, err := srv.Account(name)
			return files.Account{Name: a.Name, UID: a.UID, GID: a.GID, Groups: a.Groups, Home: a.Home}, err
		},
		OwnUID: true,
	})
	mux := http.NewServeMux()
	svc.Mount(mux)
	srv.Mount("/filesystem.Filesystem/", mux, false)
	srv.Mount("/files", mux, false)
	ours, theirs := socketPair(tb)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.ServeConn(tb.Context(), theirs)
	}()
	used := false
	c := envd.New(envd.NewTransport(func(context.Context) (net.Conn, error) {
		if used {
			return nil, errors.New("there is one connection only")
		}
		used = true
		return ours, nil
	}), opts)
	tb.Cleanup(func() {
		_ = c.Close()
		_ = ours.Close()
		_ = svc.Close()
		_ = srv.Close()
		<-served
	})
	return c, home
}

func socketPair(tb testing.TB) (a, b net.Conn) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		conns[i], err = net.FileConn(f)
		_ = f.Close()
		if err != nil {
			tb.Fatal(err)
		}
	}
	return conns[0], conns[1]
}

func run(t *testing.T, c *envd.Client, cmd backend.Command) (exit backend.Exit, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	cmd.Output = backend.Output{Stdout: &o, Stderr: &e}
	p, err := c.Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	exit, err = p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return exit, o.String(), e.String()
}

func sh(script string) []string { return []string{"sh", "-c", script} }

func TestAgent_commands(t *testing.T) {
	t.Parallel()
	c, _ := realAgent(t, envd.Options{Output: 1 << 20})
	tests := []struct {
		name      string
		cmd       backend.Command
		want, out string
	}{
		{"exits", backend.Command{Args: sh("echo hi; exit 3")}, "exited(3)", "hi\n"},
		{"missing", backend.Command{Args: []string{"/no/such"}}, "exited(127)", ""},
		{"signal", backend.Command{Args: sh("kill -ABRT $$")}, "signaled(6)", ""},
		{"timeout", backend.Command{Args: sh("sleep 60"), Timeout: 100 * time.Millisecond}, "timeout", ""},
		{"cpu", backend.Command{Args: sh("while :; do :; done"), CPUTime: 100 * time.Millisecond}, "cpu_limit", ""},
		{"input", backend.Command{Args: []string{"tr", "a-z", "A-Z"}, Stdin: strings.NewReader("abc")}, "exited(0)", "ABC"},
		{"unread input", backend.Command{Args: sh("exit 0"), Stdin: strings.NewReader(strings.Repeat("x", 1<<20))}, "exited(0)", ""},
		{"env", backend.Command{Args: sh("echo $A"), Env: map[string]string{"A": "b"}}, "exited(0)", "b\n"},
		{"terminal", backend.Command{Args: sh("stty size"), Terminal: &backend.TerminalSize{Cols: 90, Rows: 30}}, "exited(0)", "30 90\r\n"},
		{"terminal input", backend.Command{Args: sh("stty -echo; cat"), Terminal: &backend.TerminalSize{}, Stdin: strings.NewReader("x\n")}, "exited(0)", "*"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			exit, out, errs := run(t, c, tt.cmd)
			if exit.String() != tt.want || out != tt.out && tt.out != "*" {
				t.Errorf("%v, stdout %q, stderr %q", exit, out, errs)
			}
		})
	}
	t.Run("truncates", func(t *testing.T) {
		t.Parallel()
		exit, out, _ := run(t, c, backend.Command{Args: sh("head -c 3000000 /dev/zero")})
		if len(out) != 1<<20 || !exit.StdoutTruncated || exit.Usage.Stdout != 3_000_000 || !exit.Success() {
			t.Errorf("%d bytes, %+v", len(out), exit)
		}
	})
	t.Run("missing directory", func(t *testing.T) {
		t.Parallel()
		if _, err := c.Start(t.Context(), backend.Command{Args: sh("true"), Dir: "/no/such"}); backend.KindOf(err) != backend.ErrInvalid {
			t.Errorf("%v", err)
		}
	})
	t.Run("unknown user", func(t *testing.T) {
		t.Parallel()
		if _, err := c.Start(t.Context(), backend.Command{Args: sh("true"), User: "nobody-here"}); err == nil {
			t.Error("ran")
		}
	})
}

func TestAgent_attach(t *testing.T) {
	t.Parallel()
	c, _ := realAgent(t, envd.Options{})
	p, err := c.Start(t.Context(), backend.Command{Args: sh("echo before; read x; echo $x; exit 5"), KeepInput: true, Tag: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	infos, err := c.Processes(t.Context())
	if err != nil || len(infos) != 1 || infos[0].ID != p.ID() || infos[0].Tag != "mine" || infos[0].Exit != nil {
		t.Fatalf("%+v, %v", infos, err)
	}
	var out bytes.Buffer
	q, err := c.Attach(t.Context(), p.ID(), backend.AttachOptions{Replay: true, Output: backend.Output{Stdout: &out}})
	if err != nil {
		t.Fatal(err)
	}
	in, ok := backend.As[backend.Inputter](q)
	if !ok {
		t.Fatal("no input")
	}
	if err := in.WriteInput(t.Context(), []byte("after\n")); err != nil {
		t.Error(err)
	}
	// The command may have ended at the line.
	if err := in.CloseInput(t.Context()); err != nil && backend.KindOf(err) != backend.ErrNotFound {
		t.Error(err)
	}
	for name, p := range map[string]backend.Process{"starter": p, "attached": q} {
		if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 5 {
			t.Errorf("%s: %v, %v", name, exit, err)
		}
	}
	if out.String() != "before\nafter\n" {
		t.Errorf("%q", out.String())
	}
	if infos, err := c.Processes(t.Context()); err != nil || len(infos) != 1 || infos[0].Exit == nil || infos[0].Exit.Code != 5 {
		t.Errorf("%+v, %v", infos, err)
	}
	if _, err := c.Attach(t.Context(), "none", backend.AttachOptions{}); backend.KindOf(err) != backend.ErrNotFound {
		t.Errorf("%v", err)
	}
}

func TestAgent_killTree(t *testing.T) {
	t.Parallel()
	c, _ := realAgent(t, envd.Options{})
	p, err := c.Start(t.Context(), backend.Command{Args: sh("sleep 60 & wait"), Timeout: backend.UntilSandboxEnds})
	if err != nil {
		t.Fatal(err)
	}
	tk, ok := backend.As[backend.TreeKiller](p)
	if !ok {
		t.Fatal("kills no trees")
	}
	if err := tk.KillTree(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Signal != backend.SIGKILL {
		t.Errorf("%+v, %v", exit, err)
	}
}

func TestAgent_files(t *testing.T) {
	t.Parallel()
	c, home := realAgent(t, envd.Options{})
	f, ctx := c.Files(), t.Context()
	data := strings.Repeat("0123456789", 100_000)
	if err := f.Write(ctx, "d/~f", strings.NewReader(data), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := f.Write(ctx, "~f", strings.NewReader("tilde"), 0); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(home + "/~f"); err != nil || string(b) != "tilde" {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := backend.ReadFile(ctx, f, "d/~f", 1<<20); err != nil || string(b) != data {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	i, err := f.Stat(ctx, "d/~f")
	if err != nil || i.Size() != int64(len(data)) || i.Mode() != 0o640 {
		t.Errorf("%v, %v", i, err)
	}
	ro, _ := backend.As[backend.RangeOpener](f)
	rc, err := ro.OpenRange(ctx, "d/~f", 5, 10)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(rc); err != nil || string(b) != data[5:15] {
		t.Errorf("%q, %v", b, err)
	}
	_ = rc.Close()
	err = errors.Join(f.Mkdir(ctx, "e/f", 0), f.Mkdir(ctx, "e/f", 0), f.Rename(ctx, "d/~f", "e/g"), f.Remove(ctx, "absent"))
	if err != nil {
		t.Error(err)
	}
	l, err := f.List(ctx, "e")
	if err != nil || len(l) != 2 || l[0].Name() != "f" || !l[0].IsDir() || l[1].Name() != "g" {
		t.Errorf("%v, %v", l, err)
	}
	if err := f.Remove(ctx, "e"); err != nil {
		t.Error(err)
	}
	for op, call := range map[string]func() error{
		"stat": func() error { _, err := f.Stat(ctx, "e"); return err },
		"list": func() error { _, err := f.List(ctx, "e"); return err },
		"open": func() error { _, err := f.Open(ctx, "e"); return err },
		"move": func() error { return f.Rename(ctx, "e", "h") },
	} {
		if err := call(); !errors.Is(err, fs.ErrNotExist) || backend.KindOf(err) != backend.ErrNotFound {
			t.Errorf("%s of what is absent: %v", op, err)
		}
	}
}

func TestAgent_filesRefused(t *testing.T) {
	t.Parallel()
	c, home := realAgent(t, envd.Options{})
	f, ctx := c.Files(), t.Context()
	if err := f.Mkdir(ctx, "d", 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(home+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fifo", "d", "/dev/null"} {
		if _, err := f.Open(ctx, name); backend.KindOf(err) != backend.ErrInvalid {
			t.Errorf("Open %s: %v", name, err)
		}
	}
	uf, _ := backend.As[backend.UserFiles](f)
	for op, call := range map[string]func(backend.Filesystem) error{
		"stat": func(f backend.Filesystem) error { _, err := f.Stat(ctx, "x"); return err },
		"open": func(f backend.Filesystem) error { _, err := f.Open(ctx, "x"); return err },
	} {
		if err := call(uf.FilesAs("nobody-here")); backend.KindOf(err) != backend.ErrNotFound || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s as an unknown user: %v", op, err)
		}
	}
}

func TestAgent_watch(t *testing.T) {
	t.Parallel()
	c, home := realAgent(t, envd.Options{})
	w, _ := backend.As[backend.Watcher](c.Files())
	for ev, err := range w.Watch(t.Context(), ".", backend.WatchOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Op == backend.WatchReady {
			if err := os.WriteFile(home+"/new", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if ev.Name != "new" || ev.Op != backend.WatchCreate {
			t.Errorf("%+v", ev)
		}
		break
	}
}

func TestAgent_dial(t *testing.T) {
	t.Parallel()
	c, _ := realAgent(t, envd.Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		b, _ := io.ReadAll(conn) // to the end that CloseWrite makes
		_, _ = conn.Write(bytes.ToUpper(b))
	}()
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := c.DialContext(ctx, "tcp", l.Addr().String())
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read before the answer: %v", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		t.Fatal("no CloseWrite")
	}
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(conn); err != nil || string(b) != "HELLO" {
		t.Errorf("%q, %v", b, err)
	}
	_ = l.Close()
	if _, err := c.DialContext(t.Context(), "tcp", l.Addr().String()); backend.KindOf(err) != backend.ErrUnavailable {
		t.Errorf("a closed port: %v", err)
	}
	for _, addr := range []string{"", "0", "70000", "x", "10.0.0.1:80", "example.org:80", "[::1"} {
		if _, err := c.DialContext(t.Context(), "tcp", addr); backend.KindOf(err) != backend.ErrInvalid {
			t.Errorf("%q: %v", addr, err)
		}
	}
}

func TestAgent_control(t *testing.T) {
	t.Parallel()
	c, _ := realAgent(t, envd.Options{AccessToken: "tok"})
	if err := errors.Join(c.Health(t.Context()), c.Init(t.Context(), envd.InitRequest{AccessToken: "tok", EnvVars: map[string]string{"A": "b"}})); err != nil {
		t.Fatal(err)
	}
	if m, err := c.Metrics(t.Context()); err != nil || m.MemTotal <= 0 {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := c.Usage(t.Context()); err != nil {
		t.Error(err)
	}
	if err := errors.Join(c.SetDeadline(t.Context(), time.Hour), c.SetDeadline(t.Context(), 0)); err != nil {
		t.Error(err)
	}
	if exit, out, _ := run(t, c, backend.Command{Args: sh("echo $A")}); !exit.Success() || out != "b\n" {
		t.Errorf("%v, %q", exit, out)
	}
}

// discard counts what it drops.
type discard int64

func (d *discard) Write(p []byte) (int, error) { *d += discard(len(p)); return len(p), nil }

// BenchmarkStream is 1 GiB of a command's output through the agent over a
// socket pair.
func BenchmarkStream(b *testing.B) {
	c, _ := realAgent(b, envd.Options{})
	const size = 1 << 30
	b.SetBytes(size)
	for b.Loop() {
		var n discard
		p, err := c.Start(b.Context(), backend.Command{
			Args: sh(fmt.Sprintf("head -c %d /dev/zero", size)), Output: backend.Output{Stdout: &n}, Timeout: backend.UntilSandboxEnds,
		})
		if err != nil {
			b.Fatal(err)
		}
		if exit, err := p.Wait(b.Context()); err != nil || !exit.Success() || n != size {
			b.Fatal(exit, err, n)
		}
	}
}

// BenchmarkCommand is one short command in a warm sandbox.
func BenchmarkCommand(b *testing.B) {
	c, _ := realAgent(b, envd.Options{})
	for b.Loop() {
		p, err := c.Start(b.Context(), backend.Command{Args: []string{"/bin/true"}})
		if err != nil {
			b.Fatal(err)
		}
		if exit, err := p.Wait(b.Context()); err != nil || !exit.Success() {
			b.Fatal(exit, err)
		}
	}
}
