//go:build unix

package plain_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func TestProcess_exits(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	write(t, sb, "script", "echo from a script $1; exit 4", 0o755)
	write(t, sb, "data", "no program", 0o644)
	write(t, sb, "lost", "#!/no/such/interpreter\n", 0o755)
	tests := []struct {
		name        string
		args        []string
		want        string
		out, errors string
	}{
		{"success", []string{"true"}, "exited(0)", "", ""},
		{"a status", []string{"sh", "-c", "exit 3"}, "exited(3)", "", ""},
		{"both outputs", []string{"sh", "-c", "echo a; echo b >&2"}, "exited(0)", "a\n", "b\n"},
		{"a signal of its own", []string{"sh", "-c", "kill -TERM $$"}, "signaled(15)", "", ""},
		{"its own SIGKILL", []string{"sh", "-c", "kill -KILL $$"}, "signaled(9)", "", ""},
		{"missing", []string{"no-such-program"}, "exited(127)", "", "no-such-program: not found\n"},
		{"missing with a path", []string{"./no/such"}, "exited(127)", "", "./no/such: not found\n"},
		{"below a file", []string{"./data/x"}, "exited(127)", "", "./data/x: not found\n"},
		{"no interpreter", []string{"./lost"}, "exited(127)", "", "./lost: not found\n"},
		{"not executable", []string{"./data"}, "exited(126)", "", "./data: Permission denied\n"},
		{"a directory", []string{"/"}, "exited(126)", "", ""},
		{"a script without a first line", []string{"./script", "x"}, "exited(4)", "from a script x\n", ""},
		{"its name", []string{"sh", "-c", "echo $0", "other"}, "exited(0)", "other\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exit, out, errs := run(t, sb, backend.Command{Args: tt.args})
			if exit.String() != tt.want || out != tt.out || tt.errors != "" && errs != tt.errors {
				t.Errorf("%s %q %q", exit, out, errs)
			}
			if exit.Usage.Wall <= 0 || exit.Usage.Stdout != int64(len(out)) || exit.Usage.Stderr != int64(len(errs)) {
				t.Errorf("usage %+v", exit.Usage)
			}
			if exit.Reason == backend.ReasonSignaled && exit.Code != 128+int(exit.Signal) {
				t.Errorf("code %d", exit.Code)
			}
		})
	}
}

func TestProcess_refuses(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	tests := []struct {
		change func(*backend.Command)
		kind   backend.Kind
		field  string
	}{
		{func(c *backend.Command) { c.Args = nil }, backend.ErrInvalid, "command.args"},
		{func(c *backend.Command) { c.Terminal = &backend.TerminalSize{} }, backend.ErrUnsupported, "command.terminal"},
		{func(c *backend.Command) { c.User = "root" }, backend.ErrUnsupported, "command.user"},
		{func(c *backend.Command) { c.CPUTime = 1 }, backend.ErrUnsupported, "command.cpu_time"},
		{func(c *backend.Command) { c.Dir = "missing" }, backend.ErrInvalid, "command.dir"},
		{func(c *backend.Command) { c.Args = []string{"true", strings.Repeat("x", 8<<20)} }, backend.ErrInvalid, "command.args"},
	}
	for _, tt := range tests {
		cmd := sh("true")
		tt.change(&cmd)
		_, err := sb.Start(t.Context(), cmd)
		wantKind(t, err, tt.kind, tt.field)
	}
}

func TestProcess_timeoutKillsTheGroup(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	out := newLine()
	cmd := sh("trap '' TERM; sleep 600 & echo $!; wait")
	cmd.Timeout, cmd.Output.Stdout = 300*time.Millisecond, out
	exit := wait(t, start(t, sb, cmd))
	if exit.Reason != backend.ReasonTimeout || exit.Signal != backend.SIGKILL || exit.Code != 137 || exit.KillScope != "session" {
		t.Errorf("%+v", exit)
	}
	child := pid(t, out.get(t))
	eventually(t, "the descendant's end", func() bool { return !running(child) })
}

func TestProcess_outputLimit(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprint(kill), func(t *testing.T) {
			t.Parallel()
			sb := newSandbox(t, backend.Spec{Limits: backend.Limits{Output: 1000, KillOnOutput: kill}})
			script := "yes | head -c 200000; echo end >&2"
			if kill {
				script = "yes"
			}
			exit, out, errs := run(t, sb, sh(script))
			if len(out) != 1000 || !exit.StdoutTruncated || exit.StderrTruncated || len(exit.Hits) != 1 || exit.Hits[0] != backend.HitOutput {
				t.Errorf("%d bytes, %+v", len(out), exit)
			}
			if kill {
				if exit.Reason != backend.ReasonOutputLimit {
					t.Errorf("ended with %s", exit)
				}
				return
			}
			if !exit.Success() || errs != "end\n" || exit.Usage.Stdout != 200000 {
				t.Errorf("%+v, %q", exit, errs)
			}
		})
	}
}

