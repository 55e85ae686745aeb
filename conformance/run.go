package conformance

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// Clock is the time of a backend that does not live in the host's, such as a
// fake's.
type Clock interface {
	Now() time.Time
	// Advance moves it by d and returns when what was due has happened.
	Advance(d time.Duration)
}

// Target is what a run is about.
type Target struct {
	Name string
	// Open opens an executor; called again it opens a further one on the same
	// store, as a second process of the same user would. The suite closes it.
	Open func(ctx context.Context) (backend.Executor, error)
	// Spec is what every sandbox needs to start here; Template and
	// Network.Mode are used.
	Spec backend.Spec
	// Witness watches the host; nil leaves the cases of leaks inconclusive.
	Witness Witness
	// Clock is nil where the host's time passes.
	Clock Clock
}

// Options says which cases run and how.
type Options struct {
	Filter   func(Case) bool // nil: all
	Parallel int             // cases at a time; 0 is 1
	// Timeout bounds a case without one of its own; 0 is two minutes. A case
	// that ignores it has failed and is left behind.
	Timeout time.Duration
	// OnStart and OnResult tell of progress; one call at a time.
	OnStart  func(Case)
	OnResult func(Result)
	// Waivers are the known failures, by case: the reason. A waived case runs
	// all the same; once it passes its waiver is stale, which is a failure.
	Waivers map[string]string
	// Cases replaces Cases(), for tests of the suite.
	Cases []Case
}

const (
	defaultTimeout = 2 * time.Minute
	cleanupTimeout = 45 * time.Second // of one cleanup
	grace          = 15 * time.Second // to end after the context has
)

type runner struct {
	target Target
	opts   Options
	ex     backend.Executor
	caps   backend.Capabilities

	mu       sync.Mutex
	refused  map[Need]*refusal
	programs map[string]string // why one is missing; "" when it is there
}

// Run runs the cases against target. The error says that the suite itself
// could not run; what became of the cases is in the Report. Ending ctx stops
// the run, whose sandboxes are destroyed.
func Run(ctx context.Context, target Target, opts Options) (Report, error) {
	report := Report{Schema: SchemaVersion, Target: target.Name, Started: time.Now(), Counts: map[Verdict]int{}, Watched: target.Witness != nil}
	if target.Open == nil {
		return report, &backend.Error{Op: "conformance", Kind: backend.ErrInvalid, Field: "target.open"}
	}
	r := &runner{target: target, opts: opts, refused: map[Need]*refusal{}, programs: map[string]string{}}
	var before map[string]string
	var err error
	if target.Witness != nil {
		if before, err = target.Witness.Snapshot(ctx); err != nil {
			return report, fmt.Errorf("the witness: %w", err)
		}
	}
	if r.ex, err = target.Open(ctx); err != nil {
		return report, fmt.Errorf("opening %s: %w", target.Name, err)
	}
	r.caps = r.ex.Capabilities()
	report.Capabilities = r.caps
	cases := opts.Cases
	if cases == nil {
		cases = Cases()
	}
	if opts.Filter != nil {
		cases = slices.DeleteFunc(slices.Clone(cases), func(c Case) bool { return !opts.Filter(c) })
	}
	r.findPrograms(ctx, cases)
	report.Results = r.all(ctx, cases)
	for _, res := range report.Results {
		report.Counts[res.Verdict]++
	}
	if err := ctx.Err(); err != nil {
		report.Stopped = err.Error()
	}
	if err := r.ex.Close(); err != nil {
		report.Left = append(report.Left, fmt.Sprintf("closing the executor: %v", err))
	}
	wctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	report.Left = append(report.Left, r.gone(wctx, before, nil)...)
	report.Took = time.Since(report.Started)
	return report, nil
}

// all runs the cases, those that must be alone after the others, and gives
// their results in the order of cases; what ctx's end left out is missing.
func (r *runner) all(ctx context.Context, cases []Case) []Result {
	results := make([]*Result, len(cases))
	var tell sync.Mutex
	one := func(i int) {
		if ctx.Err() != nil {
			return
		}
		if r.opts.OnStart != nil {
			tell.Lock()
			r.opts.OnStart(cases[i])
			tell.Unlock()
		}
		res := r.one(ctx, cases[i])
		results[i] = &res
		if r.opts.OnResult != nil {
			tell.Lock()
			defer tell.Unlock()
			r.opts.OnResult(res)
		}
	}
	next := make(chan int)
	var wg sync.WaitGroup
	for range max(r.opts.Parallel, 1) {
		wg.Go(func() {
			for i := range next {
				one(i)
			}
		})
	}
	for i, c := range cases {
		if !c.Alone {
			next <- i
		}
	}
	close(next)
	wg.Wait()
	for i, c := range cases {
		if c.Alone {
			one(i)
		}
	}
	var done []Result
	for _, res := range results {
		if res != nil {
			done = append(done, *res)
		}
	}
	return done
}

