//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/engine"
)

// doctor is what the tests read of glovebox doctor --json.
type doctor struct {
	Backends []struct {
		Name   string `json:"name"`
		Health struct {
			Available bool   `json:"available"`
			Isolation string `json:"isolation"`
			Reason    string `json:"reason"`
		} `json:"health"`
		Capabilities struct {
			Claims map[string]struct {
				Enforcement string `json:"enforcement"`
			} `json:"claims"`
		} `json:"capabilities"`
	} `json:"backends"`
	Default struct {
		Candidates []struct {
			Isolation string `json:"isolation"`
			Chosen    bool   `json:"chosen"`
		} `json:"candidates"`
	} `json:"default"`
}

// document is what they read of glovebox run --json.
type document struct {
	Exit struct {
		Reason string `json:"reason"`
		Code   int    `json:"code"`
	} `json:"exit"`
	Stdout struct {
		Text string `json:"text"`
	} `json:"stdout"`
	Receipt struct {
		Achieved string `json:"achieved"`
		Measured bool   `json:"measured"`
	} `json:"receipt"`
}

// process are the flags for sandboxes of the level process, of a user without
// any capability.
func process() []string {
	return []string{"--security-opt", "seccomp=glovebox.json", "--security-opt", "systempaths=unconfined"}
}

// runs checks that a program runs in a sandbox of this level, no other than
// doctor reports, and with its exit code and output.
func runs(t *testing.T, b box, level string) {
	t.Helper()
	got := b.exec(t, "glovebox", "run", "--json", "-c", "import sys; print('out'); sys.exit(3)")
	var doc document
	decode(t, got.stdout, &doc)
	if got.code != 3 || doc.Exit.Reason != "exited" || doc.Exit.Code != 3 || doc.Stdout.Text != "out\n" {
		t.Errorf("code %d, %+v, %s", got.code, doc, got.stderr)
	}
	var told doctor
	decode(t, b.must(t, "glovebox", "doctor", "--json"), &told)
	chosen := ""
	for _, c := range told.Default.Candidates {
		if c.Chosen {
			chosen = c.Isolation
		}
	}
	if doc.Receipt.Achieved != level || !doc.Receipt.Measured || chosen != level {
		t.Errorf("want %s: the receipt says %+v, doctor %+v", level, doc.Receipt, told.Default)
	}
}

