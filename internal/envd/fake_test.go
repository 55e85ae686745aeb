package envd_test

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/internal/envd"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem/filesystemconnect"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1/gloveboxv1connect"
	wireproc "github.com/glovebox-dev/glovebox/internal/envd/wire/process"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process/processconnect"
)

type (
	startRequest = connect.Request[wireproc.StartRequest]
	startStream  = connect.ServerStream[wireproc.StartResponse]
)

// fake is a server whose parts a test sets; what is nil is unimplemented.
type fake struct {
	filesystemconnect.UnimplementedFilesystemHandler
	processes
	box
	files http.HandlerFunc // everything that is no RPC
	plain bool             // as E2B's envd: no glovebox service
	dials atomic.Int32
	conns chan net.Conn // those the client dialed
	addr  string
}

type processes struct {
	processconnect.UnimplementedProcessHandler
	start       func(context.Context, *startRequest, *startStream) error
	sendInput   func(*wireproc.SendInputRequest) error
	streamInput func(context.Context, *connect.ClientStream[wireproc.StreamInputRequest]) error
	sendSignal  func(*wireproc.SendSignalRequest) error
	closeStdin  func(*wireproc.CloseStdinRequest) error
	update      func(*wireproc.UpdateRequest) error
	list        func() (*wireproc.ListResponse, error)
	connect     func(context.Context, *wireproc.ConnectRequest, *connect.ServerStream[wireproc.ConnectResponse]) error
}

type box struct {
	gloveboxv1connect.UnimplementedSandboxHandler
	hello    func() (*gloveboxv1.HelloResponse, error)
	signal   func(*gloveboxv1.SignalRequest) error
	commands func() (*gloveboxv1.CommandsResponse, error)
	attach   func(context.Context, *gloveboxv1.AttachRequest, *connect.ServerStream[gloveboxv1.AttachResponse]) error
	measure  func() (*gloveboxv1.Usage, error)
	deadline func(time.Duration) error
}

func (p *processes) Start(ctx context.Context, r *startRequest, s *startStream) error {
	if p.start == nil {
		return connect.NewError(connect.CodeUnimplemented, nil)
	}
	return p.start(ctx, r, s)
}

func (p *processes) SendInput(_ context.Context, r *connect.Request[wireproc.SendInputRequest]) (*connect.Response[wireproc.SendInputResponse], error) {
	return connect.NewResponse(&wireproc.SendInputResponse{}), p.sendInput(r.Msg)
}

func (p *processes) StreamInput(ctx context.Context, s *connect.ClientStream[wireproc.StreamInputRequest]) (*connect.Response[wireproc.StreamInputResponse], error) {
	return connect.NewResponse(&wireproc.StreamInputResponse{}), p.streamInput(ctx, s)
}

func (p *processes) SendSignal(_ context.Context, r *connect.Request[wireproc.SendSignalRequest]) (*connect.Response[wireproc.SendSignalResponse], error) {
	return connect.NewResponse(&wireproc.SendSignalResponse{}), p.sendSignal(r.Msg)
}

func (p *processes) CloseStdin(_ context.Context, r *connect.Request[wireproc.CloseStdinRequest]) (*connect.Response[wireproc.CloseStdinResponse], error) {
	return connect.NewResponse(&wireproc.CloseStdinResponse{}), p.closeStdin(r.Msg)
}

func (p *processes) Update(_ context.Context, r *connect.Request[wireproc.UpdateRequest]) (*connect.Response[wireproc.UpdateResponse], error) {
	return connect.NewResponse(&wireproc.UpdateResponse{}), p.update(r.Msg)
}

func (p *processes) List(context.Context, *connect.Request[wireproc.ListRequest]) (*connect.Response[wireproc.ListResponse], error) {
	res, err := p.list()
	return connect.NewResponse(res), err
}

func (p *processes) Connect(ctx context.Context, r *connect.Request[wireproc.ConnectRequest], s *connect.ServerStream[wireproc.ConnectResponse]) error {
	return p.connect(ctx, r.Msg, s)
}

func (b *box) Hello(context.Context, *connect.Request[gloveboxv1.HelloRequest]) (*connect.Response[gloveboxv1.HelloResponse], error) {
	if b.hello == nil {
		return connect.NewResponse(&gloveboxv1.HelloResponse{Version: "test"}), nil
	}
	res, err := b.hello()
	return connect.NewResponse(res), err
}

func (b *box) Signal(_ context.Context, r *connect.Request[gloveboxv1.SignalRequest]) (*connect.Response[gloveboxv1.SignalResponse], error) {
	return connect.NewResponse(&gloveboxv1.SignalResponse{}), b.signal(r.Msg)
}

func (b *box) Commands(context.Context, *connect.Request[gloveboxv1.CommandsRequest]) (*connect.Response[gloveboxv1.CommandsResponse], error) {
	res, err := b.commands()
	return connect.NewResponse(res), err
}

func (b *box) Attach(ctx context.Context, r *connect.Request[gloveboxv1.AttachRequest], s *connect.ServerStream[gloveboxv1.AttachResponse]) error {
	return b.attach(ctx, r.Msg, s)
}

