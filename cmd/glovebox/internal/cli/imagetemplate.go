package cli

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/builtin"
	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/registry"
	"github.com/glovebox-dev/glovebox/internal/strict"
)

// buildTemplate is the name of the template that steps are run in.
const buildTemplate = "steps"

// imageSpecs are the templates that images can be built for.
func imageSpecs(c config.Config) map[string]image.Spec {
	out := map[string]image.Spec{}
	for _, s := range image.Standards() {
		out[s.Name] = s
	}
	for name, t := range c.Templates {
		out[name] = builtin.Spec(name, t.Registry())
	}
	return out
}

// specNamed is the template of that name: one of all, else a standard image.
func specNamed(all map[string]image.Spec, name string) (image.Spec, error) {
	s, ok := all[name]
	if !ok {
		return s, &backend.Error{
			Op: "image", Kind: backend.ErrNotFound, Err: strict.Unknown("image", name, slices.Sorted(maps.Keys(all))),
		}
	}
	return s, nil
}

// stepRunner runs steps in gVisor, as it is configured here.
func stepRunner(reg *registry.Registry, c config.Config) (run func(context.Context, image.Template) (image.StepRunner, func() error, error), why string) {
	const driver = "gvisor"
	if !slices.Contains(reg.Names(), driver) {
		return nil, "this program has no gVisor driver"
	}
	var with map[string]any
	for _, name := range slices.Sorted(maps.Keys(c.Backends)) {
		if b := c.Backends[name]; b.Driver == driver {
			with = b.With
			break
		}
	}
	return func(ctx context.Context, base image.Template) (image.StepRunner, func() error, error) {
		ex, err := reg.Open(ctx, driver, registry.Env{
			Name: driver, Templates: map[string]registry.Template{buildTemplate: {Rootfs: base.Rootfs, Root: true}},
		}, with)
		if err != nil {
			return nil, nil, err
		}
		var allow []backend.Rule
		for _, name := range backend.Presets() {
			allow = append(allow, backend.Rule{Preset: name})
		}
		return &image.Sandboxed{Executor: ex, Spec: backend.Spec{
			Template: buildTemplate, Lifetime: time.Hour, MinIsolation: backend.IsolationKernel,
			Network: backend.Network{Mode: backend.NetworkAllowlist, Allow: allow},
			Limits:  backend.Limits{Memory: 4 << 30, CPUs: 2, Pids: 1024, Disk: 2 << 30, Inodes: 1 << 20},
		}}, ex.Close, nil
	}, ""
}
