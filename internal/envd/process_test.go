package envd_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	wireproc "github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

func exitEnd(code int32) *gloveboxv1.End {
	return &gloveboxv1.End{Reason: gloveboxv1.End_REASON_EXITED, Code: code}
}

func TestStart_reportsTheEnd(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		end    *gloveboxv1.End
		events []*wireproc.StartResponse
		want   backend.Exit
	}{
		{
			"exited", exitEnd(3),
			[]*wireproc.StartResponse{exited(3)},
			backend.Exit{Reason: backend.ReasonExited, Code: 3},
		},
		{
			"timeout", &gloveboxv1.End{Reason: gloveboxv1.End_REASON_TIMEOUT, Signal: 9, KillScope: "tree"},
			[]*wireproc.StartResponse{killed()},
			backend.Exit{Reason: backend.ReasonTimeout, Code: 137, Signal: 9, KillScope: "tree"},
		},
		{
			"memory", &gloveboxv1.End{Reason: gloveboxv1.End_REASON_MEMORY_LIMIT, Hits: []string{"memory", "nonsense"}},
			[]*wireproc.StartResponse{killed()},
			backend.Exit{Reason: backend.ReasonMemoryLimit, Code: 137, Signal: 9, Hits: []backend.Hit{backend.HitMemory}},
		},
		{
			"signal", &gloveboxv1.End{Reason: gloveboxv1.End_REASON_SIGNALED, Signal: 6, PipesHeld: true},
			[]*wireproc.StartResponse{end(&wireproc.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: aborted (core dumped)"})},
			backend.Exit{Reason: backend.ReasonSignaled, Code: 134, Signal: 6, OutputHeld: true},
		},
		{
			"usage", &gloveboxv1.End{
				Reason: gloveboxv1.End_REASON_EXITED, StdoutTruncated: true,
				Usage: &gloveboxv1.Usage{CpuNs: 5, PeakMemoryBytes: 6, PeakProcesses: 7, StdoutBytes: 100},
			},
			[]*wireproc.StartResponse{keepalive(), stdout("abc"), exited(0)},
			backend.Exit{
				Reason: backend.ReasonExited, StdoutTruncated: true, Hits: []backend.Hit{backend.HitOutput},
				Usage: backend.Usage{CPU: 5, PeakMemory: 6, PeakProcesses: 7, Stdout: 100},
			},
		},
		{
			"no trailer", nil,
			[]*wireproc.StartResponse{exited(0)},
			backend.Exit{Reason: backend.ReasonExited},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &fake{processes: processes{start: ours(tt.end, append([]*wireproc.StartResponse{started(7)}, tt.events...)...)}}
			judged := false
			c := f.serve(t, nil, envd.Options{Judge: func(_ context.Context, e *backend.Exit) { judged = true }})
			p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}})
			if err != nil {
				t.Fatal(err)
			}
			if p.ID() != "c1" {
				t.Errorf("ID %q", p.ID())
			}
			got, err := p.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got.Usage.Wall <= 0 || !judged {
				t.Errorf("wall %v, judged %v", got.Usage.Wall, judged)
			}
			got.Usage.Wall = 0
			if d := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestStart_sendsTheCommand(t *testing.T) {
	t.Parallel()
	var got *startRequest
	f := &fake{processes: processes{start: func(ctx context.Context, r *startRequest, s *startStream) error {
		got = r
		return ours(exitEnd(0), started(1), exited(0))(ctx, r, s)
	}}}
	c := f.serve(t, nil, envd.Options{
		Env: map[string]string{"A": "1", "B": "1"}, Output: 77, KillOnOutput: true, CPUTime: time.Second,
		AccessToken: "tok", Headers: map[string][]string{"X-Route": {"r"}},
	})
	p, err := c.Start(t.Context(), backend.Command{
		Args: []string{"a", "b", "c"}, Env: map[string]string{"B": "2"}, Dir: "/tmp", Tag: "tag", User: "root",
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	var limits gloveboxv1.Limits
	if err := wire.Unpack(got.Header().Get(wire.HeaderLimits), &limits); err != nil {
		t.Fatal(err)
	}
	type seen struct {
		Cmd, Cwd, Tag, Auth, Token, Route, Timeout string
		Args                                       []string
		Env                                        map[string]string
		Stdin                                      bool
		Wall, CPU, Output                          int64
		Kill                                       bool
	}
	m, h := got.Msg, got.Header()
	if d := cmp.Diff(seen{
		Cmd: "a", Cwd: "/tmp", Tag: "tag", Auth: "Basic cm9vdDo=", Token: "tok", Route: "r",
		Args: []string{"b", "c"}, Env: map[string]string{"A": "1", "B": "2"},
		Wall: int64(backend.DefaultTimeout), CPU: int64(time.Second), Output: 77, Kill: true,
	}, seen{
		m.GetProcess().GetCmd(), m.GetProcess().GetCwd(), m.GetTag(), h.Get("Authorization"), h.Get("X-Access-Token"),
		h.Get("X-Route"), h.Get("Connect-Timeout-Ms"), m.GetProcess().GetArgs(), m.GetProcess().GetEnvs(), m.GetStdin(),
		limits.GetWallTimeNs(), limits.GetCpuTimeNs(), limits.GetOutputBytes(), limits.GetKillOnOutput(),
	}); d != "" {
		t.Error(d)
	}
}

// order records the writes of both streams.
type order struct {
	name string
	log  *[]string
}

func (o order) Write(p []byte) (int, error) {
	*o.log = append(*o.log, o.name+string(p))
	return len(p), nil
}

func TestStart_deliversOutputInOrder(t *testing.T) {
	t.Parallel()
	f := &fake{processes: processes{start: ours(exitEnd(0), started(1), stdout("a"), stderr("b"), stdout("c"), exited(0))}}
	c := f.serve(t, nil, envd.Options{})
	var log []string
	p, err := c.Start(t.Context(), backend.Command{
		Args: []string{"x"}, Output: backend.Output{Stdout: order{"1", &log}, Stderr: order{"2", &log}},
	})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"1a", "2b", "1c"}, log); d != "" {
		t.Error(d)
	}
	if exit.Usage.Stdout != 2 || exit.Usage.Stderr != 1 {
		t.Errorf("counted %+v", exit.Usage)
	}
}

type failing struct{ calls int }

func (f *failing) Write([]byte) (int, error) { f.calls++; return 0, errors.New("full") }

func TestStart_survivesAWriterThatFails(t *testing.T) {
	t.Parallel()
	f := &fake{processes: processes{start: ours(exitEnd(0), started(1), stdout("a"), stdout("b"), exited(0))}}
	c := f.serve(t, nil, envd.Options{})
	w := &failing{}
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}, Output: backend.Output{Stdout: w}})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || !exit.Success() {
		t.Errorf("%v, %v", exit, err)
	}
	if w.calls != 1 {
		t.Errorf("%d writes after an error", w.calls)
	}
}

