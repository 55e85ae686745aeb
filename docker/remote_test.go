//go:build linux

package docker_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/testenv/testengine"
)

// remotely is a fixture of an engine elsewhere, which is looked at over its Unix
// socket. At its end no image of ours is left there either.
func remotely(t *testing.T, r *testengine.Remote, change func(*docker.Config)) *fixture {
	t.Helper()
	f := setUpAt(t, r.Host(), func(c *docker.Config) {
		c.Host, c.TLSDir = r.Addr, r.TLS
		if change != nil {
			change(c)
		}
	})
	t.Cleanup(func() {
		// The fixture's own end comes later, and sweeps again.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := f.ex.Close(); err != nil {
			t.Error(err)
		}
		ex := f.open()
		defer ex.Close()
		if err := ex.Sweep(ctx); err != nil {
			t.Errorf("sweep: %v", err)
		}
		if left := f.derived(ctx); len(left) > 0 {
			t.Errorf("images are left: %+v", left)
		}
	})
	return f
}

// derived are the images with the agent in them.
func (f *fixture) derived(ctx context.Context) []engine.Image {
	f.Helper()
	list, err := f.e.Images(ctx, "dev.glovebox.store", f.store())
	if err != nil {
		f.Fatal(err)
	}
	return list
}

// TestRemote: what a sandbox on an engine elsewhere is, over TLS.
func TestRemote(t *testing.T) {
	r := testengine.NewRemote(t, true)
	f := remotely(t, r, nil)
	sb := f.create(backend.Spec{})
	works(t, sb)
	t.Run("receipt", func(t *testing.T) {
		rec := sb.Receipt()
		if rec.Measured || rec.Achieved != backend.IsolationContainer || !strings.Contains(rec.Privileges, r.Addr) {
			t.Errorf("measured %v, %s, %q", rec.Measured, rec.Achieved, rec.Privileges)
		}
		if rec.Controls[backend.ControlOwnUID].Enforcement == backend.Enforced {
			t.Error("uids that all have are claimed to be one's own")
		}
	})
	t.Run("files", func(t *testing.T) { remoteFiles(t, sb) })
	t.Run("mounts", func(t *testing.T) {
		st := f.container(sb.ID())
		if st.Status != "running" {
			t.Errorf("control: it is %s", st.Status)
		}
		if m := engineMounts(t, r, st.ID); len(m) > 0 {
			t.Errorf("the container has %v", m)
		}
	})
	t.Run("image", func(t *testing.T) {
		// One with the agent, and one with the uids of the first sandbox.
		if list := f.derived(t.Context()); len(list) != 2 {
			t.Errorf("%d images: %+v", len(list), list)
		}
		other := f.open() // as another process: it finds the images
		defer other.Close()
		second, err := other.Create(t.Context(), backend.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		_, uid := run(t, second, "", "id -u")
		if _, first := run(t, sb, "", "id -u"); first == uid {
			t.Errorf("two sandboxes are %s", uid)
		}
		if list := f.derived(t.Context()); len(list) != 3 {
			t.Errorf("%d images: %+v", len(list), list)
		}
		if err := other.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		works(t, second)
		if list := f.derived(t.Context()); len(list) != 2 {
			t.Errorf("%d images: %+v", len(list), list)
		}
	})
	t.Run("refused", func(t *testing.T) { remoteRefusals(t, f) })
	t.Run("certificates", func(t *testing.T) { remoteCertificates(t, r) })
	t.Run("image removed", func(t *testing.T) {
		if err := sb.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := f.ex.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if list := f.derived(t.Context()); len(list) > 0 {
			t.Errorf("left are %+v", list)
		}
		works(t, f.create(backend.Spec{}))
	})
	t.Run("ends", func(t *testing.T) { remoteEnds(t, f.in(t)) })
	t.Run("pause", func(t *testing.T) { remotePause(t, f.in(t)) })
	t.Run("usage", func(t *testing.T) { remoteUsage(t, f.in(t)) })
	t.Run("allowlist", func(t *testing.T) { remoteAllowlist(t, f.in(t)) })
	t.Run("creator dies", func(t *testing.T) { remoteOrphan(t, r, f.in(t)) })
	t.Run("engine goes", func(t *testing.T) { remoteGoes(t, r, f.in(t)) })
}

// in is the fixture for a part of its test.
func (f *fixture) in(t *testing.T) *fixture {
	t.Helper()
	return &fixture{T: t, cfg: f.cfg, ex: f.ex, e: f.e, seen: f.seen}
}

// remoteFiles: nothing of either host is seen, and what there is cannot be
// changed.
func remoteFiles(t *testing.T, sb backend.Sandbox) {
	t.Helper()
	_, out := run(t, sb, "", "id -un; cat /etc/resolv.conf /etc/hosts; touch /home/user/ok /tmp/ok && echo written")
	for _, want := range []string{"user\n", "127.0.0.1", "127.0.1.1\tsandbox", "written"} {
		if !strings.Contains(out, want) {
			t.Errorf("control: %q is not in %q", want, out)
		}
	}
	host, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.FieldsSeq(string(host)) {
		if net.ParseIP(line) != nil && !strings.HasPrefix(line, "127.") && strings.Contains(out, line) {
			t.Errorf("the engine's host names %s", line)
		}
	}
	for _, user := range []string{"user", "root"} {
		if exit, out := run(t, sb, user, "echo x >/.glovebox/agent"); exit.Success() {
			t.Errorf("%s writes to the agent: %s", user, out)
		}
		if exit, out := run(t, sb, user, "echo x >>/etc/passwd || echo x >>/etc/resolv.conf"); exit.Success() {
			t.Errorf("%s writes to /etc: %s", user, out)
		}
		// The stream to the agent is its standard input and output.
		if exit, out := run(t, sb, user, "head -c1 </proc/1/fd/0 || echo x >/proc/1/fd/1"); exit.Success() {
			t.Errorf("%s opens the agent's stream: %s", user, out)
		}
	}
}

// engineMounts are what a container has of its engine's machine, but for tmpfs.
func engineMounts(t *testing.T, r *testengine.Remote, id string) (out []string) {
	t.Helper()
	dir := filepath.Dir(strings.TrimPrefix(r.Host(), "unix://"))
	data, err := os.ReadFile(filepath.Join(dir, "data", "containers", id, "config.v2.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte(`"MountPoints":{}`)) {
		out = append(out, string(data))
	}
	return out
}

// remoteRefusals: what cannot be given is refused by field and fix.
func remoteRefusals(t *testing.T, f *fixture) {
	t.Helper()
	for name, spec := range map[string]backend.Spec{
		"keep":          {Keep: true},
		"mounts":        {Mounts: []backend.Mount{{HostPath: "/usr/share", Target: "/mnt", ReadOnly: true}}},
		"mounts[0]":     {Mounts: []backend.Mount{{HostPath: "/usr/share", Target: "/mnt", ReadOnly: true}}, Advisory: []backend.Control{backend.ControlMountsRO}},
		"limits.memory": {Limits: backend.Limits{Memory: 1 << 50, Disk: 1 << 20}},
		"limits.cpus":   {Limits: backend.Limits{CPUs: 1000}},
	} {
		sb, err := f.ex.Create(f.Context(), spec)
		if err == nil {
			t.Errorf("%s: made", name)
			_ = sb.Destroy(f.Context())
			continue
		}
		be, ok := errors.AsType[*backend.Error](err)
		if !ok || be.Field != name || be.Fix == "" || be.Backend != "docker" || be.Kind != backend.ErrUnsupported && be.Kind != backend.ErrCapacity {
			t.Errorf("%s: %+v", name, err)
		}
	}
}

// remoteCertificates: only who has the right ones may use the engine, and only
// the right engine is used.
func remoteCertificates(t *testing.T, r *testengine.Remote) {
	t.Helper()
	only := func(name string) string {
		data, err := os.ReadFile(filepath.Join(r.TLS, name))
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	other := testengine.Certificates(t)
	for name, o := range map[string]engine.Options{
		"none": {}, "no certificate of one's own": {TLSDir: only("ca.pem")}, "no authority": {TLSDir: only("cert.pem")},
		"another authority": {TLSDir: other}, "right": {TLSDir: r.TLS},
	} {
		e, err := engine.OpenWith(r.Addr, o)
		if err != nil {
			t.Fatal(err)
		}
		err = e.Ping(t.Context())
		if right := name == "right"; right != (err == nil) || !right && backend.KindOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
		e.Close()
	}
	t.Setenv("DOCKER_CERT_PATH", r.TLS)
	for verify, works := range map[string]bool{"": false, "1": true} {
		t.Setenv("DOCKER_TLS_VERIFY", verify)
		e, err := engine.Open(r.Addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Ping(t.Context()); (err == nil) != works {
			t.Errorf("DOCKER_TLS_VERIFY=%q: %v", verify, err)
		}
		e.Close()
	}
}

// remoteEnds: why commands end.
func remoteEnds(t *testing.T, f *fixture) {
	t.Helper()
	sb := f.create(backend.Spec{Limits: backend.Limits{Memory: 128 << 20, Disk: 16 << 20}})
	for text, want := range map[string]backend.Reason{
		"exit 7":                               backend.ReasonExited,
		"kill -9 $$":                           backend.ReasonSignaled,
		"exec python3 -c 'x=bytearray(1<<30)'": backend.ReasonMemoryLimit,
	} {
		if exit, out := run(t, sb, "", text); exit.Reason != want {
			t.Errorf("%s: %s, %s", text, exit, out)
		}
	}
}

// remotePause: a pause holds, and a paused sandbox can be destroyed.
func remotePause(t *testing.T, f *fixture) {
	t.Helper()
	sb := f.create(backend.Spec{})
	p, ok := backend.As[backend.Pauser](sb)
	if !ok {
		t.Fatal("it cannot be paused")
	}
	if err := p.Pause(t.Context(), backend.PauseOptions{}); err != nil {
		t.Fatal(err)
	}
	if st := f.container(sb.ID()); !st.Paused {
		t.Errorf("it is %s", st.Status)
	}
	if err := p.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	works(t, sb)
	if err := p.Pause(t.Context(), backend.PauseOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// remoteUsage: what is used is the engine's word.
func remoteUsage(t *testing.T, f *fixture) {
	t.Helper()
	sb := f.create(backend.Spec{})
	works(t, sb)
	m, _ := backend.As[backend.Meter](sb)
	if u, err := m.Usage(t.Context()); err != nil || u.CPU <= 0 || u.Memory <= 0 {
		t.Errorf("%+v, %v", u, err)
	}
}

// remoteAllowlist: the one network is our proxy's, with what the rules name.
func remoteAllowlist(t *testing.T, f *fixture) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("reached")) }))
	defer srv.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(srv.URL, "http://"), ":")
	sb := f.create(backend.Spec{Network: backend.Network{
		Mode: backend.NetworkAllowlist, Allow: []backend.Rule{{Host: "example.test"}, {CIDR: "192.0.2.0/24"}},
	}})
	exit, out := run(t, sb, "", "curl -sS -m 10 --noproxy '*' http://127.0.0.1:"+port+"/; curl -sS -m 10 http://other.test/")
	if strings.Contains(out, "reached") || !strings.Contains(out, "no rule of network.allow names other.test") {
		t.Errorf("what no rule names: %s, %s", exit, out)
	}
	if exit, out := run(t, sb, "", "env; grep nameserver /etc/resolv.conf"); !strings.Contains(strings.ToLower(out), "http_proxy=") || !strings.Contains(out, "nameserver 127.0.0.1") {
		t.Errorf("control: no proxy is told of: %s, %s", exit, out)
	}
	none := f.create(backend.Spec{})
	if exit, out := run(t, none, "", "ls /sys/class/net"); strings.TrimSpace(out) != "lo" {
		t.Errorf("%s, %q", exit, out)
	}
}

