package conformance

import (
	"context"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func terminalCases() []Case {
	tty := needs(shell(), feature(backend.FeatureTerminal))
	talk := needs(shell(), feature(backend.FeatureTerminal), feature(backend.FeatureInput))
	return []Case{
		{ID: "PT-01", Area: PTY, Title: "all three streams are a terminal", Needs: tty, Run: isTerminal},
		{ID: "PT-02", Area: PTY, Title: "the terminal has the size that was asked for, or 80 by 24", Needs: tty, Run: terminalSize},
		{ID: "PT-03", Area: PTY, Title: "resizing is seen inside, with its signal", Needs: talk, Run: resize},
		{ID: "PT-04", Area: PTY, Title: "what is typed is echoed", Needs: talk, Run: echo},
		{ID: "PT-05", Area: PTY, Title: "control-C interrupts", Needs: talk, Run: controlC},
		{ID: "PT-06", Area: PTY, Title: "control-D is the end of input", Needs: talk, Run: controlD},
		{ID: "PT-07", Area: PTY, Title: "a terminal's input cannot be closed", Needs: talk, Run: closeTerminal},
		{ID: "PT-08", Area: PTY, Title: "standard error goes to the terminal as well", Needs: tty, Run: terminalStderr},
		{ID: "PT-09", Area: PTY, Title: "it is the controlling terminal", Needs: tty, Run: controllingTerminal},
		{ID: "PT-10", Area: PTY, Title: "the exit code and all output arrive", Needs: tty, Run: terminalExit},
		{ID: "PT-11", Area: PTY, Title: "a command without a terminal has none", Needs: tty, Run: noTerminal},
		{ID: "PT-12", Area: PTY, Title: "resizing what has ended is an error", Needs: tty, Run: resizeEnded},
	}
}

// terminal runs a script on a terminal and gives what it showed.
func (t *T) terminal(ctx context.Context, size backend.TerminalSize, script string) (outcome, string) {
	got := t.command(ctx, t.Create(ctx, backend.Spec{}), backend.Command{Args: []string{"sh", "-c", script}, Terminal: &size})
	return got, strings.ReplaceAll(got.out, "\r\n", "\n")
}

// typed starts a script on a terminal, whose keyboard is the Inputter.
func (t *T) typed(ctx context.Context, script string) (backend.Process, backend.Inputter, *tape) {
	p, out, _ := t.start(ctx, t.Create(ctx, backend.Spec{}), backend.Command{
		Args: []string{"sh", "-c", script}, KeepInput: true, Terminal: &backend.TerminalSize{Cols: 90, Rows: 30},
	})
	t.until(ctx, "it is ready", func() bool { return strings.Contains(out.String(), "ready") })
	return p, find[backend.Inputter](t, "input", p), out
}

func (t *T) types(ctx context.Context, in backend.Inputter, keys string) {
	if err := in.WriteInput(ctx, []byte(keys)); err != nil {
		t.Fatalf("%v", err)
	}
}

func isTerminal(ctx context.Context, t *T) {
	got, shown := t.terminal(ctx, backend.TerminalSize{}, "for fd in 0 1 2; do test -t $fd && echo $fd; done")
	if !got.Success() || shown != "0\n1\n2\n" {
		t.Errorf("%v %q", got.Exit, shown)
	}
}

func terminalSize(ctx context.Context, t *T) {
	for _, tt := range []struct {
		size backend.TerminalSize
		want string
	}{{backend.TerminalSize{Cols: 132, Rows: 43}, "43 132\n"}, {backend.TerminalSize{}, "24 80\n"}} {
		if got, shown := t.terminal(ctx, tt.size, "stty size"); shown != tt.want {
			t.Errorf("%+v: %v %q", tt.size, got.Exit, shown)
		}
	}
}

func resize(ctx context.Context, t *T) {
	p, _, out := t.typed(ctx, `trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done`)
	if err := find[backend.Resizer](t, "terminal", p).Resize(ctx, backend.TerminalSize{Cols: 101, Rows: 51}); err != nil {
		t.Fatalf("%v", err)
	}
	t.exited("it", t.wait(ctx, p), "exited(0)")
	if !strings.Contains(out.String(), "51 101") {
		t.Errorf("%q", out.String())
	}
}

func echo(ctx context.Context, t *T) {
	p, in, out := t.typed(ctx, `echo ready; read line; echo "read <$line>"`)
	t.types(ctx, in, "typed\n")
	t.exited("it", t.wait(ctx, p), "exited(0)")
	if got := strings.ReplaceAll(out.String(), "\r", ""); got != "ready\ntyped\nread <typed>\n" {
		t.Errorf("%q", got)
	}
}

func controlC(ctx context.Context, t *T) {
	p, in, out := t.typed(ctx, `trap 'echo interrupted; exit 4' INT; echo ready; while :; do sleep 0.05; done`)
	t.types(ctx, in, "\x03")
	t.exited("it", t.wait(ctx, p), "exited(4)")
	if !strings.Contains(out.String(), "interrupted") {
		t.Errorf("%q", out.String())
	}
}

func controlD(ctx context.Context, t *T) {
	p, in, out := t.typed(ctx, `echo ready; cat; echo over`)
	t.types(ctx, in, "\x04")
	t.exited("it", t.wait(ctx, p), "exited(0)")
	if !strings.Contains(out.String(), "over") {
		t.Errorf("%q", out.String())
	}
}

func closeTerminal(ctx context.Context, t *T) {
	p, in, _ := t.typed(ctx, `echo ready; read line; exit 5`)
	t.kind("close", in.CloseInput(ctx), backend.ErrUnsupported)
	t.types(ctx, in, "\n")
	t.exited("it", t.wait(ctx, p), "exited(5)")
}

func terminalStderr(ctx context.Context, t *T) {
	got, shown := t.terminal(ctx, backend.TerminalSize{}, "echo out; echo err >&2")
	if shown != "out\nerr\n" || got.err != "" {
		t.Errorf("%q, %q", shown, got.err)
	}
}

func controllingTerminal(ctx context.Context, t *T) {
	if got, shown := t.terminal(ctx, backend.TerminalSize{}, "echo said >/dev/tty"); shown != "said\n" {
		t.Errorf("%v %q", got.Exit, shown)
	}
}

func terminalExit(ctx context.Context, t *T) {
	got, shown := t.terminal(ctx, backend.TerminalSize{}, "i=0; while test $i -lt 2000; do echo line $i; i=$((i+1)); done; exit 3")
	if got.String() != "exited(3)" || strings.Count(shown, "\n") != 2000 || !strings.HasSuffix(shown, "line 1999\n") {
		t.Errorf("%v, %d lines", got.Exit, strings.Count(shown, "\n"))
	}
}

func noTerminal(ctx context.Context, t *T) {
	got := t.sh(ctx, t.Create(ctx, backend.Spec{}), "for fd in 0 1 2; do test -t $fd && echo $fd; done; (echo x >/dev/tty) 2>/dev/null && echo tty; true")
	if t.good(got) != "" {
		t.Errorf("%q", got.out)
	}
}

func resizeEnded(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, _, _ := t.start(ctx, sb, backend.Command{Args: []string{"true"}, Terminal: &backend.TerminalSize{}, Timeout: 20 * time.Second})
	t.wait(ctx, p)
	r := find[backend.Resizer](t, "terminal", p)
	t.kind("resize", r.Resize(ctx, backend.TerminalSize{Cols: 10, Rows: 10}), backend.ErrNotFound, backend.ErrConflict, backend.ErrClosed)
}