func TestStart_outputLimitHoldsAgainstTheAgent(t *testing.T) {
	t.Parallel()
	f := &fake{processes: processes{start: ours(exitEnd(0), started(1), stdout("abcd"), stdout("efgh"), exited(0))}}
	c := f.serve(t, nil, envd.Options{Output: 6})
	var out bytes.Buffer
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}, Output: backend.Output{Stdout: &out}})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil || out.String() != "abcdef" || !exit.StdoutTruncated || exit.Usage.Stdout != 8 {
		t.Errorf("%q, %+v, %v", out.String(), exit, err)
	}
}

func TestStart_contextBoundsTheStartOnly(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	f := &fake{processes: processes{start: func(ctx context.Context, r *startRequest, s *startStream) error {
		s.ResponseHeader().Set(wire.HeaderCommand, "c1")
		_ = s.Send(started(1))
		select {
		case <-release:
		case <-ctx.Done():
			return ctx.Err()
		}
		_ = s.Send(exited(0))
		s.ResponseTrailer().Set(wire.TrailerEnd, wire.Pack(exitEnd(0)))
		return nil
	}}}
	c := f.serve(t, nil, envd.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	p, err := c.Start(ctx, backend.Command{Args: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) || backend.KindOf(err) != "" {
		t.Errorf("Wait with an ended context: %v", err)
	}
	close(release)
	if exit, err := p.Wait(t.Context()); err != nil || !exit.Success() {
		t.Errorf("%v, %v", exit, err)
	}
}

func TestStart_killsWhatStartsTooLate(t *testing.T) {
	t.Parallel()
	arrived, proceed, killedID := make(chan struct{}), make(chan struct{}), make(chan string, 1)
	f := &fake{
		processes: processes{start: func(ctx context.Context, _ *startRequest, s *startStream) error {
			close(arrived)
			<-proceed
			s.ResponseHeader().Set(wire.HeaderCommand, "c9")
			_ = s.Send(started(1))
			<-ctx.Done()
			return ctx.Err()
		}},
		box: box{signal: func(r *gloveboxv1.SignalRequest) error {
			if r.GetTree() && r.GetSignal() == 9 {
				killedID <- r.GetId()
			}
			return nil
		}},
	}
	c := f.serve(t, nil, envd.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if _, err := c.Start(ctx, backend.Command{Args: []string{"x"}}); !errors.Is(err, context.Canceled) {
		t.Fatalf("Start: %v", err)
	}
	close(proceed)
	if id := <-killedID; id != "c9" {
		t.Errorf("killed %q", id)
	}
}

func TestStart_feedsStandardInput(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	closed, input := make(chan struct{}), strings.Repeat("0123456789", 20_000)
	f := &fake{processes: processes{
		start: func(_ context.Context, r *startRequest, s *startStream) error {
			if !r.Msg.GetStdin() {
				return errors.New("no input asked for")
			}
			s.ResponseHeader().Set(wire.HeaderCommand, "c1")
			_ = s.Send(started(5))
			<-closed
			return s.Send(exited(0))
		},
		streamInput: func(_ context.Context, s *connect.ClientStream[wireproc.StreamInputRequest]) error {
			for s.Receive() {
				got.Write(s.Msg().GetData().GetInput().GetStdin())
			}
			return s.Err()
		},
		closeStdin: func(r *wireproc.CloseStdinRequest) error { close(closed); return nil },
	}}
	c := f.serve(t, nil, envd.Options{})
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}, Stdin: strings.NewReader(input)})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || !exit.Success() || got.String() != input {
		t.Errorf("%v, %v, %d bytes of %d", exit, err, got.Len(), len(input))
	}
}

