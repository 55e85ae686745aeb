//go:build linux

package hostiletest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/engine"
)

// What the engine knows our containers by.
const (
	labelStore   = "dev.glovebox.store"
	labelSandbox = "dev.glovebox.sandbox"
)

// containersBy are the engine's containers with a label, by its own account.
func containersBy(key, value string) (ids []string, err error) {
	e, err := engine.Open("")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	list, err := e.List(ctx, key, value)
	for _, c := range list {
		ids = append(ids, c.ID)
	}
	return ids, err
}

// containerOf is the container of a sandbox; "" where none is asked for.
func containerOf(t *testing.T, id string) string {
	t.Helper()
	if !w.target.engine {
		return ""
	}
	ids, err := containersBy(labelSandbox, id)
	if err != nil || len(ids) > 1 {
		t.Fatalf("containers of %s: %v, %v", id, ids, err)
	}
	if len(ids) == 0 {
		return ""
	}
	return ids[0]
}

// leftOf is what the host has of a sandbox: of its container whatever the engine
// says (processes, shims, control groups, mounts), and otherwise what bears its
// ID: processes, mounts, groups, and directories below /run and of runsc's.
func (b *box) leftOf(t *testing.T) (out []string) {
	t.Helper()
	if b.container != "" {
		found, err := engine.FindRemains(b.container)
		if err != nil {
			t.Fatal(err)
		}
		if !found[0].Empty() {
			out = append(out, found[0].String())
		}
		ids, err := containersBy(labelSandbox, b.ID())
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			out = append(out, "container "+id)
		}
	}
	if sentry() {
		for _, pid := range hostProcesses(t, b.ID()) {
			out = append(out, fmt.Sprintf("process %d %.60q", pid, procFile(pid, "cmdline")))
		}
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, "/"+b.ID()+"/") || strings.Contains(line, "-"+b.ID()+" ") {
			out = append(out, "mount "+strings.TrimSpace(line))
		}
	}
	return append(append(out, groups(b.ID())...), runState(b)...)
}

// runState is what runtimes keep of a sandbox below /run and /tmp.
func runState(b *box) (out []string) {
	names := []string{b.ID()}
	if b.container != "" {
		names = append(names, b.container)
	}
	for _, dir := range []string{"/run", "/run/runsc", "/var/run/docker/runtime-runc/moby", "/run/containerd/runsc", "/run/containerd/runsc/moby", "/run/containerd/io.containerd.runtime.v2.task/moby", "/tmp"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			for _, name := range names {
				if strings.Contains(e.Name(), name) {
					out = append(out, dir+"/"+e.Name())
				}
			}
		}
	}
	return out
}

// engineRemains is what an engine, or the host below it, has of these stores'
// sandboxes; nothing where there is no engine.
func engineRemains(storeIDs []string) (out []string) {
	for _, id := range storeIDs {
		ids, err := containersBy(labelStore, id)
		if err != nil {
			return out // no engine that answers: nothing was made on it
		}
		for _, c := range ids {
			out = append(out, "container "+c+" of the store "+id)
		}
	}
	return out
}

// engineHasNoRunsc says why no sandbox of gVisor's can be made there; "" when
// one can.
func engineHasNoRunsc() string {
	e, err := engine.Open("")
	if err != nil {
		return err.Error()
	}
	defer e.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	info, err := e.Info(ctx)
	if err != nil {
		return err.Error()
	}
	if _, ok := info.Runtime("runsc-nonet"); !ok {
		return "the engine has no runtime runsc-nonet"
	}
	return ""
}
