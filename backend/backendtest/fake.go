// Package backendtest has an in-memory backend for the tests of everything
// above the contract: its programs are Go functions, its files a map, its time
// a clock that the test moves, and every operation can be made to fail, hang or
// lose its answer.
package backendtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// Fake is a backend.Executor in memory. It is safe for concurrent use. Optional
// interfaces are found with backend.As, as far as their features are claimed.
type Fake struct {
	host *host
	name string
	caps backend.Capabilities

	mu     sync.Mutex
	closed bool
	owned  map[string]*sandbox // those this executor made
}

// host is what outlives an executor.
type host struct {
	clock *Clock

	mu        sync.Mutex
	seq       int
	sandboxes map[string]*sandbox
	programs  map[string]Program
	open      map[string]int // readers and connections not yet closed
	faults    []*Injected
	calls     []Call
}

// Option sets up a Fake.
type Option func(*Fake)

// WithClock shares a clock.
func WithClock(c *Clock) Option { return func(f *Fake) { f.host.clock = c } }

// WithProgram makes Args[0] == name run p, instead of a standard program too.
func WithProgram(name string, p Program) Option {
	return func(f *Fake) { f.host.programs[name] = p }
}

// WithCapabilities changes what the fake claims. A feature left out takes its
// optional interface away.
func WithCapabilities(change func(*backend.Capabilities)) Option {
	return func(f *Fake) { change(&f.caps) }
}

// Without takes features away.
func Without(features ...backend.Feature) Option {
	return WithCapabilities(func(c *backend.Capabilities) {
		c.Features = slices.DeleteFunc(slices.Clone(c.Features), func(have backend.Feature) bool {
			return slices.Contains(features, have)
		})
	})
}

// Capabilities claims every control as enforced, the level vm, all network
// modes and every feature the fake has.
func Capabilities() backend.Capabilities {
	caps := backend.Capabilities{
		Driver:    "fake",
		Isolation: backend.IsolationVM,
		Claims:    map[backend.Control]backend.Claim{},
		Networks:  []backend.NetworkMode{backend.NetworkNone, backend.NetworkAllowlist, backend.NetworkFull},
		Features: []backend.Feature{
			backend.FeatureProbe, backend.FeatureFind, backend.FeaturePause, backend.FeatureExtend,
			backend.FeatureDial, backend.FeatureUsage, backend.FeatureProcesses, backend.FeatureTerminal,
			backend.FeatureInput, backend.FeatureRange, backend.FeaturePrivateRoot, backend.FeatureTemplates,
		},
	}
	for _, control := range backend.Controls() {
		caps.Claims[control] = backend.Claim{Enforcement: backend.Enforced, Mechanism: "fake"}
	}
	return caps
}

// New makes a Fake with Capabilities, a NewClock and the Programs.
func New(opts ...Option) *Fake {
	f := &Fake{
		name:  "fake",
		caps:  Capabilities(),
		owned: map[string]*sandbox{},
		host: &host{
			clock: NewClock(), sandboxes: map[string]*sandbox{}, programs: Programs(), open: map[string]int{},
		},
	}
	for _, o := range opts {
		o(f)
	}
	return f
}

// Reopen is another executor on the same host, as after a restart: it finds
// the sandboxes that were kept, and shares clock, faults and calls.
func (f *Fake) Reopen() *Fake {
	return &Fake{host: f.host, name: f.name, caps: f.caps, owned: map[string]*sandbox{}}
}

// Clock is the fake's clock.
func (f *Fake) Clock() *Clock { return f.host.clock }

// Capabilities implements backend.Executor.
func (f *Fake) Capabilities() backend.Capabilities {
	c := f.caps
	c.Claims = maps.Clone(c.Claims)
	c.Networks = slices.Clone(c.Networks)
	c.Features = slices.Clone(c.Features)
	return c
}

// Create implements backend.Executor.
func (f *Fake) Create(ctx context.Context, spec backend.Spec) (backend.Sandbox, error) {
	var sb *sandbox
	err := f.host.do(ctx, Call{Op: OpCreate, Arg: spec}, func() (err error) {
		sb, err = f.create(spec)
		return err
	})
	if err != nil {
		return nil, err
	}
	return sb, nil
}

func (f *Fake) create(asked backend.Spec) (*sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, &backend.Error{Op: "create", Kind: backend.ErrClosed, Backend: f.name}
	}
	spec, warnings, err := f.caps.Admit(f.name, asked)
	if err != nil {
		return nil, err
	}
	sb := newSandbox(f, asked, spec, warnings)
	f.owned[sb.id] = sb
	return sb, nil
}

// Close implements backend.Executor.
func (f *Fake) Close() error {
	ctx := context.Background() //nolint:forbidigo // Close has none
	return f.host.do(ctx, Call{Op: OpClose}, func() error {
		f.mu.Lock()
		f.closed = true
		owned := slices.Collect(maps.Values(f.owned))
		f.mu.Unlock()
		for _, sb := range owned {
			if !sb.spec.Keep {
				sb.end(backend.ErrClosed)
			}
		}
		return nil
	})
}

// Leaked lists what has not ended: sandboxes that were not destroyed, commands
// that have not ended, programs that run on though they were killed, readers
// and connections that were not closed. Empty is as it should be. Programs that
// were killed get a second to return.
func (f *Fake) Leaked() []string {
	h := f.host
	h.mu.Lock()
	sandboxes := slices.Collect(maps.Values(h.sandboxes))
	var left []string
	for what, n := range h.open {
		if n > 0 {
			left = append(left, fmt.Sprintf("%d open: %s", n, what))
		}
	}
	h.mu.Unlock()
	grace := make(chan time.Time)
	timer := time.AfterFunc(time.Second, func() { close(grace) })
	defer timer.Stop()
	for _, sb := range sandboxes {
		left = append(left, sb.leaked(grace)...)
	}
	slices.Sort(left)
	return left
}

// opened counts something a caller must close; the result counts it as closed.
func (h *host) opened(what string) func() {
	count := func(n int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.open[what] += n
	}
	count(1)
	return sync.OnceFunc(func() { count(-1) })
}

var _ backend.Executor = (*Fake)(nil)
