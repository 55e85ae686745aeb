// Package registry makes executors from configuration: it maps a driver's name
// to what opens it, and decodes each driver's own section strictly into the
// driver's own struct. Drivers know nothing of it.
package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/strict"
)

// Env is what a driver is opened with besides its own section.
type Env struct {
	Name      string              // the backend's configured name
	Templates map[string]Template // the templates that may run on it, by name
}

// Template is a template as it is configured. One of Rootfs, Image and
// Dockerfile is set.
type Template struct {
	Rootfs     string // a built image's name, or a directory's absolute path
	Image      string // of a container engine
	Dockerfile string // its absolute path
	// Apt, Pip and NPM are packages to be added.
	Apt, Pip, NPM []string
	Env           map[string]string
	// Start is the command line that a sandbox starts with, Ready one that
	// succeeds once that works, or ReadyPort a port that is open then.
	Start, Ready string
	ReadyPort    int
	// ReadyTimeout and ReadyInterval are those of backend.Startup; 0 is its default.
	ReadyTimeout, ReadyInterval time.Duration
	// User and WorkDir are what commands begin with that name none.
	User, WorkDir string
	// Root asks for a root with capabilities, where the level allows it.
	Root bool
}

// Report is what probing a driver found. Nothing is left running.
type Report struct {
	Driver       string               `json:"driver"`
	Health       backend.Health       `json:"health"`
	Capabilities backend.Capabilities `json:"capabilities"`
	// Privilege is how the driver itself would work here, in its own words.
	Privilege string `json:"privilege,omitempty"`
	Facts     []Fact `json:"facts,omitempty"`
}

// Fact is one thing measured about this host.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	OK    bool   `json:"ok"`
	Fix   string `json:"fix,omitempty"` // what to do to get it
}

// Factory makes executors of one driver. Make one with Driver.
type Factory struct {
	name   string
	local  bool
	config reflect.Type
	check  func(with map[string]any) error
	open   func(ctx context.Context, env Env, with map[string]any) (backend.Executor, error)
	probe  func(ctx context.Context, env Env, with map[string]any) (Report, error)
}

// Driver describes a driver whose section decodes into C. defaults gives the
// section's starting values; a Validate method of C is called after decoding.
// open gets a valid C, as does probe, which leaves nothing running.
func Driver[C any](
	name string,
	defaults func() C,
	open func(ctx context.Context, env Env, cfg C) (backend.Executor, error),
	probe func(ctx context.Context, env Env, cfg C) (Report, error),
) Factory {
	decode := func(with map[string]any) (C, error) {
		cfg := defaults()
		if err := strict.Decode(with, &cfg); err != nil {
			return cfg, err
		}
		if v, ok := any(cfg).(interface{ Validate() error }); ok {
			return cfg, v.Validate()
		}
		return cfg, nil
	}
	f := Factory{
		name: name, config: reflect.TypeFor[C](),
		check: func(with map[string]any) error { _, err := decode(with); return err },
	}
	f.open = func(ctx context.Context, env Env, with map[string]any) (backend.Executor, error) {
		cfg, err := decode(with)
		if err != nil {
			return nil, err
		}
		ex, err := open(ctx, env, cfg)
		if err != nil {
			return nil, err // whatever open returned beside it may be a typed nil
		}
		return ex, nil
	}
	f.probe = func(ctx context.Context, env Env, with map[string]any) (Report, error) {
		cfg, err := decode(with)
		if err != nil {
			return Report{}, err
		}
		return probe(ctx, env, cfg)
	}
	return f
}

// Local marks a driver that needs no settings and works on this host alone, so
// that it is there to be chosen though nobody configured it. A driver that sends
// code elsewhere must never be marked.
func (f Factory) Local() Factory {
	f.local = true
	return f
}

// Registry knows drivers by their names. It does not change after New and is
// safe for concurrent use.
type Registry struct {
	factories map[string]Factory
	order     []string
}

// New makes a registry of factories, those whose sandboxes cost least first;
// two of one name are an error.
func New(factories ...Factory) (*Registry, error) {
	r := &Registry{factories: make(map[string]Factory, len(factories))}
	for _, f := range factories {
		if f.name == "" || f.open == nil {
			return nil, errors.New("registry: a factory without a name or an open function")
		}
		if _, ok := r.factories[f.name]; ok {
			return nil, fmt.Errorf("registry: driver %q is registered twice", f.name)
		}
		r.factories[f.name] = f
		r.order = append(r.order, f.name)
	}
	return r, nil
}

// Local lists the drivers marked so.
func (r *Registry) Local() []string {
	return slices.DeleteFunc(slices.Clone(r.order), func(name string) bool { return !r.factories[name].local })
}

// Cost ranks drivers by what their sandboxes cost, the cheapest being 0.
func (r *Registry) Cost(driver string) int { return slices.Index(r.order, driver) }

// Names lists the drivers, sorted.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.factories)) }

// ConfigType is the struct that driver's section decodes into.
func (r *Registry) ConfigType(driver string) (reflect.Type, error) {
	f, err := r.factory(driver)
	return f.config, err
}

// Check decodes and validates a driver's section, without I/O.
func (r *Registry) Check(driver string, with map[string]any) error {
	f, err := r.factory(driver)
	if err != nil {
		return err
	}
	return f.check(with)
}

// Open makes an executor. Opening succeeds on a valid section, whatever the
// host offers. The caller closes it.
func (r *Registry) Open(ctx context.Context, driver string, env Env, with map[string]any) (backend.Executor, error) {
	f, err := r.factory(driver)
	if err != nil {
		return nil, err
	}
	return f.open(ctx, env, with)
}

// Probe measures what a driver could give on this host.
func (r *Registry) Probe(ctx context.Context, driver string, env Env, with map[string]any) (Report, error) {
	f, err := r.factory(driver)
	if err != nil {
		return Report{}, err
	}
	return f.probe(ctx, env, with)
}

func (r *Registry) factory(driver string) (Factory, error) {
	f, ok := r.factories[driver]
	if !ok {
		return f, &backend.Error{
			Op: "registry", Kind: backend.ErrInvalid, Field: "driver",
			Err: strict.Unknown("driver", driver, r.Names()),
		}
	}
	return f, nil
}