func TestProcess_brokenWriterStopsDeliveryOnly(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	r, w := io.Pipe()
	_ = r.Close()
	cmd := sh("yes | head -c 300000; exit 5")
	cmd.Output.Stdout = w
	if exit := wait(t, start(t, sb, cmd)); exit.Code != 5 || exit.Usage.Stdout != 300000 {
		t.Errorf("%+v", exit)
	}
}

func TestProcess_descendantsHoldTheOutput(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, script, out string }{
		{"silent", "echo a; sleep 60 & echo $! >pid", "a\n"},
		{"in a session of its own", "echo a; setsid sleep 60 & echo $! >pid", "a\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sb := newSandbox(t, backend.Spec{})
			var out buffer
			cmd := sh(tt.script)
			cmd.Output.Stdout = &out
			began := time.Now()
			exit := wait(t, start(t, sb, cmd))
			took, written := time.Since(began), out.String()
			if !exit.Success() || !exit.OutputHeld || !strings.HasPrefix(written, tt.out) {
				t.Errorf("%+v %.20q", exit, written)
			}
			if took < time.Second || took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			child := pid(t, strings.TrimSpace(read(t, sb, "pid")))
			<-time.After(100 * time.Millisecond)
			if out.String() != written {
				t.Error("a writer was called after Wait")
			}
			if !running(child) {
				t.Error("the descendant did not live on with its sandbox")
			}
			if strings.Contains(tt.script, "setsid") {
				// It is out of reach; the test ends it.
				run(t, sb, sh(fmt.Sprintf("kill -9 %d", child)))
			}
		})
	}
}

func TestProcess_descendantsFloodTheOutput(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	cmd := sh("yes & exit 6")
	cmd.Output.Stdout = &slowWriter{pause: time.Millisecond}
	began := time.Now()
	exit := wait(t, start(t, sb, cmd))
	if took := time.Since(began); exit.Code != 6 || !exit.OutputHeld || took < time.Second || took > 5*time.Second {
		t.Errorf("%+v after %v", exit, took)
	}
}

// TestProcess_slowWriterGetsEverything: a second after the end what is in the
// pipe is still delivered.
func TestProcess_slowWriterGetsEverything(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	slow := &slowWriter{pause: 1300 * time.Millisecond}
	cmd := sh("yes | head -c 60000")
	cmd.Output.Stdout = slow
	exit := wait(t, start(t, sb, cmd))
	if slow.n != 60000 || exit.OutputHeld {
		t.Errorf("%d bytes, %+v", slow.n, exit)
	}
}

type slowWriter struct {
	pause time.Duration
	n     int
}

func (w *slowWriter) Write(p []byte) (int, error) {
	<-time.After(w.pause)
	w.n += len(p)
	return len(p), nil
}

func TestProcess_inputEndsWithItsCommand(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	out := newLine()
	cmd := sh("exec 3<&0; cat <&3 >/dev/null & echo $!")
	cmd.KeepInput, cmd.Output.Stdout = true, out
	wait(t, start(t, sb, cmd))
	reader := pid(t, out.get(t))
	eventually(t, "the end of the descendant's input", func() bool { return !running(reader) })
}

