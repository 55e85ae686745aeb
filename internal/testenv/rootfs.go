package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// EnvRootfs names a directory with a root file system that every user can read,
// for tests that an unprivileged user runs.
const EnvRootfs = "GLOVEBOX_TEST_ROOTFS"

// Rootfs gives the root file system of the base template, which scripts/setup
// builds, where every user can read it; or why there is none. Nobody may write
// to it. The test binary that AsNobody starts is told of it when this was called
// before.
func (b *Builder) Rootfs(tb testing.TB) (dir, unavailable string) {
	tb.Helper()
	if dir := os.Getenv(EnvRootfs); dir != "" {
		return dir, ""
	}
	b.mu.Lock()
	if b.rootfs == nil {
		b.rootfs = sync.OnceValues(b.linkRootfs)
	}
	link := b.rootfs
	b.mu.Unlock()
	dir, err := link()
	if err != nil {
		return "", err.Error()
	}
	if err := os.Setenv(EnvRootfs, dir); err != nil { //nolint:usetesting // the same for all tests of this process
		return "", err.Error()
	}
	return dir, ""
}

// linkRootfs makes a tree of links to the image's files: the store is closed to
// other users, and a copy would take long.
func (b *Builder) linkRootfs() (string, error) {
	state := os.Getenv("GLOVEBOX_STATE_DIR")
	if state == "" {
		state = "/var/lib/glovebox"
	}
	source, err := filepath.EvalSymlinks(filepath.Join(state, "images", "base", "current", "rootfs"))
	if err != nil {
		return "", fmt.Errorf("the base template is not built (scripts/setup template): %w", err)
	}
	parent, err := b.directory()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(parent, "rootfs")
	for _, how := range []string{"-al", "-a"} {
		cmd := exec.CommandContext(context.Background(), "cp", how, source, dir) //nolint:forbidigo // all tests of the run use it
		out, cerr := cmd.CombinedOutput()
		if cerr == nil {
			return dir, nil
		}
		err = fmt.Errorf("cp %s: %w: %s", how, cerr, out)
		if rerr := os.RemoveAll(dir); rerr != nil {
			return "", rerr
		}
	}
	return "", err
}
