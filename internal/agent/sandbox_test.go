//go:build linux

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/internal/agent"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

func (b *box) commands(tb testing.TB) []*gloveboxv1.Command {
	tb.Helper()
	res, err := b.own.Commands(tb.Context(), connect.NewRequest(&gloveboxv1.CommandsRequest{}))
	if err != nil {
		tb.Fatal(err)
	}
	return res.Msg.GetCommands()
}

func (b *box) command(tb testing.TB, id string) *gloveboxv1.Command {
	tb.Helper()
	for _, c := range b.commands(tb) {
		if c.GetId() == id {
			return c
		}
	}
	tb.Fatalf("command %s is not remembered", id)
	return nil
}

// attached is what Attach brought.
type attached struct {
	pid            uint32
	lost           int64
	stdout, stderr string
	end            *gloveboxv1.End
}

func (b *box) attach(tb testing.TB, id string, replay bool) attached {
	tb.Helper()
	st, err := b.own.Attach(tb.Context(), connect.NewRequest(&gloveboxv1.AttachRequest{Id: id, Replay: replay}))
	if err != nil {
		tb.Fatal(err)
	}
	defer st.Close()
	var a attached
	var out, errOut strings.Builder
	for st.Receive() {
		m := st.Msg()
		if s := m.GetStart(); s != nil {
			a.pid, a.lost = s.GetPid(), s.GetLostBytes()
		}
		out.Write(m.GetStdout())
		errOut.Write(m.GetStderr())
		if m.GetEnd() != nil {
			a.end = m.GetEnd()
		}
	}
	if st.Err() != nil {
		tb.Fatal(st.Err())
	}
	a.stdout, a.stderr = out.String(), errOut.String()
	return a
}

