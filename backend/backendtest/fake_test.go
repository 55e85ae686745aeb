package backendtest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
)

func create(t *testing.T, f *backendtest.Fake, spec backend.Spec) backend.Sandbox {
	t.Helper()
	sb, err := f.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func start(t *testing.T, sb backend.Sandbox, cmd backend.Command) backend.Process {
	t.Helper()
	p, err := sb.Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wait(t *testing.T, p backend.Process) backend.Exit {
	t.Helper()
	exit, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return exit
}

func wantKind(t *testing.T, err error, kind backend.Kind) {
	t.Helper()
	if err == nil || backend.KindOf(err) != kind {
		t.Errorf("error %v is %q, want %q", err, backend.KindOf(err), kind)
	}
}

func TestFake_standardPrograms(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		args   string
		stdin  string
		exit   string
		stdout string
	}{
		{"true", "true", "", "exited(0)", ""},
		{"by path", "/bin/false", "", "exited(1)", ""},
		{"echo", "echo a b", "", "exited(0)", "a b\n"},
		{"cat", "cat", "in", "exited(0)", "in"},
		{"code", "exit 7", "", "exited(7)", ""},
		{"flood", "flood 5", "", "exited(0)", "xxxxx"},
		{"memory", "oom", "", "memory_limit", ""},
		{"missing", "nope", "", "exited(127)", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := backendtest.New()
			sb := create(t, f, backend.Spec{})
			var out bytes.Buffer
			exit := wait(t, start(t, sb, backend.Command{
				Args: strings.Fields(tt.args), Stdin: strings.NewReader(tt.stdin), Output: backend.Output{Stdout: &out},
			}))
			if exit.String() != tt.exit || out.String() != tt.stdout {
				t.Errorf("got %v %q, want %s %q", exit, out.String(), tt.exit, tt.stdout)
			}
			if err := sb.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
			if left := f.Leaked(); len(left) != 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestFake_faults(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	f := backendtest.New()
	f.Inject(backendtest.Fault{Op: backendtest.OpStart, Nth: 2, Err: boom})
	late := f.Inject(backendtest.Fault{Op: backendtest.OpDestroy, Err: backend.ErrLost, After: true})
	sb := create(t, f, backend.Spec{})
	for i, want := range []error{nil, boom, nil} {
		p, err := sb.Start(t.Context(), backend.Command{Args: []string{"true"}})
		if !errors.Is(err, want) {
			t.Errorf("start %d: %v, want %v", i+1, err, want)
		}
		if err == nil {
			wait(t, p)
		}
	}
	if err := sb.Destroy(t.Context()); !errors.Is(err, backend.ErrLost) {
		t.Errorf("destroy: %v", err)
	}
	<-late.Struck()
	if left := f.Leaked(); len(left) != 0 {
		t.Errorf("an answer lost afterwards left %q", left)
	}
	var got []string
	for _, c := range f.Calls(backendtest.OpStart, backendtest.OpDestroy) {
		got = append(got, string(c.Op))
	}
	if diff := cmp.Diff([]string{"start", "start", "start", "destroy"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestFake_holdsUntilReleasedOrCancelled(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	hold := f.Inject(backendtest.Fault{Op: backendtest.OpCreate, Hold: true})
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() { _, err := f.Create(ctx, backend.Spec{}); got <- err }()
	<-hold.Struck()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if left := f.Leaked(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	go func() { _, err := f.Create(t.Context(), backend.Spec{}); got <- err }()
	hold.Release()
	hold.Release()
	if err := <-got; err != nil {
		t.Errorf("released: %v", err)
	}
	if left := f.Leaked(); len(left) != 1 {
		t.Errorf("a sandbox is left, Leaked says %q", left)
	}
}

func TestFake_leaked(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	f := backendtest.New(backendtest.WithProgram("stubborn", func(context.Context, *backendtest.Proc) backend.Exit {
		<-release
		return backendtest.Exited(0)
	}))
	sb := create(t, f, backend.Spec{})
	p := start(t, sb, backend.Command{Args: []string{"stubborn"}})
	if err := backend.WriteFile(t.Context(), sb.Files(), "a", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	rc, err := sb.Files().Open(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Leaked(); len(got) != 4 { // sandbox, command, program, file
		t.Errorf("Leaked() = %q", got)
	}
	_ = rc.Close()
	_ = rc.Close()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Reason != backend.ReasonSignaled {
		t.Errorf("killed by Close: %v", exit)
	}
	if got := f.Leaked(); len(got) != 1 { // the program
		t.Errorf("Leaked() = %q", got)
	}
	close(release)
}

func TestFake_clock(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	sb := create(t, f, backend.Spec{Lifetime: time.Minute})
	byDefault := start(t, sb, backend.Command{Args: []string{"hang"}})
	endless := start(t, sb, backend.Command{Args: []string{"hang"}, Timeout: backend.UntilSandboxEnds})
	short := start(t, sb, backend.Command{Args: []string{"hang"}, Timeout: time.Second})
	f.Clock().Advance(time.Second)
	if exit := wait(t, short); exit.Reason != backend.ReasonTimeout || exit.Usage.Wall != time.Second {
		t.Errorf("short: %+v", exit)
	}
	f.Clock().Advance(backend.DefaultTimeout)
	if exit := wait(t, byDefault); exit.Reason != backend.ReasonTimeout {
		t.Errorf("default: %v", exit)
	}
	f.Clock().Advance(time.Hour)
	if exit := wait(t, endless); exit.Reason != backend.ReasonExpired {
		t.Errorf("until the sandbox ends: %v", exit)
	}
	_, err := sb.Start(t.Context(), backend.Command{Args: []string{"true"}})
	wantKind(t, err, backend.ErrExpired)
	if left := f.Leaked(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func TestFake_sleepFollowsTheClock(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	timer := make(chan struct{})
	f2 := backendtest.New(backendtest.WithClock(f.Clock()), backendtest.WithProgram("nap",
		func(ctx context.Context, p *backendtest.Proc) backend.Exit {
			close(timer)
			p.Sleep(ctx, 5*time.Second)
			return backendtest.Exited(3)
		}))
	sb := create(t, f2, backend.Spec{})
	before := f.Clock().Timers()
	p := start(t, sb, backend.Command{Args: []string{"nap"}})
	<-timer
	for f.Clock().Timers() < before+2 { // its timeout and its sleep
		runtime.Gosched()
	}
	f.Clock().Advance(5 * time.Second)
	if exit := wait(t, p); exit.Code != 3 {
		t.Errorf("exit %v", exit)
	}
}

func TestFake_signals(t *testing.T) {
	t.Parallel()
	ready := make(chan struct{})
	f := backendtest.New(backendtest.WithProgram("trap", func(_ context.Context, p *backendtest.Proc) backend.Exit {
		signals := p.Signals()
		close(ready)
		return backendtest.Exited(int(<-signals))
	}))
	sb := create(t, f, backend.Spec{})
	trap := start(t, sb, backend.Command{Args: []string{"trap"}})
	<-ready
	if err := trap.Signal(t.Context(), backend.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, trap); exit.String() != "exited(15)" {
		t.Errorf("handled: %v", exit)
	}
	wantKind(t, trap.Signal(t.Context(), backend.SIGTERM), backend.ErrNotFound)
	hang := start(t, sb, backend.Command{Args: []string{"hang"}})
	if err := hang.Signal(t.Context(), backend.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, hang); exit.String() != "signaled(15)" || exit.Code != 143 {
		t.Errorf("not handled: %+v", exit)
	}
}

func TestFake_outputLimit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		limits backend.Limits
		reason backend.Reason
	}{
		{"dropped", backend.Limits{Output: 10}, backend.ReasonExited},
		{"killed", backend.Limits{Output: 10, KillOnOutput: true}, backend.ReasonOutputLimit},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sb := create(t, backendtest.New(), backend.Spec{Limits: tt.limits})
			var out bytes.Buffer
			exit := wait(t, start(t, sb, backend.Command{Args: []string{"flood", "4000"}, Output: backend.Output{Stdout: &out}}))
			if exit.Reason != tt.reason || !exit.StdoutTruncated || out.Len() != 10 {
				t.Errorf("%+v with %d bytes", exit, out.Len())
			}
			if diff := cmp.Diff([]backend.Hit{backend.HitOutput}, exit.Hits); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFake_files(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	sb := create(t, f, backend.Spec{Limits: backend.Limits{Disk: 4096}})
	files, ctx := sb.Files(), t.Context()
	if err := files.Write(ctx, "d/a.txt", strings.NewReader("hello"), 0); err != nil {
		t.Fatal(err)
	}
	if err := files.Write(ctx, "../../../d/b", strings.NewReader(""), 0o600); err != nil {
		t.Fatal(err)
	}
	infos, err := files.List(ctx, "/home/user/d")
	if err != nil || len(infos) != 2 || infos[0].Name() != "a.txt" || infos[0].Size() != 5 || infos[1].Mode() != 0o600 {
		t.Errorf("List: %v %v", infos, err)
	}
	if attr, ok := infos[0].Sys().(*backend.FileAttr); !ok || attr.Path != "/home/user/d/a.txt" {
		t.Errorf("Sys: %#v", infos[0].Sys())
	}
	if err := files.Rename(ctx, "d", "e"); err != nil {
		t.Fatal(err)
	}
	if got, err := backend.ReadFile(ctx, files, "e/a.txt", 5); err != nil || string(got) != "hello" {
		t.Errorf("renamed: %q %v", got, err)
	}
	if _, err := files.Stat(ctx, "d"); !errors.Is(err, fs.ErrNotExist) || backend.KindOf(err) != backend.ErrNotFound {
		t.Errorf("absent: %v", err)
	}
	wantKind(t, files.Write(ctx, "big", strings.NewReader(strings.Repeat("x", 5000)), 0), backend.ErrTooLarge)
	wantKind(t, files.Rename(ctx, "e", "e/f"), backend.ErrInvalid)
	_, err = files.Open(ctx, "e")
	wantKind(t, err, backend.ErrInvalid)
	for range 2 {
		if err := files.Remove(ctx, "e"); err != nil {
			t.Error(err)
		}
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	wantKind(t, files.Mkdir(ctx, "x", 0), backend.ErrClosed)
	if left := f.Leaked(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func TestFake_brokenRead(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	sb := create(t, f, backend.Spec{})
	if err := backend.WriteFile(t.Context(), sb.Files(), "a", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	f.Inject(backendtest.Fault{Op: backendtest.OpRead, Err: io.ErrUnexpectedEOF})
	if _, err := backend.ReadFile(t.Context(), sb.Files(), "a", 9); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("ReadFile: %v", err)
	}
}
