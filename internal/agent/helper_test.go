//go:build linux

package agent_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/agent"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1/gloveboxv1connect"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process/processconnect"
	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

const baseURL = "http://sandbox"

func TestMain(m *testing.M) {
	// As the first process of a sandbox does, the test takes orphans in.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// me is the one account of a test's sandbox, at home in dir.
func me(tb testing.TB, dir string) *agent.Account {
	tb.Helper()
	name := "user"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return &agent.Account{Name: name, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Home: dir}
}

// box is a server and the clients of one connection to it.
type box struct {
	srv   *agent.Server
	home  string
	http  *http.Client
	proc  processconnect.ProcessClient
	own   gloveboxv1connect.SandboxClient
	conns *transport
}

// newBox starts a server with the test's own account.
func newBox(tb testing.TB, change func(*agent.Options)) *box {
	tb.Helper()
	home := tb.TempDir()
	o := agent.Options{Version: "test", OnlyUser: me(tb, home)}
	if change != nil {
		change(&o)
	}
	if o.Reaper == nil {
		o.Reaper = newReaper(tb)
		tb.Cleanup(o.Reaper.Close)
	}
	srv, err := agent.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	b := connectTo(tb, srv)
	b.home = home
	tb.Cleanup(func() {
		b.conns.close()
		if err := srv.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return b
}

// newReaper makes a reaper that the caller closes.
func newReaper(tb testing.TB) *spawn.Reaper {
	tb.Helper()
	r, err := spawn.New(spawn.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// transport is HTTP/2 over socket pairs that the server serves.
type transport struct {
	*http.Transport
	wg sync.WaitGroup
}

func (t *transport) close() {
	t.CloseIdleConnections()
}

func connectTo(tb testing.TB, srv *agent.Server, opts ...connect.ClientOption) *box {
	tb.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	ctx := context.WithoutCancel(tb.Context())
	tr := &transport{}
	tr.Transport = &http.Transport{
		Protocols: protocols,
		HTTP2:     &http.HTTP2Config{MaxReadFrameSize: 256 << 10, MaxReceiveBufferPerConnection: 4<<20 - 1, MaxReceiveBufferPerStream: 2 << 20},
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs, err := socketPair()
			if err != nil {
				return nil, err
			}
			tr.wg.Go(func() { _ = srv.ServeConn(ctx, theirs) })
			return ours, nil
		},
	}
	client := &http.Client{Transport: tr}
	return &box{
		srv: srv, http: client, conns: tr,
		proc: processconnect.NewProcessClient(client, baseURL, opts...),
		own:  gloveboxv1connect.NewSandboxClient(client, baseURL, opts...),
	}
}

func socketPair() (a, b net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	conns := make([]net.Conn, 0, 2)
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			return nil, nil, err
		}
		conns = append(conns, c)
	}
	return conns[0], conns[1], nil
}

// result is what a Start or Connect stream brought.
type result struct {
	pid            uint32
	id             string
	stdout, stderr string
	pty            string
	order          string // o, e and p for each data event
	end            *process.ProcessEvent_EndEvent
	why            *gloveboxv1.End
	keepalives     int
	err            error
}

// request is a Start of a shell script, to be changed by the test.
func request(script string) *connect.Request[process.StartRequest] {
	no := false
	return connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}},
		Stdin:   &no,
	})
}

func withLimits(r *connect.Request[process.StartRequest], l *gloveboxv1.Limits) *connect.Request[process.StartRequest] {
	r.Header().Set(wire.HeaderLimits, wire.Pack(l))
	return r
}

// run starts a command and collects all of its stream.
func (b *box) run(tb testing.TB, r *connect.Request[process.StartRequest]) result {
	tb.Helper()
	return b.runContext(tb.Context(), r)
}

func (b *box) runContext(ctx context.Context, r *connect.Request[process.StartRequest]) result {
	st, err := b.proc.Start(ctx, r)
	if err != nil {
		return result{err: err}
	}
	defer st.Close()
	var res result
	for st.Receive() {
		res.take(st.Msg().GetEvent())
	}
	res.err = st.Err()
	res.trailers(st.ResponseHeader(), st.ResponseTrailer())
	return res
}

