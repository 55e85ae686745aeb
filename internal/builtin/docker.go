package builtin

import (
	"context"
	"maps"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

func openDocker(ctx context.Context, env registry.Env, cfg docker.Config) (backend.Executor, error) {
	cfg.Templates = engineImages(env, cfg.Templates)
	ex, err := docker.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return refusingRoots(ex, env, fixRoots), nil
}

func probeDocker(ctx context.Context, env registry.Env, cfg docker.Config) (registry.Report, error) {
	cfg.Templates = engineImages(env, cfg.Templates)
	m, err := docker.Measure(ctx, cfg)
	if err != nil {
		return registry.Report{}, err
	}
	r := registry.Report{Driver: "docker", Health: m.Health, Capabilities: m.Capabilities, Privilege: "engine"}
	for _, f := range m.Facts {
		r.Facts = append(r.Facts, registry.Fact(f))
	}
	return r, nil
}

// engineImages adds the configured templates that are an engine's images; own,
// the backend's, win.
func engineImages(env registry.Env, own map[string]string) map[string]string {
	all := map[string]string{}
	for name, t := range env.Templates {
		if t.Image != "" {
			all[name] = t.Image
		}
	}
	maps.Copy(all, own)
	return all
}
