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
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd"
	wireproc "github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

// envdStart answers as E2B's envd does.
func envdStart(events ...*wireproc.StartResponse) startFunc {
	return func(_ context.Context, _ *startRequest, s *startStream) error {
		for _, ev := range events {
			if err := s.Send(ev); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestPlain_ends(t *testing.T) {
	t.Parallel()
	segv := end(&wireproc.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: segmentation fault (core dumped)"})
	tests := map[string]struct {
		events []*wireproc.StartResponse
		want   string
	}{
		"exited":   {[]*wireproc.StartResponse{started(9), stdout("hi"), exited(3)}, "exited(3)"},
		"killed":   {[]*wireproc.StartResponse{started(9), killed()}, "signaled(9)"},
		"segfault": {[]*wireproc.StartResponse{started(9), segv}, "signaled(11)"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := (&fake{plain: true, processes: processes{start: envdStart(tt.events...)}}).serve(t, nil, envd.Options{})
			p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}})
			if err != nil {
				t.Fatal(err)
			}
			exit, err := p.Wait(t.Context())
			if err != nil || exit.String() != tt.want || p.ID() != "9" {
				t.Errorf("%v, %v, ID %q", exit, err, p.ID())
			}
			if _, ok := backend.As[backend.TreeKiller](p); ok {
				t.Error("envd kills no trees")
			}
		})
	}
}

func TestPlain_timeoutIsTheServers(t *testing.T) {
	t.Parallel()
	header := ""
	f := &fake{plain: true, processes: processes{start: func(ctx context.Context, r *startRequest, s *startStream) error {
		header = r.Header().Get("Connect-Timeout-Ms")
		_ = s.Send(started(9))
		<-ctx.Done() // of the deadline that the header set
		return connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded)
	}}}
	c := f.serve(t, nil, envd.Options{})
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}, Timeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Reason != backend.ReasonTimeout || exit.Code != 137 || header != "100" {
		t.Errorf("%v, %v, header %q", exit, err, header)
	}
}

func TestPlain_unexpectedDeadlineIsLost(t *testing.T) {
	t.Parallel()
	f := &fake{plain: true, processes: processes{start: func(_ context.Context, _ *startRequest, s *startStream) error {
		_ = s.Send(started(9))
		return connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded)
	}}}
	c := f.serve(t, nil, envd.Options{})
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}, Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); backend.KindOf(err) != backend.ErrLost {
		t.Errorf("%v, %v", exit, err)
	}
}

func TestPlain_outputKillIsTheClients(t *testing.T) {
	t.Parallel()
	dead := make(chan struct{})
	f := &fake{plain: true, processes: processes{
		start: func(_ context.Context, _ *startRequest, s *startStream) error {
			_ = s.Send(started(9))
			_ = s.Send(stdout("0123456789"))
			<-dead
			return s.Send(killed())
		},
		sendSignal: func(r *wireproc.SendSignalRequest) error {
			if r.GetProcess().GetPid() == 9 && r.GetSignal() == wireproc.Signal_SIGNAL_SIGKILL {
				close(dead)
			}
			return nil
		},
	}}
	c := f.serve(t, nil, envd.Options{Output: 4, KillOnOutput: true})
	var out bytes.Buffer
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}, Output: backend.Output{Stdout: &out}})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Reason != backend.ReasonOutputLimit || !exit.StdoutTruncated || out.String() != "0123" {
		t.Errorf("%+v, %v, %q", exit, err, out.String())
	}
}

func TestPlain_inputGoesInChunks(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	closed, chunks, input := make(chan struct{}), 0, strings.Repeat("x", 150_000)
	f := &fake{plain: true, processes: processes{
		start: func(_ context.Context, _ *startRequest, s *startStream) error {
			_ = s.Send(started(9))
			<-closed
			return s.Send(exited(0))
		},
		sendInput: func(r *wireproc.SendInputRequest) error {
			chunks++
			got.Write(r.GetInput().GetStdin())
			return nil
		},
		closeStdin: func(*wireproc.CloseStdinRequest) error { close(closed); return nil },
	}}
	c := f.serve(t, nil, envd.Options{})
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}, Stdin: strings.NewReader(input)})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || !exit.Success() || got.String() != input || chunks < 2 {
		t.Errorf("%v, %v, %d bytes in %d chunks", exit, err, got.Len(), chunks)
	}
}

