//go:build linux

package docker_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/leak"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/internal/testenv/testimage"
)

// What a re-executed test binary is told.
const (
	envHelper = "GLOVEBOX_TEST_DOCKER_HELPER" // kept or bound: what to make instead of tests
	envState  = "GLOVEBOX_TEST_DOCKER_STATE"
	envAgent  = "GLOVEBOX_TEST_DOCKER_AGENT"
)

const socket = "/var/run/docker.sock"

var (
	builder testenv.Builder
	runID   = strings.ToLower(rand.Text()[:10])
)

func TestMain(m *testing.M) {
	if what := os.Getenv(envHelper); what != "" {
		os.Exit(help(what))
	}
	// The stand-ins for a daemon are this process, and only a daemon counts as
	// one of this machine.
	if err := os.WriteFile("/proc/self/comm", []byte("dockerd-test"), 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := builder.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// help makes a sandbox and holds it until this process is killed or told to go.
func help(what string) int {
	ctx := context.Background()
	ex, err := docker.Open(ctx, docker.Config{Agent: os.Getenv(envAgent), StateDir: os.Getenv(envState)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	sb, err := ex.Create(ctx, backend.Spec{Keep: strings.HasPrefix(what, "kept"), Lifetime: 90 * time.Second})
	if err == nil {
		_, err = sb.Start(ctx, backend.Command{
			Args: []string{"/bin/sh", "-c", "echo first; setsid sleep 600 & sleep 600"}, Timeout: backend.UntilSandboxEnds, Tag: "long",
		})
	}
	if err == nil && strings.HasSuffix(what, "paused") {
		p, ok := backend.As[backend.Pauser](sb)
		if !ok {
			err = errors.New("it cannot be paused")
		} else {
			err = p.Pause(ctx, backend.PauseOptions{})
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(sb.ID())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// fixture is a store of a test's own, with what is made in it.
type fixture struct {
	*testing.T
	cfg docker.Config
	ex  *docker.Executor
	e   *engine.Engine // the real one

	mu   sync.Mutex
	seen map[string]bool // full IDs of containers
}

// setUp opens an executor over a store of the test's own. At its end nothing of
// the store may be left, neither in the engine nor below it.
func setUp(t *testing.T, change func(*docker.Config)) *fixture {
	t.Helper()
	return setUpAt(t, "unix://"+socket, change)
}

// setUpAt is setUp with an engine that is looked at by another address.
func setUpAt(t *testing.T, host string, change func(*docker.Config)) *fixture {
	t.Helper()
	testenv.NeedRoot(t)
	_, unavailable := testimage.Ref(t.Context())
	testenv.Require(t, "docker", unavailable)
	f := &fixture{T: t, cfg: docker.Config{Agent: builder.Build(t, "cmd/glovebox-agent"), StateDir: t.TempDir()}, seen: map[string]bool{}}
	if why := testimage.Share(f.cfg.StateDir); why != "" {
		t.Fatal(why)
	}
	if change != nil {
		change(&f.cfg)
	}
	var err error
	if f.e, err = engine.Open(host); err != nil {
		t.Fatal(err)
	}
	before, err := leak.Host()
	if err != nil {
		t.Fatal(err)
	}
	f.ex = f.open()
	t.Cleanup(func() { f.end(before) })
	return f
}

// open makes an executor over the fixture's store.
func (f *fixture) open() *docker.Executor {
	f.Helper()
	ex, err := docker.Open(f.Context(), f.cfg)
	if err != nil {
		f.Fatal(err)
	}
	return ex
}

// end closes the executor, sweeps with another and looks for what is left.
func (f *fixture) end(before leak.Snapshot) {
	f.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.Context()), time.Minute)
	defer cancel()
	_ = f.containers(ctx)
	if err := f.ex.Close(); err != nil {
		f.Errorf("close: %v", err)
	}
	ex, err := docker.Open(ctx, f.cfg)
	if err != nil {
		f.Fatal(err)
	}
	if err := ex.Sweep(ctx); err != nil {
		f.Errorf("sweep: %v", err)
	}
	if err := ex.Close(); err != nil {
		f.Errorf("close: %v", err)
	}
	for _, c := range f.containers(ctx) {
		f.Errorf("the container %s is left, %s", c.Name, c.Status)
		_ = f.e.Remove(ctx, c.ID)
	}
	f.nothingBelow(ctx)
	for _, dir := range []string{"run", "sandboxes"} {
		if left, _ := filepath.Glob(filepath.Join(f.cfg.StateDir, dir, "*")); len(left) > 0 {
			f.Errorf("left are %v", left)
		}
	}
	all, err := leak.Since(before, 0)
	for _, l := range all {
		if strings.Contains(l, f.cfg.StateDir) || strings.Contains(l, "glovebox-"+f.store()+"-") {
			if !strings.HasPrefix(l, "file ") {
				f.Errorf("left is %s", l)
			}
		}
	}
	if err := errors.Join(err, f.e.Close()); err != nil {
		f.Error(err)
	}
}

// store is the ID of the fixture's store.
func (f *fixture) store() string {
	id, err := os.ReadFile(filepath.Join(f.cfg.StateDir, "store"))
	if err != nil {
		f.Fatal(err)
	}
	return strings.TrimSpace(string(id))
}

// containers are the engine's of the store.
func (f *fixture) containers(ctx context.Context) []engine.Listed {
	f.Helper()
	list, err := f.e.List(ctx, "dev.glovebox.store", f.store())
	if err != nil {
		f.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range list {
		f.seen[c.ID] = true
	}
	return list
}

// nothingBelow: of no container that was seen anything is left on this host.
func (f *fixture) nothingBelow(ctx context.Context) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.seen {
		eventually(f.T, 10*time.Second, "something is left of "+id, func() bool {
			left, err := engine.FindRemains(id)
			return err == nil && left[0].Empty()
		})
	}
	if ctx.Err() != nil {
		f.Error(ctx.Err())
	}
}

// create makes a sandbox that is destroyed with the executor.
func (f *fixture) create(spec backend.Spec) backend.Sandbox {
	f.Helper()
	sb, err := f.ex.Create(f.Context(), spec)
	if err != nil {
		f.Fatal(err)
	}
	f.containers(f.Context())
	return sb
}

// container is the engine's state of a sandbox.
func (f *fixture) container(id string) engine.State {
	f.Helper()
	st, err := f.e.Inspect(f.Context(), f.name(id))
	if err != nil {
		f.Fatal(err)
	}
	return st
}

func (f *fixture) name(id string) string { return "glovebox-" + f.store() + "-" + id }

// run runs a shell's text in a sandbox.
func run(t *testing.T, sb backend.Sandbox, user, text string) (backend.Exit, string) {
	t.Helper()
	var out bytes.Buffer
	exit, err := backend.RunIn(t.Context(), sb, backend.Command{
		Args: []string{"/bin/sh", "-c", text}, User: user, Output: backend.Output{Stdout: &out, Stderr: &out}, Timeout: 30 * time.Second,
	})
	if err != nil {
		t.Fatalf("%.100s: %v", text, err)
	}
	return exit, out.String()
}

// works tells that a sandbox does.
func works(t *testing.T, sb backend.Sandbox) {
	t.Helper()
	if exit, out := run(t, sb, "", "echo $((6*7))"); !exit.Success() || out != "42\n" {
		t.Errorf("%s, %q", exit, out)
	}
}

// eventually waits for done.
func eventually(t *testing.T, in time.Duration, otherwise string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(in)
	for pause := time.Millisecond; !done(); pause = min(2*pause, 100*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("after %v %s", in, otherwise)
			return
		}
		<-time.After(pause)
	}
}

// helper is this binary as another process that has made a sandbox.
type helper struct {
	cmd *exec.Cmd
	in  io.Closer
	id  string
}

func (f *fixture) helper(what string) *helper {
	f.Helper()
	var errs bytes.Buffer
	h := &helper{cmd: exec.CommandContext(context.WithoutCancel(f.Context()), "/proc/self/exe")}
	h.cmd.Env = append(os.Environ(), envHelper+"="+what, envState+"="+f.cfg.StateDir, envAgent+"="+f.cfg.Agent)
	h.cmd.Stderr = &errs
	out, err := h.cmd.StdoutPipe()
	if err == nil {
		h.in, err = h.cmd.StdinPipe()
	}
	if err == nil {
		err = h.cmd.Start()
	}
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = h.cmd.Wait()
		f.Fatalf("the helper: %v, %s", err, errs.String())
	}
	h.id = strings.TrimSpace(line)
	f.containers(f.Context())
	return h
}

func (h *helper) kill() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

// behind speaks to the engine behind the backend's back.
func behind(t *testing.T, method, path string, query url.Values, body io.Reader) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, "http://engine/v1.41"+path+"?"+query.Encode(), body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-tar")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil || res.StatusCode >= 300 {
		t.Fatalf("%s %s: %s, %v: %s", method, path, res.Status, err, text)
	}
	return string(text)
}

// image makes an image of busybox and files, with changes as in a Dockerfile,
// which is removed with the test. Names that end in a slash are directories,
// contents that begin with -> are links, and empty content removes busybox's.
// With arch it says that it is for another machine.
func image(t *testing.T, arch string, files map[string]string, changes ...string) string {
	t.Helper()
	busybox, err := os.ReadFile(testenv.NeedProgram(t, "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{"bin/busybox": string(busybox), "root/": ""}
	for _, name := range []string{"sh", "ls", "cat", "sleep", "id", "env", "true", "["} {
		all["bin/"+name] = "->busybox"
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(name, content string) {
		h := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}
		if target, ok := strings.CutPrefix(content, "->"); ok {
			h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, target, 0, ""
		}
		if strings.HasSuffix(name, "/") {
			h.Typeflag = tar.TypeDir
		}
		_ = w.WriteHeader(h)
		_, _ = io.WriteString(w, content)
	}
	for name, content := range all {
		if _, other := files[name]; !other {
			add(name, content)
		}
	}
	for name, content := range files {
		if content != "" || strings.HasSuffix(name, "/") {
			add(name, content)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	query := url.Values{"fromSrc": {"-"}, "repo": {"glovebox-test-" + runID}, "tag": {strings.ToLower(rand.Text()[:8])}, "changes": changes}
	ref := query.Get("repo") + ":" + query.Get("tag")
	if arch != "" {
		behind(t, http.MethodPost, "/images/load", nil, archived(arch, ref, buf.Bytes()))
		removeImage(t, ref)
		return ref
	}
	text := behind(t, http.MethodPost, "/images/create", query, &buf)
	var said struct{ Status string }
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&said); err != nil || !strings.HasPrefix(said.Status, "sha256:") {
		t.Fatalf("the engine says %s", text)
	}
	removeImage(t, ref, said.Status) // it may have lost its name by then
	return ref
}

// removeImage removes an image with the test.
func removeImage(t *testing.T, names ...string) {
	t.Helper()
	t.Cleanup(func() {
		e, err := engine.Open("unix://" + socket)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		for _, name := range names {
			if err := e.RemoveImage(context.WithoutCancel(t.Context()), name); err != nil {
				t.Error(err)
			}
		}
	})
}

// archived is an image of one layer, as engines save and load them.
func archived(arch, ref string, layer []byte) io.Reader {
	sum := sha256.Sum256(layer)
	config, _ := json.Marshal(map[string]any{
		"architecture": arch, "os": "linux", "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	manifest, _ := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{ref}, "Layers": []string{"layer.tar"}}})
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for name, data := range map[string][]byte{"config.json": config, "manifest.json": manifest, "layer.tar": layer} {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))})
		_, _ = w.Write(data)
	}
	_ = w.Close()
	return &buf
}