func TestContainer_defaults(t *testing.T) {
	t.Parallel()
	b := startBox(t)
	if got := b.must(t, "glovebox", "version"); !strings.HasPrefix(got, "glovebox ") {
		t.Errorf("version: %q", got)
	}
	if uid := b.must(t, "id", "-u"); uid != "1000" {
		t.Errorf("it runs as %s", uid)
	}
	runs(t, b, "restricted")
	// What the sandbox refuses works beside it.
	for _, code := range []string{"import socket; socket.socket()", "open('/etc/passwd').read(); import os; os.kill(1, 0)"} {
		if got := b.exec(t, "python3", "-c", code); got.code != 0 {
			t.Errorf("%s: not even outside: %+v", code, got)
		}
		if got := b.exec(t, "glovebox", "run", "-q", "-c", code); got.code != 1 || !strings.Contains(got.stderr, "PermissionError") {
			t.Errorf("%s: %+v", code, got)
		}
	}
	// Kept sandboxes need a pid namespace, and more isolation is not to be had.
	for _, args := range [][]string{
		{"glovebox", "create", "--json"},
		{"glovebox", "run", "--json", "--min-isolation", "process", "-c", "print(1)"},
	} {
		got := b.exec(t, args...)
		if got.code == 0 || strings.Contains(got.stdout, `"id"`) {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// TestContainer_entrypoint: the container is the command itself.
func TestContainer_entrypoint(t *testing.T) {
	t.Parallel()
	e := docker(t)
	img, err := e.Image(t.Context(), packaged(t))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(img.Entrypoint, []string{"/usr/bin/glovebox"}) || img.User != "user" || len(img.Volumes) != 0 {
		t.Errorf("%+v", img)
	}
}

func TestContainer_kept(t *testing.T) {
	t.Parallel()
	b := startBox(t, process()...)
	runs(t, b, "process")
	id := b.must(t, "glovebox", "create", "-q", "--name", "mine")
	b.must(t, "glovebox", "exec", "mine", "sh", "-c", "echo kept > note")
	if got := b.must(t, "glovebox", "exec", id, "cat", "note"); got != "kept" {
		t.Errorf("the second command reads %q", got)
	}
	if got := b.exec(t, "glovebox", "exec", id, "sh", "-c", "exit 9"); got.code != 9 {
		t.Errorf("%+v", got)
	}
	if got := b.must(t, "glovebox", "ps", "-q"); got != id {
		t.Errorf("ps lists %q", got)
	}
	// Its processes are the container's, and no others than its own are seen.
	inside := b.must(t, "glovebox", "exec", id, "sh", "-c", "ls -d /proc/[0-9]*")
	if strings.Contains(inside, "No such") || len(strings.Fields(inside)) > 5 {
		t.Errorf("in the sandbox are %q", inside)
	}
	agents := func() string { return b.exec(t, "pgrep", "-f", "glovebox-agent").stdout }
	if agents() == "" {
		t.Error("no agent is seen, so that none is left proves nothing")
	}
	b.must(t, "glovebox", "kill", id)
	if got := b.must(t, "glovebox", "ps", "-aq"); got != "" {
		t.Errorf("ps lists %q", got)
	}
	if got := agents(); got != "" {
		t.Errorf("agents are left: %q", got)
	}
}

// TestContainer_end: nothing of a kept sandbox outlives the container.
func TestContainer_end(t *testing.T) {
	t.Parallel()
	b := startBox(t, process()...)
	b.must(t, "glovebox", "run", "-d", "-q", "-c", "import time\nfor i in range(5000): time.sleep(1)")
	found, err := engine.FindRemains(b.GetContainerID())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range found[0].Processes {
		if p.Inside {
			names = append(names, p.Command)
		}
	}
	if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "python") }) {
		t.Fatalf("the program is not seen among %q, so that it is gone proves nothing", names)
	}
	end(t, b)
	for _, p := range found[0].Processes {
		if !p.Inside {
			continue // a shim, which end looks for
		}
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "stat"))
		if err == nil && strings.Contains(string(stat), " "+strconv.Itoa(int(p.Start))+" ") {
			t.Errorf("process %d (%s) is left", p.PID, p.Command)
		}
	}
}

// TestContainer_volume: state that outlives the container is swept by the next
// one.
func TestContainer_volume(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	if err := os.Chown(state, userID, userID); err != nil {
		t.Skipf("only root can do this: %v", err)
	}
	flags := append(process(), "--volume", state+":/home/user/.local/state/glovebox")
	// Of a sandbox there is a directory of its own name in each of these.
	traces := func() []string {
		var out []string
		for _, dir := range []string{"sandboxes", "run"} {
			found, err := filepath.Glob(filepath.Join(state, dir, "s*"))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, found...)
		}
		return out
	}
	b := startBox(t, flags...)
	first := b.must(t, "glovebox", "create", "-q")
	none := time.Duration(0)
	if err := b.Stop(t.Context(), &none); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(traces(), " "); !strings.Contains(got, first) {
		t.Fatalf("after the kill there are %q, so that they go proves nothing", got)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The second lives while the state is swept.
	second := b.must(t, "glovebox", "create", "-q")
	b.must(t, "glovebox", "prune")
	if got := b.must(t, "glovebox", "ps", "-q"); got != second {
		t.Errorf("ps lists %q", got)
	}
	for _, path := range traces() {
		if strings.Contains(path, first) {
			t.Errorf("%s is left", path)
		}
	}
	end(t, b)
	b = startBox(t, flags...)
	b.must(t, "glovebox", "prune")
	if got := b.must(t, "glovebox", "ps", "-q") + strings.Join(traces(), " "); got != "" {
		t.Errorf("left are %q", got)
	}
	runs(t, b, "process")
}