func (r *result) trailers(header, trailer http.Header) {
	r.id = header.Get(wire.HeaderCommand)
	if s := trailer.Get(wire.TrailerEnd); s != "" {
		r.why = new(gloveboxv1.End)
		if err := wire.Unpack(s, r.why); err != nil {
			r.err = err
		}
	}
}

func (r *result) take(ev *process.ProcessEvent) {
	switch {
	case ev.GetStart() != nil:
		if r.pid != 0 || r.order != "" {
			r.err = fmt.Errorf("start is not the first event")
		}
		r.pid = ev.GetStart().GetPid()
	case ev.GetData() != nil:
		d := ev.GetData()
		r.stdout += string(d.GetStdout())
		r.stderr += string(d.GetStderr())
		r.pty += string(d.GetPty())
		switch d.GetOutput().(type) {
		case *process.ProcessEvent_DataEvent_Stdout:
			r.order += "o"
		case *process.ProcessEvent_DataEvent_Stderr:
			r.order += "e"
		case *process.ProcessEvent_DataEvent_Pty:
			r.order += "p"
		}
	case ev.GetKeepalive() != nil:
		r.keepalives++
	case ev.GetEnd() != nil:
		r.end = ev.GetEnd()
	}
}

// opened is a stream whose command runs.
type opened struct {
	*connect.ServerStreamForClient[process.StartResponse]
	pid    uint32
	id     string
	unread string
}

func (b *box) open(tb testing.TB, r *connect.Request[process.StartRequest]) *opened {
	tb.Helper()
	st, err := b.proc.Start(tb.Context(), r)
	if err != nil {
		tb.Fatalf("Start: %v", err)
	}
	if !st.Receive() || st.Msg().GetEvent().GetStart() == nil {
		tb.Fatalf("first event %v, error %v", st.Msg(), st.Err())
	}
	return &opened{
		ServerStreamForClient: st, pid: st.Msg().GetEvent().GetStart().GetPid(), id: st.ResponseHeader().Get(wire.HeaderCommand),
	}
}

// collect takes the rest of the stream.
func (o *opened) collect() result {
	res := result{pid: o.pid}
	for o.Receive() {
		res.take(o.Msg().GetEvent())
	}
	res.err = o.Err()
	res.trailers(o.ResponseHeader(), o.ResponseTrailer())
	o.Close()
	return res
}

// until takes output up to and with want; what came after it stays for the
// next call.
func (o *opened) until(tb testing.TB, want string) string {
	tb.Helper()
	for {
		if before, after, ok := strings.Cut(o.unread, want); ok {
			o.unread = after
			return before + want
		}
		if !o.Receive() {
			tb.Fatalf("stream ended before %q: %q, %v", want, o.unread, o.Err())
		}
		var got result
		got.take(o.Msg().GetEvent())
		o.unread += got.stdout + got.stderr + got.pty
	}
}

func byPID(pid uint32) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: pid}}
}

func byTag(tag string) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: tag}}
}

func stdin(s string) *process.ProcessInput {
	return &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte(s)}}
}

func ptyInput(s string) *process.ProcessInput {
	return &process.ProcessInput{Input: &process.ProcessInput_Pty{Pty: []byte(s)}}
}

func (b *box) send(tb testing.TB, pid uint32, in *process.ProcessInput) error {
	tb.Helper()
	_, err := b.proc.SendInput(tb.Context(), connect.NewRequest(&process.SendInputRequest{Process: byPID(pid), Input: in}))
	return err
}

func (b *box) signal(tb testing.TB, pid uint32, sig process.Signal) error {
	tb.Helper()
	_, err := b.proc.SendSignal(tb.Context(), connect.NewRequest(&process.SendSignalRequest{Process: byPID(pid), Signal: sig}))
	return err
}

// wantCode checks an error's code and that its text holds all of texts.
func wantCode(tb testing.TB, err error, code connect.Code, texts ...string) {
	tb.Helper()
	if err == nil || connect.CodeOf(err) != code {
		tb.Fatalf("error %v, want code %s", err, code)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			tb.Fatalf("error %q lacks %q", err, text)
		}
	}
}

// eventually polls for what has no event to wait for, such as another
// program's death.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			tb.Fatalf("not within 10 s: %s", what)
		}
	}
}

// gone tells whether a process has ended; a zombie has.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z")
}
