package conformance

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func endCases() []Case {
	sh := needs(shell())
	return []Case{
		{ID: "EN-01", Area: Ends, Title: "a timeout ends the command, with its reason and near its time", Needs: append(needs(claimed(backend.ControlWallTime)), sh...), Run: timeout},
		{ID: "EN-02", Area: Ends, Title: "a timeout ends what the command started", Needs: append(needs(claimed(backend.ControlWallTime)), sh...), Run: timeoutKillsChildren},
		{ID: "EN-03", Area: Ends, Title: "a timeout ends descendants that left the session", Needs: append(needs(enforced(backend.ControlKillTree)), sh...), Run: timeoutKillsTree},
		{ID: "EN-04", Area: Ends, Title: "a timeout ends its own command alone", Needs: append(needs(claimed(backend.ControlWallTime)), sh...), Run: timeoutIsOnes},
		{ID: "EN-05", Area: Ends, Title: "a kill of ours says what it reached", Needs: append(needs(claimed(backend.ControlWallTime)), sh...), Run: killScope},
		{ID: "EN-06", Area: Ends, Title: "RunIn ends its command with its context", Needs: sh, Run: runInCancelled},
		{ID: "EN-07", Area: Ends, Title: "a command at its CPU time has the reason cpu_limit", Needs: append(needs(claimed(backend.ControlCPUTime)), sh...), Run: cpuLimit},
		{ID: "EN-08", Area: Ends, Title: "a sandbox's CPU time bounds each of its commands", Needs: append(needs(claimed(backend.ControlCPUTime)), sh...), Run: cpuLimitOfSandbox},
		{ID: "EN-09", Area: Ends, Title: "a command at the memory limit has the reason memory_limit, and the hit", Needs: needs(claimed(backend.ControlMemory), python()), Run: memoryLimit},
		{ID: "EN-10", Area: Ends, Title: "a child at the memory limit is a hit, whatever its parent returns", Needs: needs(enforced(backend.ControlMemory), shell(), python()), Run: memoryHitOfChild},
		{ID: "EN-11", Area: Ends, Title: "a command at the output limit that kills has the reason output_limit", Needs: append(needs(claimed(backend.ControlOutput)), sh...), Run: outputLimitKills},
		{ID: "EN-12", Area: Ends, Title: "Wait returns about a second after the end when descendants hold the output, and says so", Needs: sh, Run: outputHeld},
		{ID: "EN-13", Area: Ends, Title: "a child that let go of the output holds up nothing, and lives on", Needs: sh, Run: background},
		{ID: "EN-14", Area: Ends, Title: "KillTree ends the command and what it started", Needs: append(needs(claimed(backend.ControlKillTree)), sh...), Run: killTree},
		{ID: "EN-15", Area: Ends, Title: "destroy does not wait for a writer that takes nothing", Needs: sh, Run: destroyDeafWriter},
		{ID: "EN-16", Area: Ends, Title: "a command that takes its time within its timeout is left alone", Needs: sh, Run: withinTimeout},
		{ID: "EN-17", Area: Ends, Title: "the deadline ends commands that ignore every signal", Needs: append(needs(claimed(backend.ControlLifetime)), sh...), Run: deadlineKillsStubborn},
	}
}

func timeout(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	began := time.Now()
	got := t.command(ctx, sb, backend.Command{Args: []string{"sh", "-c", "trap '' TERM INT HUP; echo out; sleep 1000; echo survived"}, Timeout: 700 * time.Millisecond})
	took := time.Since(began)
	if got.Reason != backend.ReasonTimeout || got.Signal != backend.SIGKILL || got.out != "out\n" || took < 600*time.Millisecond || took > 20*time.Second {
		t.Errorf("%+v %q after %v", got.Exit, got.out, took)
	}
	t.good(t.exec(ctx, sb, "true"))
}

func timeoutKillsChildren(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	got := t.command(ctx, sb, backend.Command{Args: []string{"sh", "-c", "trap '' TERM INT HUP; " + beating + "sleep 1000"}, Timeout: time.Second})
	if got.Reason != backend.ReasonTimeout {
		t.Errorf("%+v", got.Exit)
	}
	if t.beats(ctx, sb) == 0 {
		t.Fatalf("the child never lived")
	}
	t.until(ctx, "the child is dead", func() bool { return !t.beatsOn(ctx, sb) })
}