func TestLimits(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	tests := []struct {
		name, script string
		limits       *gloveboxv1.Limits
		reason       gloveboxv1.End_Reason
		check        func(result) bool
	}{
		{
			"wall time", "sleep 60 & wait", &gloveboxv1.Limits{WallTimeNs: 2e8}, gloveboxv1.End_REASON_TIMEOUT,
			func(r result) bool { return r.why.GetKillScope() == "session" && r.end.GetStatus() == "signal: killed" },
		},
		{
			"CPU time", "while :; do :; done", &gloveboxv1.Limits{CpuTimeNs: 3e8}, gloveboxv1.End_REASON_CPU_LIMIT,
			func(r result) bool { return r.why.GetUsage().GetCpuNs() >= 3e8 && r.why.GetUsage().GetCpuNs() < 3e9 },
		},
		{"CPU time of a child", "(while :; do :; done) & wait", &gloveboxv1.Limits{CpuTimeNs: 3e8}, gloveboxv1.End_REASON_CPU_LIMIT, nil},
		{
			"output truncated", "head -c 200000 /dev/zero; echo x >&2", &gloveboxv1.Limits{OutputBytes: 1000}, gloveboxv1.End_REASON_EXITED,
			func(r result) bool {
				return len(r.stdout) == 1000 && r.stderr == "x\n" && r.why.GetStdoutTruncated() && !r.why.GetStderrTruncated() &&
					r.why.GetUsage().GetStdoutBytes() == 200000 && len(r.why.GetHits()) == 1 && r.why.GetHits()[0] == "output"
			},
		},
		{
			"output killed", "cat /dev/zero", &gloveboxv1.Limits{OutputBytes: 1000, KillOnOutput: true}, gloveboxv1.End_REASON_OUTPUT_LIMIT,
			func(r result) bool { return len(r.stdout) == 1000 },
		},
		{
			"output killed though it ended", "echo 123456789", &gloveboxv1.Limits{OutputBytes: 4, KillOnOutput: true}, gloveboxv1.End_REASON_OUTPUT_LIMIT,
			func(r result) bool { return r.stdout == "1234" },
		},
		{
			"output at its limit", "printf 1234", &gloveboxv1.Limits{OutputBytes: 4, KillOnOutput: true}, gloveboxv1.End_REASON_EXITED,
			func(r result) bool { return r.stdout == "1234" && !r.why.GetStdoutTruncated() },
		},
		{"none reached", "echo fine", &gloveboxv1.Limits{OutputBytes: 99, WallTimeNs: 6e10, CpuTimeNs: 6e10}, gloveboxv1.End_REASON_EXITED, nil},
		{"own SIGKILL before a limit", "kill -9 $$", &gloveboxv1.Limits{WallTimeNs: 6e10}, gloveboxv1.End_REASON_SIGNALED, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := b.run(t, withLimits(request(tt.script), tt.limits))
			if r.err != nil || r.why.GetReason() != tt.reason || tt.check != nil && !tt.check(r) {
				r.stdout = strconv.Quote(r.stdout[:min(len(r.stdout), 64)])
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestWait_descendantsHoldTheOutput: the end comes a second after the process,
// and what the descendants write later kills nobody.
func TestWait_descendantsHoldTheOutput(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	began := time.Now()
	r := b.run(t, request("(trap '' HUP; sleep 1.6; echo late; echo late >&2; sleep 0.1; echo survived >$HOME/mark; sleep 60) & echo $!"))
	if took := time.Since(began); r.err != nil || took < 900*time.Millisecond || took > 10*time.Second {
		t.Fatalf("took %s: %+v", took, r)
	}
	if !r.why.GetPipesHeld() || r.end.GetExitCode() != 0 || strings.Contains(r.stdout, "late") {
		t.Errorf("%+v", r)
	}
	child, err := strconv.Atoi(strings.TrimSpace(r.stdout))
	if err != nil {
		t.Fatal(err)
	}
	// No command looks: so many would make the agent forget this one.
	eventually(t, "the descendant wrote on", func() bool {
		mark, _ := os.ReadFile(b.home + "/mark")
		return string(mark) == "survived\n"
	})
	if gone(child) {
		t.Error("the descendant is dead")
	}
	// It ends with the sandbox.
	if err := b.srv.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the descendant is dead", func() bool { return gone(child) })
}

// TestWait_slowStarterLosesNothing: the grace time of held pipes is not the
// reader's.
func TestWait_slowStarterLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	const size = 24 << 20
	o := b.open(t, request(fmt.Sprintf("head -c %d /dev/zero; echo x >>$HOME/done", size)))
	// Nothing is read for a while: the command must be held up.
	probe := func() string { return b.run(t, request("cat $HOME/done 2>/dev/null; echo -")).stdout }
	pause := time.NewTimer(1500 * time.Millisecond)
	<-pause.C
	if got := probe(); got != "-\n" {
		t.Errorf("the command was not held up: %q", got)
	}
	n := 0
	var r result
	for o.Receive() {
		ev := o.Msg().GetEvent()
		n += len(ev.GetData().GetStdout())
		if ev.GetEnd() != nil {
			r.end = ev.GetEnd()
		}
	}
	if o.Err() != nil || n != size || r.end == nil {
		t.Errorf("%d bytes, end %v, error %v", n, r.end, o.Err())
	}
}

// TestConnect_slowIsDropped: who follows and does not read loses the stream,
// not the command its progress.
func TestConnect_slowIsDropped(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the stall time")
	}
	t.Parallel()
	b := newBox(t, nil)
	req := request("read x; head -c 50000000 /dev/zero; exit 6")
	req.Msg.Stdin = nil
	o := b.open(t, req)
	other := connectTo(t, b.srv)
	slow, err := other.proc.Connect(t.Context(), connect.NewRequest(&process.ConnectRequest{Process: byPID(o.pid)}))
	if err != nil {
		t.Fatal(err)
	}
	if !slow.Receive() {
		t.Fatal(slow.Err())
	}
	if err := b.send(t, o.pid, stdin("go\n")); err != nil {
		t.Fatal(err)
	}
	if r := o.collect(); r.end.GetExitCode() != 6 || r.why.GetUsage().GetStdoutBytes() != 50000000 {
		t.Errorf("end %v", r.end)
	}
	for slow.Receive() {
		continue
	}
	wantCode(t, slow.Err(), connect.CodeResourceExhausted, "took no output")
}

func TestAttach(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	req := request("echo one; sleep 0.05; echo two >&2; sleep 0.05; echo three; read x; echo $x; exit 2")
	req.Msg.Stdin = nil
	o := b.open(t, req)
	o.until(t, "three")
	o.Close()
	done := make(chan attached)
	go func() { done <- b.attach(t, o.id, true) }()
	if err := b.send(t, o.pid, stdin("four\n")); err != nil {
		t.Fatal(err)
	}
	for i, a := range []attached{<-done, b.attach(t, o.id, true)} {
		if a.stdout != "one\nthree\nfour\n" || a.stderr != "two\n" || a.end.GetCode() != 2 || a.pid != o.pid || a.lost != 0 {
			t.Errorf("%d: %+v", i, a)
		}
	}
	if a := b.attach(t, o.id, false); a.stdout != "" || a.end.GetCode() != 2 {
		t.Errorf("%+v", a)
	}
	st, err := b.own.Attach(t.Context(), connect.NewRequest(&gloveboxv1.AttachRequest{Id: "c999"}))
	if err == nil {
		st.Receive()
		err = st.Err()
	}
	wantCode(t, err, connect.CodeNotFound)
}

func TestAttach_ringIsBounded(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	r := b.run(t, request("i=0; while [ $i -lt 60000 ]; do echo line $i; i=$((i+1)); done"))
	a := b.attach(t, r.id, true)
	if len(a.stdout) == 0 || len(a.stdout) > 256<<10 || a.lost != int64(len(r.stdout)-len(a.stdout)) || !strings.HasSuffix(r.stdout, a.stdout) {
		t.Errorf("%d of %d bytes kept, %d lost", len(a.stdout), len(r.stdout), a.lost)
	}
}

func TestCommands_boundedAndDescribed(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	tag := "t"
	req := request("exit 7")
	req.Msg.Tag = &tag
	req.Msg.Process.Envs = map[string]string{"A": "b"}
	first := b.run(t, req)
	c := b.command(t, first.id)
	if c.GetTag() != "t" || c.GetCmd() != "/bin/sh" || c.GetEnvs()["A"] != "b" || c.GetCwd() != b.home || c.GetEnd().GetCode() != 7 ||
		c.GetUser() != me(t, "").Name || c.GetStartedUnixNs() == 0 || c.GetPid() != first.pid || first.id != "c1" {
		t.Errorf("%v", c)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				b.runContext(t.Context(), request("exit 0"))
			}
		})
	}
	wg.Wait()
	if got := b.commands(t); len(got) != 128 || got[0].GetId() == "c1" {
		t.Errorf("%d remembered, the first %s", len(got), got[0].GetId())
	}
}

