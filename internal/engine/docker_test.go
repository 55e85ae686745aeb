//go:build linux

package engine

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func TestContainer_life(t *testing.T) {
	t.Parallel()
	e := docker(t)
	c := spec(t, "echo")
	c.Stdio = true
	id := create(t, e, c)
	if s, err := e.Inspect(t.Context(), id); err != nil || s.Status != "created" || s.Running || s.Ended() {
		t.Fatalf("%+v, %v", s, err)
	}
	stream, err := e.Attach(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	ended := e.Watch(t.Context(), id)
	want := strings.Repeat("0123456789", 100_000)
	go func() {
		_, _ = io.WriteString(stream, want)
	}()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(stream, got); err != nil || string(got) != want {
		t.Fatalf("%d bytes came back otherwise: %v", len(want), err)
	}
	if tail := string(stream.Tail()); tail != "ready\n" {
		t.Errorf("error output %q", tail)
	}
	s, err := e.Inspect(t.Context(), id)
	if err != nil || !s.Running || s.PID == 0 || s.Started.IsZero() || s.Labels[labelRun] != runID || s.Memory != c.Memory || s.PIDs != c.PIDs {
		t.Fatalf("%+v, %v", s, err)
	}
	if list, err := e.List(t.Context(), labelRun, runID); err != nil || !contains(list, id) {
		t.Errorf("not in %+v, %v", list, err)
	}
	if list, err := e.List(t.Context(), labelRun, "another"); err != nil || len(list) != 0 {
		t.Errorf("another label's list is %+v, %v", list, err)
	}
	if stats, err := e.Stats(t.Context(), id); err != nil || stats.CPU == 0 || stats.Memory == 0 || stats.MemoryLimit != uint64(c.Memory) {
		t.Errorf("%+v, %v", stats, err)
	}
	if err := e.Kill(t.Context(), id, "KILL"); err != nil {
		t.Fatal(err)
	}
	select {
	case end := <-ended:
		if end.Err != nil || end.State.ExitCode != 137 || end.State.OOMKilled {
			t.Errorf("%+v", end)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("its end was not seen")
	}
	wantKind(t, e.Kill(t.Context(), id, "KILL"), backend.ErrConflict, "")
	for range 2 {
		if err := e.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	_, err = e.Inspect(t.Context(), id)
	wantKind(t, err, backend.ErrNotFound, "container")
	if end := <-e.Watch(t.Context(), id); backend.KindOf(end.Err) != backend.ErrNotFound {
		t.Errorf("a removed container's end: %+v", end)
	}
}

func contains(list []Listed, id string) bool {
	for _, l := range list {
		if l.ID == id && l.Name != "" && l.Labels[labelRun] == runID {
			return true
		}
	}
	return false
}

// TestContainer_settings looks from inside at what Create promises.
func TestContainer_settings(t *testing.T) {
	t.Parallel()
	e := docker(t)
	c := spec(t, "facts")
	c.Hostname = "box"
	c.CapAdd = []string{"SETUID", "KILL"}
	c.Env = []string{"A=b"}
	c.Tmpfs = map[string]string{"/scratch": "size=1m,nr_inodes=50,mode=0700,uid=5,noexec"}
	c.Ulimits = []Ulimit{{"nofile", 123, 124}}
	c.Binds = []Bind{{Source: t.TempDir(), Target: "/bound"}}
	out, tail, state := output(t, e, c)
	if state.ExitCode != 0 {
		t.Fatalf("%+v %s", state, tail)
	}
	var facts map[string]string
	if err := json.Unmarshal([]byte(out), &facts); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	has := func(name string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(facts[name], want) {
				t.Errorf("%s has no %q:\n%s", name, want, facts[name])
			}
		}
	}
	const setuidAndKill = "00000000000000a0"
	has("/proc/self/status", "NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t"+setuidAndKill, "CapPrm:\t"+setuidAndKill, "Uid:\t0\t0\t0\t0", "Pid:\t1\n")
	has("/proc/self/limits", "Max open files            123                  124")
	has("/proc/self/mountinfo", " / / ro,", " /scratch ", "size=1024k", "nr_inodes=50", "uid=5", " /bound ro,")
	if strings.Contains(facts["/proc/self/mountinfo"], "/dev/shm") {
		t.Error("there is a /dev/shm")
	}
	has("/proc/self/cgroup", "0::/\n")
	has("hostname", "box")
	has("env", "A=b")
	has("write /", "read-only")
	has("write /proc/sys", "read-only")
	if facts["kcore"] != "0" {
		t.Error("/proc/kcore is not masked")
	}
	// Of uid 5 and mode 0700, and uid 0 has no CAP_DAC_OVERRIDE.
	has("write /scratch", "permission denied")
}

func TestContainer_memory(t *testing.T) {
	t.Parallel()
	e := docker(t)
	c := spec(t, "hog")
	c.Memory = 24 << 20
	_, _, state := output(t, e, c)
	if !state.OOMKilled || state.ExitCode != 137 {
		t.Errorf("%+v", state)
	}
	_, _, state = output(t, e, spec(t, "exit", "3"))
	if state.OOMKilled || state.ExitCode != 3 {
		t.Errorf("one that is not killed: %+v", state)
	}
}

func TestContainer_pause(t *testing.T) {
	t.Parallel()
	e := docker(t)
	c := spec(t, "sleep")
	id := create(t, e, c)
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := e.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if s, err := e.Inspect(t.Context(), id); err != nil || !s.Paused {
		t.Errorf("%+v, %v", s, err)
	}
	wantKind(t, e.Pause(t.Context(), id), backend.ErrConflict, "")
	if err := e.Unpause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if s, err := e.Inspect(t.Context(), id); err != nil || s.Paused || !s.Running {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestCreate_errors(t *testing.T) {
	t.Parallel()
	e := docker(t)
	c := spec(t, "sleep")
	create(t, e, c)
	_, err := e.Create(t.Context(), c)
	wantKind(t, err, backend.ErrConflict, "")
	for name, tt := range map[string]struct {
		change func(*Container)
		kind   backend.Kind
		field  string
	}{
		"missing image":   {func(c *Container) { c.Image = "glovebox-test-no-such:1" }, backend.ErrNotFound, "image"},
		"path as image":   {func(c *Container) { c.Image = "x/../../containers" }, backend.ErrInvalid, "image"},
		"path as name":    {func(c *Container) { c.Name = "../x" }, backend.ErrInvalid, "name"},
		"no labels":       {func(c *Container) { c.Labels = nil }, backend.ErrInvalid, "labels"},
		"no memory limit": {func(c *Container) { c.Memory = 0 }, backend.ErrInvalid, "limits"},
		"relative tmpfs":  {func(c *Container) { c.Tmpfs = map[string]string{"x": ""} }, backend.ErrInvalid, "tmpfs"},
		"unknown runtime": {func(c *Container) { c.Runtime = "no-such-runtime" }, backend.ErrInvalid, ""},
	} {
		c := spec(t, "sleep")
		tt.change(&c)
		_, err := e.Create(t.Context(), c)
		if backend.KindOf(err) != tt.kind {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wantKind(t, err, tt.kind, tt.field)
	}
}

func TestStart_errors(t *testing.T) {
	t.Parallel()
	e := docker(t)
	for name, args := range map[string][]string{
		"missing program": {"/no\x1bsuch\nprogram"}, "directory": {"/usr"},
	} {
		c := spec(t)
		c.Args = args
		id := create(t, e, c)
		be := wantKind(t, e.Start(t.Context(), id), backend.ErrUnavailable, "")
		if s := be.Error(); strings.ContainsAny(s, "\x1b\n") || len(s) > maxMessage+200 {
			t.Errorf("%s: %q", name, s)
		}
	}
	wantKind(t, e.Start(t.Context(), "glovebox-test-no-such"), backend.ErrNotFound, "container")
	_, err := e.Attach(t.Context(), "glovebox-test-no-such")
	wantKind(t, err, backend.ErrNotFound, "container")
}

func TestInfo(t *testing.T) {
	t.Parallel()
	e := docker(t)
	info, err := e.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Version == "" || info.APIVersion == "" || info.DefaultRuntime == "" || info.CgroupVersion == 0 || !info.Seccomp {
		t.Errorf("%+v", info)
	}
	if _, ok := info.Runtime(info.DefaultRuntime); !ok {
		t.Errorf("the default runtime is not among %+v", info.Runtimes)
	}
	_, err = os.Stat(filepath.Join("/proc", "1"))
	if strings.HasPrefix(e.Host(), "unix:///var/run/") && os.Geteuid() == 0 && err == nil && !info.Local {
		t.Error("the engine of this machine is not known as such")
	}
	t.Logf("%+v", info)
}

func TestHostGroups_areTheContainers(t *testing.T) {
	t.Parallel()
	e := docker(t)
	info, err := e.Info(t.Context())
	if err != nil || !info.Local {
		t.Skipf("the engine is not on this host: %v", err)
	}
	c := spec(t, "sleep")
	id := create(t, e, c)
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	s, err := e.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := HostGroups(id, s.PID)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(groups.V2, "memory.max")
	if info.CgroupVersion == 1 {
		file = filepath.Join(groups.V1["memory"], "memory.limit_in_bytes")
	}
	data, err := os.ReadFile(file)
	if err != nil || strings.TrimSpace(string(data)) != strconv.FormatInt(c.Memory, 10) {
		t.Errorf("%s is %q, %v", file, data, err)
	}
	_, err = HostGroups(id, os.Getpid())
	wantKind(t, err, backend.ErrUnsupported, "")
}
