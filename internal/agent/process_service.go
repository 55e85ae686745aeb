//go:build linux

package agent

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process/processconnect"
)

// processService is E2B's process.Process.
type processService struct{ s *Server }

// caller is the account that a request's Basic authentication names, the
// default one without. The password is not looked at: access is the token's.
func (s *Server) caller(h http.Header) (Account, error) {
	name := ""
	if enc, ok := strings.CutPrefix(h.Get("Authorization"), "Basic "); ok {
		b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(enc))
		if err != nil {
			return Account{}, fail(connect.CodeUnauthenticated, "invalid Authorization header")
		}
		name, _, _ = strings.Cut(string(b), ":")
	}
	a, err := s.Account(name)
	if err != nil {
		return Account{}, connect.NewError(connect.CodeUnauthenticated, err)
	}
	return a, nil
}

// checkCaller refuses a request that names an account there is not.
func (s *Server) checkCaller(h http.Header) error {
	if h.Get("Authorization") == "" {
		return nil
	}
	_, err := s.caller(h)
	return err
}

// keepalive is the silence after which a stream's client wants to hear from us.
func keepalive(h http.Header) time.Duration {
	n, err := strconv.ParseUint(h.Get(wire.HeaderKeepalive), 10, 31)
	if err != nil || n == 0 {
		return defaultKeepalive
	}
	return time.Duration(n) * time.Second
}

func (p *processService) Start(ctx context.Context, req *connect.Request[process.StartRequest], out *connect.ServerStream[process.StartResponse]) error {
	a, err := p.s.caller(req.Header())
	if err != nil {
		return err
	}
	limits := new(gloveboxv1.Limits)
	if h := req.Header().Get(wire.HeaderLimits); h != "" {
		if err := wire.Unpack(h, limits); err != nil {
			return fail(connect.CodeInvalidArgument, "header %s: %v", wire.HeaderLimits, err)
		}
	}
	plan, err := p.s.prepare(req.Msg, a, limits)
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	c, sub, err := p.s.start(plan, deadline)
	if err != nil {
		return err
	}
	defer c.unsubscribe(sub)
	err = p.s.stream(ctx, c, sub, keepalive(req.Header()), out.ResponseHeader(), out.ResponseTrailer(), func(e *process.ProcessEvent) error {
		return out.Send(&process.StartResponse{Event: e})
	})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		c.expireDeadline()
	}
	if c.pastDeadline() {
		return connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded)
	}
	return err
}

func (p *processService) Connect(ctx context.Context, req *connect.Request[process.ConnectRequest], out *connect.ServerStream[process.ConnectResponse]) error {
	if err := p.s.checkCaller(req.Header()); err != nil {
		return err
	}
	c, err := p.s.table.find(req.Msg.GetProcess(), true)
	if err != nil {
		return err
	}
	sub, err := c.subscribe(false, false)
	if err != nil {
		return err
	}
	defer c.unsubscribe(sub)
	return p.s.stream(ctx, c, sub, keepalive(req.Header()), out.ResponseHeader(), out.ResponseTrailer(), func(e *process.ProcessEvent) error {
		return out.Send(&process.ConnectResponse{Event: e})
	})
}

// stream sends a command's events as E2B's, the start first.
func (s *Server) stream(ctx context.Context, c *command, sub *subscriber, silence time.Duration, header, trailer http.Header, send func(*process.ProcessEvent) error) error {
	header.Set(wire.HeaderCommand, c.id)
	start := &process.ProcessEvent_StartEvent{Pid: c.pid}
	if err := send(&process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: start}}); err != nil {
		return err
	}
	return s.follow(ctx, sub, silence, func(ev event) error {
		if ev.kind == streamEnd {
			trailer.Set(wire.TrailerEnd, wire.Pack(c.end))
			return send(&process.ProcessEvent{Event: &process.ProcessEvent_End{End: endEvent(c.end)}})
		}
		return send(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: dataEvent(ev)}})
	}, func() error {
		return send(&process.ProcessEvent{Event: &process.ProcessEvent_Keepalive{Keepalive: &process.ProcessEvent_KeepAlive{}}})
	})
}

func dataEvent(ev event) *process.ProcessEvent_DataEvent {
	switch ev.kind {
	case streamStderr:
		return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stderr{Stderr: ev.chunk.data}}
	case streamPTY:
		return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Pty{Pty: ev.chunk.data}}
	case streamStdout, streamEnd:
	}
	return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: ev.chunk.data}}
}

// endEvent says an end in the words of Go's os.ProcessState, as E2B does.
func endEvent(end *gloveboxv1.End) *process.ProcessEvent_EndEvent {
	e := &process.ProcessEvent_EndEvent{ExitCode: end.GetCode(), Exited: true, Status: "exit status " + strconv.Itoa(int(end.GetCode()))}
	if sig := end.GetSignal(); sig != 0 {
		e.ExitCode, e.Exited, e.Status = -1, false, "signal: "+unix.Signal(sig).String()
	}
	if e.ExitCode != 0 {
		e.Error = &e.Status
	}
	return e
}