func TestSignal_any(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	o := b.open(t, request("trap 'echo usr1; exit 9' USR1; echo ready; while :; do sleep 0.05; done"))
	o.until(t, "ready")
	send := func(id string, sig int32, tree bool) error {
		_, err := b.own.Signal(t.Context(), connect.NewRequest(&gloveboxv1.SignalRequest{Id: id, Signal: sig, Tree: tree}))
		return err
	}
	wantCode(t, send(o.id, 0, false), connect.CodeInvalidArgument)
	wantCode(t, send(o.id, 65, false), connect.CodeInvalidArgument)
	wantCode(t, send("c77", 9, false), connect.CodeNotFound)
	if err := send(o.id, 10, false); err != nil {
		t.Fatal(err)
	}
	if r := o.collect(); r.end.GetExitCode() != 9 {
		t.Errorf("%+v", r)
	}
	wantCode(t, send(o.id, 10, false), connect.CodeNotFound)

	o = b.open(t, request("sleep 60 & sleep 60 & echo ready; wait"))
	o.until(t, "ready")
	if err := send(o.id, 9, true); err != nil {
		t.Fatal(err)
	}
	if r := o.collect(); r.why.GetReason() != gloveboxv1.End_REASON_SIGNALED || r.why.GetPipesHeld() {
		t.Errorf("%+v", r.why)
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	called := make(chan struct{}, 2)
	b := newBox(t, func(o *agent.Options) {
		o.OnDeadline = func() { called <- struct{}{} }
	})
	set := func(d time.Duration) error {
		_, err := b.own.SetDeadline(t.Context(), connect.NewRequest(&gloveboxv1.SetDeadlineRequest{AfterNs: int64(d)}))
		return err
	}
	wantCode(t, set(-1), connect.CodeInvalidArgument)
	o := b.open(t, request("sleep 60"))
	for _, d := range []time.Duration{time.Millisecond * 50, 0, time.Hour, time.Millisecond * 300} {
		if err := set(d); err != nil {
			t.Fatal(err)
		}
	}
	r := o.collect()
	if r.why.GetReason() != gloveboxv1.End_REASON_EXPIRED {
		t.Errorf("%+v", r)
	}
	<-called
	wantCode(t, b.run(t, request("true")).err, connect.CodeUnavailable, "deadline")
	wantCode(t, set(time.Hour), connect.CodeFailedPrecondition)
	if err := b.srv.Close(); err != nil || len(called) != 0 {
		t.Errorf("close: %v, %d further calls", err, len(called))
	}
}

func TestHelloAndMeasure(t *testing.T) {
	t.Parallel()
	hello := &gloveboxv1.HelloResponse{Version: "v", LandlockAbi: 3}
	b := newBox(t, func(o *agent.Options) { o.Hello = hello })
	res, err := b.own.Hello(t.Context(), connect.NewRequest(&gloveboxv1.HelloRequest{}))
	if err != nil || res.Msg.GetLandlockAbi() != 3 {
		t.Fatalf("%v %v", res, err)
	}
	b.run(t, request("echo 12345"))
	u, err := b.own.Measure(t.Context(), connect.NewRequest(&gloveboxv1.MeasureRequest{}))
	if err != nil || u.Msg.GetStdoutBytes() != 6 || u.Msg.GetPeakMemoryBytes() == 0 {
		t.Errorf("%v %v", u, err)
	}
}

// fakeGroups counts in nothing but remembers what was asked of it.
type fakeGroups struct {
	mu     sync.Mutex
	events []string
	fail   bool
}

func (g *fakeGroups) note(s string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events = append(g.events, s)
}

func (g *fakeGroups) New(id string) (agent.Group, error) {
	if g.fail {
		return nil, errors.New("no room")
	}
	g.note("new " + id)
	return &fakeGroup{g}, nil
}

type fakeGroup struct{ g *fakeGroups }

func (f *fakeGroup) Cgroup() int                 { return 0 }
func (f *fakeGroup) Kill() error                 { f.g.note("kill"); return errors.New("cannot") }
func (f *fakeGroup) CPU() (time.Duration, error) { return 42 * time.Second, nil }
func (f *fakeGroup) Close() error                { f.g.note("close"); return nil }

func TestGroups(t *testing.T) {
	t.Parallel()
	g := &fakeGroups{}
	b := newBox(t, func(o *agent.Options) { o.Groups = g })
	r := b.run(t, withLimits(request("sleep 60"), &gloveboxv1.Limits{WallTimeNs: 1e8}))
	u := r.why.GetUsage()
	if r.why.GetKillScope() != "session" || u.GetCpuNs() != 42e9 {
		t.Errorf("%v", r.why)
	}
	g.mu.Lock()
	if got := fmt.Sprint(g.events); got != "[new c1 kill close]" {
		t.Error(got)
	}
	g.fail = true
	g.mu.Unlock()
	wantCode(t, b.run(t, request("true")).err, connect.CodeInternal, "no room")
}

func TestStart_tooMany(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	errs := make(chan error, 600)
	for range 520 {
		wg.Go(func() {
			st, err := b.proc.Start(ctx, connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/cat"}}))
			if err == nil {
				if st.Receive() {
					return
				}
				err = st.Err()
			}
			errs <- err
		})
	}
	wg.Wait()
	if len(errs) != 8 {
		t.Errorf("%d refused, want 8", len(errs))
	}
	for range len(errs) {
		wantCode(t, <-errs, connect.CodeResourceExhausted, "512 commands")
	}
}
