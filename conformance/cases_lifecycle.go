package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func lifecycleCases() []Case {
	return []Case{
		{ID: "LC-01", Area: Lifecycle, Title: "a sandbox is made, runs a command and is destroyed", Run: makeAndDestroy},
		{ID: "LC-02", Area: Lifecycle, Title: "IDs have their form and are never the same", Run: differentIDs},
		{ID: "LC-03", Area: Lifecycle, Title: "destroying twice, and from many sides at once, is fine", Run: destroyTwice},
		{ID: "LC-04", Area: Lifecycle, Title: "after destroy every call is closed; ID and receipt stay", Run: callsAfterDestroy},
		{ID: "LC-05", Area: Lifecycle, Title: "destroy ends running commands and who waits for them", Run: destroyEndsWaiters},
		{ID: "LC-06", Area: Lifecycle, Title: "destroy with an ended context does no harm to the next destroy", Run: destroyWithEndedContext},
		{ID: "LC-07", Area: Lifecycle, Title: "at its deadline a sandbox has expired, and every call says so", Needs: needs(claimed(backend.ControlLifetime)), Run: expires},
		{ID: "LC-08", Area: Lifecycle, Title: "a command that the deadline ends has the reason sandbox_expired", Needs: needs(claimed(backend.ControlLifetime)), Run: expiryEndsCommands},
		{ID: "LC-09", Area: Lifecycle, Title: "an expired sandbox can be destroyed, and is then still not usable", Needs: needs(claimed(backend.ControlLifetime)), Run: destroyExpired},
		{ID: "LC-10", Area: Lifecycle, Title: "SetLifetime lets a sandbox live longer", Needs: needs(feature(backend.FeatureExtend)), Run: lifetimeLonger},
		{ID: "LC-11", Area: Lifecycle, Title: "SetLifetime lets a sandbox end sooner", Needs: needs(feature(backend.FeatureExtend)), Run: lifetimeShorter},
		{ID: "LC-12", Area: Lifecycle, Title: "SetLifetime refuses what is not positive or too long", Needs: needs(feature(backend.FeatureExtend)), Run: lifetimeInvalid},
		{ID: "LC-13", Area: Lifecycle, Title: "closing an executor twice destroys its bound sandboxes and refuses new ones", Run: closeExecutor},
		{ID: "LC-14", Area: Lifecycle, Title: "closing one executor does not touch another's sandboxes", Run: closeIsOnlyOnes},
		{ID: "LC-15", Area: Lifecycle, Title: "twenty sandboxes one after another", Run: manyInARow},
		{ID: "LC-16", Area: Lifecycle, Title: "eight sandboxes made at once", Run: manyAtOnce},
		{ID: "LC-17", Area: Lifecycle, Title: "a create whose context has ended makes nothing", Run: createWithEndedContext},
		{ID: "LC-18", Area: Lifecycle, Title: "a create that is cancelled half-way leaves nothing", Run: createCancelled},
		{ID: "LC-19", Area: Lifecycle, Title: "calls with an ended context say so and do no harm", Run: callsWithEndedContext},
		{ID: "LC-20", Area: Lifecycle, Title: "a Wait that is cancelled stops the waiting, not the command", Run: waitCancelled},
		{ID: "LC-21", Area: Lifecycle, Title: "the context of Start bounds the start, not the command", Run: startCancelled},
		{ID: "LC-22", Area: Lifecycle, Title: "any number of callers may wait, also after the end", Run: manyWaiters},
		{ID: "LC-23", Area: Lifecycle, Title: "a one-shot runs, collects and destroys", Run: oneShot},
	}
}

