//go:build unix

package plain_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/leak"
	"github.com/glovebox-dev/glovebox/subprocess/internal/plain"
)

func TestCapabilities_claimLittle(t *testing.T) {
	t.Parallel()
	caps := plain.New(plain.Options{Name: "subprocess"}).Capabilities()
	if caps.Isolation != backend.IsolationNone || caps.Driver != "subprocess" {
		t.Errorf("%s at %s", caps.Driver, caps.Isolation)
	}
	var enforced []string
	for control, claim := range caps.Claims {
		if claim.Enforcement == backend.Enforced {
			enforced = append(enforced, string(control))
		} else if claim.Enforcement != backend.Unsupported || claim.Note == "" {
			t.Errorf("%s is %+v", control, claim)
		}
	}
	slices.Sort(enforced)
	if want := "lifetime output wall_time"; strings.Join(enforced, " ") != want {
		t.Errorf("enforced: %q", enforced)
	}
}

func TestExecutor_refusesWhatItCannotGive(t *testing.T) {
	t.Parallel()
	full := func(change func(*backend.Network)) backend.Spec {
		n := backend.Network{Mode: backend.NetworkFull}
		if change != nil {
			change(&n)
		}
		return backend.Spec{Network: n}
	}
	mount := []backend.Mount{{HostPath: "/usr", Target: "/data", ReadOnly: true}}
	tests := []struct {
		name  string
		spec  backend.Spec
		field string // "" when it is accepted
	}{
		{"nothing", backend.Spec{}, ""},
		{"a full network", full(nil), ""},
		{"no network", backend.Spec{Network: backend.Network{Mode: backend.NetworkNone}}, "network.mode"},
		{"an allowlist", backend.Spec{Network: backend.Network{Mode: backend.NetworkAllowlist}}, "network.mode"},
		{"a rule", full(func(n *backend.Network) { n.Deny = []backend.Rule{{Host: "a.example"}} }), "network.deny"},
		{"a server for names", full(func(n *backend.Network) { n.DNS = []string{"192.0.2.1"} }), "network.dns"},
		{"memory", backend.Spec{Limits: backend.Limits{Memory: 64 << 20}}, "limits.memory"},
		{"advisory memory", backend.Spec{
			Limits: backend.Limits{Memory: 64 << 20}, Advisory: []backend.Control{backend.ControlMemory},
		}, ""},
		{"CPU time", backend.Spec{Limits: backend.Limits{CPUTime: time.Second}}, "limits.cpu_time"},
		{"isolation", backend.Spec{MinIsolation: backend.IsolationRestricted}, "min_isolation"},
		{"strict", backend.Spec{Strict: true}, "strict"},
		{"a template", backend.Spec{Template: "a"}, "template"},
		{"a snapshot", backend.Spec{From: "a"}, "from"},
		{"keep", backend.Spec{Keep: true}, "keep"},
		{"pause", backend.Spec{OnExpiry: backend.ExpiryPause}, "on_expiry"},
		{"a mount", backend.Spec{Mounts: mount}, "mounts"},
		{"an advisory mount", backend.Spec{Mounts: mount, Advisory: []backend.Control{backend.ControlMountsRO}}, "mounts"},
		{"secrets", backend.Spec{Network: backend.Network{Mode: backend.NetworkFull}, Secrets: []backend.SecretRef{"env:A"}}, "secrets"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ex, dir := newExecutor(t)
			sb, err := ex.Create(t.Context(), tt.spec)
			if tt.field == "" {
				if err != nil || !slices.Contains(sb.Receipt().Warnings, plain.Warning) {
					t.Fatalf("%v", err)
				}
				return
			}
			wantKind(t, err, backend.ErrUnsupported, tt.field)
			if entries, _ := os.ReadDir(dir); len(entries) != 0 {
				t.Errorf("a refused sandbox left %v", entries)
			}
		})
	}
}

func TestReceipt_saysThatNothingIsContained(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{Limits: backend.Limits{Output: 9}})
	r := sb.Receipt()
	if r.Achieved != backend.IsolationNone || r.Network != backend.NetworkFull || r.Sandbox != sb.ID() || !backend.ValidID(sb.ID()) {
		t.Errorf("%+v", r)
	}
	grants := map[backend.Control]backend.Grant{}
	for _, g := range r.Limits {
		grants[g.Control] = g
	}
	if g := grants[backend.ControlMemory]; g.Enforcement != backend.Unsupported || !g.Default {
		t.Errorf("memory: %+v", g)
	}
	if g := grants[backend.ControlOutput]; g.Enforcement != backend.Enforced || g.Default {
		t.Errorf("output: %+v", g)
	}
	if c := r.Controls[backend.ControlHostFiles]; c.Enforcement != backend.Unsupported {
		t.Errorf("host files: %+v", c)
	}
}

