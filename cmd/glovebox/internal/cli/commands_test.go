package cli_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if r := w.run("version"); r.code != 0 || !strings.HasPrefix(r.out, "glovebox ") {
		t.Errorf("%+v", r)
	}
	if doc := w.run("version", "--json").json(t); doc["go"] == "" || doc["version"] == "" {
		t.Errorf("%v", doc)
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run("doctor")
	for _, want := range []string{"backend subprocess", "isolation vm", "memory", "languages", "python"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in %s", want, r.out)
		}
	}
	doc := w.run("doctor", "--json").json(t)
	if b := doc["backends"].([]any)[0].(map[string]any); b["name"] != "subprocess" || b["health"].(map[string]any)["available"] != true {
		t.Errorf("%v", b)
	}
	for _, tc := range []struct {
		require string
		want    int
	}{{"subprocess", 0}, {"process", 0}, {"vm,subprocess", 0}, {"docker", 2}} {
		if r := w.run("doctor", "--require", tc.require); r.code != tc.want {
			t.Errorf("--require %s: %+v", tc.require, r)
		}
	}
	weak := newWorld(t, backendtest.WithCapabilities(func(c *backend.Capabilities) { c.Isolation = backend.IsolationProcess }))
	if r := weak.run("doctor", "--require", "kernel"); r.code != 1 || !strings.Contains(r.err, "the most here is process") {
		t.Errorf("%+v", r)
	}
	if len(w.fake.Calls(backendtest.OpCreate)) > 0 {
		t.Error("doctor made a sandbox")
	}
}

func TestConfig_show(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := w.file("glovebox/config.yaml", "limits:\n  pids: 9\n")
	if r := w.run("config", "show"); r.code != 0 || !strings.Contains(r.out, "pids: 9") || !strings.Contains(r.out, "memory: 512MiB") {
		t.Errorf("%+v", r)
	}
	if r := w.run("config", "show", "--origin"); !strings.Contains(r.out, file+":2") || !strings.Contains(r.out, "# default") {
		t.Errorf("%+v", r)
	}
	if doc := w.run("config", "show", "--json").json(t); doc["limits"].(map[string]any)["pids"] != 9.0 {
		t.Errorf("%v", doc)
	}
	var entries []struct{ Key, Origin string }
	if err := json.Unmarshal([]byte(w.run("config", "show", "--json", "--origin").out), &entries); err != nil || len(entries) < 10 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestConfig_validateAndSchema(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if r := w.run("config", "validate"); r.code != 0 || !strings.Contains(r.out, "is valid") {
		t.Errorf("%+v", r)
	}
	bad := w.file("bad.yaml", "limits:\n  memroy: 1g\n")
	if r := w.run("config", "validate", bad); r.code != 1 || !strings.Contains(r.err, bad+":2: limits.memroy") {
		t.Errorf("%+v", r)
	}
	if r := w.run("--config", bad, "run", "--", "true"); r.code != 125 || !strings.Contains(r.err, "memroy") {
		t.Errorf("%+v", r)
	}
	if doc := w.run("config", "schema").json(t); doc["$schema"] == nil {
		t.Errorf("%v", doc)
	}
}

func TestConfig_trust(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if r := w.run("config", "trust"); r.code != 1 || !strings.Contains(r.err, "there is no glovebox.yaml") {
		t.Errorf("%+v", r)
	}
	file := w.file("glovebox.yaml", "limits: {pids: 33}\n")
	if r := w.run("run", "-q", "--", "true"); r.code != 0 || !strings.Contains(r.err, "is ignored") || w.spec().Limits.Pids != 0 {
		t.Errorf("%+v", r)
	}
	if r := w.run("config", "trust"); r.code != 0 || !strings.Contains(r.out, file) {
		t.Errorf("%+v", r)
	}
	if r := w.run("config", "trust", "--list"); !strings.Contains(r.out, file) {
		t.Errorf("%+v", r)
	}
	if r := w.run("run", "-q", "--", "true"); r.err != "" || w.spec().Limits.Pids != 33 {
		t.Errorf("%+v", r)
	}
	if r := w.run("config", "trust", "--remove"); r.code != 0 || !strings.Contains(r.out, "no longer") {
		t.Errorf("%+v", r)
	}
	if err := os.WriteFile(file, []byte("limits: {pidz: 1}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := w.run("config", "trust"); r.code != 1 || !strings.Contains(r.err, "pidz") {
		t.Errorf("a broken file was trusted: %+v", r)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, args := range [][]string{
		{"rn"},
		{"--nope"},
		{"version", "x"},
		{"config", "shwo"},
		{"config", "show", "x"},
		{"doctor", "x"},
		{"config", "validate", "a", "b"},
		{"config", "trust", "--list", "--remove"},
	} {
		if r := w.run(args...); r.code != 2 || r.err == "" {
			t.Errorf("%q: %+v", args, r)
		}
	}
	for _, args := range [][]string{{}, {"--help"}, {"run", "--help"}, {"config"}, {"completion", "bash"}} {
		if r := w.run(args...); r.code != 0 || r.out == "" {
			t.Errorf("%q: %+v", args, r)
		}
	}
}
