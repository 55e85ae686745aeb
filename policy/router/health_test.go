package router_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/policy/router"
)

// daemon is an executor whose health changes. Inside a synctest bubble a
// goroutine that stays ends the test.
type daemon struct {
	mu      sync.Mutex
	down    string        // why it is not available
	hangs   chan struct{} // Create and Probe wait for it to be closed
	deaf    bool          // Probe does not even heed its context
	class   error         // of a Create that was cancelled; nil is the context's own
	probes  int
	creates int
	closed  int
}

func (d *daemon) Capabilities() backend.Capabilities {
	return backend.Capabilities{Driver: "daemon", Isolation: backend.IsolationKernel, Networks: []backend.NetworkMode{backend.NetworkNone}}
}

func (d *daemon) set(down string, hangs chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down, d.hangs = down, hangs
}

func (d *daemon) wait(ctx context.Context, deaf bool) (string, error) {
	d.mu.Lock()
	hangs := d.hangs
	d.mu.Unlock()
	switch {
	case hangs == nil:
	case deaf:
		<-hangs
	default:
		select {
		case <-hangs:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.down, nil
}

func (d *daemon) Create(ctx context.Context, _ backend.Spec) (backend.Sandbox, error) {
	d.mu.Lock()
	d.creates++
	d.mu.Unlock()
	down, err := d.wait(ctx, false)
	switch {
	case err != nil && d.class != nil:
		return nil, d.class
	case err != nil:
		return nil, err
	case down != "":
		return nil, &backend.Error{Op: "create", Kind: backend.ErrUnavailable, Err: errors.New(down), Fix: "start it"}
	}
	return &box{achieved: backend.IsolationKernel}, nil
}

func (d *daemon) Probe(ctx context.Context) (backend.Health, error) {
	d.mu.Lock()
	d.probes++
	d.mu.Unlock()
	down, err := d.wait(ctx, d.deaf)
	if err != nil {
		return backend.Health{}, err
	}
	return backend.Health{Available: down == "", Isolation: backend.IsolationKernel, Reason: down, Fix: "start it"}, nil
}

func (d *daemon) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed++
	return nil
}

func (d *daemon) made() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.creates
}

func (d *daemon) probed() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.probes
}

func (d *daemon) counts() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprintf("%d creates, %d probes", d.creates, d.probes)
}

// inBubble runs f with a router over a and b under a clock of its own; when it
// ends, nothing may run any more.
func inBubble(t *testing.T, opts router.Options, f func(t *testing.T, a, b *daemon, r *router.Router)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, b := &daemon{}, &daemon{}
		r, err := router.New([]router.Candidate{{Name: "a", Executor: a}, {Name: "b", Executor: b}}, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			if err := r.Close(); err != nil {
				t.Error("closed again: ", err)
			}
		}()
		f(t, a, b, r)
	})
}

// pass lets time pass.
func pass(d time.Duration) { <-time.After(d) }