func TestStart_waitIgnoresAReaderThatBlocks(t *testing.T) {
	t.Parallel()
	f := &fake{processes: processes{start: ours(exitEnd(0), started(1), exited(0))}}
	c := f.serve(t, nil, envd.Options{})
	r, w := io.Pipe()
	defer w.Close()
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}, Stdin: r})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || !exit.Success() {
		t.Errorf("%v, %v", exit, err)
	}
}

func TestProcess_abilities(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var size *wireproc.PTY_Size
	var input bytes.Buffer
	var signals []*gloveboxv1.SignalRequest
	f := &fake{
		processes: processes{
			start: func(_ context.Context, r *startRequest, s *startStream) error {
				s.ResponseHeader().Set(wire.HeaderCommand, "c1")
				_ = s.Send(started(1))
				<-release
				return s.Send(exited(0))
			},
			update:    func(r *wireproc.UpdateRequest) error { size = r.GetPty().GetSize(); return nil },
			sendInput: func(r *wireproc.SendInputRequest) error { input.Write(r.GetInput().GetPty()); return nil },
		},
		box: box{signal: func(r *gloveboxv1.SignalRequest) error { signals = append(signals, r); return nil }},
	}
	c := f.serve(t, nil, envd.Options{})
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}, KeepInput: true, Terminal: &backend.TerminalSize{}})
	if err != nil {
		t.Fatal(err)
	}
	rs, ok1 := backend.As[backend.Resizer](p)
	in, ok2 := backend.As[backend.Inputter](p)
	tk, ok3 := backend.As[backend.TreeKiller](p)
	if !ok1 || !ok2 || !ok3 {
		t.Fatalf("resizer %v, inputter %v, tree killer %v", ok1, ok2, ok3)
	}
	if err := rs.Resize(t.Context(), backend.TerminalSize{Cols: 100, Rows: 50}); err != nil || size.GetCols() != 100 || size.GetRows() != 50 {
		t.Errorf("%v, %v", size, err)
	}
	if err := in.WriteInput(t.Context(), []byte("hello")); err != nil || input.String() != "hello" {
		t.Errorf("%q, %v", input.String(), err)
	}
	if err := in.CloseInput(t.Context()); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("CloseInput of a terminal: %v", err)
	}
	if err := errors.Join(p.Signal(t.Context(), backend.SIGHUP), tk.KillTree(t.Context())); err != nil {
		t.Error(err)
	}
	if len(signals) != 2 || signals[0].GetSignal() != 1 || signals[0].GetTree() || !signals[1].GetTree() {
		t.Errorf("signals %v", signals)
	}
	if err := p.Signal(t.Context(), 0); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("signal 0: %v", err)
	}
	close(release)
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(t.Context(), backend.SIGTERM); backend.KindOf(err) != backend.ErrNotFound {
		t.Errorf("Signal after the end: %v", err)
	}
}

