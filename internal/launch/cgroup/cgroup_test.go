//go:build linux

package cgroup

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// needCgroup is what GLOVEBOX_TEST_REQUIRE calls these groups; with _v1 or _v2,
// one of the versions.
const needCgroup = "cgroup"

// onMain runs f on the process's main thread, in the background.
func onMain(f func()) {
	found := make(chan struct{})
	var try func()
	try = func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if syscall.Gettid() != os.Getpid() {
			go try() // on another thread, since this one is taken
			<-found
			return
		}
		close(found)
		f()
	}
	go try()
}

// While the main thread visits a sandbox, /proc/self/cgroup says that the
// process is in it, and the sandbox's groups that the process is there.
func TestGroup_mainThreadOnAVisit(t *testing.T) { // not in parallel: the main thread is one
	mine, h := newGroup(t, Limits{})
	if len(h.V1) == 0 {
		testenv.Require(t, needCgroup+"_v1", "no v1 hierarchies on this host")
	}
	entered, leave := make(chan error), make(chan struct{})
	onMain(func() {
		back, err := mine.Enter()
		entered <- err
		if err != nil {
			return
		}
		<-leave
		entered <- back()
	})
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(mine.Procs(), os.Getpid()) || !mine.holds(os.Getpid()) {
		t.Error("the main thread is not there")
	}
	other, err := Detect("")
	if err != nil {
		t.Fatal(err)
	}
	second, err := other.New(mine.name+"-2", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, _ := os.ReadFile("/proc/thread-self/cgroup")
	back, err := second.Enter()
	if err != nil {
		t.Fatal(err)
	}
	during, _ := os.ReadFile("/proc/thread-self/cgroup")
	// With no v2 group left the kill goes by process numbers.
	_ = os.Remove(filepath.Join(h.V2, mine.name, "user"))
	_ = os.Remove(filepath.Join(h.V2, mine.name, "agent"))
	_ = os.Remove(filepath.Join(h.V2, mine.name))
	mine.Kill()
	if err := back(); err != nil {
		t.Error(err)
	}
	if after, _ := os.ReadFile("/proc/thread-self/cgroup"); string(after) != string(before) || string(during) == string(before) {
		t.Errorf("before: %s\nduring: %s\nafter: %s", before, during, after)
	}
	close(leave)
	if err := <-entered; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := second.Remove(ctx); err != nil {
		t.Error(err)
	}
}

func TestParseMount(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		line, root, point, fstype string
		super                     []string
		ok                        bool
	}{
		{"36 25 0:31 / /sys/fs/cgroup/memory rw,relatime shared:16 - cgroup cgroup rw,memory", "/", "/sys/fs/cgroup/memory", "cgroup", []string{"rw", "memory"}, true},
		{"30 25 0:26 /docker/ab /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate", "/docker/ab", "/sys/fs/cgroup", "cgroup2", []string{"rw", "nsdelegate"}, true},
		{"30 25 0:26 / /x rw", "", "", "", nil, false},
		{"", "", "", "", nil, false},
		{" - ", "", "", "", nil, false},
	} {
		root, point, fstype, super, ok := parseMount(tt.line)
		if root != tt.root || point != tt.point || fstype != tt.fstype || !slices.Equal(super, tt.super) || ok != tt.ok {
			t.Errorf("%q: %q %q %q %q %t", tt.line, root, point, fstype, super, ok)
		}
	}
}

func TestJoin_staysBelowTheMount(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ point, root, group, want string }{
		{"/sys/fs/cgroup/pids", "/", "", "/sys/fs/cgroup/pids"},
		{"/sys/fs/cgroup/pids", "/", "/", "/sys/fs/cgroup/pids"},
		{"/sys/fs/cgroup/pids", "/", "/user/1", "/sys/fs/cgroup/pids/user/1"},
		{"/sys/fs/cgroup/pids", "/", "mine", "/sys/fs/cgroup/pids/mine"},
		{"/sys/fs/cgroup", "/docker/ab", "", "/sys/fs/cgroup"},
		{"/sys/fs/cgroup", "/docker/ab", "/docker/ab/x", "/sys/fs/cgroup/x"},
		{"/sys/fs/cgroup", "/docker/ab", "/docker/abc", ""},
		{"/sys/fs/cgroup", "/docker/ab", "/other", ""},
		{"/sys/fs/cgroup", "/docker/ab", "mine", ""},
		{"/sys/fs/cgroup", "/", "../../etc", "/sys/fs/cgroup/etc"},
	} {
		if got := join(tt.point, tt.root, tt.group); got != tt.want {
			t.Errorf("join(%q, %q, %q) = %q, want %q", tt.point, tt.root, tt.group, got, tt.want)
		}
	}
	if writable("") {
		t.Error("a group that is not reached is writable")
	}
}