func create(t *testing.T, r *router.Router) backend.Receipt {
	t.Helper()
	sb, err := r.Create(t.Context(), backend.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	return sb.Receipt()
}

func expect(t *testing.T, r *router.Router, name string, reasons ...string) {
	t.Helper()
	got := create(t, r)
	if got.Backend != name || len(got.Passed) != len(reasons) {
		t.Fatalf("on %s past %+v, want %s past %q", got.Backend, got.Passed, name, reasons)
	}
	for i, want := range reasons {
		if !strings.Contains(got.Passed[i].Reason, want) || !strings.Contains(got.Passed[i].Reason, "start it") {
			t.Errorf("reason %q, want %q and the fix", got.Passed[i].Reason, want)
		}
	}
}

func TestHealth_failureAndRecovery(t *testing.T) {
	t.Parallel()
	inBubble(t, router.Options{}, func(t *testing.T, a, b *daemon, r *router.Router) {
		a.set("no socket", nil)
		expect(t, r, "b", "no socket")
		pass(12 * time.Second)
		expect(t, r, "b", "not available, seen 12s ago: no socket")
		if a.counts() != "1 creates, 0 probes" {
			t.Error("known to be down and asked again: ", a.counts())
		}
		a.set("", nil)
		pass(17 * time.Second)
		expect(t, r, "b", "not available, seen 29s ago: no socket")
		pass(2 * time.Second)
		expect(t, r, "a")
		a.set("gone again", nil)
		pass(90 * time.Second)
		expect(t, r, "b", "gone again")
		if a.counts() != "2 creates, 3 probes" || b.counts() != "4 creates, 3 probes" {
			t.Errorf("a has %s, b has %s", a.counts(), b.counts())
		}
	})
}

func TestHealth_bothDown(t *testing.T) {
	t.Parallel()
	inBubble(t, router.Options{}, func(t *testing.T, a, b *daemon, r *router.Router) {
		a.set("no socket", nil)
		b.set("no runtime", nil)
		for range 2 {
			_, err := r.Create(t.Context(), backend.Spec{})
			if backend.KindOf(err) != backend.ErrUnavailable || !strings.Contains(err.Error(), "no socket") || !strings.Contains(err.Error(), "no runtime") {
				t.Errorf("error %v", err)
			}
		}
		if a.counts() != "1 creates, 1 probes" || b.counts() != "1 creates, 1 probes" {
			t.Errorf("a has %s, b has %s", a.counts(), b.counts())
		}
		// With nobody else left, who is well again is seen at once.
		b.set("", nil)
		expect(t, r, "b", "no socket")
		a.set("", make(chan struct{}))
		b.set("", make(chan struct{}))
		pass(time.Minute) // for the loop to find out
		began := time.Now()
		if _, err := r.Create(t.Context(), backend.Spec{}); backend.KindOf(err) != backend.ErrUnavailable || time.Since(began) > 5*time.Second {
			t.Errorf("error %v after %s", err, time.Since(began))
		}
	})
}

// A one-shot run makes one sandbox: it must pay for no probe.
func TestHealth_costsNothingWhereNothingIsDecided(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		opts    router.Options
		creates int
	}{
		{"the first Create", router.Options{}, 1},
		{"required", router.Options{Required: true}, 3},
		{"a template's only backend", router.Options{Templates: map[string][]string{"": {"a"}}}, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, tc.opts, func(t *testing.T, a, b *daemon, r *router.Router) {
				for range tc.creates {
					if got := create(t, r); got.Backend != "a" {
						t.Errorf("on %s", got.Backend)
					}
				}
				pass(10 * time.Minute)
				if a.probed()+b.probed()+b.made() > 0 {
					t.Errorf("a has %s, b has %s", a.counts(), b.counts())
				}
			})
		})
	}
}

func TestHealth_requiredNeverFallsBack(t *testing.T) {
	t.Parallel()
	inBubble(t, router.Options{Required: true}, func(t *testing.T, a, b *daemon, r *router.Router) {
		a.set("no socket", nil)
		for range 3 {
			if _, err := r.Create(t.Context(), backend.Spec{}); backend.KindOf(err) != backend.ErrUnavailable {
				t.Errorf("error %v", err)
			}
		}
		a.set("", nil)
		expect(t, r, "a")
		if b.counts() != "0 creates, 0 probes" {
			t.Error(b.counts())
		}
	})
}

// Not parallel, since it looks at all goroutines: those of other routers in
// other tests wait for it to end.
func TestHealth_goroutines(t *testing.T) {
	count := func() int {
		stacks := make([]byte, 1<<20)
		return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "router.(*watch).beginLocked.func")
	}
	for _, n := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			before := count()
			var candidates []router.Candidate
			for i := range n {
				candidates = append(candidates, router.Candidate{Name: fmt.Sprint("b", i), Executor: &daemon{}})
			}
			r, err := router.New(candidates, router.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				create(t, r)
				synctest.Wait()
				if got, want := count() > before, n > 1 && i > 0; got != want {
					t.Errorf("Create %d of %d backends: in the background %t, want %t", i+1, n, got, want)
				}
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if count() > before {
				t.Error("it stays after Close")
			}
		})
	}
}

