package config

import (
	"reflect"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/registry"
	"github.com/glovebox-dev/glovebox/internal/strict"
)

// Schema is the JSON Schema (draft 2020-12) of a configuration file, made from
// the structs that files are decoded into.
func Schema(reg *registry.Registry) map[string]any {
	s := schemaOf(reflect.TypeFor[Config]())
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "glovebox configuration"
	props := section(s, "properties")
	props["version"] = map[string]any{"const": Version, "description": describe(props["version"])}
	use := Use{}.JSONSchema()
	use["description"] = "Short for executors.default.use."
	props["backend"] = use
	one := section(section(props, "backends"), "additionalProperties")
	one["required"] = []any{"driver"}
	drivers, rules := []any{}, []any{}
	for _, name := range reg.Names() {
		drivers = append(drivers, name)
		t, err := reg.ConfigType(name)
		if err != nil {
			continue // a name that the registry gave is known to it
		}
		rules = append(rules, map[string]any{
			"if":   map[string]any{"properties": map[string]any{"driver": map[string]any{"const": name}}},
			"then": map[string]any{"properties": map[string]any{"with": schemaOf(t)}},
		})
	}
	section(section(one, "properties"), "driver")["enum"] = drivers
	one["allOf"] = rules
	return s
}

// section is m[key], which is a section in every schema made here.
func section(m map[string]any, key string) map[string]any {
	s, _ := m[key].(map[string]any)
	if s == nil {
		s = map[string]any{}
		m[key] = s
	}
	return s
}

func describe(v any) any {
	m, _ := v.(map[string]any)
	return m["description"]
}

func schemaOf(t reflect.Type) map[string]any {
	if s, ok := reflect.TypeAssert[interface{ JSONSchema() map[string]any }](reflect.Zero(t)); ok {
		return s.JSONSchema()
	}
	if t == reflect.TypeFor[backend.Isolation]() {
		var names []any
		for _, i := range backend.Isolations() {
			names = append(names, i.String())
		}
		return map[string]any{"enum": names}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Struct:
		props := map[string]any{}
		for _, f := range strict.Fields(t) {
			p := schemaOf(f.Type)
			if f.Doc != "" {
				p["description"] = f.Doc
			}
			props[f.Name] = p
		}
		return map[string]any{"type": "object", "properties": props, "additionalProperties": false}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	default:
		return map[string]any{}
	}
}