// remoteGoes: an engine that hangs, or goes, while a command runs.
func remoteGoes(t *testing.T, r *testengine.Remote, f *fixture) {
	t.Helper()
	start := func() (backend.Sandbox, backend.Process) {
		t.Helper()
		sb := f.create(backend.Spec{})
		p, err := sb.Start(t.Context(), backend.Command{Args: []string{"/bin/sleep", "300"}, Timeout: backend.UntilSandboxEnds})
		if err != nil {
			t.Fatal(err)
		}
		return sb, p
	}
	destroyed := func(sb backend.Sandbox) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err := sb.Destroy(ctx)
		if took := time.Since(began); backend.KindOf(err) != backend.ErrUnavailable || took > 45*time.Second {
			t.Errorf("destroy says %v after %v", err, took)
		}
	}
	sb, p := start()
	ids := f.containers(t.Context())
	t.Run("hangs", func(t *testing.T) {
		r.Signal(syscall.SIGSTOP)
		defer r.Signal(syscall.SIGCONT)
		began := time.Now()
		if _, err := f.ex.Create(t.Context(), backend.Spec{}); backend.KindOf(err) != backend.ErrUnavailable {
			t.Errorf("create: %v", err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("create took %v", took)
		}
		destroyed(sb)
		if _, err := p.Wait(t.Context()); backend.KindOf(err) == "" {
			t.Errorf("Wait says %v", err)
		}
	})
	// Its stream has ended meanwhile, and with it the agent.
	eventually(t, 30*time.Second, "the container lives on", func() bool {
		st, err := f.e.Inspect(t.Context(), ids[0].ID)
		return backend.KindOf(err) == backend.ErrNotFound || err == nil && st.Ended()
	})
	sb, p = start()
	t.Run("goes", func(t *testing.T) {
		r.End(syscall.SIGKILL)
		began := time.Now()
		if _, err := p.Wait(t.Context()); backend.KindOf(err) != backend.ErrLost {
			t.Errorf("Wait says %v", err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("Wait took %v", took)
		}
		destroyed(sb)
	})
	r.Start()
	if err := f.ex.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if slices.ContainsFunc(f.containers(t.Context()), func(c engine.Listed) bool { return c.Name == f.name(sb.ID()) }) {
		t.Error("the sweep leaves it")
	}
	works(t, f.create(backend.Spec{}))
}

// remoteOrphan: a bound sandbox ends with its creator.
func remoteOrphan(t *testing.T, r *testengine.Remote, f *fixture) {
	t.Helper()
	t.Setenv("DOCKER_HOST", r.Addr)
	t.Setenv("DOCKER_TLS_VERIFY", "1")
	t.Setenv("DOCKER_CERT_PATH", r.TLS)
	h := f.helper("bound")
	id := f.container(h.id).ID
	h.kill()
	eventually(t, 20*time.Second, "it lives on", func() bool {
		st, err := f.e.Inspect(t.Context(), id)
		return backend.KindOf(err) == backend.ErrNotFound || err == nil && st.Ended()
	})
	if err := f.ex.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if slices.ContainsFunc(f.containers(t.Context()), func(c engine.Listed) bool { return c.ID == id }) {
		t.Error("the sweep leaves it")
	}
}

// TestRemote_forwarded: an engine whose socket somebody forwards is used once it
// is said to be elsewhere.
func TestRemote_forwarded(t *testing.T) {
	d := newStandIn(t)
	f := setUp(t, func(c *docker.Config) { c.Host, c.Remote = "unix://"+d.path, true })
	works(t, f.create(backend.Spec{}))
	if err := f.ex.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestRemote_whole: an engine that takes no single layer gets the whole image,
// and tells apart what it must.
func TestRemote_whole(t *testing.T) {
	d := newStandIn(t)
	ref := image(t, "", map[string]string{"etc/passwd": "root:x:0:0::/:/bin/sh\nuser:x:7:7::/:/bin/sh\n", ".glovebox": "->/etc"})
	f := setUp(t, func(c *docker.Config) {
		c.Host, c.Remote, c.Templates = "unix://"+d.path, true, map[string]string{"small": ref}
	})
	d.on("POST .*/images/load", refuse)
	sb := f.create(backend.Spec{Template: "small"})
	exit, out := run(t, sb, "", "id; cat /etc/passwd")
	if !exit.Success() || strings.Contains(out, "user:x:7:7") || !strings.Contains(out, "uid=") {
		t.Errorf("%s, %s", exit, out)
	}
	pids := ""
	for _, g := range sb.Receipt().Limits {
		if g.Control == backend.ControlPids {
			pids = g.Mechanism
		}
	}
	if pids != "container's pids cgroup" {
		t.Errorf("processes are limited by %q", pids)
	}
	if list := f.derived(t.Context()); len(list) != 1 || list[0].Labels["dev.glovebox.whole"] == "" {
		t.Errorf("control: images are %+v", list)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if err := f.ex.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if list := f.derived(t.Context()); len(list) > 0 {
		t.Errorf("left are %+v", list)
	}
}

// TestRemote_plain: an engine on another machine is not used without TLS.
func TestRemote_plain(t *testing.T) {
	for _, host := range []string{"tcp://192.0.2.1:2375", "http://engine.test:2375", "tcp://127.0.0.1.engine.test:2375"} {
		ex, err := docker.Open(t.Context(), docker.Config{Host: host, StateDir: t.TempDir(), Agent: builder.Build(t, "cmd/glovebox-agent")})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = ex.Create(t.Context(), backend.Spec{})
		be, ok := errors.AsType[*backend.Error](err)
		if !ok || be.Kind != backend.ErrDenied || be.Field != "host" || be.Fix == "" {
			t.Errorf("%s: %v", host, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: it took %v", host, took)
		}
		if err := ex.Close(); err != nil {
			t.Error(err)
		}
	}
}