func TestSandbox_destroyIsIdempotentAndFinal(t *testing.T) {
	t.Parallel()
	ex, dir := newExecutor(t)
	sb, err := ex.Create(t.Context(), backend.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, sb, sh("sleep 60"))
	write(t, sb, "locked/in/file", "x", 0)
	if exit, _, _ := run(t, sb, sh("chmod 000 locked/in locked")); !exit.Success() {
		t.Fatal(exit)
	}
	for range 2 {
		if err := sb.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if exit := wait(t, p); exit.String() != "signaled(9)" {
		t.Errorf("the command ended with %s", exit)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
	_, err = sb.Start(t.Context(), sh("true"))
	wantKind(t, err, backend.ErrClosed, "")
	_, err = sb.Files().Open(t.Context(), "a")
	wantKind(t, err, backend.ErrClosed, "")
	wantKind(t, p.Signal(t.Context(), backend.SIGTERM), backend.ErrClosed, "")
	if err := ex.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = ex.Create(t.Context(), backend.Spec{})
	wantKind(t, err, backend.ErrClosed, "")
}

func TestSandbox_lifetimeEndsItsCommands(t *testing.T) {
	t.Parallel()
	ex, dir := newExecutor(t)
	sb, err := ex.Create(t.Context(), backend.Spec{Lifetime: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, sb, backend.Command{Args: []string{"sleep", "60"}, Timeout: backend.UntilSandboxEnds})
	if exit := wait(t, p); exit.Reason != backend.ReasonExpired || exit.Signal != backend.SIGKILL {
		t.Errorf("ended with %+v", exit)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	_, err = sb.Start(t.Context(), sh("true"))
	wantKind(t, err, backend.ErrExpired, "")
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
}

func TestSandbox_destroyKillsTheGroup(t *testing.T) {
	t.Parallel()
	ex, _ := newExecutor(t)
	sb, err := ex.Create(t.Context(), backend.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	// One descendant of a command that runs, one of a command that has ended.
	out, orphan := newLine(), newLine()
	cmd := sh("sleep 600 & echo $!; wait")
	cmd.Output.Stdout = out
	p := start(t, sb, cmd)
	cmd = sh("sleep 600 >/dev/null 2>&1 </dev/null & echo $!")
	cmd.Output.Stdout = orphan
	if exit := wait(t, start(t, sb, cmd)); !exit.Success() || exit.OutputHeld {
		t.Errorf("%+v", exit)
	}
	child, lone := pid(t, out.get(t)), pid(t, orphan.get(t))
	<-time.After(600 * time.Millisecond) // the orphan's group is looked at meanwhile
	if !running(child) || !running(lone) {
		t.Fatal("the control: descendants live until their sandbox ends")
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if running(child) || running(lone) {
		t.Error("a descendant outlived its sandbox")
	}
	wait(t, p)
}

func TestSandbox_destroyDoesNotWaitForDeafWriters(t *testing.T) {
	t.Parallel()
	ex, dir := newExecutor(t)
	sb, err := ex.Create(t.Context(), backend.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	deaf := &blocked{entered: make(chan struct{}, 1), release: make(chan struct{})}
	cmd := sh("yes")
	cmd.Output.Stdout = deaf
	p := start(t, sb, cmd)
	<-deaf.entered
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
	close(deaf.release)
	wait(t, p)
}

type blocked struct{ entered, release chan struct{} }

func (b *blocked) Write(p []byte) (int, error) {
	select {
	case b.entered <- struct{}{}:
	default:
	}
	<-b.release
	return len(p), nil
}

func TestSandbox_leavesNoGoroutines(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	t.Cleanup(func() { // after the check, so that they hold their outputs until then
		data, _ := os.ReadFile(pids)
		for line := range strings.Lines(string(data)) {
			_ = syscall.Kill(pid(t, strings.TrimSpace(line)), syscall.SIGKILL)
		}
	})
	leak.Check(t)
	ex := plain.New(plain.Options{Dir: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 3 {
		sb, err := ex.Create(ctx, backend.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		start(t, sb, backend.Command{Args: []string{"cat"}, KeepInput: true})
		start(t, sb, sh("sleep 600 & sleep 600 &"))
		start(t, sb, sh("setsid sleep 600 & echo $! >>"+pids+"; exit 3"))
		start(t, sb, backend.Command{Args: []string{"missing"}})
		_, _ = backend.RunIn(ctx, sb, sh("yes | head -c 100000"))
	}
	if err := ex.Close(); err != nil {
		t.Error(err)
	}
}

func TestSandbox_homeIsPrivate(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, backend.Spec{Env: map[string]string{"A": "sandbox", "B": "sandbox"}})
	cmd := sh(`pwd; echo "$HOME"; echo "$A $B"; ls -ld "$HOME" | cut -c1-10; touch "$TMPDIR/x" && echo tmp; env | cut -d= -f1 | sort | tr '\n' ' '`)
	cmd.Env = map[string]string{"B": "command"}
	exit, out, errs := run(t, sb, cmd)
	lines := strings.Split(out, "\n")
	if !exit.Success() || len(lines) != 6 || errs != "" {
		t.Fatalf("%s %q %q", exit, out, errs)
	}
	if lines[0] != lines[1] || !filepath.IsAbs(lines[0]) {
		t.Errorf("starts in %s, home is %s", lines[0], lines[1])
	}
	if lines[2] != "sandbox command" || lines[3] != "drwx------" || lines[4] != "tmp" {
		t.Errorf("%q", lines)
	}
	for name := range strings.FieldsSeq(lines[5]) {
		if !slices.Contains([]string{"A", "B", "HOME", "PATH", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_"}, name) {
			t.Errorf("the host's %s is in the environment", name)
		}
	}
}
