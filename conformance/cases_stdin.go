package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func stdinCases() []Case {
	sh, in := needs(shell()), needs(shell(), feature(backend.FeatureInput))
	return []Case{
		{ID: "SI-01", Area: Stdin, Title: "a reader is read to its end", Needs: sh, Run: stdinToEnd},
		{ID: "SI-02", Area: Stdin, Title: "32 MiB go in and come back, byte for byte", Needs: sh, Run: largeStdin},
		{ID: "SI-03", Area: Stdin, Title: "without a reader standard input is at its end", Needs: sh, Run: noStdin},
		{ID: "SI-04", Area: Stdin, Title: "Wait does not wait for a reader that nobody reads", Needs: sh, Run: unreadStdin},
		{ID: "SI-05", Area: Stdin, Title: "an endless reader does not hold up a command that ends", Needs: sh, Run: endlessStdin},
		{ID: "SI-06", Area: Stdin, Title: "a reader's error ends the input", Needs: sh, Run: failingStdin},
		{ID: "SI-07", Area: Stdin, Title: "kept input takes what is written, when it is written", Needs: in, Run: keptInput},
		{ID: "SI-08", Area: Stdin, Title: "closing kept input is the command's end of file", Needs: in, Run: closeInput},
		{ID: "SI-09", Area: Stdin, Title: "input for a command that has ended is an error", Needs: in, Run: inputAfterEnd},
		{ID: "SI-10", Area: Stdin, Title: "input that nobody reads blocks, until the context ends", Needs: in, Run: inputBlocks},
		{ID: "SI-11", Area: Stdin, Title: "kept input stays open though nobody writes", Needs: in, Run: inputStaysOpen},
	}
}

func stdinToEnd(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for _, n := range []int{0, 1, 4096, 1<<20 + 1} {
		got := t.good(t.command(ctx, sb, backend.Command{Args: []string{"sh", "-c", "wc -c"}, Stdin: bytes.NewReader(pattern(n))}))
		if strings.TrimSpace(got) != fmt.Sprint(n) {
			t.Errorf("%d bytes: %q arrived", n, got)
		}
	}
}

func largeStdin(ctx context.Context, t *T) {
	data := pattern(32 << 20)
	got := t.command(ctx, t.Create(ctx, backend.Spec{}), backend.Command{Args: []string{"cat"}, Stdin: bytes.NewReader(data), Timeout: 90 * time.Second})
	if !got.Success() || got.out != string(data) {
		t.Errorf("%v, %d bytes, or others", got.Exit, len(got.out))
	}
}

func noStdin(ctx context.Context, t *T) {
	if got := t.good(t.sh(ctx, t.Create(ctx, backend.Spec{}), "cat; echo over")); got != "over\n" {
		t.Errorf("%q", got)
	}
}

func unreadStdin(ctx context.Context, t *T) {
	r, w := io.Pipe()
	defer w.Close() //nolint:errcheck // nothing is written
	t.good(t.command(ctx, t.Create(ctx, backend.Spec{}), backend.Command{Args: []string{"true"}, Stdin: r}))
}

func endlessStdin(ctx context.Context, t *T) {
	got := t.good(t.command(ctx, t.Create(ctx, backend.Spec{}), backend.Command{Args: []string{"head", "-c", "100000"}, Stdin: endless('x')}))
	if got != strings.Repeat("x", 100_000) {
		t.Errorf("%d bytes, or others", len(got))
	}
}

func failingStdin(ctx context.Context, t *T) {
	got, err := tryRun(ctx, t.Create(ctx, backend.Spec{}), backend.Command{
		Args: []string{"sh", "-c", "wc -c"}, Stdin: &brokenReader{1000, errors.New("the reader broke")}, Timeout: 20 * time.Second,
	})
	if got.Reason == backend.ReasonTimeout || ctx.Err() != nil {
		t.Errorf("it waited for more: %v, %v", got.Exit, err)
	}
}

// talk starts a command whose input stays open.
func (t *T) talk(ctx context.Context, sb backend.Sandbox, args ...string) (backend.Process, backend.Inputter, *tape) {
	p, out, _ := t.start(ctx, sb, backend.Command{Args: args, KeepInput: true})
	return p, find[backend.Inputter](t, "input", p), out
}

func keptInput(ctx context.Context, t *T) {
	p, in, out := t.talk(ctx, t.Create(ctx, backend.Spec{}), "cat")
	var want strings.Builder
	for _, s := range []string{"one\n", "\x00\xff two\n", strings.Repeat("three ", 50_000)} {
		if err := in.WriteInput(ctx, []byte(s)); err != nil {
			t.Fatalf("%v", err)
		}
		want.WriteString(s)
		t.until(ctx, "it comes back", func() bool { return out.String() == want.String() })
	}
	if err := in.CloseInput(ctx); err != nil {
		t.Errorf("%v", err)
	}
	t.exited("it", t.wait(ctx, p), "exited(0)")
}

func closeInput(ctx context.Context, t *T) {
	p, in, out := t.talk(ctx, t.Create(ctx, backend.Spec{}), "sh", "-c", "cat; echo over")
	if err := in.CloseInput(ctx); err != nil {
		t.Errorf("%v", err)
	}
	t.exited("it", t.wait(ctx, p), "exited(0)")
	if out.String() != "over\n" {
		t.Errorf("%q", out.String())
	}
}

func inputAfterEnd(ctx context.Context, t *T) {
	p, in, _ := t.talk(ctx, t.Create(ctx, backend.Spec{}), "true")
	t.wait(ctx, p)
	t.kind("write", in.WriteInput(ctx, []byte("x")), backend.ErrNotFound, backend.ErrClosed, backend.ErrConflict)
}

func inputBlocks(ctx context.Context, t *T) {
	p, in, _ := t.talk(ctx, t.Create(ctx, backend.Spec{}), "sleep", "1000")
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := in.WriteInput(short, make([]byte, 16<<20)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := p.Signal(ctx, backend.SIGKILL); err != nil {
		t.Errorf("%v", err)
	}
	t.exited("it", t.wait(ctx, p), "signaled(9)")
}

func inputStaysOpen(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, in, out := t.talk(ctx, sb, "sh", "-c", "read line; echo got $line")
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if exit, err := p.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ended by itself: %v %v", exit, err)
	}
	if err := in.WriteInput(ctx, []byte("it\n")); err != nil {
		t.Errorf("%v", err)
	}
	t.exited("it", t.wait(ctx, p), "exited(0)")
	if out.String() != "got it\n" {
		t.Errorf("%q", out.String())
	}
}
