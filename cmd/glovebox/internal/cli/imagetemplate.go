package cli

import (
	"maps"
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/builtin"
	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/strict"
)

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
