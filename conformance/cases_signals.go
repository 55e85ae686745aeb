package conformance

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func signalCases() []Case {
	sh := needs(shell())
	return []Case{
		{ID: "SG-01", Area: Signals, Title: "a command handles TERM and ends with its own code", Needs: sh, Run: handlesTerm},
		{ID: "SG-02", Area: Signals, Title: "a command handles a signal and goes on", Needs: sh, Run: handlesAndGoesOn},
		{ID: "SG-03", Area: Signals, Title: "each signal that is sent is the one that arrives", Needs: sh, Run: eachSignal},
		{ID: "SG-04", Area: Signals, Title: "KILL ends what ignores everything else", Needs: sh, Run: kill},
		{ID: "SG-05", Area: Signals, Title: "a signal goes to the command, not to its descendants", Needs: sh, Run: signalNotDescendants},
		{ID: "SG-06", Area: Signals, Title: "STOP stops and CONT continues", Needs: sh, Run: stopAndContinue},
		{ID: "SG-07", Area: Signals, Title: "a stopped command is killed like any other", Needs: sh, Run: killStopped},
		{ID: "SG-08", Area: Signals, Title: "a signal to one command leaves the others alone", Needs: sh, Run: signalOne},
	}
}

// ready starts a script and waits for it to say that it is ready.
func (t *T) ready(ctx context.Context, sb backend.Sandbox, script string) (backend.Process, *tape) {
	p, out, errs := t.start(ctx, sb, backend.Command{Args: []string{"sh", "-c", script}, Timeout: time.Minute})
	t.until(ctx, "it is ready", func() bool { return strings.Contains(out.String(), "ready\n") || errs.String() != "" })
	return p, out
}

func (t *T) signal(ctx context.Context, p backend.Process, sig backend.Signal) {
	if err := p.Signal(ctx, sig); err != nil {
		t.Fatalf("signal %d: %v", sig, err)
	}
}

const loop = "echo ready; while :; do sleep 0.02; done"

func handlesTerm(ctx context.Context, t *T) {
	p, _ := t.ready(ctx, t.Create(ctx, backend.Spec{}), "trap 'exit 9' TERM; "+loop)
	t.signal(ctx, p, backend.SIGTERM)
	t.exited("it", t.wait(ctx, p), "exited(9)")
}

func handlesAndGoesOn(ctx context.Context, t *T) {
	p, out := t.ready(ctx, t.Create(ctx, backend.Spec{}), "trap 'echo one' USR1; "+loop)
	t.signal(ctx, p, 10)
	t.until(ctx, "it handled it", func() bool { return strings.HasSuffix(out.String(), "one\n") })
	t.signal(ctx, p, backend.SIGTERM)
	t.exited("it", t.wait(ctx, p), "signaled(15)")
}

func eachSignal(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for _, sig := range []backend.Signal{1, 2, 3, 10, 12, 14, 15} {
		p, _ := t.ready(ctx, sb, fmt.Sprintf("for s in 1 2 3 10 12 14 15; do trap \"exit $s\" $s; done; %s", loop))
		t.signal(ctx, p, sig)
		t.exited(fmt.Sprintf("signal %d", sig), t.wait(ctx, p), fmt.Sprintf("exited(%d)", sig))
	}
}

func kill(ctx context.Context, t *T) {
	p, _ := t.ready(ctx, t.Create(ctx, backend.Spec{}), "trap '' TERM INT HUP QUIT; "+loop)
	t.signal(ctx, p, backend.SIGTERM)
	t.signal(ctx, p, backend.SIGKILL)
	if exit := t.wait(ctx, p); exit.String() != "signaled(9)" || exit.Code != 137 {
		t.Errorf("%+v", exit)
	}
}

// beating is a script whose child adds to the file beats for as long as it
// lives, and the child's size now.
const beating = "(while :; do echo x >>beats; sleep 0.02; done) >/dev/null 2>&1 & "

func (t *T) beats(ctx context.Context, sb backend.Sandbox) int64 {
	st, err := sb.Files().Stat(ctx, "beats")
	if err != nil {
		return 0
	}
	return st.Size()
}

// beatsOn tells whether the file grows within a time that is long for it.
func (t *T) beatsOn(ctx context.Context, sb backend.Sandbox) bool {
	before := t.beats(ctx, sb)
	for range 40 {
		wait(ctx, 25*time.Millisecond)
		if t.beats(ctx, sb) > before {
			return true
		}
	}
	return false
}

func signalNotDescendants(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, _ := t.ready(ctx, sb, beating+loop)
	t.until(ctx, "the child lives", func() bool { return t.beats(ctx, sb) > 2 })
	t.signal(ctx, p, backend.SIGKILL)
	t.exited("it", t.wait(ctx, p), "signaled(9)")
	if !t.beatsOn(ctx, sb) {
		t.Errorf("the child died with it")
	}
}

func stopAndContinue(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, _ := t.ready(ctx, sb, "echo ready; while :; do echo x >>beats; sleep 0.02; done")
	t.until(ctx, "it beats", func() bool { return t.beats(ctx, sb) > 2 })
	t.signal(ctx, p, backend.SIGSTOP)
	t.until(ctx, "it stands still", func() bool { return !t.beatsOn(ctx, sb) })
	t.signal(ctx, p, 18)
	t.until(ctx, "it beats again", func() bool { return t.beatsOn(ctx, sb) })
	t.signal(ctx, p, backend.SIGKILL)
	t.wait(ctx, p)
}

func killStopped(ctx context.Context, t *T) {
	p, _ := t.ready(ctx, t.Create(ctx, backend.Spec{}), loop)
	t.signal(ctx, p, backend.SIGSTOP)
	t.signal(ctx, p, backend.SIGKILL)
	t.exited("it", t.wait(ctx, p), "signaled(9)")
}

func signalOne(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	one, _ := t.ready(ctx, sb, loop)
	two, _ := t.ready(ctx, sb, "trap 'exit 8' TERM; "+loop)
	t.signal(ctx, one, backend.SIGTERM)
	t.exited("the one", t.wait(ctx, one), "signaled(15)")
	t.signal(ctx, two, backend.SIGTERM)
	t.exited("the other", t.wait(ctx, two), "exited(8)")
}