// newGroup makes groups on this host, as root.
func newGroup(t *testing.T, l Limits) (*Group, Host) {
	t.Helper()
	testenv.NeedRoot(t)
	h, err := Detect("")
	if err != nil {
		t.Fatal(err)
	}
	if !h.Usable() {
		testenv.Require(t, needCgroup, "no cgroups on this host")
	}
	g, err := h.New("glovebox-test-"+strconv.Itoa(os.Getpid())+"-"+t.Name(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) //nolint:usetesting // t.Context is over in a cleanup
		defer cancel()
		if err := g.Remove(ctx); err != nil {
			t.Error(err)
		}
		if left := h.List(g.name); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
	return g, h
}

// start runs argv, born in the group's outer groups.
func start(t *testing.T, g *Group, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	dir, err := g.AgentDir()
	if err != nil {
		t.Fatal(err)
	}
	if dir != nil {
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	leave, err := g.Enter()
	if err != nil {
		t.Fatal(err)
	}
	err = cmd.Start()
	if lerr := leave(); err != nil || lerr != nil {
		t.Fatal(err, lerr)
	}
	return cmd
}

func TestGroup_holdsWhatIsBornInIt(t *testing.T) {
	t.Parallel()
	g, h := newGroup(t, Limits{Memory: 64 << 20, MemoryReserve: 16 << 20, Pids: 10, PidsReserve: 5, CPUs: 0.5})
	cmd := start(t, g, "sleep", "1000")
	groups, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	for c := range h.V1 {
		if !strings.Contains(string(groups), ":"+c+":/"+g.name+"\n") {
			t.Errorf("not in the %s group: %s", c, groups)
		}
	}
	if h.V2 != "" && !strings.Contains(string(groups), "0::/"+g.name+"/agent") {
		t.Errorf("not in the v2 group: %s", groups)
	}
	if own, err := os.ReadFile("/proc/thread-self/cgroup"); err != nil || strings.Contains(string(own), g.name) {
		t.Errorf("the thread that forked stayed: %s %v", own, err)
	}
	if procs := g.Procs(); !slices.Equal(procs, []int{cmd.Process.Pid}) {
		t.Errorf("procs %v, want %d", procs, cmd.Process.Pid)
	}
	g.Kill()
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("after Kill: %v", err)
	}
}

func TestGroup_limitsAreTheKernels(t *testing.T) {
	t.Parallel()
	g, h := newGroup(t, Limits{Memory: 64 << 20, MemoryReserve: 16 << 20, Pids: 10, PidsReserve: 5, CPUs: 0.5})
	if v, ok := h.Has("pids"); ok {
		for i, want := range []int64{15, 10} {
			if got := number(filepath.Join(g.pair("pids")[i].dir, "pids.max")); got != want {
				t.Errorf("v%d pids.max %d, want %d", v, got, want)
			}
		}
	}
	if v, ok := h.Has("memory"); ok {
		name := map[int]string{1: "memory.limit_in_bytes", 2: "memory.max"}[v]
		for i, want := range []int64{80 << 20, 64 << 20} {
			if got := number(filepath.Join(g.pair("memory")[i].dir, name)); got != want {
				t.Errorf("v%d memory %d, want %d", v, got, want)
			}
		}
	}
}

func TestGroup_freezeStopsAndKillReachesTheFrozen(t *testing.T) {
	t.Parallel()
	g, h := newGroup(t, Limits{})
	if !h.CanFreeze() {
		testenv.Require(t, needCgroup+"_v2", "no v2 tree on this host")
	}
	cmd := start(t, g, "sh", "-c", "while :; do :; done")
	if err := g.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	cpu := func() string {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "stat"))
		if err != nil {
			t.Fatal(err)
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')'):]))
		return f[12]
	}
	before := cpu()
	busy := time.Now().Add(50 * time.Millisecond)
	for time.Now().Before(busy) { // time passes without a sleep to hide in
	}
	if after := cpu(); after != before {
		t.Errorf("it used CPU while frozen: %s, %s", before, after)
	}
	g.Kill()
	if err := cmd.Wait(); err == nil {
		t.Error("killed while frozen, it ended with 0")
	}
}
