package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/strict"
)

// separator joins a key's segments inside this package. It is no dot, since a
// name may have one.
const separator = "\x1f"

func join(prefix, key string) string {
	if prefix == "" {
		return key
	}
	return prefix + separator + key
}

// dotted is a joined key as it is shown.
func dotted(key string) string { return strings.ReplaceAll(key, separator, ".") }

// layer is one source of values.
type layer struct {
	values map[string]any
	// origin says where key comes from: a file with its line, a variable, a
	// flag.
	origin func(key string) string
}

// shorthand turns a top-level backend into executors.default.use, whose short
// form it is, so that the later of two layers wins however each wrote it.
func (l layer) shorthand() (layer, error) {
	use, ok := l.values["backend"]
	if !ok {
		return l, nil
	}
	values := map[string]any{}
	for k, v := range l.values {
		if k != "backend" {
			values[k] = v
		}
	}
	executors, ok := values["executors"].(map[string]any)
	if !ok && values["executors"] != nil {
		return layer{values, l.origin}, nil // decoding reports it
	}
	def, ok := executors[DefaultExecutor].(map[string]any)
	if !ok && executors[DefaultExecutor] != nil {
		return layer{values, l.origin}, nil
	}
	if _, both := def["use"]; both {
		return l, fmt.Errorf("config: %s: backend and executors.default.use are one setting; keep one of them", l.origin("backend"))
	}
	values["executors"] = with(executors, DefaultExecutor, with(def, "use", use))
	key := strings.Join([]string{"executors", DefaultExecutor, "use"}, separator)
	inner := l.origin
	return layer{values, func(k string) string {
		if k == key {
			return inner("backend")
		}
		return inner(k)
	}}, nil
}

func with(m map[string]any, key string, v any) map[string]any {
	out := map[string]any{}
	maps.Copy(out, m)
	out[key] = v
	return out
}

// merge puts layers together, the later one winning key by key, and says where
// each key comes from, sections included.
func merge(layers []layer) (map[string]any, map[string]string, error) {
	k := koanf.NewWithConf(koanf.Conf{Delim: separator})
	origins := map[string]string{}
	for _, l := range layers {
		l, err := l.shorthand()
		if err != nil {
			return nil, nil, err
		}
		if err := k.Load(confmap.Provider(l.values, ""), nil); err != nil {
			return nil, nil, fmt.Errorf("config: %w", err)
		}
		record(origins, "", l.values, l.origin)
	}
	return k.Raw(), origins, nil
}

func record(origins map[string]string, prefix string, values map[string]any, origin func(string) string) {
	for name, v := range values {
		key := join(prefix, name)
		origins[key] = origin(key)
		if m, ok := v.(map[string]any); ok {
			record(origins, key, m, origin)
		}
	}
}

// explain turns decoding errors into ones that name where the key comes from.
func explain(err error, origins map[string]string) error {
	var out []error
	for _, ke := range strict.KeyErrors(err) {
		out = append(out, &Error{Key: ke.Key(), Origin: originOf(ke.Path, origins), Err: hide(ke)})
	}
	return errors.Join(out...)
}

// hide keeps a secret that has the wrong type out of the error that says so.
func hide(ke *strict.KeyError) error {
	if isSecretKey(ke.Path) && !strings.HasPrefix(ke.Err.Error(), "unknown key") {
		return errors.New("the value is not of the right type")
	}
	return ke.Err
}

// originOf is the origin of the longest known beginning of path.
func originOf(path []string, origins map[string]string) string {
	for n := len(path); n > 0; n-- {
		if o, ok := origins[strings.Join(path[:n], separator)]; ok {
			return o
		}
	}
	return ""
}

// Error is what is wrong with one key. It matches backend.ErrInvalid.
type Error struct {
	Key    string // joined with dots
	Origin string // where it comes from: a file and line, a variable, a flag
	Err    error
}

// Error is origin, key and cause.
func (e *Error) Error() string {
	parts := slices.DeleteFunc([]string{"config", e.Origin, e.Key, e.Err.Error()}, func(s string) bool { return s == "" })
	return strings.Join(parts, ": ")
}

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error { return []error{backend.ErrInvalid, e.Err} }
