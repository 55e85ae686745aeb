package router_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/policy/router"
)

// fake is an executor whose answers are set.
type fake struct {
	level    backend.Isolation
	achieved backend.Isolation // of its sandboxes; level when 0
	err      error             // of Create
	down     string            // why Probe says it is not available
	refuses  error             // of Admit
	probes   int
	creates  int
	spec     backend.Spec
	closed   int
	box      *box
	memory   backend.Enforcement
	networks []backend.NetworkMode
}

func (f *fake) Capabilities() backend.Capabilities {
	c := backend.Capabilities{Driver: "fake", Isolation: f.level, Networks: f.networks, Claims: map[backend.Control]backend.Claim{
		backend.ControlMemory: {Enforcement: f.memory}, backend.ControlNetworkOff: {Enforcement: backend.Enforced},
	}}
	if c.Networks == nil {
		c.Networks = []backend.NetworkMode{backend.NetworkNone}
	}
	return c
}

func (f *fake) Create(_ context.Context, spec backend.Spec) (backend.Sandbox, error) {
	f.creates++
	f.spec = spec
	if f.err != nil {
		return nil, f.err
	}
	level := f.achieved
	if level == 0 {
		level = f.level
	}
	f.box = &box{achieved: level}
	return f.box, nil
}

func (f *fake) Close() error { f.closed++; return nil }

func (f *fake) Admit(spec backend.Spec) (backend.Spec, []string, error) {
	if f.refuses != nil {
		return spec, nil, f.refuses
	}
	return f.Capabilities().Admit("fake", spec)
}

func (f *fake) Probe(context.Context) (backend.Health, error) {
	f.probes++
	return backend.Health{Available: f.down == "", Isolation: f.level, Reason: f.down}, nil
}

type box struct {
	achieved  backend.Isolation
	destroyed int
}

func (b *box) ID() string { return "b1" }
func (b *box) Start(context.Context, backend.Command) (backend.Process, error) {
	return nil, backend.ErrUnsupported
}
func (b *box) Files() backend.Filesystem                         { return nil }
func (b *box) Receipt() backend.Receipt                          { return backend.Receipt{Backend: "?", Achieved: b.achieved} }
func (b *box) Destroy(context.Context) error                     { b.destroyed++; return nil }
func (b *box) Pause(context.Context, backend.PauseOptions) error { return nil }
func (b *box) Resume(context.Context) error                      { return nil }