func timeoutKillsTree(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.command(ctx, sb, backend.Command{
		Args: []string{"sh", "-c", "setsid sh -c 'setsid sh -c \"while :; do echo x >>beats; sleep 0.02; done\" & sleep 1000' & sleep 1000"}, Timeout: time.Second,
	})
	if t.beats(ctx, sb) == 0 {
		t.Fatalf("the grandchild never lived")
	}
	t.until(ctx, "the grandchild is dead", func() bool { return !t.beatsOn(ctx, sb) })
}

func timeoutIsOnes(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	other, _ := t.ready(ctx, sb, "trap 'exit 8' TERM; "+loop)
	t.command(ctx, sb, backend.Command{Args: []string{"sleep", "1000"}, Timeout: 300 * time.Millisecond})
	t.signal(ctx, other, backend.SIGTERM)
	t.exited("the other", t.wait(ctx, other), "exited(8)")
}

func killScope(ctx context.Context, t *T) {
	got := t.command(ctx, t.Create(ctx, backend.Spec{}), backend.Command{Args: []string{"sleep", "1000"}, Timeout: 300 * time.Millisecond})
	want := "session"
	if t.Enforces(backend.ControlKillTree) {
		want = "tree"
	}
	if got.KillScope != want && got.KillScope != "tree" {
		t.Errorf("%q, want %q", got.KillScope, want)
	}
}

func runInCancelled(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	rctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	go func() {
		_, _ = r.Read(make([]byte, 1))
		cancel()
		_, _ = io.Copy(io.Discard, r)
	}()
	t.Cleanup(func(context.Context) { _ = r.Close() })
	got, err := tryRun(rctx, sb, backend.Command{Args: []string{"sh", "-c", beating + "echo go; sleep 1000"}, Output: backend.Output{Stdout: w}})
	if !errors.Is(err, context.Canceled) || got.Reason != backend.ReasonCanceled {
		t.Errorf("%+v, %v", got.Exit, err)
	}
	t.good(t.exec(ctx, sb, "true"))
	if t.Caps().Claim(backend.ControlKillTree).Enforcement != backend.Unsupported {
		t.until(ctx, "its child is dead", func() bool { return !t.beatsOn(ctx, sb) })
	}
}

const burn = "sh -c 'while :; do :; done' & wait"

func cpuLimit(ctx context.Context, t *T) {
	got := t.command(ctx, t.Create(ctx, backend.Spec{}), backend.Command{Args: []string{"sh", "-c", burn}, CPUTime: 300 * time.Millisecond, Timeout: 30 * time.Second})
	if got.Reason != backend.ReasonCPULimit || got.Usage.CPU < 150*time.Millisecond || got.Usage.CPU > 5*time.Second {
		t.Errorf("%+v", got.Exit)
	}
}

func cpuLimitOfSandbox(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Limits: backend.Limits{CPUTime: 300 * time.Millisecond}})
	for range 2 {
		got := t.command(ctx, sb, backend.Command{Args: []string{"sh", "-c", burn}, Timeout: 30 * time.Second})
		if got.Reason != backend.ReasonCPULimit {
			t.Errorf("%+v", got.Exit)
		}
	}
	t.good(t.exec(ctx, sb, "true"))
}

// memory is the limit that the cases of memory use; some kernels of their own
// need as much for themselves.
const memory = 384 << 20

// eat touches so many MiB, says so, and stays a while.
const eat = `
import sys, time
hold = []
for i in range(int(sys.argv[1])):
    hold.append(bytearray(b"x") * (1 << 20))
print("ate", flush=True)
time.sleep(float(sys.argv[2]))
`

func memoryLimit(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Limits: backend.Limits{Memory: memory}})
	// Below the limit there is nothing to report.
	got := t.exec(ctx, sb, "python3", "-c", eat, "60", "0.2")
	if !got.Success() || got.has(backend.HitMemory) {
		t.Fatalf("below the limit: %+v %q", got.Exit, got.err)
	}
	got = t.exec(ctx, sb, "python3", "-c", eat, "1500", "10")
	if got.Reason != backend.ReasonMemoryLimit || !got.has(backend.HitMemory) {
		t.Errorf("%+v %q", got.Exit, got.err)
	}
	// Where user code shares its limit with what holds it, the sandbox may be
	// gone; if it lives, the next command is not blamed.
	next, err := tryRun(ctx, sb, backend.Command{Args: []string{"true"}})
	switch {
	case err != nil:
		t.kind("afterwards", err, backend.ErrLost, backend.ErrClosed, backend.ErrExpired)
	case !next.Success() || next.has(backend.HitMemory):
		t.Errorf("the next command: %+v", next.Exit)
	}
}

