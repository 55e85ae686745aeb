package conformance

import (
	"context"
	"os"
	"runtime"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func leakCases() []Case {
	return []Case{
		{ID: "LK-01", Area: Leaks, Title: "the witness sees a sandbox that lives, and nothing of it after destroy", Needs: needs(watched()), Alone: true, Run: witnessed},
		{ID: "LK-02", Area: Leaks, Title: "daemons that left session, parent and output die with the sandbox", Needs: needs(shell(), python(), watched(), enforced(backend.ControlKillAll)), Alone: true, Run: daemonsDie},
		{ID: "LK-03", Area: Leaks, Title: "creates that are refused or cancelled leave nothing", Needs: needs(watched()), Alone: true, Run: failedCreates},
		{ID: "LK-04", Area: Leaks, Title: "an expired sandbox leaves nothing, though nobody destroys it", Needs: needs(watched(), claimed(backend.ControlLifetime)), Alone: true, Run: expiredLeavesNothing},
		{ID: "LK-05", Area: Leaks, Title: "a closed executor leaves nothing of its bound sandboxes", Needs: needs(watched()), Alone: true, Run: closedLeavesNothing},
		{ID: "LK-06", Area: Leaks, Title: "a kept sandbox that expired leaves nothing, though its executor is gone", Needs: needs(watched(), feature(backend.FeatureFind)), Alone: true, Run: keptLeavesNothing},
		{ID: "LK-07", Area: Leaks, Title: "sandboxes leave no goroutines in this process", Needs: needs(shell()), Alone: true, Run: goroutines},
		{ID: "LK-08", Area: Leaks, Title: "sandboxes leave no descriptors in this process", Needs: needs(shell()), Alone: true, Run: descriptorsLeft},
	}
}

func (t *T) look(ctx context.Context) map[string]string {
	s, err := t.run.target.Witness.Snapshot(ctx)
	if err != nil {
		t.Fatalf("the witness: %v", err)
	}
	return s
}

// nothingNew fails the case when something new stays on the host.
func (t *T) nothingNew(ctx context.Context, before map[string]string) {
	for _, l := range t.run.gone(ctx, before, nil) {
		t.Errorf("left behind: %s", l)
	}
}

func witnessed(ctx context.Context, t *T) {
	before := t.look(ctx)
	sb := t.Create(ctx, backend.Spec{})
	if len(since(before, t.look(ctx), nil)) == 0 {
		t.Inconclusivef("the witness does not see a sandbox that lives")
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("%v", err)
	}
	t.nothingNew(ctx, before)
}

// daemon leaves its session, its parent and its output, and goes on.
const daemon = `
import os, signal, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
null = os.open("/dev/null", os.O_RDWR)
for fd in (0, 1, 2): os.dup2(null, fd)
while True:
    with open("beats", "a") as f: f.write("x")
    time.sleep(0.05)
`

func daemonsDie(ctx context.Context, t *T) {
	before := t.look(ctx)
	sb := t.Create(ctx, backend.Spec{})
	for range 3 {
		t.good(t.python(ctx, sb, daemon))
	}
	t.until(ctx, "they live", func() bool { return t.beatsOn(ctx, sb) })
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("%v", err)
	}
	t.nothingNew(ctx, before)
}

func failedCreates(ctx context.Context, t *T) {
	before := t.look(ctx)
	for range 5 {
		t.invalidSpec(ctx, "limits.memory", backend.Spec{Limits: backend.Limits{Memory: -1}})
		part, cancel := context.WithTimeout(ctx, time.Millisecond)
		if sb, err := t.Executor().Create(part, t.Spec(backend.Spec{})); err == nil {
			if err := sb.Destroy(ctx); err != nil {
				t.Errorf("%v", err)
			}
		}
		cancel()
	}
	t.nothingNew(ctx, before)
}

func expiredLeavesNothing(ctx context.Context, t *T) {
	before := t.look(ctx)
	sb, err := t.Executor().Create(ctx, t.Spec(backend.Spec{Lifetime: time.Second}))
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.made(sb.ID())
	t.pass(ctx, time.Second)
	t.expired(ctx, sb)
	t.nothingNew(ctx, before)
}

func closedLeavesNothing(ctx context.Context, t *T) {
	before := t.look(ctx)
	ex := t.Open(ctx)
	for range 3 {
		t.CreateOn(ctx, ex, backend.Spec{})
	}
	if err := ex.Close(); err != nil {
		t.Errorf("%v", err)
	}
	t.nothingNew(ctx, before)
}

func keptLeavesNothing(ctx context.Context, t *T) {
	before := t.look(ctx)
	id := t.keep(ctx, backend.Spec{Lifetime: 3 * time.Second}, nil)
	t.pass(ctx, 3*time.Second)
	// Another executor may sweep it, as the next use of the store would.
	f := find[backend.Finder](t, "find", t.Open(ctx))
	t.until(ctx, "nobody finds it", func() bool { _, err := f.Find(ctx, id); return err != nil })
	t.Open(ctx) // which sweeps
	t.nothingNew(ctx, before)
}

// settles waits for a number to come down to a bound.
func (t *T) settles(ctx context.Context, what string, bound int, count func() int) {
	deadline := time.Now().Add(patience)
	for {
		n := count()
		if n <= bound {
			return
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			t.Errorf("%d %s, %d before", n, what, bound)
			return
		}
		wait(ctx, 50*time.Millisecond)
	}
}

// useAndLeave does a little of everything with some sandboxes.
func (t *T) useAndLeave(ctx context.Context) {
	for range 5 {
		sb := t.Create(ctx, backend.Spec{})
		t.write(ctx, sb, "f", "x")
		t.good(t.exec(ctx, sb, "cat", "f"))
		t.start(ctx, sb, backend.Command{Args: []string{"sleep", "1000"}, Timeout: backend.UntilSandboxEnds})
		if err := sb.Destroy(ctx); err != nil {
			t.Errorf("%v", err)
		}
	}
}

func goroutines(ctx context.Context, t *T) {
	t.useAndLeave(ctx) // what is made once is there
	before := runtime.NumGoroutine()
	t.useAndLeave(ctx)
	t.settles(ctx, "goroutines", before, runtime.NumGoroutine)
}

func descriptorsLeft(ctx context.Context, t *T) {
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Inconclusivef("this process cannot see its descriptors: %v", err)
		}
		return len(entries)
	}
	t.useAndLeave(ctx)
	before := open()
	t.useAndLeave(ctx)
	t.settles(ctx, "descriptors", before, open)
}