// A daemon that accepts and never answers holds nobody up for longer than a
// bound, and is known from then on.
func TestHealth_hungDaemon(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf %t", deaf), func(t *testing.T) {
			t.Parallel()
			inBubble(t, router.Options{}, func(t *testing.T, a, b *daemon, r *router.Router) {
				hangs := make(chan struct{})
				a.set("", hangs)
				a.deaf = deaf
				began := time.Now()
				got := create(t, r)
				if took := time.Since(began); got.Backend != "b" || took > 11*time.Second {
					t.Fatalf("on %s after %s", got.Backend, took)
				}
				if len(got.Passed) != 1 || !strings.Contains(got.Passed[0].Reason, "does not answer within 5s") {
					t.Errorf("passed %+v", got.Passed)
				}
				for range 20 { // for minutes, also after the ticks of the loop
					pass(13 * time.Second)
					began = time.Now()
					if got := create(t, r); got.Backend != "b" || time.Since(began) > 0 {
						t.Fatalf("on %s after %s", got.Backend, time.Since(began))
					}
				}
				if a.made() != 1 {
					t.Error("known to hang and asked again: ", a.counts())
				}
				if deaf && a.probed() != 1 {
					t.Error("several probes hang at once: ", a.counts())
				}
				a.set("", nil)
				close(hangs)
				pass(31 * time.Second)
				if got := create(t, r); got.Backend != "a" {
					t.Errorf("recovered, and on %s past %+v", got.Backend, got.Passed)
				}
			})
		})
	}
}

// What hangs and then reports that it lost sight of what it made is not tried
// elsewhere.
func TestHealth_hungAndLost(t *testing.T) {
	t.Parallel()
	inBubble(t, router.Options{}, func(t *testing.T, a, b *daemon, r *router.Router) {
		a.set("", make(chan struct{}))
		a.class = &backend.Error{Op: "create", Kind: backend.ErrLost}
		if _, err := r.Create(t.Context(), backend.Spec{}); backend.KindOf(err) != backend.ErrLost || b.made() > 0 {
			t.Errorf("error %v, %s on the next", err, b.counts())
		}
	})
}

// One that is merely slow is waited for: its probe answers.
func TestHealth_slowIsNotDown(t *testing.T) {
	t.Parallel()
	inBubble(t, router.Options{}, func(t *testing.T, a, _ *daemon, r *router.Router) {
		slow := make(chan struct{})
		a.set("", slow)
		time.AfterFunc(7*time.Second, func() { close(slow) }) // the probe that begins at 5 s ends in time
		expect(t, r, "a")
	})
}

func TestHealth_callerGivesUp(t *testing.T) {
	t.Parallel()
	inBubble(t, router.Options{}, func(t *testing.T, a, b *daemon, r *router.Router) {
		a.set("", make(chan struct{}))
		for _, after := range []time.Duration{time.Second, 6 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			began := time.Now()
			_, err := r.Create(ctx, backend.Spec{})
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != after || b.made() > 0 {
				t.Errorf("error %v after %s, %s on the next", err, time.Since(began), b.counts())
			}
		}
	})
}

// Close ends a Create's and the loop's probe, whatever they heed.
func TestHealth_closeWhileProbing(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			hangs := make(chan struct{})
			a := &daemon{hangs: hangs, deaf: deaf}
			r, err := router.New([]router.Candidate{{Name: "a", Executor: a}, {Name: "b", Executor: &daemon{}}}, router.Options{})
			if err != nil {
				t.Fatal(err)
			}
			p, _ := backend.As[backend.Prober](r)
			answered := make(chan backend.Health, 1)
			go func() {
				h, err := p.Probe(t.Context())
				if err != nil {
					t.Error(err)
				}
				answered <- h
			}()
			synctest.Wait()
			began := time.Now()
			err = r.Close()
			if took := time.Since(began); took > 10*time.Second || !deaf && took > 0 || (err != nil) != deaf {
				t.Errorf("Close = %v after %s", err, took)
			}
			<-answered
			close(hangs) // only now does the deaf one end
		})
	}
}