func makeAndDestroy(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	if got := t.good(t.exec(ctx, sb, "echo", "hello", "there")); got != "hello there\n" {
		t.Errorf("output %q", got)
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

func differentIDs(ctx context.Context, t *T) {
	seen := map[string]bool{}
	for range 4 {
		id := t.Create(ctx, backend.Spec{}).ID()
		if !backend.ValidID(id) || seen[id] {
			t.Errorf("ID %q is not one, or was used before", id)
		}
		seen[id] = true
	}
}

func destroyTwice(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := sb.Destroy(ctx); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
	}
	wg.Wait()
	for range 2 {
		if err := sb.Destroy(ctx); err != nil {
			t.Errorf("destroy again: %v", err)
		}
	}
}

func callsAfterDestroy(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	id, receipt := sb.ID(), sb.Receipt()
	if err := sb.Destroy(ctx); err != nil {
		t.Fatalf("destroy: %v", err)
	}
	t.everyCall(ctx, sb, backend.ErrClosed)
	if sb.ID() != id || sb.Receipt().Sandbox != receipt.Sandbox {
		t.Errorf("ID %q and receipt %+v changed", sb.ID(), sb.Receipt())
	}
}

func destroyEndsWaiters(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, _, _ := t.start(ctx, sb, backend.Command{Args: []string{"sleep", "1000"}, Timeout: backend.UntilSandboxEnds})
	type end struct {
		exit backend.Exit
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		exit, err := p.Wait(ctx)
		ended <- end{exit, err}
	}()
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
	e := <-ended
	if e.err != nil {
		t.kind("the waiter", e.err, backend.ErrClosed)
	} else if e.exit.Reason != backend.ReasonSignaled && e.exit.Reason != backend.ReasonCanceled {
		t.Errorf("the waiter's exit: %v", e.exit)
	}
	if ctx.Err() != nil {
		t.Errorf("the waiter was left alone")
	}
}

func destroyWithEndedContext(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	over, cancel := context.WithCancel(ctx)
	cancel()
	if err := sb.Destroy(over); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("destroy: %v", err)
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
	t.everyCall(ctx, sb, backend.ErrClosed)
}

// expired waits until sb says that it has expired.
func (t *T) expired(ctx context.Context, sb backend.Sandbox) {
	t.until(ctx, "it has expired", func() bool {
		err := sb.Files().Remove(ctx, "nothing")
		if err != nil && backend.KindOf(err) != backend.ErrExpired {
			t.Logf("on the way to its end: %v", err)
		}
		return backend.KindOf(err) == backend.ErrExpired
	})
}

func expires(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Lifetime: 2 * time.Second})
	t.good(t.exec(ctx, sb, "true"))
	t.pass(ctx, 2*time.Second)
	t.expired(ctx, sb)
	t.everyCall(ctx, sb, backend.ErrExpired)
}

func expiryEndsCommands(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Lifetime: 2 * time.Second})
	p, _, _ := t.start(ctx, sb, backend.Command{Args: []string{"sleep", "1000"}, Timeout: backend.UntilSandboxEnds})
	t.pass(ctx, 2*time.Second)
	if exit := t.wait(ctx, p); exit.Reason != backend.ReasonExpired {
		t.Errorf("%v", exit)
	}
}

func destroyExpired(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Lifetime: time.Second})
	t.pass(ctx, time.Second)
	t.expired(ctx, sb)
	for range 2 {
		if err := sb.Destroy(ctx); err != nil {
			t.Errorf("destroy: %v", err)
		}
	}
	t.everyCall(ctx, sb, backend.ErrExpired, backend.ErrClosed)
}

func lifetimeLonger(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Lifetime: 2 * time.Second})
	if err := find[backend.Extender](t, "extend", sb).SetLifetime(ctx, 5*time.Minute); err != nil {
		t.Fatalf("%v", err)
	}
	t.pass(ctx, 3*time.Second)
	t.good(t.exec(ctx, sb, "true"))
}

func lifetimeShorter(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Lifetime: time.Hour})
	if err := find[backend.Extender](t, "extend", sb).SetLifetime(ctx, time.Second); err != nil {
		t.Fatalf("%v", err)
	}
	t.pass(ctx, time.Second)
	t.expired(ctx, sb)
}

func lifetimeInvalid(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	e := find[backend.Extender](t, "extend", sb)
	for _, d := range []time.Duration{0, -time.Second, backend.MaxLifetime + time.Second} {
		t.kind(d.String(), e.SetLifetime(ctx, d), backend.ErrInvalid)
	}
	t.good(t.exec(ctx, sb, "true"))
}

func closeExecutor(ctx context.Context, t *T) {
	ex := t.Open(ctx)
	var sbs []backend.Sandbox
	for range 2 {
		sbs = append(sbs, t.CreateOn(ctx, ex, backend.Spec{}))
	}
	for range 2 {
		if err := ex.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	for _, sb := range sbs {
		t.everyCall(ctx, sb, backend.ErrClosed)
	}
	t.kind("create", t.refuses(ctx, ex, t.Spec(backend.Spec{})), backend.ErrClosed)
}

func closeIsOnlyOnes(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	ex := t.Open(ctx)
	t.CreateOn(ctx, ex, backend.Spec{})
	if err := ex.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	t.good(t.exec(ctx, sb, "true"))
}

func manyInARow(ctx context.Context, t *T) {
	for range 20 {
		sb := t.Create(ctx, backend.Spec{})
		t.good(t.exec(ctx, sb, "true"))
		if err := sb.Destroy(ctx); err != nil {
			t.Errorf("destroy: %v", err)
		}
	}
}

func manyAtOnce(ctx context.Context, t *T) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			sb, err := t.Executor().Create(ctx, t.Spec(backend.Spec{}))
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			t.Keep(sb)
			got, err := tryRun(ctx, sb, backend.Command{Args: []string{"echo", fmt.Sprint(i)}})
			if err != nil || got.out != fmt.Sprintf("%d\n", i) {
				t.Errorf("%v %v %q", got.Exit, err, got.out)
			}
		})
	}
	wg.Wait()
}

