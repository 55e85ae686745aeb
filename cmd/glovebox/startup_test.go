//go:build linux

package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/internal/testenv/testimage"
)

// served is a configuration with templates that start something.
func (g *glovebox) served() string {
	g.t.Helper()
	testenv.NeedRoot(g.t)
	rootfs, unavailable := testimage.Rootfs()
	testenv.Require(g.t, "subprocess", unavailable)
	return g.write("served.yaml", `version: 1
templates:
  web:   {rootfs: `+rootfs+`, start: "echo serving $WHAT; exec python3 -m http.server --bind 127.0.0.1 8000", ready: 8000, env: {WHAT: it}, workdir: /tmp/www}
  never: {rootfs: `+rootfs+`, start: "exec sleep 1000", ready: "echo closed; exit 1"}
  dead:  {rootfs: `+rootfs+`, start: "echo no config >&2; exit 3", ready: 8000}
`)
}

func TestTemplate_starts(t *testing.T) {
	t.Parallel()
	g := keeper(t)
	cfg := g.served()
	on := func(args ...string) []string { return append([]string{"--config", cfg}, args...) }
	const look = `import os, urllib.request as u; print(u.urlopen("http://127.0.0.1:8000/").status, os.getcwd())`
	g.want(0, "200 /tmp/www\n", on("run", "-q", "--backend", "subprocess", "--template", "web", "-c", look)...)
	id := strings.TrimSpace(g.want(0, "*", on("create", "-q", "--backend", "subprocess", "web")...).out)
	g.want(0, "200 /tmp/www\n", "exec", id, "python3", "-c", look)
	if r := g.want(0, "*", "logs", id); !strings.Contains(r.out, "serving it") {
		t.Errorf("%+v", r)
	}
	if r := g.run(on("create", "-q", "--backend", "subprocess", "dead")...); r.code == 0 || !strings.Contains(r.err, "exited(3), saying: no config") {
		t.Errorf("%+v", r)
	}
	g.want(0, id+"\n", "ps", "-q")
}

// TestTemplate_creatorIsKilled: a kept sandbox whose creator is killed before it
// is ready was never made.
func TestTemplate_creatorIsKilled(t *testing.T) {
	t.Parallel()
	g := keeper(t)
	cmd := g.cmd(t.Context(), "--config", g.served(), "create", "--backend", "subprocess", "never")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g.eventually("what it starts runs", func() bool { return len(g.commands("sleep\x001000")) > 0 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	g.eventually("it has ended", func() bool { return len(g.commands("sleep\x001000")) == 0 })
	g.want(0, "", "ps", "-q")
}

// commands are the agents' descendants that were started with these words. They
// have nothing of our environment, so that it is the agent that tells whose they
// are.
func (g *glovebox) commands(words string) []string {
	var out []string
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range all {
		line, err := os.ReadFile(p)
		if err != nil || !strings.HasPrefix(string(line), words) {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(p), "cgroup"))
		if store, serr := os.ReadFile(filepath.Join(g.dir, "state", "store")); err == nil && serr == nil &&
			strings.Contains(string(status), "glovebox-"+strings.TrimSpace(string(store))+"-") {
			out = append(out, p)
		}
	}
	return out
}