func two(t *testing.T, a, b *fake, opts router.Options) *router.Router {
	t.Helper()
	r, err := router.New([]router.Candidate{{Name: "a", Executor: a}, {Name: "b", Executor: b}}, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestRouter_chooses(t *testing.T) {
	t.Parallel()
	const process, kernel = backend.IsolationProcess, backend.IsolationKernel
	unavailable := &backend.Error{Op: "create", Kind: backend.ErrUnavailable, Err: errors.New("daemon is down")}
	for _, tc := range []struct {
		name   string
		a, b   fake
		opts   router.Options
		spec   backend.Spec
		want   string              // the backend, or "" for an error
		kind   backend.Kind        // of the error
		passed []backend.Candidate // in the receipt
	}{
		{name: "the first", a: fake{level: process}, b: fake{level: kernel}, want: "a"},
		{
			name: "below the asked level", a: fake{level: process}, b: fake{level: kernel}, spec: backend.Spec{MinIsolation: kernel},
			want: "b", passed: []backend.Candidate{{Backend: "a", Isolation: process, Reason: "isolation process is below the asked kernel"}},
		},
		{
			name: "below the policy's level", a: fake{level: process}, b: fake{level: kernel}, opts: router.Options{MinIsolation: kernel},
			want: "b", passed: []backend.Candidate{{Backend: "a", Isolation: process, Reason: "isolation process is below the asked kernel"}},
		},
		{
			name: "unavailable", a: fake{level: kernel, err: unavailable}, b: fake{level: process}, want: "b",
			passed: []backend.Candidate{{Backend: "a", Isolation: kernel, Reason: "create: daemon is down"}},
		},
		{
			name: "never below the level when the strong one is down", a: fake{level: kernel, err: unavailable}, b: fake{level: process},
			spec: backend.Spec{MinIsolation: kernel}, kind: backend.ErrUnavailable,
		},
		{
			name: "required never falls back", a: fake{level: kernel, err: unavailable}, b: fake{level: kernel},
			opts: router.Options{Required: true}, kind: backend.ErrUnavailable,
		},
		{name: "lost is never repeated", a: fake{level: kernel, err: backend.ErrLost}, b: fake{level: kernel}, kind: backend.ErrLost},
		{name: "denied is not shopped around", a: fake{level: kernel, err: backend.ErrDenied}, b: fake{level: kernel}, kind: backend.ErrDenied},
		{
			name: "lost because unavailable stays lost", b: fake{level: kernel}, kind: backend.ErrLost,
			a: fake{level: kernel, err: &backend.Error{Kind: backend.ErrLost, Err: backend.ErrUnavailable}},
		},
		{name: "an unclassified error ends it", a: fake{level: kernel, err: errors.New("?")}, b: fake{level: kernel}, kind: backend.ErrInternal},
		{
			name: "both out of room", a: fake{level: kernel, err: backend.ErrUnsupported}, b: fake{level: kernel, err: backend.ErrCapacity},
			kind: backend.ErrCapacity,
		},
		{
			name: "none is strong enough", a: fake{level: process}, b: fake{level: process}, spec: backend.Spec{MinIsolation: backend.IsolationVM},
			kind: backend.ErrUnsupported,
		},
		{
			name: "a sandbox weaker than promised", a: fake{level: kernel, achieved: process}, b: fake{level: kernel},
			spec: backend.Spec{MinIsolation: kernel}, want: "b", passed: []backend.Candidate{{
				Backend: "a", Isolation: kernel,
				Reason: "create: min_isolation: the sandbox reached isolation process, kernel is asked for (backend a)",
			}},
		},
		{
			name: "a template's backends", a: fake{level: kernel}, b: fake{level: kernel}, spec: backend.Spec{Template: "ml"},
			opts: router.Options{Templates: map[string][]string{"ml": {"b"}}}, want: "b",
			passed: []backend.Candidate{{Backend: "a", Isolation: kernel, Reason: "template ml is only for b"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := two(t, &tc.a, &tc.b, tc.opts)
			sb, err := r.Create(t.Context(), tc.spec)
			if tc.want == "" {
				if backend.KindOf(err) != tc.kind || sb != nil {
					t.Fatalf("Create = %v, %v, want kind %s", sb, err, tc.kind)
				}
				if tc.kind == backend.ErrLost && tc.b.creates > 0 {
					t.Error("the second backend was tried")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := sb.Receipt()
			if got.Backend != tc.want {
				t.Errorf("backend %s, want %s", got.Backend, tc.want)
			}
			if d := cmp.Diff(tc.passed, got.Passed); d != "" {
				t.Error(d)
			}
			if tc.a.box != nil && tc.want == "b" && tc.a.box.destroyed != 1 {
				t.Error("the weak sandbox was left running")
			}
		})
	}
}

func TestRouter_appliesThePolicy(t *testing.T) {
	t.Parallel()
	a := &fake{level: backend.IsolationVM}
	r := two(t, a, &fake{level: backend.IsolationVM}, router.Options{MinIsolation: backend.IsolationContainer, Strict: true})
	if _, err := r.Create(t.Context(), backend.Spec{MinIsolation: backend.IsolationNone}); err != nil {
		t.Fatal(err)
	}
	if a.spec.MinIsolation != backend.IsolationContainer || !a.spec.Strict {
		t.Errorf("the spec was not raised: %+v", a.spec)
	}
}

func TestRouter_stopsWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	a := &fake{level: backend.IsolationVM}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := two(t, a, a, router.Options{}).Create(ctx, backend.Spec{}); !errors.Is(err, context.Canceled) || a.creates != 0 {
		t.Errorf("error %v after %d creates", err, a.creates)
	}
}

func TestRouter_layer(t *testing.T) {
	t.Parallel()
	a, b := &fake{level: backend.IsolationVM}, &fake{level: backend.IsolationVM}
	r := two(t, a, b, router.Options{})
	sb, err := r.Create(t.Context(), backend.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := backend.As[backend.Pauser](sb); !ok {
		t.Error("a sandbox's ability is hidden")
	}
	if _, ok := backend.As[backend.Snapshotter](sb); ok {
		t.Error("an ability appears that the sandbox has not")
	}
	if _, ok := backend.As[backend.Finder](r); ok {
		t.Error("Finder appears though no candidate has it")
	}
	if err := r.Close(); err != nil || a.closed != 1 || b.closed != 1 {
		t.Errorf("Close = %v, closed %d and %d times", err, a.closed, b.closed)
	}
	if _, err := router.New(nil, router.Options{}); err == nil {
		t.Error("a router without candidates is accepted")
	}
}

func TestRouter_capabilitiesAreTheWeakest(t *testing.T) {
	t.Parallel()
	a := &fake{
		level: backend.IsolationVM, memory: backend.Enforced,
		networks: []backend.NetworkMode{backend.NetworkNone, backend.NetworkFull},
	}
	b := &fake{level: backend.IsolationContainer, memory: backend.BestEffort}
	c := two(t, a, b, router.Options{}).Capabilities()
	if c.Isolation != backend.IsolationContainer || c.Claim(backend.ControlMemory).Enforcement != backend.BestEffort ||
		len(c.Networks) != 1 {
		t.Errorf("Capabilities = %+v", c)
	}
	only := two(t, a, b, router.Options{MinIsolation: backend.IsolationVM}).Capabilities()
	if only.Isolation != backend.IsolationVM || len(only.Networks) != 2 {
		t.Errorf("Capabilities = %+v, want those of the only one that may be chosen", only)
	}
	if none := two(t, b, b, router.Options{MinIsolation: backend.IsolationVM}).Capabilities(); none.Isolation != 0 || none.Claims != nil {
		t.Errorf("Capabilities = %+v, want nothing promised", none)
	}
}

func TestRouter_Explain(t *testing.T) {
	t.Parallel()
	down := &backend.Error{Kind: backend.ErrUnavailable, Err: errors.New("no daemon")}
	a := &fake{level: backend.IsolationVM, refuses: down, down: "no daemon", memory: backend.Enforced}
	b := &fake{level: backend.IsolationKernel, memory: backend.Enforced}
	for _, tc := range []struct {
		name string
		opts router.Options
		spec backend.Spec
		want string
		text []string // of the candidates' reasons
	}{
		{"the next", router.Options{}, backend.Spec{}, "b", []string{"no daemon", "the first that"}},
		{"required", router.Options{Required: true}, backend.Spec{}, "", []string{"no daemon", "required forbids"}},
		{"too weak", router.Options{MinIsolation: backend.IsolationVM}, backend.Spec{}, "", []string{"no daemon", "below the asked vm"}},
		{
			"a field that cannot be",
			router.Options{},
			backend.Spec{Network: backend.Network{Mode: backend.NetworkFull}},
			"",
			[]string{"no daemon", "network.mode"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, err := two(t, a, b, tc.opts).Explain(t.Context(), tc.spec)
			if err != nil || d.Backend != tc.want {
				t.Fatalf("Explain = %+v, %v, want backend %q", d, err, tc.want)
			}
			for i, want := range tc.text {
				if !strings.Contains(d.Candidates[i].Reason, want) {
					t.Errorf("reason %q, want %q", d.Candidates[i].Reason, want)
				}
			}
		})
	}
	if _, err := two(t, a, b, router.Options{}).Explain(t.Context(), backend.Spec{Lifetime: -1}); backend.KindOf(err) != backend.ErrInvalid {
		t.Errorf("error %v for an invalid spec", err)
	}
	denied := &fake{level: backend.IsolationVM, refuses: &backend.Error{Kind: backend.ErrDenied, Err: errors.New("not here")}}
	d, err := two(t, denied, b, router.Options{}).Explain(t.Context(), backend.Spec{})
	if err != nil || d.Backend != "" || !strings.Contains(d.Candidates[0].Reason, "not here") || !strings.Contains(d.Candidates[1].Reason, "not tried") {
		t.Errorf("a refusal that Create would not go on after: %+v, %v", d, err)
	}
	if a.creates+b.creates+a.probes > 0 {
		t.Error("Explain made a sandbox, or probed what refuses anyway")
	}
	h, err := probe(t, two(t, a, b, router.Options{}))
	if err != nil || !h.Available || h.Isolation != backend.IsolationKernel {
		t.Errorf("Probe = %+v, %v", h, err)
	}
	if h, err = probe(t, two(t, a, a, router.Options{})); err != nil || h.Available || !strings.Contains(h.Reason, "no daemon") {
		t.Errorf("Probe = %+v, %v", h, err)
	}
}

func probe(t *testing.T, r *router.Router) (backend.Health, error) {
	t.Helper()
	p, ok := backend.As[backend.Prober](r)
	if !ok {
		t.Fatal("no Prober")
	}
	return p.Probe(t.Context())
}

type findable struct {
	fake
	id string
}

func (f *findable) Find(_ context.Context, id string) (backend.Sandbox, error) {
	if id != f.id {
		return nil, backend.ErrNotFound
	}
	return &box{}, nil
}

func (f *findable) Sandboxes(context.Context) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) { yield(backend.Info{ID: f.id}, nil) }
}

func TestRouter_findsOnEveryCandidate(t *testing.T) {
	t.Parallel()
	r, err := router.New([]router.Candidate{{Name: "a", Executor: &findable{id: "x1"}}, {Name: "b", Executor: &findable{id: "y1"}}}, router.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f, ok := backend.As[backend.Finder](r)
	if !ok {
		t.Fatal("Finder is hidden though every candidate has it")
	}
	if sb, err := f.Find(t.Context(), "y1"); err != nil || sb.Receipt().Backend != "b" {
		t.Errorf("Find = %v, %v, want it on b", sb, err)
	}
	if _, err := f.Find(t.Context(), "z1"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("error %v, want not found", err)
	}
	var ids []string
	for info, err := range f.Sandboxes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, info.Backend+"/"+info.ID)
	}
	if d := cmp.Diff([]string{"a/x1", "b/y1"}, ids); d != "" {
		t.Error(d)
	}
}