func TestPlain_refusesWhatItCannot(t *testing.T) {
	t.Parallel()
	c := (&fake{plain: true, processes: processes{start: func(ctx context.Context, _ *startRequest, s *startStream) error {
		_ = s.Send(started(9))
		<-ctx.Done()
		return ctx.Err()
	}}}).serve(t, nil, envd.Options{})
	_, cpu := c.Start(t.Context(), backend.Command{Args: []string{"x"}, CPUTime: time.Second})
	_, hello := c.Hello(t.Context())
	_, dial := c.DialContext(t.Context(), "tcp", "80")
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"cpu time": cpu, "hello": hello, "dial": dial,
		"deadline": c.SetDeadline(t.Context(), time.Second), "signal": p.Signal(t.Context(), backend.SIGHUP),
	} {
		if backend.KindOf(err) != backend.ErrUnsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPlain_processes(t *testing.T) {
	t.Parallel()
	tag := "t"
	f := &fake{plain: true, processes: processes{
		list: func() (*wireproc.ListResponse, error) {
			return &wireproc.ListResponse{Processes: []*wireproc.ProcessInfo{
				{Pid: 9, Tag: &tag, Config: &wireproc.ProcessConfig{Cmd: "sh", Args: []string{"-c"}}},
			}}, nil
		},
		connect: func(_ context.Context, r *wireproc.ConnectRequest, s *connect.ServerStream[wireproc.ConnectResponse]) error {
			if r.GetProcess().GetPid() != 9 {
				return connect.NewError(connect.CodeNotFound, errors.New("no"))
			}
			_ = s.Send(&wireproc.ConnectResponse{Event: started(9).GetEvent()})
			_ = s.Send(&wireproc.ConnectResponse{Event: stdout("x").GetEvent()})
			return s.Send(&wireproc.ConnectResponse{Event: exited(4).GetEvent()})
		},
	}}
	c := f.serve(t, nil, envd.Options{})
	infos, err := c.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]backend.ProcessInfo{{ID: "9", PID: 9, Tag: "t", Args: []string{"sh", "-c"}}}, infos); d != "" {
		t.Error(d)
	}
	var out bytes.Buffer
	p, err := c.Attach(t.Context(), "9", backend.AttachOptions{Output: backend.Output{Stdout: &out}})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 4 || out.String() != "x" {
		t.Errorf("%v, %v, %q", exit, err, out.String())
	}
	for _, id := range []string{"10", "0", "-1", "c1", ""} {
		if _, err := c.Attach(t.Context(), id, backend.AttachOptions{}); backend.KindOf(err) != backend.ErrNotFound {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestErrors_ofHTTP(t *testing.T) {
	t.Parallel()
	notFound := `{"sandboxId":"i","message":"The sandbox was not found","code":502}`
	closedPort := `{"sandboxId":"i","message":"The sandbox is running but port is not open","port":1,"code":502}`
	tests := []struct {
		status int
		body   string
		kind   backend.Kind
		is     error // of file calls
	}{
		{401, `{"code":401,"message":"unauthorized access"}`, backend.ErrUnauthenticated, nil},
		{403, `{"message":"no"}`, backend.ErrDenied, fs.ErrPermission},
		{409, `{}`, backend.ErrConflict, fs.ErrExist},
		{413, ``, backend.ErrTooLarge, nil},
		{429, `{"code":429}`, backend.ErrQuota, nil},
		{500, `x`, backend.ErrInternal, nil},
		{502, notFound, backend.ErrNotFound, nil},
		{502, closedPort, backend.ErrUnavailable, nil},
		{502, ``, backend.ErrLost, nil},
		{503, ``, backend.ErrUnavailable, nil},
		{504, ``, backend.ErrLost, nil},
		{507, `{"code":507,"message":"full"}`, backend.ErrTooLarge, nil},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.status, tt.kind), func(t *testing.T) {
			t.Parallel()
			c := (&fake{}).serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}), envd.Options{EnvdVersion: "0.6.13"})
			_, start := c.Start(t.Context(), backend.Command{Args: []string{"x"}})
			_, stat := c.Files().Stat(t.Context(), "x")
			_, open := c.Files().Open(t.Context(), "x")
			write := c.Files().Write(t.Context(), "x", strings.NewReader("data"), 0)
			for op, err := range map[string]error{"start": start, "stat": stat, "open": open, "write": write, "health": c.Health(t.Context())} {
				if backend.KindOf(err) != tt.kind {
					t.Errorf("%s: kind %q: %v", op, backend.KindOf(err), err)
				}
				if file := op != "start" && op != "health"; tt.is != nil && errors.Is(err, tt.is) != file {
					t.Errorf("%s: is %v: %v", op, tt.is, !file)
				}
				if tt.is == nil && errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s: a sandbox that is gone is no missing file", op)
				}
			}
		})
	}
}

