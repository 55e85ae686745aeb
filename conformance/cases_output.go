package conformance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func outputCases() []Case {
	sh := needs(shell())
	return []Case{
		{ID: "CM-40", Area: Commands, Title: "standard output and standard error stay apart", Needs: sh, Run: streamsApart},
		{ID: "CM-41", Area: Commands, Title: "output arrives byte for byte", Needs: needs(python()), Run: binaryOutput},
		{ID: "CM-42", Area: Commands, Title: "output arrives as it is written, not at the end", Needs: sh, Run: outputAtOnce},
		{ID: "CM-43", Area: Commands, Title: "64 MiB arrive through a slow writer, which slows the command", Needs: sh, Run: backPressure},
		{ID: "CM-44", Area: Commands, Title: "a writer that stands still holds up its own command alone", Needs: sh, Run: slowWriterAlone},
		{ID: "CM-45", Area: Commands, Title: "a writer that fails stops the delivery, not the command", Needs: sh, Run: failingWriter},
		{ID: "CM-46", Area: Commands, Title: "output without a writer is discarded", Needs: sh, Run: noWriter},
		{ID: "CM-47", Area: Commands, Title: "no writer is called after Wait returned", Needs: sh, Run: noWriteAfterWait},
		{ID: "CM-48", Area: Commands, Title: "a command may close its output and go on", Needs: sh, Run: closedOutput},
		{ID: "CM-49", Area: Commands, Title: "a program's last words arrive though it is killed", Needs: sh, Run: lastWords},
	}
}

func streamsApart(ctx context.Context, t *T) {
	got := t.sh(ctx, t.Create(ctx, backend.Spec{}), "echo out; echo err >&2; echo out again; exit 3")
	if got.out != "out\nout again\n" || got.err != "err\n" || got.Code != 3 {
		t.Errorf("%v %q %q", got.Exit, got.out, got.err)
	}
}

func binaryOutput(ctx context.Context, t *T) {
	got := t.python(ctx, t.Create(ctx, backend.Spec{}), `
import sys
every = bytes(range(256)) * 4000
sys.stdout.buffer.write(every)
sys.stderr.buffer.write(every[::-1])
`)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	want := bytes.Repeat(every, 4000)
	t.good(outcome{Exit: got.Exit})
	if got.out != string(want) {
		t.Errorf("standard output: %d bytes, or others", len(got.out))
	}
	for i, b := range []byte(got.err) {
		if len(got.err) != len(want) || b != want[len(want)-1-i] {
			t.Errorf("standard error: %d bytes, or others", len(got.err))
			break
		}
	}
	if got.Usage.Stdout != int64(len(want)) || got.Usage.Stderr != int64(len(want)) {
		t.Errorf("counted %d and %d", got.Usage.Stdout, got.Usage.Stderr)
	}
}

func outputAtOnce(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, out, _ := t.start(ctx, sb, backend.Command{Args: []string{"sh", "-c", "echo first; until test -e go; do sleep 0.05; done; echo second"}})
	t.until(ctx, "the first line is there", func() bool { return out.String() == "first\n" })
	t.write(ctx, sb, "go", "")
	t.exited("it", t.wait(ctx, p), "exited(0)")
	if out.String() != "first\nsecond\n" {
		t.Errorf("%q", out.String())
	}
}

// gate is a writer that counts, and holds everything until it is opened.
type gate struct {
	n       atomic.Int64
	reached chan struct{}
	open    chan struct{}
	first   atomic.Bool
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) Write(p []byte) (int, error) {
	if g.first.CompareAndSwap(false, true) {
		close(g.reached)
	}
	<-g.open
	g.n.Add(int64(len(p)))
	return len(p), nil
}