func memoryHitOfChild(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Limits: backend.Limits{Memory: memory}})
	got := t.exec(ctx, sb, "sh", "-c", `python3 -c "$0" 1500 10; exit 0`, eat)
	if got.String() != "exited(0)" && got.Reason != backend.ReasonMemoryLimit || !got.has(backend.HitMemory) {
		t.Errorf("%+v %q", got.Exit, got.err)
	}
}

func outputLimitKills(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Limits: backend.Limits{Output: 1000, KillOnOutput: true}})
	got := t.sh(ctx, sb, "while :; do echo yes; done >&2")
	if got.Reason != backend.ReasonOutputLimit || !got.StderrTruncated || got.StdoutTruncated || len(got.err) != 1000 || !got.has(backend.HitOutput) {
		t.Errorf("%+v, %d bytes", got.Exit, len(got.err))
	}
	t.good(t.exec(ctx, sb, "true"))
}

func outputHeld(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	began := time.Now()
	got := t.sh(ctx, sb, "sleep 60 & echo done")
	took := time.Since(began)
	if !got.Success() || !got.OutputHeld || got.out != "done\n" || took < 800*time.Millisecond || took > 15*time.Second {
		t.Errorf("%+v %q after %v", got.Exit, got.out, took)
	}
}

func background(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	got := t.sh(ctx, sb, beating+"echo started")
	if !got.Success() || got.OutputHeld || got.out != "started\n" {
		t.Errorf("%+v %q", got.Exit, got.out)
	}
	if !t.beatsOn(ctx, sb) {
		t.Errorf("the child died with its parent")
	}
}

func killTree(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, _ := t.ready(ctx, sb, beating+loop)
	t.until(ctx, "the child lives", func() bool { return t.beats(ctx, sb) > 2 })
	tk, ok := backend.As[backend.TreeKiller](p)
	if !ok {
		t.Fatalf("kill_tree is claimed and there is no TreeKiller")
	}
	if err := tk.KillTree(ctx); err != nil {
		t.Fatalf("%v", err)
	}
	t.exited("it", t.wait(ctx, p), "signaled(9)")
	t.until(ctx, "the child is dead", func() bool { return !t.beatsOn(ctx, sb) })
}

func destroyDeafWriter(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	g := newGate()
	t.Cleanup(func(context.Context) { close(g.open) })
	t.start(ctx, sb, backend.Command{Args: []string{"sh", "-c", "while :; do echo line; done"}, Output: backend.Output{Stdout: g}, Timeout: backend.UntilSandboxEnds})
	select {
	case <-g.reached:
	case <-ctx.Done():
	}
	short, cancel := context.WithTimeout(ctx, 25*time.Second)
	defer cancel()
	if err := sb.Destroy(short); err != nil {
		t.Errorf("%v", err)
	}
}

func withinTimeout(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for _, d := range []time.Duration{20 * time.Second, backend.UntilSandboxEnds, 0} {
		got := t.command(ctx, sb, backend.Command{Args: []string{"sh", "-c", "sleep 0.5; echo fine"}, Timeout: d})
		if !got.Success() || strings.TrimSpace(got.out) != "fine" {
			t.Errorf("%v: %+v", d, got.Exit)
		}
	}
}

func deadlineKillsStubborn(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Lifetime: 2 * time.Second})
	p, _, _ := t.start(ctx, sb, backend.Command{
		Args: []string{"sh", "-c", "trap '' TERM INT HUP QUIT; while :; do sleep 1; done"}, Timeout: backend.UntilSandboxEnds,
	})
	t.pass(ctx, 2*time.Second)
	if exit := t.wait(ctx, p); exit.Reason != backend.ReasonExpired {
		t.Errorf("%+v", exit)
	}
}