func (p *processService) List(_ context.Context, req *connect.Request[process.ListRequest]) (*connect.Response[process.ListResponse], error) {
	if err := p.s.checkCaller(req.Header()); err != nil {
		return nil, err
	}
	res := new(process.ListResponse)
	for _, c := range p.s.table.live() {
		c.mu.Lock()
		cfg := c.config
		c.mu.Unlock()
		res.Processes = append(res.Processes, &process.ProcessInfo{Config: cfg, Pid: c.pid, Tag: c.tag})
	}
	return connect.NewResponse(res), nil
}

// running finds the command that a request is about.
func (p *processService) running(h http.Header, sel *process.ProcessSelector) (*command, error) {
	if err := p.s.checkCaller(h); err != nil {
		return nil, err
	}
	return p.s.table.find(sel, false)
}

func (p *processService) Update(_ context.Context, req *connect.Request[process.UpdateRequest]) (*connect.Response[process.UpdateResponse], error) {
	c, err := p.running(req.Header(), req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if size := req.Msg.GetPty().GetSize(); size != nil {
		if err := c.resize(size.GetCols(), size.GetRows()); err != nil {
			return nil, err
		}
		if p.s.opts.SignalResize {
			c.signalSession(unix.SIGWINCH)
		}
	}
	return connect.NewResponse(&process.UpdateResponse{}), nil
}

// resize changes the size of the command's terminal.
func (c *command) resize(cols, rows uint32) error {
	if !c.tty || c.in == nil {
		return fail(connect.CodeInternal, "error resizing tty: tty not set for process")
	}
	rc, err := c.in.file.SyscallConn()
	if err != nil {
		return fail(connect.CodeInternal, "error resizing tty: %v", err)
	}
	var rerr error
	if err := rc.Control(func(fd uintptr) { rerr = resize(int(fd), cols, rows) }); err != nil {
		return fail(connect.CodeInternal, "error resizing tty: the process has ended")
	}
	if rerr != nil {
		return fail(connect.CodeInternal, "error resizing tty: %v", rerr)
	}
	return nil
}

// feed writes to what the input names.
func (c *command) feed(ctx context.Context, in *process.ProcessInput) error {
	switch v := in.GetInput().(type) {
	case *process.ProcessInput_Stdin:
		if c.tty {
			return fail(connect.CodeInternal, "error writing to stdin: tty assigned to process")
		}
		return c.in.write(ctx, v.Stdin)
	case *process.ProcessInput_Pty:
		if !c.tty {
			return fail(connect.CodeInternal, "error writing to tty: tty not assigned to process")
		}
		return c.in.write(ctx, v.Pty)
	default:
		return fail(connect.CodeUnimplemented, "invalid input type %T", v)
	}
}

func (p *processService) SendInput(ctx context.Context, req *connect.Request[process.SendInputRequest]) (*connect.Response[process.SendInputResponse], error) {
	c, err := p.running(req.Header(), req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if err := c.feed(ctx, req.Msg.GetInput()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&process.SendInputResponse{}), nil
}

func (p *processService) StreamInput(ctx context.Context, in *connect.ClientStream[process.StreamInputRequest]) (*connect.Response[process.StreamInputResponse], error) {
	var c *command
	for in.Receive() {
		var err error
		switch ev := in.Msg().GetEvent().(type) {
		case *process.StreamInputRequest_Start:
			c, err = p.running(in.RequestHeader(), ev.Start.GetProcess())
		case *process.StreamInputRequest_Data:
			if c == nil {
				return nil, fail(connect.CodeInvalidArgument, "the first message must be start")
			}
			err = c.feed(ctx, ev.Data.GetInput())
		case *process.StreamInputRequest_Keepalive:
		default:
			err = fail(connect.CodeUnimplemented, "invalid event type %T", ev)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := in.Err(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return connect.NewResponse(&process.StreamInputResponse{}), nil
}

func (p *processService) SendSignal(_ context.Context, req *connect.Request[process.SendSignalRequest]) (*connect.Response[process.SendSignalResponse], error) {
	c, err := p.running(req.Header(), req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	sig := req.Msg.GetSignal()
	if sig != process.Signal_SIGNAL_SIGKILL && sig != process.Signal_SIGNAL_SIGTERM {
		return nil, fail(connect.CodeUnimplemented, "invalid signal: %s", sig)
	}
	if err := c.signal(unix.Signal(sig), false); noProcess(err) {
		return nil, fail(connect.CodeNotFound, "process with pid %d not found", c.pid)
	} else if err != nil {
		return nil, fail(connect.CodeInternal, "error sending signal: %v", err)
	}
	return connect.NewResponse(&process.SendSignalResponse{}), nil
}

func (p *processService) CloseStdin(ctx context.Context, req *connect.Request[process.CloseStdinRequest]) (*connect.Response[process.CloseStdinResponse], error) {
	c, err := p.running(req.Header(), req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if c.tty {
		return nil, fail(connect.CodeUnknown, "tty is assigned to process, its stdin cannot be closed")
	}
	if c.in != nil {
		if err := c.in.closeAfter(ctx); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(&process.CloseStdinResponse{}), nil
}

var _ processconnect.ProcessHandler = (*processService)(nil)
