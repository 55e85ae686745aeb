package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/knadh/koanf/maps"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/strict"
)

// Entry is one value and where it comes from.
type Entry struct {
	Key    string `json:"key"` // joined with dots
	Value  any    `json:"value"`
	Origin string `json:"origin"` // "default", a file and line, a variable, a flag
}

// Show lists every value in effect with its origin, sorted by key; the limits
// that nobody set are shown with their defaults. Secrets are redacted.
func (l *Loaded) Show() []Entry {
	var out []Entry
	flat, _ := maps.Flatten(l.raw, nil, separator)
	for key, v := range flat {
		path := strings.Split(key, separator)
		out = append(out, Entry{dotted(key), redactDeep(path, v), originOf(path, l.origins)})
	}
	for _, d := range limitDefaults(l.Config.Limits) {
		if !slices.ContainsFunc(out, func(e Entry) bool { return e.Key == d.Key }) {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// Redacted is the configuration as nested sections, secrets redacted.
func (l *Loaded) Redacted() map[string]any {
	out, _ := redactDeep(nil, l.raw).(map[string]any)
	limits := map[string]any{}
	if m, ok := out["limits"].(map[string]any); ok {
		limits = m
	}
	for _, d := range limitDefaults(l.Config.Limits) {
		name := strings.TrimPrefix(d.Key, "limits.")
		if _, ok := limits[name]; !ok {
			limits[name] = d.Value
		}
	}
	out["limits"] = limits
	return out
}

// limitDefaults is what holds for limits that are not in l.
func limitDefaults(l Limits) []Entry {
	d := l.Backend().WithDefaults()
	entries := []Entry{
		{Key: "memory", Value: Size(d.Memory).String()},
		{Key: "cpus", Value: d.CPUs},
		{Key: "pids", Value: d.Pids},
		{Key: "disk", Value: Size(d.Disk).String()},
		{Key: "inodes", Value: d.Inodes},
		{Key: "open_files", Value: d.OpenFiles},
		{Key: "file_size", Value: Size(d.FileSize).String()},
		{Key: "output", Value: Size(backend.DefaultOutput).String()},
		{Key: "on_output_limit", Value: string(OutputTruncate)},
		{Key: "timeout", Value: min(backend.DefaultTimeout, l.MaxTimeoutOr()).String()},
		{Key: "max_timeout", Value: backend.MaxTimeout.String()},
		{Key: "lifetime", Value: backend.DefaultLifetime.String()},
	}
	for i := range entries {
		entries[i].Key, entries[i].Origin = "limits."+entries[i].Key, "default"
	}
	return entries
}

func redactDeep(path []string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, inner := range v {
			out[k] = redactDeep(append(slices.Clone(path), k), inner)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, inner := range v {
			out[i] = redactDeep(path, inner)
		}
		return out
	case strict.Text:
		return redact(path, string(v))
	default:
		return redact(path, v)
	}
}

// literalSecrets warns of secrets that stand in a file themselves.
func (l *Loaded) literalSecrets() []string {
	var out []string
	flat, _ := maps.Flatten(l.raw, nil, separator)
	for key, v := range flat {
		path := strings.Split(key, separator)
		if s, ok := v.(string); ok && redact(path, s) != s {
			out = append(out, fmt.Sprintf("%s: %s: a secret stands here itself; take it out, or use a _file key where the driver has one", originOf(path, l.origins), dotted(key)))
		}
	}
	slices.Sort(out)
	return out
}