// one is a case with everything around it.
func (r *runner) one(ctx context.Context, c Case) (res Result) {
	began := time.Now()
	res = Result{ID: c.ID, Area: c.Area, Level: c.Level(), Title: c.Title, Verdict: Pass}
	defer func() { res.Took = time.Since(began) }()
	var unmet []string
	for _, n := range c.Needs {
		why := n.unmet(r.caps)
		if why == "" {
			continue
		}
		unmet = append(unmet, why)
		if refused := r.refusal(ctx, n); refused.Verdict != Pass {
			res.Verdict, res.Log = refused.Verdict, refused.Log
			res.Reason = why + ", and is not refused as it must be"
			return res
		}
	}
	if len(unmet) > 0 {
		res.Verdict, res.Reason = Unsupported, unmet[0]
		return res
	}
	if why := r.precondition(c); why != "" {
		res.Verdict, res.Reason = Inconclusive, why
		return res
	}
	ran := r.guarded(ctx, c)
	res.Verdict, res.Log, res.Reason = ran.Verdict, ran.Log, ran.Reason
	if why, ok := r.opts.Waivers[c.ID]; ok {
		switch res.Verdict {
		case Fail:
			res.Verdict, res.Reason = Waived, why+": "+res.Reason
		case Pass:
			res.Verdict, res.Reason = Fail, "its waiver is stale: "+why
		default:
		}
	}
	return res
}

// precondition says what of the suite's own needs is not there.
func (r *runner) precondition(c Case) string {
	for _, n := range c.Needs {
		switch n.Kind {
		case NeedProgram:
			r.mu.Lock()
			why := r.programs[n.Name]
			r.mu.Unlock()
			if why != "" {
				return why
			}
		case NeedWitness:
			if r.target.Witness == nil {
				return "nobody watches the host"
			}
		default:
		}
	}
	return ""
}

// guarded runs a case in a goroutine of its own: whatever it does, the suite
// goes on.
func (r *runner) guarded(ctx context.Context, c Case) (res Result) {
	t := &T{run: r}
	timeout := c.Timeout
	if timeout == 0 {
		timeout = r.opts.Timeout
	}
	if timeout == 0 {
		timeout = defaultTimeout
	}
	// A case that others run beside is asked for what its own sandboxes left, and
	// nothing of them can have been there before.
	single := c.Alone || max(r.opts.Parallel, 1) == 1
	var before map[string]string
	if r.target.Witness != nil && single {
		var err error
		if before, err = r.target.Witness.Snapshot(ctx); err != nil {
			t.Logf("the witness: %v", err)
		}
	}
	cctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	hung := !t.inGoroutine(timeout+grace, func() { c.Run(cctx, t) })
	if hung {
		t.Errorf("hung: it has not ended %v after its %v", grace, timeout)
	} else if cctx.Err() != nil && ctx.Err() == nil {
		t.Errorf("it took longer than its %v", timeout)
	}
	cancel()
	for f := t.nextCleanup(); f != nil; f = t.nextCleanup() {
		clean, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		if !t.inGoroutine(cleanupTimeout+grace, func() { f(clean) }) {
			t.Errorf("hung: a cleanup has not ended")
		}
		stop()
	}
	t.mu.Lock()
	ids := slices.Clone(t.ids)
	t.mu.Unlock()
	if single {
		ids = nil // whatever is new is its own
	}
	if before != nil || len(ids) > 0 {
		wctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		for _, l := range r.gone(wctx, before, ids) {
			t.Errorf("left behind: %s", l)
		}
		stop()
	}
	return t.result()
}

// result is the verdict so far; nothing is recorded any more.
func (t *T) result() (res Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	res.Verdict, res.Log = Pass, t.log
	switch {
	case t.failed:
		res.Verdict = Fail
	case t.inconclusive:
		res.Verdict = Inconclusive
	default:
		return res
	}
	if len(t.log) > 0 {
		res.Reason = t.log[len(t.log)-1]
		if t.failed {
			res.Reason = t.log[0]
		}
	}
	return res
}

// inGoroutine runs f and tells whether it ended in time. A panic fails the case.
func (t *T) inGoroutine(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		f()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// findPrograms looks for the programs that cases need, in a sandbox.
func (r *runner) findPrograms(ctx context.Context, cases []Case) {
	var wanted []string
	for _, c := range cases {
		for _, n := range c.Needs {
			if n.Kind == NeedProgram && !slices.Contains(wanted, n.Name) {
				wanted = append(wanted, n.Name)
			}
		}
	}
	for _, name := range wanted {
		args := []string{name, "-c", "exit 42"}
		if name == "python3" {
			args[2] = "import sys; sys.exit(42)"
		}
		res := r.guarded(ctx, Case{Run: func(ctx context.Context, t *T) {
			if got := t.exec(ctx, t.Create(ctx, backend.Spec{}), args...); got.Code != 42 {
				t.Inconclusivef("%s does not work in the sandbox: %v %.200q", name, got.Exit, got.err)
			}
		}})
		if res.Verdict != Pass {
			r.programs[name] = "precondition: " + res.Reason
		}
	}
}
