// Package builtin lists the drivers that are part of this program.
package builtin

import (
	"context"
	"maps"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/registry"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// Registry is the registry of the drivers that are built in, those whose
// sandboxes cost least first.
func Registry() (*registry.Registry, error) {
	return registry.New(
		registry.Driver("subprocess", subprocess.DefaultConfig, openSubprocess, probeSubprocess).Local(),
	)
}

func openSubprocess(ctx context.Context, env registry.Env, cfg subprocess.Config) (backend.Executor, error) {
	return subprocess.Open(ctx, withTemplates(cfg, env))
}

func probeSubprocess(ctx context.Context, env registry.Env, cfg subprocess.Config) (registry.Report, error) {
	m, err := subprocess.Measure(ctx, withTemplates(cfg, env))
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

// withTemplates adds the templates that stand beside the backends; the
// backend's own win.
func withTemplates(cfg subprocess.Config, env registry.Env) subprocess.Config {
	if len(env.Templates) == 0 {
		return cfg
	}
	all := maps.Clone(env.Templates)
	maps.Copy(all, cfg.Templates)
	cfg.Templates = all
	return cfg
}