func TestProcess_offersNothingItLacks(t *testing.T) {
	t.Parallel()
	f := &fake{processes: processes{start: ours(exitEnd(0), started(1), exited(0))}}
	c := f.serve(t, nil, envd.Options{})
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := backend.As[backend.Resizer](p); ok {
		t.Error("a resizer without a terminal")
	}
	if _, ok := backend.As[backend.Inputter](p); ok {
		t.Error("an inputter without open input")
	}
}

func TestStart_overdue(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context, _ *startRequest, s *startStream) error {
		s.ResponseHeader().Set(wire.HeaderCommand, "c1")
		_ = s.Send(started(1))
		for ctx.Err() == nil { // keepalives are no excuse
			_ = s.Send(keepalive())
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
		return ctx.Err()
	}
	refused := &backend.Error{Op: "kill", Kind: backend.ErrExpired}
	tests := []struct {
		name    string
		overdue func(context.Context, string) error
		want    backend.Reason
		kind    backend.Kind
	}{
		{"killed from outside", func(context.Context, string) error { return nil }, backend.ReasonTimeout, ""},
		{"error", func(context.Context, string) error { return refused }, "", backend.ErrExpired},
		{"no backstop", nil, "", backend.ErrLost},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &fake{processes: processes{start: hang}}
			c := f.serve(t, nil, envd.Options{Grace: 50 * time.Millisecond, Overdue: tt.overdue})
			p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}, Timeout: 10 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			exit, err := p.Wait(t.Context())
			if exit.Reason != tt.want || backend.KindOf(err) != tt.kind {
				t.Errorf("%v, %v", exit, err)
			}
		})
	}
}

// blocked blocks until it is let go.
type blocked chan struct{}

func (b blocked) Write(p []byte) (int, error) { <-b; return len(p), nil }

func TestStart_slowWriterIsNotThePeersFault(t *testing.T) {
	t.Parallel()
	f := &fake{processes: processes{start: ours(
		&gloveboxv1.End{Reason: gloveboxv1.End_REASON_TIMEOUT, Signal: 9}, started(1), stdout("x"), killed())}}
	var called atomic.Bool
	c := f.serve(t, nil, envd.Options{Grace: 20 * time.Millisecond, Overdue: func(context.Context, string) error {
		called.Store(true)
		return nil
	}})
	b := make(blocked)
	p, err := c.Start(t.Context(), backend.Command{
		Args: []string{"x"}, Timeout: 10 * time.Millisecond, Output: backend.Output{Stdout: b},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("ended with its output undelivered: %v", err)
	}
	close(b)
	if exit, err := p.Wait(t.Context()); err != nil || exit.Reason != backend.ReasonTimeout || called.Load() {
		t.Errorf("%v, %v, overdue called: %v", exit, err, called.Load())
	}
}

func TestClose_endsStreamsAndCalls(t *testing.T) { //nolint:paralleltest // looks at all goroutines
	noLeaks(t)
	f := &fake{processes: processes{start: func(ctx context.Context, _ *startRequest, s *startStream) error {
		s.ResponseHeader().Set(wire.HeaderCommand, "c1")
		_ = s.Send(started(1))
		<-ctx.Done()
		return ctx.Err()
	}}}
	c := f.serve(t, nil, envd.Options{})
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}, Timeout: backend.UntilSandboxEnds, Stdin: strings.NewReader("")})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Wait(t.Context()); backend.KindOf(err) != backend.ErrClosed {
		t.Errorf("Wait: %v", err)
	}
	if _, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}}); backend.KindOf(err) != backend.ErrClosed {
		t.Errorf("Start: %v", err)
	}
	if _, err := c.Files().Stat(t.Context(), "x"); backend.KindOf(err) != backend.ErrClosed {
		t.Errorf("Stat: %v", err)
	}
}

func TestWait_connectionLost(t *testing.T) {
	t.Parallel()
	why := &backend.Error{Op: "wait", Kind: backend.ErrExpired}
	for _, tt := range []struct {
		name string
		lost func(error) error
		want backend.Kind
	}{
		{"unexplained", nil, backend.ErrLost},
		{"explained", func(error) error { return why }, backend.ErrExpired},
		{"no word", func(error) error { return nil }, backend.ErrLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &fake{processes: processes{start: func(ctx context.Context, _ *startRequest, s *startStream) error {
				_ = s.Send(started(1))
				<-ctx.Done()
				return ctx.Err()
			}}}
			c := f.serve(t, nil, envd.Options{Lost: tt.lost})
			p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}})
			if err != nil {
				t.Fatal(err)
			}
			_ = (<-f.conns).Close()
			if _, err := p.Wait(t.Context()); backend.KindOf(err) != tt.want || errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
	}
}