func backPressure(ctx context.Context, t *T) {
	const size = 64 << 20
	sb := t.Create(ctx, backend.Spec{})
	g := newGate()
	p, _, _ := t.start(ctx, sb, backend.Command{
		Args: []string{"sh", "-c", "head -c 67108864 /dev/zero; echo x >done"}, Output: backend.Output{Stdout: g}, Timeout: 90 * time.Second,
	})
	select {
	case <-g.reached:
	case <-ctx.Done():
		close(g.open)
		t.Fatalf("no output arrived")
	}
	// While nothing is taken, the command cannot come to its end.
	for range 15 {
		if _, err := sb.Files().Stat(ctx, "done"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it is done though nobody took its output: %v", err)
			break
		}
		wait(ctx, 50*time.Millisecond)
	}
	close(g.open)
	exit := t.wait(ctx, p)
	if !exit.Success() || g.n.Load() != size || exit.Usage.Stdout != size || exit.StdoutTruncated {
		t.Errorf("%+v, %d bytes", exit, g.n.Load())
	}
	if _, err := sb.Files().Stat(ctx, "done"); err != nil {
		t.Errorf("it is not done: %v", err)
	}
}

func slowWriterAlone(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	g := newGate()
	p, _, _ := t.start(ctx, sb, backend.Command{Args: []string{"sh", "-c", "head -c 20000000 /dev/zero"}, Output: backend.Output{Stdout: g}, Timeout: time.Minute})
	select {
	case <-g.reached:
	case <-ctx.Done():
	}
	for range 5 {
		if got := t.sh(ctx, sb, "head -c 300000 /dev/zero"); len(got.out) != 300_000 {
			t.Errorf("the other: %v, %d bytes", got.Exit, len(got.out))
		}
	}
	close(g.open)
	t.exited("the slow one", t.wait(ctx, p), "exited(0)")
}

func failingWriter(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	r, w := io.Pipe()
	go func() {
		_, _ = io.CopyN(io.Discard, r, 100_000)
		_ = r.Close() // from now on each write fails
	}()
	got := t.command(ctx, sb, backend.Command{Args: []string{"sh", "-c", "head -c 3000000 /dev/zero; echo end >&2"}, Output: backend.Output{Stdout: w}})
	if !got.Success() || got.err != "end\n" || got.Usage.Stdout != 3_000_000 {
		t.Errorf("%+v %q", got.Exit, got.err)
	}
}

func noWriter(ctx context.Context, t *T) {
	p, err := t.Create(ctx, backend.Spec{}).Start(ctx, backend.Command{Args: []string{"sh", "-c", "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 5"}})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.exited("it", t.wait(ctx, p), "exited(5)")
}

// afterward counts what is written once it is closed.
type afterward struct {
	closed atomic.Bool
	late   atomic.Int64
}

func (a *afterward) Write(p []byte) (int, error) {
	if a.closed.Load() {
		a.late.Add(int64(len(p)))
	}
	return len(p), nil
}

func noWriteAfterWait(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	var a afterward
	p, _, _ := t.start(ctx, sb, backend.Command{
		Args: []string{"sh", "-c", "(while :; do echo more; sleep 0.02; done) & echo main"}, Output: backend.Output{Stdout: &a},
	})
	exit := t.wait(ctx, p)
	a.closed.Store(true)
	if !exit.Success() || !exit.OutputHeld {
		t.Errorf("%+v", exit)
	}
	wait(ctx, 500*time.Millisecond)
	if n := a.late.Load(); n > 0 {
		t.Errorf("%d bytes came later", n)
	}
}

func closedOutput(ctx context.Context, t *T) {
	got := t.sh(ctx, t.Create(ctx, backend.Spec{}), "echo before; exec >&- 2>&-; sleep 0.3; exit 6")
	if got.String() != "exited(6)" || got.out != "before\n" {
		t.Errorf("%v %q", got.Exit, got.out)
	}
}

func lastWords(ctx context.Context, t *T) {
	got := t.sh(ctx, t.Create(ctx, backend.Spec{}), "head -c 60000 /dev/zero; echo bye >&2; kill -9 $$")
	if got.String() != "signaled(9)" || len(got.out) != 60_000 || got.err != "bye\n" {
		t.Errorf("%v, %d bytes, %q", got.Exit, len(got.out), got.err)
	}
}
