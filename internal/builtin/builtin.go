// Package builtin lists the drivers that are part of this program.
package builtin

import (
	"context"
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/gvisor"
	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/registry"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// Registry is the registry of the drivers that are built in, those whose
// sandboxes cost least first.
func Registry() (*registry.Registry, error) {
	return registry.New(
		registry.Driver("subprocess", subprocess.DefaultConfig, openSubprocess, probeSubprocess).Local(),
		registry.Driver("gvisor", gvisor.DefaultConfig, openGVisor, probeGVisor).Local(),
		registry.Driver("docker", docker.DefaultConfig, openDocker, probeDocker).Local(),
	)
}

func openSubprocess(ctx context.Context, env registry.Env, cfg subprocess.Config) (backend.Executor, error) {
	all := specs(env)
	var err error
	// The backend's own templates win.
	if cfg.Templates, err = directories(all, cfg.Templates); err != nil {
		return nil, err
	}
	ex, err := subprocess.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return refusingRoots(&templated{Executor: ex, specs: all, images: imageStore}, env, fixRoots), nil
}

func probeSubprocess(ctx context.Context, env registry.Env, cfg subprocess.Config) (registry.Report, error) {
	var err error
	if cfg.Templates, err = directories(specs(env), cfg.Templates); err != nil {
		return registry.Report{}, err
	}
	m, err := subprocess.Measure(ctx, cfg)
	if err != nil {
		return registry.Report{}, err
	}
	r := registry.Report{
		Driver: "subprocess", Health: m.Health, Capabilities: m.Capabilities, Privilege: string(m.Privilege),
	}
	for _, f := range m.Facts {
		r.Facts = append(r.Facts, registry.Fact(f))
	}
	return r, nil
}

func openGVisor(ctx context.Context, env registry.Env, cfg gvisor.Config) (backend.Executor, error) {
	all := specs(env)
	if err := gvisorTemplates(all, &cfg); err != nil {
		return nil, err
	}
	ex, err := gvisor.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	t := &templated{Executor: ex, specs: all, images: imageStore}
	if cfg.Via == gvisor.ViaDocker {
		t.images, t.engine = storeIn(cfg.StateDir), "gvisor-docker"
		return refusingRoots(t, env, fixViaDocker), nil
	}
	return t, nil
}

// gvisorTemplates gives cfg its templates: directories, or an engine's images.
func gvisorTemplates(all map[string]image.Spec, cfg *gvisor.Config) (err error) {
	if cfg.Via == gvisor.ViaDocker {
		cfg.Templates, cfg.BuiltTemplates = engineImages(all, cfg.Templates, cfg.BuiltTemplates)
		return nil
	}
	if cfg.Templates, err = directories(all, cfg.Templates); err != nil {
		return err
	}
	for name, s := range all {
		if s.Root && !slices.Contains(cfg.RootTemplates, name) {
			cfg.RootTemplates = append(cfg.RootTemplates, name)
		}
	}
	slices.Sort(cfg.RootTemplates)
	return nil
}

func probeGVisor(ctx context.Context, env registry.Env, cfg gvisor.Config) (registry.Report, error) {
	if err := gvisorTemplates(specs(env), &cfg); err != nil {
		return registry.Report{}, err
	}
	m, err := gvisor.Measure(ctx, cfg)
	if err != nil {
		return registry.Report{}, err
	}
	r := registry.Report{
		Driver: "gvisor", Health: m.Health, Capabilities: m.Capabilities, Privilege: string(m.Privilege),
	}
	for _, f := range m.Facts {
		r.Facts = append(r.Facts, registry.Fact(f))
	}
	return r, nil
}
