//go:build linux

package subprocess_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/subprocess"
)

var builder testenv.Builder

// envSoak is set for runs that may take long.
const envSoak = "GLOVEBOX_TEST_SOAK"

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		os.Exit(play(role))
	}
	code := m.Run()
	if err := builder.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// The ways of working that tests run in. Contained is those that hold code.
var (
	contained  = []subprocess.Privilege{subprocess.PrivilegeRoot, subprocess.PrivilegeUserns, subprocess.PrivilegeRestricted}
	namespaced = []subprocess.Privilege{subprocess.PrivilegeRoot, subprocess.PrivilegeUserns}
	everywhere = append(slices.Clone(contained), subprocess.PrivilegeNone)
	asRoot     = []subprocess.Privilege{subprocess.PrivilegeRoot}
)

// harness is an executor in one way of working.
type harness struct {
	privilege subprocess.Privilege
	cfg       subprocess.Config
	ex        *subprocess.Executor
	caps      backend.Capabilities
}

// inModes runs f in each of modes: root's in this process, the others under an
// unprivileged uid, by starting the calling test again there.
func inModes(t *testing.T, modes []subprocess.Privilege, f func(t *testing.T, h *harness)) {
	t.Helper()
	t.Parallel()
	agent := agentBinary(t)
	root := os.Geteuid() == 0
	others := 0
	for _, p := range modes {
		if (p == subprocess.PrivilegeRoot) != root {
			others++
			continue
		}
		t.Run(string(p), func(t *testing.T) {
			f(t, newHarness(t, subprocess.Config{Privilege: p, Agent: agent}))
		})
	}
	if root && others > 0 {
		testenv.AsNobody(t)
	}
}

// agentBinary is the built agent; it also tells the test binary that AsNobody
// starts where that is.
func agentBinary(t testing.TB) string {
	t.Helper()
	path := builder.Build(t, "cmd/glovebox-agent")
	if os.Getenv(testenv.EnvBin) == "" {
		os.Setenv(testenv.EnvBin, strings.TrimSuffix(path, "/glovebox-agent")) //nolint:usetesting // the same for all tests of this process
	}
	return path
}

func newHarness(t *testing.T, cfg subprocess.Config) *harness {
	t.Helper()
	if cfg.StateDir == "" {
		cfg.StateDir = t.TempDir()
	}
	if cfg.Agent == "" {
		cfg.Agent = agentBinary(t)
	}
	ex, err := subprocess.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ex.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	h := &harness{privilege: cfg.Privilege, cfg: cfg, ex: ex, caps: ex.Capabilities()}
	want := map[subprocess.Privilege]backend.Isolation{
		subprocess.PrivilegeRoot: backend.IsolationProcess, subprocess.PrivilegeUserns: backend.IsolationProcess,
		subprocess.PrivilegeRestricted: backend.IsolationRestricted, subprocess.PrivilegeNone: backend.IsolationNone,
	}[cfg.Privilege]
	if h.caps.Isolation < want {
		testenv.Require(t, "subprocess", fmt.Sprintf("privilege %s reaches %s only", cfg.Privilege, h.caps.Isolation))
	}
	return h
}

// contains tells whether this way of working holds code at all.
func (h *harness) contains() bool { return h.privilege != subprocess.PrivilegeNone }

// enforces tells whether a control is claimed without ifs.
func (h *harness) enforces(c backend.Control) bool {
	return h.caps.Claim(c).Enforcement == backend.Enforced
}

// spec is s in a form that every mode accepts.
func (h *harness) spec(s backend.Spec) backend.Spec {
	if !h.contains() {
		s.Network.Mode = backend.NetworkFull
	}
	return s
}

// create makes a sandbox that ends with the test.
func (h *harness) create(t *testing.T, spec backend.Spec) backend.Sandbox {
	t.Helper()
	sb, err := h.ex.Create(t.Context(), h.spec(spec))
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() { destroy(t, sb) })
	return sb
}

func destroy(t testing.TB, sb backend.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	defer cancel()
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

// result is what a command gave.
type result struct {
	backend.Exit
	out, err string
}

// run runs cmd in sb to its end.
func run(t testing.TB, sb backend.Sandbox, cmd backend.Command) result {
	t.Helper()
	r, err := tryRun(t.Context(), sb, cmd)
	if err != nil {
		t.Fatalf("%.200q: %v", cmd.Args, err)
	}
	return r
}

func tryRun(ctx context.Context, sb backend.Sandbox, cmd backend.Command) (result, error) {
	var out, errs bytes.Buffer
	if cmd.Output.Stdout == nil {
		cmd.Output.Stdout = &out
	}
	if cmd.Output.Stderr == nil {
		cmd.Output.Stderr = &errs
	}
	exit, err := backend.RunIn(ctx, sb, cmd)
	return result{exit, out.String(), errs.String()}, err
}

// sh runs a script of the shell.
func sh(t testing.TB, sb backend.Sandbox, script string) result {
	t.Helper()
	return run(t, sb, backend.Command{Args: []string{"/bin/sh", "-c", script}})
}

// python runs a program of the system's Python.
func python(t testing.TB, sb backend.Sandbox, program string) result {
	t.Helper()
	return run(t, sb, backend.Command{Args: []string{"/usr/bin/python3", "-c", program}})
}

// succeed fails the test unless the command exited with 0.
func (r result) succeed(t testing.TB) result {
	t.Helper()
	if !r.Success() {
		t.Fatalf("%v %v\nstdout: %.4000s\nstderr: %.4000s", r.Exit, r.Hits, r.out, r.err)
	}
	return r
}

// wantKind fails the test unless err is of a kind, and mentions every word.
func wantKind(t testing.TB, err error, kind backend.Kind, words ...string) {
	t.Helper()
	if backend.KindOf(err) != kind || err == nil {
		t.Errorf("kind %q of %v, want %q", backend.KindOf(err), err, kind)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q is not in %q", w, err)
		}
	}
}

// as finds an optional interface, which must be there.
func as[T any](t testing.TB, v any) T {
	t.Helper()
	x, ok := backend.As[T](v)
	if !ok {
		t.Fatalf("%T has no %T", v, *new(T))
	}
	return x
}

// eventually waits for a condition of the world outside.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}