// A probe that began before a Create failed does not make up for it.
func TestHealth_newerFactWins(t *testing.T) {
	t.Parallel()
	inBubble(t, router.Options{}, func(t *testing.T, a, _ *daemon, r *router.Router) {
		slow := make(chan struct{})
		a.set("", slow)
		p, _ := backend.As[backend.Prober](r)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = p.Probe(t.Context()) })
		pass(time.Second)
		a.set("gone", nil)
		expect(t, r, "b", "gone")
		a.set("", nil)
		pass(time.Second)
		close(slow)
		wg.Wait()
		expect(t, r, "b", "seen 1s ago: gone")
	})
}

func TestHealth_probesAreShared(t *testing.T) {
	t.Parallel()
	inBubble(t, router.Options{}, func(t *testing.T, a, _ *daemon, r *router.Router) {
		slow := make(chan struct{})
		a.set("", slow)
		p, _ := backend.As[backend.Prober](r)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if h, err := p.Probe(t.Context()); err != nil || !h.Available {
					t.Errorf("Probe = %+v, %v", h, err)
				}
			})
		}
		synctest.Wait()
		close(slow)
		wg.Wait()
		if a.probed() != 1 {
			t.Errorf("%d probes", a.probed())
		}
	})
}

// Everything at once, for the race detector.
func TestHealth_concurrently(t *testing.T) {
	t.Parallel()
	inBubble(t, router.Options{}, func(t *testing.T, a, b *daemon, r *router.Router) {
		f, _ := backend.As[backend.Prober](r)
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				for n := range 20 {
					pass(time.Duration(i*n%7) * time.Second)
					switch i % 5 {
					case 0:
						a.set([]string{"", "down"}[n%2], nil)
					case 1:
						_, _ = f.Probe(t.Context())
					case 2:
						if _, err := r.Explain(t.Context(), backend.Spec{}); err != nil {
							t.Error(err)
						}
					default:
						if _, err := r.Create(t.Context(), backend.Spec{}); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		if a.made() == 0 || b.made() == 0 {
			t.Errorf("a has %s, b has %s", a.counts(), b.counts())
		}
	})
}

func TestHealth_explained(t *testing.T) {
	t.Parallel()
	inBubble(t, router.Options{}, func(t *testing.T, a, b *daemon, r *router.Router) {
		a.set("", make(chan struct{}))
		d, err := r.Explain(t.Context(), backend.Spec{})
		if err != nil || d.Backend != "b" || d.Candidates[0].Health == nil || d.Candidates[1].Health == nil ||
			!strings.Contains(d.Candidates[0].Reason, "does not answer") {
			t.Errorf("Explain = %+v, %v", d, err)
		}
		b.set("no runtime", nil)
		d, err = r.Explain(t.Context(), backend.Spec{})
		if err != nil || d.Backend != "" || d.Candidates[1].Reason != "not available: no runtime; start it" || d.Candidates[1].Claims != nil {
			t.Errorf("Explain = %+v, %v", d, err)
		}
		if a.made()+b.made() > 0 {
			t.Error("Explain made a sandbox")
		}
	})
}

func TestRouter_absent(t *testing.T) {
	t.Parallel()
	absent := []backend.Candidate{{Backend: "x", Reason: "no engine here"}}
	r, err := router.New([]router.Candidate{{Name: "a", Executor: &daemon{}}}, router.Options{Absent: absent})
	if err != nil {
		t.Fatal(err)
	}
	if got := create(t, r).Passed; len(got) != 1 || got[0] != absent[0] {
		t.Errorf("passed %+v", got)
	}
	d, err := r.Explain(t.Context(), backend.Spec{MinIsolation: backend.IsolationVM})
	if err != nil || d.Backend != "" || len(d.Candidates) != 2 || d.Candidates[0].Reason != "no engine here" {
		t.Errorf("Explain = %+v, %v", d, err)
	}
	_, err = r.Create(t.Context(), backend.Spec{MinIsolation: backend.IsolationVM})
	if backend.KindOf(err) != backend.ErrUnsupported || !strings.Contains(err.Error(), "no engine here") {
		t.Errorf("error %v", err)
	}
}