func (b *box) Measure(context.Context, *connect.Request[gloveboxv1.MeasureRequest]) (*connect.Response[gloveboxv1.Usage], error) {
	res, err := b.measure()
	return connect.NewResponse(res), err
}

func (b *box) SetDeadline(_ context.Context, r *connect.Request[gloveboxv1.SetDeadlineRequest]) (*connect.Response[gloveboxv1.SetDeadlineResponse], error) {
	return connect.NewResponse(&gloveboxv1.SetDeadlineResponse{}), b.deadline(time.Duration(r.Msg.GetAfterNs()))
}

// serve starts f and returns a client of it. Both end with the test, which
// fails when a goroutine of the client is left.
func (f *fake) serve(t testing.TB, fsh filesystemconnect.FilesystemHandler, opts envd.Options) *envd.Client {
	t.Helper()
	if fsh == nil {
		fsh = f
	}
	mux := http.NewServeMux()
	mux.Handle(processconnect.NewProcessHandler(&f.processes))
	mux.Handle(filesystemconnect.NewFilesystemHandler(fsh))
	if !f.plain {
		mux.Handle(gloveboxv1connect.NewSandboxHandler(&f.box))
	}
	if f.files != nil {
		mux.Handle("/", f.files)
	}
	return f.serveHandler(t, mux, opts)
}

func (f *fake) serveHandler(t testing.TB, h http.Handler, opts envd.Options) *envd.Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP1(true)
	srv := &http.Server{Handler: h, Protocols: protocols, ReadHeaderTimeout: time.Minute}
	go srv.Serve(l)
	f.addr = l.Addr().String()
	f.conns = make(chan net.Conn, 16)
	c := envd.New(envd.NewTransport(func(ctx context.Context) (net.Conn, error) {
		f.dials.Add(1)
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", l.Addr().String())
		if err == nil {
			f.conns <- conn
		}
		return conn, err
	}), opts)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		_ = srv.Close()
	})
	return c
}

// noLeaks fails the test when goroutines of the client are left at its end.
// The test must not be parallel.
func noLeaks(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		deadline := time.Now().Add(10 * time.Second)
		for {
			buf := make([]byte, 1<<20)
			stacks := string(buf[:runtime.Stack(buf, true)])
			var left []string
			for s := range strings.SplitSeq(stacks, "\n\n") {
				if strings.Contains(s, "internal/envd.(") || strings.Contains(s, "http2ClientConn") {
					left = append(left, s)
				}
			}
			if len(left) == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("left:\n%s", strings.Join(left, "\n\n"))
				return
			}
			runtime.Gosched()
		}
	})
}

func started(pid uint32) *wireproc.StartResponse {
	return &wireproc.StartResponse{Event: &wireproc.ProcessEvent{Event: &wireproc.ProcessEvent_Start{
		Start: &wireproc.ProcessEvent_StartEvent{Pid: pid},
	}}}
}

func stdout(b string) *wireproc.StartResponse {
	return &wireproc.StartResponse{Event: &wireproc.ProcessEvent{Event: &wireproc.ProcessEvent_Data{
		Data: &wireproc.ProcessEvent_DataEvent{Output: &wireproc.ProcessEvent_DataEvent_Stdout{Stdout: []byte(b)}},
	}}}
}

func stderr(b string) *wireproc.StartResponse {
	return &wireproc.StartResponse{Event: &wireproc.ProcessEvent{Event: &wireproc.ProcessEvent_Data{
		Data: &wireproc.ProcessEvent_DataEvent{Output: &wireproc.ProcessEvent_DataEvent_Stderr{Stderr: []byte(b)}},
	}}}
}

func keepalive() *wireproc.StartResponse {
	return &wireproc.StartResponse{Event: &wireproc.ProcessEvent{Event: &wireproc.ProcessEvent_Keepalive{
		Keepalive: &wireproc.ProcessEvent_KeepAlive{},
	}}}
}

func exited(code int32) *wireproc.StartResponse {
	return end(&wireproc.ProcessEvent_EndEvent{ExitCode: code, Exited: true, Status: "exit status"})
}

func killed() *wireproc.StartResponse {
	return end(&wireproc.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: killed"})
}

func end(e *wireproc.ProcessEvent_EndEvent) *wireproc.StartResponse {
	return &wireproc.StartResponse{Event: &wireproc.ProcessEvent{Event: &wireproc.ProcessEvent_End{End: e}}}
}

// ours is a Start that answers as the agent does: the command's ID, these
// events, this end.
func ours(e *gloveboxv1.End, events ...*wireproc.StartResponse) func(context.Context, *startRequest, *startStream) error {
	return func(_ context.Context, _ *startRequest, s *startStream) error {
		s.ResponseHeader().Set(wire.HeaderCommand, "c1")
		for _, ev := range events {
			if err := s.Send(ev); err != nil {
				return err
			}
		}
		if e != nil {
			s.ResponseTrailer().Set(wire.TrailerEnd, wire.Pack(e))
		}
		return nil
	}
}