func createWithEndedContext(ctx context.Context, t *T) {
	over, cancel := context.WithCancel(ctx)
	cancel()
	if err := t.refuses(over, t.Executor(), t.Spec(backend.Spec{})); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func createCancelled(ctx context.Context, t *T) {
	label := map[string]string{"conformance": "cancelled"}
	began := time.Now()
	t.Create(ctx, backend.Spec{})
	took := max(time.Since(began), time.Millisecond)
	for i := range 8 {
		part, cancel := context.WithTimeout(ctx, took*time.Duration(i)/8)
		sb, err := t.Executor().Create(part, t.Spec(backend.Spec{Labels: label}))
		cancel()
		if err == nil {
			t.Keep(sb) // it was there before the context ended
			t.good(t.exec(ctx, sb, "true"))
			if err := sb.Destroy(ctx); err != nil {
				t.Errorf("destroy: %v", err)
			}
			continue
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	}
	if !t.Caps().Has(backend.FeatureFind) {
		return
	}
	for id, info := range t.infos(ctx, t.Executor()) {
		if info.Labels["conformance"] == "cancelled" {
			t.Errorf("left behind: %s", id)
		}
	}
}

func callsWithEndedContext(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	over, cancel := context.WithCancel(ctx)
	cancel()
	for name, call := range calls(sb) {
		if err := call(over); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.good(t.exec(ctx, sb, "true"))
}

// held starts a command that ends when release is called.
func (t *T) held(ctx context.Context, sb backend.Sandbox) (p backend.Process, release func()) {
	pr, pw := io.Pipe()
	p, _, _ = t.start(ctx, sb, backend.Command{Args: []string{"cat"}, Stdin: pr})
	t.Cleanup(func(context.Context) { _ = pw.Close() })
	return p, func() { _ = pw.Close() }
}

func waitCancelled(ctx context.Context, t *T) {
	p, release := t.held(ctx, t.Create(ctx, backend.Spec{}))
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := p.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	release()
	t.exited("afterwards", t.wait(ctx, p), "exited(0)")
}

func startCancelled(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	sctx, cancel := context.WithCancel(ctx)
	pr, pw := io.Pipe()
	p, out, _ := t.start(sctx, sb, backend.Command{Args: []string{"cat"}, Stdin: pr})
	cancel()
	if _, err := io.WriteString(pw, "still here\n"); err != nil {
		t.Errorf("%v", err)
	}
	t.until(ctx, "it answers", func() bool { return out.String() == "still here\n" })
	if err := pw.Close(); err != nil {
		t.Errorf("%v", err)
	}
	t.exited("it ends by itself", t.wait(ctx, p), "exited(0)")
}

func manyWaiters(ctx context.Context, t *T) {
	p, release := t.held(ctx, t.Create(ctx, backend.Spec{}))
	ends := make(chan string, 8)
	for range cap(ends) {
		go func() {
			exit, err := p.Wait(ctx)
			ends <- fmt.Sprint(exit, " ", err)
		}()
	}
	release()
	for range cap(ends) {
		if got := <-ends; got != "exited(0) <nil>" {
			t.Errorf("%s", got)
		}
	}
	t.wait(ctx, p)
}

func oneShot(ctx context.Context, t *T) {
	res, err := backend.Run(ctx, t.Executor(), backend.RunSpec{
		Spec: t.Spec(backend.Spec{}), Command: backend.Command{Args: []string{"cat", "in"}},
		Files: map[string]backend.File{"in": {Data: []byte("given\n")}}, Fetch: []string{"in", "missing"},
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.made(res.Receipt.Sandbox)
	if !res.Exit.Success() || string(res.Stdout) != "given\n" || string(res.Files["in"]) != "given\n" || len(res.Files) != 1 {
		t.Errorf("%v %q %q %q", res.Exit, res.Stdout, res.Stderr, res.Files)
	}
	_, err = backend.Run(ctx, t.Executor(), backend.RunSpec{
		Spec: t.Spec(backend.Spec{}), Command: backend.Command{Args: []string{"true"}},
		Files: map[string]backend.File{strings.Repeat("x", 3): {Reader: &brokenReader{10, io.ErrUnexpectedEOF}}},
	})
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}
