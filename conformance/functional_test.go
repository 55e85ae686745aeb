package conformance_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
	"github.com/glovebox-dev/glovebox/conformance"
	"github.com/glovebox-dev/glovebox/conformance/host"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/gvisor"
	"github.com/glovebox-dev/glovebox/internal/leak"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/internal/testenv/testengine"
	"github.com/glovebox-dev/glovebox/internal/testenv/testimage"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// envCases names the cases to run, as `glovebox conformance --filter`.
const envCases = "GLOVEBOX_TEST_CASES"

var builder testenv.Builder

func TestMain(m *testing.M) {
	gvisor.MaybeAgent() // it can be a keeper
	code := m.Run()
	if err := builder.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// who says as which user a target runs.
type who int

const (
	asRoot who = iota
	asNobody
	asEither
)

// functional is a target of the whole suite. Open gives why it is not here,
// where the target cannot be had.
type functional struct {
	name    string
	require string // its name in GLOVEBOX_TEST_REQUIRE
	as      who
	filter  func(conformance.Case) bool // nil: every case
	waivers map[string]string           // known failures, with what is to be done
	target  func(t *testing.T) (target conformance.Target, unavailable string)
}

// functionals are all targets: a driver that is new adds its line here, and no
// case knows it.
func functionals() []functional {
	return []functional{
		{"fake", "", asEither, conformance.Within(conformance.Meta, conformance.Errors, conformance.Lifecycle), nil, fakeTarget},
		{"subprocess-root", "subprocess", asRoot, nil, nil, subprocessTarget(subprocess.PrivilegeRoot, backend.IsolationProcess)},
		{"subprocess-userns", "subprocess", asNobody, nil, nil, subprocessTarget(subprocess.PrivilegeUserns, backend.IsolationProcess)},
		{"subprocess-restricted", "subprocess", asNobody, nil, nil, subprocessTarget(subprocess.PrivilegeRestricted, backend.IsolationRestricted)},
		{"docker", "docker", asRoot, nil, nil, dockerTarget},
		// The same agent on an engine elsewhere: what is made and known otherwise.
		{"docker-remote", "docker", asRoot, conformance.Within(conformance.Meta, conformance.Lifecycle, conformance.Ends, conformance.Limits, conformance.Network, conformance.Leaks), nil, dockerRemoteTarget},
		// What its own making, end and limits decide: the rest is the agent's under
		// the same kernel.
		{"gvisor-docker", "gvisor", asRoot, ownMaking, nil, gvisorDockerTarget},
		{"gvisor-root", "gvisor", asRoot, nil, nil, gvisorTarget},
		{"gvisor-rootless", "gvisor", asNobody, nil, nil, gvisorTarget},
	}
}

// ownMaking are the cases that the making of a sandbox decides: among those of
// the network the ones that need a device.
func ownMaking(c conformance.Case) bool {
	making := conformance.Within(conformance.Meta, conformance.Lifecycle, conformance.Ends, conformance.Limits, conformance.Leaks)
	return making(c) || slices.Contains([]string{"NW-07", "NW-08", "NW-09", "NW-10", "NW-11"}, c.ID)
}

// gvisorTarget makes sandboxes with this machine's runsc.
func gvisorTarget(t *testing.T) (conformance.Target, string) {
	rootfs, unavailable := builder.Rootfs(t)
	cfg := gvisor.Config{Agent: agentBinary(t), StateDir: t.TempDir(), Rootfs: rootfs}
	target := conformance.Target{
		Open:    func(ctx context.Context) (backend.Executor, error) { return gvisor.Open(ctx, cfg) },
		Witness: witness(cfg.StateDir),
	}
	if unavailable != "" {
		return target, unavailable
	}
	ex, err := gvisor.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err = ex.Admit(backend.Spec{}); err != nil {
		unavailable = err.Error()
	}
	if err := ex.Close(); err != nil {
		t.Fatal(err)
	}
	return target, unavailable
}

// gvisorDockerTarget makes containers under gVisor on this machine's engine.
func gvisorDockerTarget(t *testing.T) (conformance.Target, string) {
	_, unavailable := testimage.Ref(t.Context())
	cfg := gvisor.Config{Via: gvisor.ViaDocker, Agent: agentBinary(t), StateDir: t.TempDir()}
	if unavailable == "" {
		unavailable = testimage.Share(cfg.StateDir)
	}
	return conformance.Target{
		Open:    func(ctx context.Context) (backend.Executor, error) { return gvisor.Open(ctx, cfg) },
		Witness: witness(cfg.StateDir),
	}, unavailable
}

// dockerTarget makes containers on this machine's engine.
func dockerTarget(t *testing.T) (conformance.Target, string) {
	_, unavailable := testimage.Ref(t.Context())
	cfg := docker.Config{Agent: agentBinary(t), StateDir: t.TempDir()}
	if unavailable == "" {
		unavailable = testimage.Share(cfg.StateDir)
	}
	return conformance.Target{
		Open:    func(ctx context.Context) (backend.Executor, error) { return docker.Open(ctx, cfg) },
		Witness: witness(cfg.StateDir),
	}, unavailable
}

// dockerRemoteTarget makes containers on an engine of its own, as if on another
// machine.
func dockerRemoteTarget(t *testing.T) (conformance.Target, string) {
	_, unavailable := testimage.Ref(t.Context())
	if unavailable != "" {
		return conformance.Target{}, unavailable
	}
	r := testengine.NewRemote(t, true)
	cfg := docker.Config{Agent: agentBinary(t), StateDir: t.TempDir(), Host: r.Addr, TLSDir: r.TLS}
	if why := testimage.Share(cfg.StateDir); why != "" {
		return conformance.Target{}, why
	}
	open := func(ctx context.Context) (backend.Executor, error) { return docker.Open(ctx, cfg) }
	// The engine has no image yet, and no case waits for so long.
	ex, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sb, err := ex.Create(t.Context(), backend.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sb.Destroy(t.Context()), ex.Close()); err != nil {
		t.Fatal(err)
	}
	return conformance.Target{Open: open, Witness: witness(cfg.StateDir)}, ""
}

// TestFunctional runs the suite against each target that this user can have.
func TestFunctional(t *testing.T) { functionalAs(t, os.Geteuid() == 0) }

// TestFunctional_asNobody runs it, as root, against those of another user.
func TestFunctional_asNobody(t *testing.T) {
	agentBinary(t)    // before another user needs it
	builder.Rootfs(t) // the same
	if !testenv.AsNobody(t) && os.Getenv(testenv.EnvNobody) != "" {
		functionalAs(t, false)
	}
}

func functionalAs(t *testing.T, root bool) {
	t.Helper()
	for _, f := range functionals() {
		if f.as == asEither || (f.as == asRoot) == root {
			t.Run(f.name, func(t *testing.T) { f.run(t) })
		}
	}
}

func (f functional) run(t *testing.T) {
	t.Helper()
	target, unavailable := f.target(t)
	testenv.Require(t, cmp.Or(f.require, f.name), unavailable)
	target.Name = f.name
	opts := conformance.Options{Filter: f.filter, Parallel: 3, Waivers: f.waivers}
	if pattern := os.Getenv(envCases); pattern != "" {
		match, err := conformance.Matching(pattern)
		if err != nil {
			t.Fatal(err)
		}
		opts.Filter = func(c conformance.Case) bool { return match(c) && (f.filter == nil || f.filter(c)) }
	}
	report, err := conformance.Run(t.Context(), target, opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, res := range report.Results {
		t.Run(res.ID, func(t *testing.T) {
			if res.Verdict == conformance.Pass {
				return
			}
			text := fmt.Sprintf("%s: %s after %v: %s\n%s", res.Title, res.Verdict, res.Took, res.Reason, strings.Join(res.Log, "\n"))
			if res.Verdict == conformance.Unsupported || res.Verdict == conformance.Waived {
				t.Log(text)
			} else {
				t.Error(text)
			}
		})
	}
	for _, l := range report.Left {
		t.Errorf("left behind: %s", l)
	}
	if report.Stopped != "" || len(report.Results) == 0 {
		t.Errorf("%d cases, stopped: %q", len(report.Results), report.Stopped)
	}
	t.Log(report.Summary())
}

// fakeTarget is the fake of the contract, without what it claims and does not do.
func fakeTarget(*testing.T) (conformance.Target, string) {
	fake := newFake()
	return fakesTarget(fake, fake), ""
}

func newFake(opts ...backendtest.Option) *backendtest.Fake {
	return backendtest.New(append(opts, backendtest.WithCapabilities(func(c *backend.Capabilities) {
		c.Claims[backend.ControlMountsRO] = backend.Claim{Enforcement: backend.Unsupported, Note: "a fake has no files of the host"}
	}))...)
}

// fakesTarget opens ex first, so that it can be wrapped, and then further ones.
func fakesTarget(fake *backendtest.Fake, wrapped backend.Executor) conformance.Target {
	return conformance.Target{
		Name: "fake", Clock: fake.Clock(),
		Open: func(context.Context) (backend.Executor, error) {
			if wrapped != nil {
				first := wrapped
				wrapped = nil
				return first, nil
			}
			return fake.Reopen(), nil
		},
	}
}

// agentBinary is the built agent; it also tells the test binary that AsNobody
// starts where that is.
func agentBinary(t *testing.T) string {
	t.Helper()
	path := builder.Build(t, "cmd/glovebox-agent")
	if os.Getenv(testenv.EnvBin) == "" {
		os.Setenv(testenv.EnvBin, filepath.Dir(path)) //nolint:usetesting // the same for all tests of this process
	}
	return path
}

func subprocessTarget(p subprocess.Privilege, level backend.Isolation) func(*testing.T) (conformance.Target, string) {
	return func(t *testing.T) (conformance.Target, string) {
		cfg := subprocess.Config{Privilege: p, Agent: agentBinary(t), StateDir: t.TempDir()}
		open := func(ctx context.Context) (backend.Executor, error) { return subprocess.Open(ctx, cfg) }
		ex, err := open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := ex.Capabilities().Isolation
		if err := ex.Close(); err != nil {
			t.Fatal(err)
		}
		target := conformance.Target{Open: open, Witness: witness(cfg.StateDir)}
		if got < level {
			return target, fmt.Sprintf("privilege %s reaches %s only", p, got)
		}
		return target, ""
	}
}

// witness sees what a store has on this host, and what this process started;
// the host's other stores are somebody else's.
func witness(stateDir string) conformance.Witness {
	words := func() []string {
		id, err := os.ReadFile(filepath.Join(stateDir, "store"))
		if err != nil {
			return []string{stateDir}
		}
		return []string{stateDir, "glovebox-" + strings.TrimSpace(string(id)) + "-"}
	}
	processes := host.New(words)
	return conformance.WitnessFunc(func(ctx context.Context) (map[string]string, error) {
		out, err := processes.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		all, err := leak.Host()
		if err != nil {
			return nil, err
		}
		named := words()
		maps.DeleteFunc(all, func(key, value string) bool {
			return !slices.ContainsFunc(named, func(word string) bool { return strings.Contains(key+value, word) })
		})
		maps.Copy(out, all)
		markers, err := filepath.Glob(filepath.Join(stateDir, "sandboxes", "*"))
		for _, m := range markers {
			out["marker "+m] = "a sandbox's marker"
		}
		return out, err
	})
}
