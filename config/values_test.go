package config_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
)

func TestParseSize(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]config.Size{
		"512MiB": 512 << 20, "1GiB": 1 << 30, "512m": 512 << 20, "1g": 1 << 30, "1.5g": 3 << 29, "100": 100, "10b": 10,
		"64 KiB": 64 << 10, "2TB": 2 << 40, "1024p": 1 << 60, "0.25k": 256, "0.5p": 1 << 49,
	} {
		if got, err := config.ParseSize(in); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "0", "0m", "-1", "-1m", "1x", "m", "1.m", ".5m", "1.5", "1.1234567g", "1e3", "0x10", "1025p", "1024.1p", "18446744073709551616",
		"99999999999999999999999999g", "9223372036854775807m", "1 1m", "١m", "NaN", "1gg", "1,5g", "+1m",
	} {
		if got, err := config.ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", in, got)
		}
	}
}

// FuzzParseSize: no text gives a size out of bounds, and what a size prints is
// read back as the same.
func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"512MiB", "1.999999p", "0.000001k", "1024p", "-1", "9999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := config.ParseSize(s)
		if err != nil {
			return
		}
		if n <= 0 || int64(n) > backend.MaxBytes {
			t.Fatalf("ParseSize(%q) = %d", s, n)
		}
		if again, err := config.ParseSize(n.String()); err != nil || again != n {
			t.Fatalf("%q printed %q, read back as %d, %v", s, n, again, err)
		}
	})
}

func TestParse_refusesWhatIsNoLimit(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"", "0", "-1", "1.5", "99999999999999999999", "ten"} {
		if got, err := config.ParseCount(in); err == nil {
			t.Errorf("ParseCount(%q) = %d", in, got)
		}
	}
	for _, in := range []string{"", "0", "-1", "NaN", "Inf", "1e9", "x", "0.001"} {
		if got, err := config.ParseCores(in); err == nil {
			t.Errorf("ParseCores(%q) = %v", in, got)
		}
	}
	for _, in := range []string{"", "0", "0s", "-1s", "30", "1y", "99999999999h"} {
		if got, err := config.ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %v", in, got)
		}
	}
}

func TestLimits_Over(t *testing.T) {
	t.Parallel()
	full := config.Limits{
		Memory: 1, CPUs: 2, Pids: 3, Disk: 4, Inodes: 5, OpenFiles: 6, FileSize: 7, CPUTime: 8, Output: 9,
		OnOutputLimit: config.OutputKill, Timeout: 10, MaxTimeout: 11, Lifetime: 12,
	}
	if d := cmp.Diff(full, config.Limits{}.Over(full)); d != "" {
		t.Errorf("a field is not taken over: %s", d)
	}
	if d := cmp.Diff(full, full.Over(config.Limits{
		Memory: 99, CPUs: 99, Pids: 99, Disk: 99, Inodes: 99, OpenFiles: 99, FileSize: 99, CPUTime: 99, Output: 99,
		OnOutputLimit: config.OutputTruncate, Timeout: 99, MaxTimeout: 99, Lifetime: 99,
	})); d != "" {
		t.Errorf("a field that is set is replaced: %s", d)
	}
}

func TestWarnings_Backend(t *testing.T) {
	t.Parallel()
	got := config.Warnings{Memory: 0.1, Disk: 0.2, Pids: 0.3, Timeout: 0.4, CPUTime: 0.5}.Backend()
	if d := cmp.Diff(backend.Warnings{Memory: 0.1, Disk: 0.2, Pids: 0.3, Timeout: 0.4, CPUTime: 0.5}, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(backend.DefaultWarnings(), newPlace(t).mustLoad().Config.Warnings.Backend()); d != "" {
		t.Errorf("the defaults of configuration and contract differ: %s", d)
	}
}

func TestSchema_matchesTheStructs(t *testing.T) {
	t.Parallel()
	data, err := json.Marshal(config.Schema(drivers(t)))
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Properties map[string]struct {
			Properties           map[string]map[string]any
			AdditionalProperties json.RawMessage
		}
		AdditionalProperties bool
	}
	s.AdditionalProperties = true
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	if s.AdditionalProperties {
		t.Error("unknown keys are allowed")
	}
	var top []string
	for k := range s.Properties {
		top = append(top, k)
	}
	slices.Sort(top)
	if d := cmp.Diff([]string{"backend", "backends", "builds", "executors", "limits", "templates", "version", "warnings"}, top); d != "" {
		t.Error(d)
	}
	limits := s.Properties["limits"].Properties
	if len(limits) != 13 || limits["memory"]["type"] != "string" || limits["pids"]["minimum"] != 1.0 || limits["memory"]["description"] == nil {
		t.Errorf("limits %v", limits)
	}
	for _, want := range []string{`"privilege"`, `"min_isolation"`, `"container"`, `"const":"subprocess"`, `"rootfs"`} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no %s in the schema", want)
		}
	}
}

func TestShow_keysAreInTheSchema(t *testing.T) {
	t.Parallel()
	s := config.Schema(drivers(t))
	limits := s["properties"].(map[string]any)["limits"].(map[string]any)["properties"].(map[string]any)
	for _, e := range newPlace(t).mustLoad().Show() {
		if name, ok := strings.CutPrefix(e.Key, "limits."); ok && limits[name] == nil {
			t.Errorf("%s is shown and not in the schema", e.Key)
		}
	}
}

func TestExecutors(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.user("backends: {box: {driver: subprocess, with: {state_dir: " + p.state + "}}}\nbackend: box\nexecutors: {other: {use: [box]}}\n")
	l := p.mustLoad()
	ex := config.Open(l.Config, drivers(t))
	a, err := ex.Executor(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := ex.Executor(t.Context(), "default"); err != nil || a != b {
		t.Errorf("a second executor %v, %v", b, err)
	}
	if _, err := ex.Executor(t.Context(), "othre"); err == nil || !strings.Contains(err.Error(), `did you mean "other"`) {
		t.Errorf("error %v", err)
	}
	if err := ex.Close(); err != nil {
		t.Error(err)
	}
	if err := ex.Close(); err != nil {
		t.Error(err)
	}
	if _, err := ex.Executor(t.Context(), "other"); backend.KindOf(err) != backend.ErrClosed {
		t.Errorf("error %v after Close", err)
	}
}