func TestProcess_input(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	cmd := backend.Command{Args: []string{"cat"}, Stdin: bytes.NewReader(big)}
	if exit, out, _ := run(t, sb, cmd); !exit.Success() || out != string(big) {
		t.Errorf("%s, %d bytes", exit, len(out))
	}
	if exit, out, _ := run(t, sb, backend.Command{Args: []string{"cat"}}); !exit.Success() || out != "" {
		t.Errorf("no input: %s %q", exit, out)
	}
	// What does not read, and a reader that never ends, hold up nobody.
	r, w := io.Pipe()
	defer w.Close()
	if exit, _, _ := run(t, sb, backend.Command{Args: []string{"true"}, Stdin: r}); !exit.Success() {
		t.Error(exit)
	}
	cmd = backend.Command{Args: []string{"cat"}, Stdin: io.MultiReader(strings.NewReader("a"), broken{})}
	if exit, out, _ := run(t, sb, cmd); out != "a" || len(exit.Warnings) != 1 {
		t.Errorf("%+v %q", exit, out)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestProcess_keepInput(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	if _, ok := backend.As[backend.Inputter](start(t, sb, sh("true"))); ok {
		t.Error("input without KeepInput")
	}
	out := newLine()
	p := start(t, sb, backend.Command{Args: []string{"cat"}, KeepInput: true, Output: backend.Output{Stdout: out}})
	in, ok := backend.As[backend.Inputter](p)
	if !ok {
		t.Fatal("no input")
	}
	if err := in.WriteInput(t.Context(), []byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if got := out.get(t); got != "hello" {
		t.Errorf("got %q", got)
	}
	for range 2 {
		if err := in.CloseInput(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantKind(t, in.WriteInput(t.Context(), []byte("x")), backend.ErrNotFound, "")
	if exit := wait(t, p); !exit.Success() {
		t.Error(exit)
	}
	wantKind(t, in.WriteInput(t.Context(), []byte("x")), backend.ErrNotFound, "")
}

func TestProcess_inputEndsWithItsContext(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	p := start(t, sb, backend.Command{Args: []string{"sleep", "60"}, KeepInput: true})
	in, _ := backend.As[backend.Inputter](p)
	for range 2 { // the second does not even get its turn
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := in.WriteInput(ctx, make([]byte, 1<<20)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		cancel()
	}
	if err := p.Signal(t.Context(), backend.SIGKILL); err != nil {
		t.Error(err)
	}
	if exit := wait(t, p); exit.String() != "signaled(9)" {
		t.Error(exit)
	}
}

func TestProcess_signals(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	out := newLine()
	cmd := sh("trap 'exit 7' USR1; echo ready; while :; do sleep 0.02; done")
	cmd.Output.Stdout = out
	p := start(t, sb, cmd)
	out.get(t)
	wantKind(t, p.Signal(t.Context(), 65), backend.ErrInvalid, "signal")
	wantKind(t, p.Signal(t.Context(), -1), backend.ErrInvalid, "signal")
	for _, sig := range []backend.Signal{0, 10} { // 10 is SIGUSR1 on Linux
		if err := p.Signal(t.Context(), sig); err != nil {
			t.Fatal(err)
		}
	}
	if exit := wait(t, p); exit.String() != "exited(7)" {
		t.Error(exit)
	}
	wantKind(t, p.Signal(t.Context(), backend.SIGTERM), backend.ErrNotFound, "")
	ended := start(t, sb, backend.Command{Args: []string{"missing"}})
	wait(t, ended)
	wantKind(t, ended.Signal(t.Context(), backend.SIGKILL), backend.ErrNotFound, "")
}

func TestRunIn_cancelKillsTheGroup(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	out := newLine()
	cmd := sh("sleep 600 & echo $!; wait")
	cmd.Output.Stdout = out
	ctx, cancel := context.WithCancel(t.Context())
	var child int
	go func() {
		child = pid(t, <-out.c)
		cancel()
	}()
	exit, err := backend.RunIn(ctx, sb, cmd)
	if !errors.Is(err, context.Canceled) || exit.Reason != backend.ReasonCanceled {
		t.Errorf("%v %v", exit, err)
	}
	eventually(t, "the descendant's end", func() bool { return !running(child) })
}

func TestRun_oneShot(t *testing.T) {
	t.Parallel()
	ex, _ := newExecutor(t)
	res, err := backend.Run(t.Context(), ex, backend.RunSpec{
		Command: sh("tr a-z A-Z <in/data | tee out"),
		Files:   map[string]backend.File{"in/data": {Data: []byte("abc")}},
		Fetch:   []string{"out", "absent"},
	})
	if err != nil || string(res.Stdout) != "ABC" || string(res.Files["out"]) != "ABC" || len(res.Files) != 1 {
		t.Errorf("%v %+v", err, res)
	}
}

func TestProcess_thousandShortCommands(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{})
	n := 1000
	if testing.Short() {
		n = 50
	}
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := w; i < n; i += 4 {
				var out buffer
				exit, err := backend.RunIn(t.Context(), sb, backend.Command{
					Args: []string{"/bin/sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i%256)}, Output: backend.Output{Stdout: &out},
				})
				if err != nil || exit.Code != i%256 || out.String() != fmt.Sprintln(i) {
					t.Errorf("%d: %v %v %q", i, err, exit, out.String())
					return
				}
			}
		})
	}
	wg.Wait()
	eventually(t, "goroutines of ended commands", func() bool { return runtime.NumGoroutine() < before+200 })
}
