package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/registry"
	"github.com/glovebox-dev/glovebox/internal/strict"
	"github.com/glovebox-dev/glovebox/policy/router"
)

// Executors are the executors that a configuration describes. It is safe for
// concurrent use. Whoever made it calls Close.
type Executors struct {
	cfg Config
	reg *registry.Registry

	mu       sync.Mutex
	closed   bool
	backends map[string]backend.Executor
	routers  map[string]*router.Router
}

// Open readies the executors of cfg, a valid configuration. Backends are
// opened when an executor that uses them is first asked for.
func Open(cfg Config, reg *registry.Registry) *Executors {
	return &Executors{
		cfg: cfg, reg: reg,
		backends: map[string]backend.Executor{}, routers: map[string]*router.Router{},
	}
}

// Executor is the executor of that name. It belongs to e and is closed with
// it. ctx bounds the opening.
func (e *Executors) Executor(ctx context.Context, name string) (*router.Router, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, &backend.Error{Op: "executor", Kind: backend.ErrClosed}
	}
	if r, ok := e.routers[name]; ok {
		return r, nil
	}
	cfg, ok := e.cfg.Executors[name]
	if !ok {
		return nil, &backend.Error{
			Op: "executor", Kind: backend.ErrNotFound,
			Err: strict.Unknown("executor", name, slices.Collect(maps.Keys(e.cfg.Executors))),
		}
	}
	candidates, absent, err := e.candidates(ctx, cfg)
	if err != nil {
		return nil, err
	}
	opts := router.Options{
		MinIsolation: cfg.Minimum(), Required: cfg.Required, Strict: cfg.Strict, Templates: map[string][]string{}, Absent: absent,
		Complete: e.cfg.complete,
	}
	for t, tc := range e.cfg.Templates {
		if len(tc.Backends) > 0 {
			opts.Templates[t] = tc.Backends
		}
	}
	r, err := router.New(candidates, opts)
	if err != nil {
		return nil, err
	}
	e.routers[name] = r
	return r, nil
}

// candidates are the backends that cfg chooses from, the preferred one first,
// and those that cannot even be opened here, which only matters to who must
// have the first or has no other.
func (e *Executors) candidates(ctx context.Context, cfg Executor) (out []router.Candidate, absent []backend.Candidate, err error) {
	names := []string(cfg.Use)
	if cfg.Use.IsAuto() {
		names = e.cfg.auto()
	}
	var failures []error
	for _, name := range names {
		ex, err := e.open(ctx, name)
		switch kind := backend.KindOf(err); {
		case err == nil:
			out = append(out, router.Candidate{Name: name, Executor: ex})
		case cfg.Required || kind != backend.ErrUnavailable && kind != backend.ErrUnsupported:
			return nil, nil, fmt.Errorf("backend %s: %w", name, err)
		default:
			failures = append(failures, fmt.Errorf("backend %s: %w", name, err))
			absent = append(absent, backend.Candidate{Backend: name, Reason: err.Error()})
		}
	}
	if len(out) == 0 && len(failures) > 0 {
		return nil, nil, errors.Join(failures...)
	}
	if cfg.Use.IsAuto() {
		slices.SortStableFunc(out, func(a, b router.Candidate) int {
			return cmp.Or(
				cmp.Compare(b.Executor.Capabilities().Isolation, a.Executor.Capabilities().Isolation),
				cmp.Compare(e.reg.Cost(e.cfg.Backends[a.Name].Driver), e.reg.Cost(e.cfg.Backends[b.Name].Driver)),
			)
		})
	}
	return out, absent, nil
}

// auto names the backends that auto means, sorted: all, but those that are there
// by default only where no other backend of their driver is configured.
func (c Config) auto() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(c.Backends)) {
		b, stands := c.Backends[name], true
		if name == b.Driver && len(b.With) == 0 {
			for other, o := range c.Backends {
				stands = stands && (other == name || o.Driver != b.Driver)
			}
		}
		if stands {
			out = append(out, name)
		}
	}
	return out
}

func (e *Executors) open(ctx context.Context, name string) (backend.Executor, error) {
	if ex, ok := e.backends[name]; ok {
		return ex, nil
	}
	b := e.cfg.Backends[name]
	ex, err := e.reg.Open(ctx, b.Driver, e.cfg.Env(name), b.With)
	if err != nil {
		return nil, err
	}
	e.backends[name] = ex
	return ex, nil
}

// Probe measures what the backend of that name could give on this host.
func (e *Executors) Probe(ctx context.Context, name string) (registry.Report, error) {
	b, ok := e.cfg.Backends[name]
	if !ok {
		return registry.Report{}, &backend.Error{
			Op: "probe", Kind: backend.ErrNotFound,
			Err: strict.Unknown("backend", name, slices.Collect(maps.Keys(e.cfg.Backends))),
		}
	}
	return e.reg.Probe(ctx, b.Driver, e.cfg.Env(name), b.With)
}

// Close closes the backends that were opened. It is idempotent.
func (e *Executors) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	var errs []error
	// Routers end their probing with them; closing a backend again is nothing.
	for _, name := range slices.Sorted(maps.Keys(e.routers)) {
		errs = append(errs, e.routers[name].Close())
	}
	clear(e.routers)
	for _, name := range slices.Sorted(maps.Keys(e.backends)) {
		errs = append(errs, e.backends[name].Close())
	}
	return errors.Join(errs...)
}
