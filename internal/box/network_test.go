//go:build linux

package box_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/subprocess"
)

var builder testenv.Builder

const envSecret = "GLOVEBOX_BOX_TEST_SECRET"

func TestMain(m *testing.M) {
	box.MaybeAgent() // so that this program can be the keeper
	os.Setenv(box.EnvKeeperIdle, "200ms")
	code := m.Run()
	if err := builder.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// inBoth runs f as root, and as nobody in a user namespace.
func inBoth(t *testing.T, f func(t *testing.T, cfg subprocess.Config)) {
	t.Helper()
	agent := builder.Build(t, "cmd/glovebox-agent")
	if os.Getenv(testenv.EnvBin) == "" {
		os.Setenv(testenv.EnvBin, filepath.Dir(agent)) //nolint:usetesting // the same for all tests of this process
	}
	p := subprocess.PrivilegeUserns
	if os.Geteuid() == 0 {
		p = subprocess.PrivilegeRoot
	}
	t.Run(string(p), func(t *testing.T) {
		f(t, subprocess.Config{Privilege: p, Agent: agent, StateDir: t.TempDir()})
	})
	if p == subprocess.PrivilegeRoot {
		testenv.AsNobody(t)
	}
}

func open(t *testing.T, cfg subprocess.Config) *subprocess.Executor {
	t.Helper()
	ex, err := subprocess.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ex.Close() })
	if ex.Capabilities().Isolation < backend.IsolationProcess {
		testenv.Require(t, "subprocess", "no namespaces")
	}
	return ex
}

// site is a server of the host, which says what it saw.
type site struct {
	port int
	mu   sync.Mutex
	keys []string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.keys = append(s.keys, r.Header.Get("X-Key"))
		fmt.Fprint(w, "welcome")
	}))
	t.Cleanup(srv.Close)
	s.port = srv.Listener.Addr().(*net.TCPAddr).Port
	return s
}

func (s *site) rule() backend.Rule {
	return backend.Rule{CIDR: "127.0.0.1/32", Ports: []uint16{uint16(s.port)}}
}

func (s *site) key() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) == 0 {
		return ""
	}
	return s.keys[len(s.keys)-1]
}

// ask asks for a site from inside, by the proxy, and returns the answer's status
// and body; "" when there is none.
func ask(t *testing.T, sb backend.Sandbox, s *site) string {
	t.Helper()
	script := fmt.Sprintf(`exec 3<>"/dev/tcp/127.0.0.1/3128" || exit 0
printf 'GET http://127.0.0.1:%d/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n' >&3
cat <&3; :`, s.port, s.port)
	var out, errs strings.Builder
	exit, err := backend.RunIn(t.Context(), sb, backend.Command{
		Args: []string{"bash", "-c", script}, Timeout: 20 * time.Second, Output: backend.Output{Stdout: &out, Stderr: &errs},
	})
	if err != nil || exit.Reason != backend.ReasonExited {
		t.Fatalf("ask: %v %v %s", err, exit, errs.String())
	}
	head, body, _ := strings.Cut(out.String(), "\r\n\r\n")
	f := strings.Fields(head)
	if len(f) < 2 {
		return ""
	}
	return f[1] + " " + strings.TrimSpace(body)
}

func want(t *testing.T, what, got, prefix string) {
	t.Helper()
	if got != prefix && (prefix == "" || !strings.HasPrefix(got, prefix)) {
		t.Errorf("%s: %q, want %q", what, got, prefix)
	}
}

func wantKind(t *testing.T, err error, kind backend.Kind) {
	t.Helper()
	if backend.KindOf(err) != kind {
		t.Errorf("%v is %q, want %q", err, backend.KindOf(err), kind)
	}
}

func updater(t *testing.T, sb backend.Sandbox) backend.NetworkUpdater {
	t.Helper()
	u, ok := backend.As[backend.NetworkUpdater](sb)
	if !ok {
		t.Fatal("its network cannot be changed")
	}
	return u
}

