//go:build linux

package gvisor_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/gvisor"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/leak"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

var builder testenv.Builder

func TestMain(m *testing.M) {
	gvisor.MaybeAgent() // so that this program can be the keeper
	os.Setenv(box.EnvKeeperIdle, "200ms")
	if dir := os.Getenv(envCreator); dir != "" {
		creator(dir)
		return
	}
	code := m.Run()
	if err := builder.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// harness is an executor, as root or rootless.
type harness struct {
	cfg  gvisor.Config
	ex   *gvisor.Executor
	root bool
}

// asBoth runs f as root, and again as a user without rights.
func asBoth(t *testing.T, f func(t *testing.T, h *harness)) {
	t.Helper()
	config(t) // before another user needs what it makes
	if os.Geteuid() == 0 {
		t.Run("root", func(t *testing.T) { f(t, newHarness(t, config(t))) })
		testenv.AsNobody(t)
		return
	}
	t.Run("rootless", func(t *testing.T) { f(t, newHarness(t, config(t))) })
}

// config is that of a backend with a state directory of its own.
func config(t testing.TB) gvisor.Config {
	t.Helper()
	agent := builder.Build(t, "cmd/glovebox-agent")
	if os.Getenv(testenv.EnvBin) == "" {
		os.Setenv(testenv.EnvBin, filepath.Dir(agent)) //nolint:usetesting // the same for all tests of this process
	}
	rootfs, unavailable := builder.Rootfs(t)
	testenv.Require(t, "gvisor", unavailable)
	return gvisor.Config{Agent: agent, Rootfs: rootfs, StateDir: t.TempDir()}
}

func newHarness(t *testing.T, cfg gvisor.Config) *harness {
	t.Helper()
	h := &harness{cfg: cfg, ex: open(t, cfg), root: os.Geteuid() == 0}
	if _, _, err := h.ex.Admit(backend.Spec{}); err != nil {
		testenv.Require(t, "gvisor", err.Error())
	}
	return h
}

func open(t testing.TB, cfg gvisor.Config) *gvisor.Executor {
	t.Helper()
	ex, err := gvisor.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ex.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		nothingLeft(t, cfg.StateDir)
	})
	return ex
}

// nothingLeft looks for what has the store's name, by the host's own account.
// Killed processes whose parent was killed too are the host's first process's to
// wait for, which takes it a moment.
func nothingLeft(t testing.TB, stateDir string) {
	t.Helper()
	found := left(t, stateDir)
	for deadline := time.Now().Add(10 * time.Second); len(found) > 0 && time.Now().Before(deadline); found = left(t, stateDir) {
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // polled: the host tells nobody
	}
	for _, l := range found {
		t.Errorf("left behind: %s", l)
	}
}

func left(t testing.TB, stateDir string) (out []string) {
	t.Helper()
	words := []string{stateDir + "/run/"}
	if id, err := os.ReadFile(filepath.Join(stateDir, "store")); err == nil {
		words = append(words, "glovebox-"+strings.TrimSpace(string(id))+"-")
	}
	all, err := leak.Host()
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range all {
		for _, w := range words {
			if strings.Contains(key+value, w) {
				out = append(out, key+" "+value)
			}
		}
	}
	for _, w := range words {
		for _, p := range processesWith(w) {
			out = append(out, "process "+p)
		}
	}
	for _, pattern := range []string{
		filepath.Join(stateDir, "run", "*"), filepath.Join(stateDir, "sandboxes", "*"),
		"/tmp/" + words[len(words)-1] + "*", "/sys/fs/cgroup/*/" + words[len(words)-1] + "*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(pattern, "glovebox") || strings.HasPrefix(pattern, stateDir) {
			out = append(out, found...)
		}
	}
	return out
}

// processesWith lists the command lines that hold text.
func processesWith(text string) (out []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, n := range names {
		if data, err := os.ReadFile(n); err == nil && strings.Contains(string(data), text) {
			out = append(out, n+" "+strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	return out
}

func (h *harness) create(t *testing.T, spec backend.Spec) backend.Sandbox {
	t.Helper()
	sb, err := h.ex.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Destroy(context.Background()); err != nil { //nolint:usetesting // the test's context is over
			t.Error(err)
		}
	})
	return sb
}

// ran is how a command went.
type ran struct {
	exit     backend.Exit
	out, err string
}

func run(t *testing.T, sb backend.Sandbox, cmd backend.Command) ran {
	t.Helper()
	r, err := tryRun(t, sb, cmd)
	if err != nil {
		t.Fatalf("%q: %v", cmd.Args, err)
	}
	return r
}

func tryRun(t *testing.T, sb backend.Sandbox, cmd backend.Command) (ran, error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Output = backend.Output{Stdout: &out, Stderr: &errs}
	if cmd.Timeout == 0 {
		cmd.Timeout = 60 * time.Second
	}
	exit, err := backend.RunIn(t.Context(), sb, cmd)
	return ran{exit, out.String(), errs.String()}, err
}

func sh(t *testing.T, sb backend.Sandbox, script string) ran {
	t.Helper()
	return run(t, sb, backend.Command{Args: []string{"/bin/bash", "-c", script}})
}
