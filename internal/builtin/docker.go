package builtin

import (
	"context"
	"maps"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

func openDocker(ctx context.Context, env registry.Env, cfg docker.Config) (backend.Executor, error) {
	all := specs(env)
	cfg.Templates, cfg.BuiltTemplates = engineImages(all, cfg.Templates, cfg.BuiltTemplates)
	ex, err := docker.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	t := &templated{Executor: ex, specs: all, images: storeIn(cfg.StateDir), engine: "docker"}
	return refusingRoots(t, env, fixRoots), nil
}

func probeDocker(ctx context.Context, env registry.Env, cfg docker.Config) (registry.Report, error) {
	cfg.Templates, cfg.BuiltTemplates = engineImages(specs(env), cfg.Templates, cfg.BuiltTemplates)
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

// engineImages are the templates of all that are an engine's images, and those
// that are images of the store. Those that are in own and built, the backend's,
// win, and only what the others say is left in all.
func engineImages(all map[string]image.Spec, own, built map[string]string) (images, stored map[string]string) {
	images, stored = map[string]string{}, map[string]string{}
	for name, s := range all {
		switch {
		case own[name] != "" || built[name] != "":
			delete(all, name)
		case s.PlainImage():
			images[name] = s.Image
		case s.ImageName() != "":
			stored[name] = s.ImageName()
		}
	}
	maps.Copy(images, own)
	maps.Copy(stored, built)
	return images, stored
}