func TestErrors_ofConnect(t *testing.T) {
	t.Parallel()
	for code, kind := range map[connect.Code]backend.Kind{
		connect.CodeInvalidArgument:   backend.ErrInvalid,
		connect.CodeNotFound:          backend.ErrNotFound,
		connect.CodeUnauthenticated:   backend.ErrNotFound, // the account
		connect.CodeResourceExhausted: backend.ErrCapacity,
		connect.CodePermissionDenied:  backend.ErrDenied,
		connect.CodeUnavailable:       backend.ErrUnavailable,
		connect.CodeInternal:          backend.ErrInternal,
		connect.CodeUnimplemented:     backend.ErrUnsupported,
		connect.CodeCanceled:          backend.ErrLost,
	} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			c := (&fake{processes: processes{start: func(context.Context, *startRequest, *startStream) error {
				return connect.NewError(code, errors.New("why"))
			}}}).serve(t, nil, envd.Options{})
			if _, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}}); backend.KindOf(err) != kind {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestStart_invalidCommands(t *testing.T) {
	t.Parallel()
	c := (&fake{}).serve(t, nil, envd.Options{})
	for _, cmd := range []backend.Command{
		{},
		{Args: []string{"\xff"}},
		{Args: []string{"x"}, Env: map[string]string{"A": "\xff"}},
		{Args: []string{"x"}, Dir: "\xff"},
	} {
		if _, err := c.Start(t.Context(), cmd); backend.KindOf(err) != backend.ErrInvalid {
			t.Errorf("%v: %v", cmd.Args, err)
		}
	}
}

func TestPlain_overHTTP1(t *testing.T) {
	t.Parallel()
	var stored bytes.Buffer
	f := &fake{
		plain:     true,
		processes: processes{start: envdStart(started(9), stdout("hi"), exited(3))},
		files: func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != 1 {
				t.Errorf("HTTP/%d", r.ProtoMajor)
			}
			if r.Method == http.MethodPost {
				_, _ = io.Copy(&stored, r.Body)
				_, _ = io.WriteString(w, "[]")
				return
			}
			for range 1 << 14 {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		},
	}
	f.serve(t, nil, envd.Options{})
	rt := &http.Transport{}
	t.Cleanup(rt.CloseIdleConnections)
	c := envd.New(rt, envd.Options{BaseURL: "http://" + f.addr + "/", EnvdVersion: "0.6.13", User: "user"})
	t.Cleanup(func() { _ = c.Close() })
	var out bytes.Buffer
	p, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}, Output: backend.Output{Stdout: &out}})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 3 || out.String() != "hi" {
		t.Errorf("%v, %v, %q", exit, err, out.String())
	}
	if err := c.Files().Write(t.Context(), "f", io.MultiReader(strings.NewReader("data")), 0); err != nil || stored.String() != "data" {
		t.Errorf("%v, %q", err, stored.String())
	}
	rc, err := c.Files().Open(t.Context(), "f")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := rc.Close(); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	// A server that is gone was sent nothing.
	gone := envd.New(rt, envd.Options{BaseURL: "http://127.0.0.1:1"})
	t.Cleanup(func() { _ = gone.Close() })
	if _, err := gone.Hello(t.Context()); backend.KindOf(err) != backend.ErrUnavailable {
		t.Errorf("%v", err)
	}
}