func TestNetwork_bound(t *testing.T) {
	inBoth(t, func(t *testing.T, cfg subprocess.Config) {
		t.Setenv(envSecret, "hush")
		ex := open(t, cfg)
		one, two := newSite(t), newSite(t)
		spec := backend.Spec{
			Network: backend.Network{
				Mode: backend.NetworkAllowlist, Allow: []backend.Rule{one.rule()},
				Inject: []backend.HeaderRule{{Rule: one.rule(), Header: "X-Key", Secret: "env:" + envSecret}},
			},
			Secrets: []backend.SecretRef{"env:" + envSecret},
		}
		sb, err := ex.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if r := sb.Receipt(); r.Network != backend.NetworkAllowlist {
			t.Errorf("receipt: %s", r.Network)
		}
		want(t, "allowed", ask(t, sb, one), "200 welcome")
		if one.key() != "hush" {
			t.Errorf("the header: %q", one.key())
		}
		want(t, "not allowed", ask(t, sb, two), "403 ")
		u := updater(t, sb)
		if err := u.SetNetwork(t.Context(), backend.Network{Mode: backend.NetworkAllowlist, Allow: []backend.Rule{two.rule()}}); err != nil {
			t.Fatal(err)
		}
		want(t, "replaced", ask(t, sb, one), "403 ")
		want(t, "the new one", ask(t, sb, two), "200 welcome")
		wantKind(t, u.SetNetwork(t.Context(), backend.Network{Mode: backend.NetworkFull}), backend.ErrDenied)
		bad := spec.Network
		bad.Inject = []backend.HeaderRule{{Rule: one.rule(), Header: "X-Key", Secret: "env:" + envSecret + "_NOT"}}
		wantKind(t, u.SetNetwork(t.Context(), bad), backend.ErrInvalid)
		want(t, "after what was refused", ask(t, sb, two), "200 welcome")
		if err := u.SetNetwork(t.Context(), backend.Network{}); err != nil {
			t.Fatal(err)
		}
		want(t, "none", ask(t, sb, two), "403 ")
		wantKind(t, u.SetNetwork(t.Context(), spec.Network), backend.ErrDenied)
		if err := sb.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		wantKind(t, u.SetNetwork(t.Context(), backend.Network{}), backend.ErrClosed)

		spec.Network.Inject[0].Secret, spec.Secrets = "env:"+envSecret+"_NOT", nil
		_, err = ex.Create(t.Context(), spec)
		wantKind(t, err, backend.ErrInvalid)
		if _, _, err := ex.Admit(spec); backend.KindOf(err) != backend.ErrInvalid {
			t.Errorf("admitted: %v", err)
		}
		closed, err := ex.Create(t.Context(), backend.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := backend.As[backend.NetworkUpdater](closed); ok {
			t.Error("a sandbox without a network can be given one")
		}
		want(t, "no network", ask(t, closed, one), "")
		if err := closed.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// keepers are the processes that hold a store's lock.
func keepers(t *testing.T, dir string) (pids []int) {
	t.Helper()
	var st unix.Stat_t
	if unix.Stat(filepath.Join(dir, "keeper.lock"), &st) != nil {
		return nil
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(locks), "\n") {
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "FLOCK" && strings.HasSuffix(f[5], fmt.Sprintf(":%d", st.Ino)) {
			pid, err := strconv.Atoi(f[4])
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within ten seconds: %s", what)
		}
	}
}

func find(t *testing.T, ex backend.Executor, id string) backend.Sandbox {
	t.Helper()
	f, ok := backend.As[backend.Finder](ex)
	if !ok {
		t.Fatal("it finds nothing")
	}
	sb, err := f.Find(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func TestNetwork_kept(t *testing.T) {
	inBoth(t, func(t *testing.T, cfg subprocess.Config) {
		t.Setenv(envSecret, "hush")
		one, two := newSite(t), newSite(t)
		maker := open(t, cfg)
		sb, err := maker.Create(t.Context(), backend.Spec{
			Keep: true, Lifetime: 2 * time.Minute,
			Network: backend.Network{
				Mode: backend.NetworkAllowlist, Allow: []backend.Rule{one.rule()},
				Inject: []backend.HeaderRule{{Rule: one.rule(), Header: "X-Key", Secret: "env:" + envSecret}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		id := sb.ID()
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
			defer cancel()
			if f, ok := backend.As[backend.Finder](open(t, cfg)); ok {
				if left, err := f.Find(ctx, id); err == nil {
					left.Destroy(ctx)
				}
			}
		})
		want(t, "its maker's", ask(t, sb, one), "200 welcome")
		if err := maker.Close(); err != nil {
			t.Fatal(err)
		}
		pids := keepers(t, cfg.StateDir)
		if len(pids) != 1 {
			t.Fatalf("keepers: %v", pids)
		}

		// Another process has no secret, and needs none: the keeper has it.
		if err := os.Unsetenv(envSecret); err != nil {
			t.Fatal(err)
		}
		second := open(t, cfg)
		sb = find(t, second, id)
		want(t, "found", ask(t, sb, one), "200 welcome")
		if one.key() != "hush" {
			t.Errorf("the header: %q", one.key())
		}
		want(t, "not allowed", ask(t, sb, two), "403 ")
		audit, err := os.ReadFile(filepath.Join(cfg.StateDir, "run", id, "audit.jsonl"))
		if err != nil || !strings.Contains(string(audit), `"allowed":true`) || !strings.Contains(string(audit), `"allowed":false`) || strings.Contains(string(audit), "hush") {
			t.Errorf("audit: %v\n%s", err, audit)
		}

		// Killed, it is not replaced by a process that cannot: the network is
		// closed, and that is said.
		if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the keeper is gone", func() bool { return len(keepers(t, cfg.StateDir)) == 0 })
		want(t, "without a keeper", ask(t, sb, one), "503 ")
		sb = find(t, second, id)
		if w := sb.Receipt().Warnings; !slices.ContainsFunc(w, func(s string) bool { return strings.Contains(s, envSecret) }) {
			t.Errorf("warnings: %q", w)
		}
		t.Setenv(envSecret, "hush again")
		third := open(t, cfg)
		sb = find(t, third, id)
		want(t, "held anew", ask(t, sb, one), "200 welcome")
		if one.key() != "hush again" {
			t.Errorf("the header: %q", one.key())
		}

		// Changed rules are those of whoever comes later.
		if err := updater(t, sb).SetNetwork(t.Context(), backend.Network{Mode: backend.NetworkAllowlist, Allow: []backend.Rule{two.rule()}}); err != nil {
			t.Fatal(err)
		}
		want(t, "replaced", ask(t, sb, one), "403 ")
		want(t, "the new one", ask(t, sb, two), "200 welcome")
		for _, pid := range keepers(t, cfg.StateDir) {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the keeper is gone", func() bool { return len(keepers(t, cfg.StateDir)) == 0 })
		if err := third.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, "held by a sweep, the old rule", ask(t, sb, one), "403 ")
		want(t, "held by a sweep, the new rule", ask(t, sb, two), "200 welcome")

		// What one process has closed no other opens again.
		if err := updater(t, find(t, second, id)).SetNetwork(t.Context(), backend.Network{}); err != nil {
			t.Fatal(err)
		}
		want(t, "none", ask(t, sb, two), "403 ")
		wantKind(t, updater(t, sb).SetNetwork(t.Context(), backend.Network{Mode: backend.NetworkAllowlist, Allow: []backend.Rule{two.rule()}}), backend.ErrDenied)

		if err := sb.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the keeper ends by itself", func() bool { return len(keepers(t, cfg.StateDir)) == 0 })
		for _, dir := range []string{"run", "sandboxes"} {
			if left, err := os.ReadDir(filepath.Join(cfg.StateDir, dir)); err != nil || len(left) > 0 {
				t.Errorf("left in %s: %v %v", dir, left, err)
			}
		}
		if _, err := os.Lstat(filepath.Join(cfg.StateDir, "keeper.sock")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the keeper's socket: %v", err)
		}
	})
}
