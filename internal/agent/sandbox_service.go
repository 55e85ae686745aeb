//go:build linux

package agent

import (
	"context"
	"math"
	"os"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1/gloveboxv1connect"
)

// sandboxService is what E2B's services lack.
type sandboxService struct{ s *Server }

func (g *sandboxService) Hello(context.Context, *connect.Request[gloveboxv1.HelloRequest]) (*connect.Response[gloveboxv1.HelloResponse], error) {
	if h := g.s.opts.Hello; h != nil {
		return connect.NewResponse(h), nil
	}
	h := &gloveboxv1.HelloResponse{Version: g.s.opts.Version, AgentPid: int32(os.Getpid()), AgentUid: uint32(os.Geteuid())}
	if only := g.s.opts.OnlyUser; only != nil {
		h.OnlyUids = []uint32{only.UID}
	}
	return connect.NewResponse(h), nil
}

func (g *sandboxService) Commands(context.Context, *connect.Request[gloveboxv1.CommandsRequest]) (*connect.Response[gloveboxv1.CommandsResponse], error) {
	res := new(gloveboxv1.CommandsResponse)
	for _, c := range g.s.table.list() {
		res.Commands = append(res.Commands, c.describe())
	}
	return connect.NewResponse(res), nil
}

func (c *command) describe() *gloveboxv1.Command {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &gloveboxv1.Command{
		Pid: c.pid, Id: c.id, Cmd: c.config.GetCmd(), Args: c.config.GetArgs(), Envs: c.config.GetEnvs(),
		Cwd: c.dir, User: c.user, StartedUnixNs: c.started.UnixNano(), End: c.end, Pty: c.tty,
	}
	if c.tag != nil {
		d.Tag = *c.tag
	}
	return d
}

// find finds a command that is remembered.
func (g *sandboxService) find(id string) (*command, error) {
	if c := g.s.table.byID(id); c != nil {
		return c, nil
	}
	return nil, fail(connect.CodeNotFound, "command %q not found", clip(id))
}

func (g *sandboxService) Attach(ctx context.Context, req *connect.Request[gloveboxv1.AttachRequest], out *connect.ServerStream[gloveboxv1.AttachResponse]) error {
	c, err := g.find(req.Msg.GetId())
	if err != nil {
		return err
	}
	sub, err := c.subscribe(false, req.Msg.GetReplay())
	if err != nil {
		return err
	}
	defer c.unsubscribe(sub)
	out.ResponseHeader().Set(wire.HeaderCommand, c.id)
	start := &gloveboxv1.AttachResponse_Start{Pid: c.pid, LostBytes: sub.lost}
	if err := out.Send(&gloveboxv1.AttachResponse{Event: &gloveboxv1.AttachResponse_Start_{Start: start}}); err != nil {
		return err
	}
	for _, r := range sub.runs {
		data := sub.replay[:r.n]
		sub.replay = sub.replay[r.n:]
		for len(data) > 0 {
			n := min(len(data), chunkSize)
			if err := out.Send(attachData(r.kind, data[:n])); err != nil {
				return err
			}
			data = data[n:]
		}
	}
	sub.replay, sub.runs = nil, nil
	return g.s.follow(ctx, sub, keepalive(req.Header()), func(ev event) error {
		if ev.kind == streamEnd {
			return out.Send(&gloveboxv1.AttachResponse{Event: &gloveboxv1.AttachResponse_End{End: c.end}})
		}
		return out.Send(attachData(ev.kind, ev.chunk.data))
	}, func() error {
		return out.Send(&gloveboxv1.AttachResponse{Event: &gloveboxv1.AttachResponse_Keepalive{Keepalive: true}})
	})
}

func attachData(kind stream, data []byte) *gloveboxv1.AttachResponse {
	switch kind {
	case streamStderr:
		return &gloveboxv1.AttachResponse{Event: &gloveboxv1.AttachResponse_Stderr{Stderr: data}}
	case streamPTY:
		return &gloveboxv1.AttachResponse{Event: &gloveboxv1.AttachResponse_Pty{Pty: data}}
	case streamStdout, streamEnd:
	}
	return &gloveboxv1.AttachResponse{Event: &gloveboxv1.AttachResponse_Stdout{Stdout: data}}
}

func (g *sandboxService) Signal(_ context.Context, req *connect.Request[gloveboxv1.SignalRequest]) (*connect.Response[gloveboxv1.SignalResponse], error) {
	c, err := g.find(req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	sig := req.Msg.GetSignal()
	if sig < 1 || sig > 64 {
		return nil, fail(connect.CodeInvalidArgument, "signal must be 1 to 64, not %d", sig)
	}
	if err := c.signal(unix.Signal(sig), req.Msg.GetTree()); noProcess(err) {
		return nil, fail(connect.CodeNotFound, "command %q has ended", c.id)
	} else if err != nil {
		return nil, fail(connect.CodeInternal, "signal: %v", err)
	}
	return connect.NewResponse(&gloveboxv1.SignalResponse{}), nil
}

func (g *sandboxService) Measure(context.Context, *connect.Request[gloveboxv1.MeasureRequest]) (*connect.Response[gloveboxv1.Usage], error) {
	return connect.NewResponse(g.s.usage()), nil
}

// usage is the sum of the commands that are remembered.
func (s *Server) usage() *gloveboxv1.Usage {
	sum := new(gloveboxv1.Usage)
	for _, c := range s.table.list() {
		u := c.usage()
		c.mu.Lock()
		if c.end != nil {
			u = c.end.GetUsage()
		}
		c.mu.Unlock()
		sum.CpuNs += u.GetCpuNs()
		sum.StdoutBytes += u.GetStdoutBytes()
		sum.StderrBytes += u.GetStderrBytes()
		sum.PeakMemoryBytes = max(sum.PeakMemoryBytes, u.GetPeakMemoryBytes())
	}
	return sum
}

func (g *sandboxService) SetDeadline(_ context.Context, req *connect.Request[gloveboxv1.SetDeadlineRequest]) (*connect.Response[gloveboxv1.SetDeadlineResponse], error) {
	after := req.Msg.GetAfterNs()
	if after < 0 || after > math.MaxInt64/2 {
		return nil, fail(connect.CodeInvalidArgument, "after_ns must not be negative or beyond 146 years")
	}
	if err := g.s.setDeadline(time.Duration(after)); err != nil { //nolint:contextcheck // the deadline outlives the request
		return nil, err
	}
	return connect.NewResponse(&gloveboxv1.SetDeadlineResponse{}), nil
}

// setDeadline arms the sandbox's own end; 0 disarms it.
func (s *Server) setDeadline(after time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expired {
		return fail(connect.CodeFailedPrecondition, "the sandbox's deadline has passed")
	}
	if s.deadline != nil {
		s.deadline.Stop()
		s.deadline = nil
	}
	if after == 0 || s.closed {
		return nil
	}
	var t *time.Timer
	t = time.AfterFunc(after, func() {
		s.mu.Lock()
		current := s.deadline == t && !s.closed
		s.expired = s.expired || current
		s.mu.Unlock()
		if current {
			s.expire()
		}
	})
	s.deadline = t
	return nil
}

var _ gloveboxv1connect.SandboxHandler = (*sandboxService)(nil)
