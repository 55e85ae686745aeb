//go:build linux

package hostiletest_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/leak"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

// box is a sandbox with what is seen of it from outside.
type box struct {
	backend.Sandbox
	// agentPID is the agent's process; where programs have a kernel of their
	// own, that kernel's.
	agentPID  int
	pidns     string            // the name of its pid namespace
	held      *os.File          // keeps that name from being given anew
	groups    map[string]string // of user code, by controller; none where it has none
	container string            // the engine's ID; "" without an engine
	peak      atomic.Int64      // of memory, as it was sampled
}

// newBox makes a sandbox and destroys it when the test ends; then nothing of
// its pid namespace may be left after a second.
func newBox(t *testing.T, spec backend.Spec) *box {
	t.Helper()
	sb, err := w.ex.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Sandbox: sb}
	t.Cleanup(func() {
		b.end(t)
		if b.held != nil {
			b.held.Close()
		}
	})
	b.container = containerOf(t, b.ID())
	if sentry() {
		b.agentPID = sentryOf(t, b.ID())
		b.groups = w.target.groups(t, b)
		b.control(t)
		return b
	}
	// No attack has run yet, so the sandbox may say which namespace is its own.
	exit, out := runIn(t, b, "readlink /proc/self/ns/pid")
	b.pidns = strings.TrimSpace(out)
	for pid := range processes() {
		// Its first process: the agent, whatever has started it.
		if f := strings.Fields(status(pid, "NSpid")); len(f) > 0 && f[len(f)-1] == "1" && pidNamespace(pid) == b.pidns {
			b.agentPID = pid
		}
	}
	if b.held, err = os.Open("/proc/" + strconv.Itoa(b.agentPID) + "/ns/pid"); err != nil {
		t.Fatal(err)
	}
	if b.agentPID == 0 || b.pidns == pidNamespace(os.Getpid()) {
		t.Fatalf("no agent of ours is in the new sandbox's pid namespace %q (%s)", b.pidns, exit)
	}
	b.groups = w.target.groups(t, b)
	b.control(t)
	return b
}

// control shows that what is looked for when the sandbox has ended is found
// while it is there.
func (b *box) control(t *testing.T) {
	t.Helper()
	if (sentry() || b.container != "") && len(b.leftOf(t)) == 0 {
		t.Error("inconclusive: nothing is found of a sandbox that runs")
	}
}

// userUID is the uid on the host that user code has.
func (b *box) userUID(t *testing.T) int {
	t.Helper()
	if w.mode == modeUserns {
		return os.Geteuid()
	}
	if sentry() {
		return hostUID(t, b.agentPID) // whoever breaks out is this
	}
	return hostUID(t, b.agentPID) - launch.AgentUID + launch.UserUID
}

// end destroys the sandbox and looks for survivors.
func (b *box) end(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	defer cancel()
	if err := b.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
	if !eventually(time.Second+grace(), func() bool { return len(b.members(t)) == 0 }) {
		t.Errorf("open: processes outlive their sandbox: %v", b.members(t))
	}
	for _, dir := range b.groups {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("a group outlives its sandbox: %v", dir)
		}
	}
	if left := b.leftOf(t); len(left) > 0 && !eventually(time.Second+grace(), func() bool { left = b.leftOf(t); return len(left) == 0 }) {
		t.Errorf("these outlive their sandbox: %v", left)
	}
}

func pidNamespace(pid int) string {
	name, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	return name
}

// members are the living processes of the sandbox's pid namespace, its agent
// included.
func (b *box) members(t *testing.T) (out []int) {
	t.Helper()
	if sentry() {
		return hostProcesses(t, b.ID())
	}
	for pid := range processes() {
		if pidNamespace(pid) == b.pidns && !strings.HasPrefix(status(pid, "State"), "Z") {
			out = append(out, pid)
		}
	}
	return out
}

// code are the members that are not the agent. Where they have a kernel of
// their own, the numbers are its.
func (b *box) code(t *testing.T) []int {
	t.Helper()
	if sentry() {
		return b.guests(t)
	}
	return slices.DeleteFunc(b.members(t), func(pid int) bool { return pid == b.agentPID })
}

// threads counts the threads of user code.
func (b *box) threads(t *testing.T) (n int) {
	t.Helper()
	for _, pid := range b.code(t) {
		tasks, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
		n += len(tasks)
	}
	return n
}

// processes yields every process of the host.
func processes() func(func(int) bool) {
	return func(yield func(int) bool) {
		d, err := os.Open("/proc")
		if err != nil {
			return
		}
		defer d.Close()
		names, _ := d.Readdirnames(-1)
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil && !yield(pid) {
				return
			}
		}
	}
}

// status is a field of a process's status.
func status(pid int, key string) string {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(line, ":"); ok && k == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// hostUID is the uid that a process has on the host.
func hostUID(t *testing.T, pid int) int {
	t.Helper()
	f := strings.Fields(status(pid, "Uid"))
	if len(f) != 4 {
		t.Fatalf("process %d has gone", pid)
	}
	uid, err := strconv.Atoi(f[1])
	if err != nil {
		t.Fatal(err)
	}
	return uid
}

// carrying lists the living processes whose environment or command line has
// the text.
func carrying(text string) (out []int) {
	for pid := range processes() {
		if pid == os.Getpid() || strings.HasPrefix(status(pid, "State"), "Z") {
			continue
		}
		for _, f := range []string{"environ", "cmdline"} {
			data, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), f))
			if bytes.Contains(data, []byte(text)) {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// groups are the cgroup directories of a sandbox.
func groups(id string) (out []string) {
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil
		case d.IsDir() && strings.HasPrefix(d.Name(), "glovebox-"):
			if strings.HasSuffix(d.Name(), "-"+id) {
				out = append(out, path)
			}
			return fs.SkipDir
		}
		return nil
	})
	return out
}

// canary is a host file that no sandbox may read or change.
type canary struct {
	path, secret string
	hash         string
}

// plant makes a canary that every user of the host may read and write.
func plant(t *testing.T, dir string) canary {
	t.Helper()
	place, err := os.MkdirTemp(dir, "glovebox-hostile-canary-") //nolint:usetesting // the place is what is tested
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(place); err != nil {
			t.Error(err)
		}
	})
	c := canary{path: filepath.Join(place, "canary"), secret: "secret-" + nonce()}
	if err := errors.Join(os.WriteFile(c.path, []byte(c.secret), 0o666), os.Chmod(c.path, 0o666), os.Chmod(place, 0o777)); err != nil {
		t.Fatal(err)
	}
	c.hash = hashOf(t, c.path)
	return c
}

// intact tells whether the canary is as it was, alone in its directory.
func (c canary) intact() bool {
	data, err := os.ReadFile(c.path)
	entries, derr := os.ReadDir(filepath.Dir(c.path))
	return err == nil && derr == nil && string(data) == c.secret && len(entries) == 1
}

func hashOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// remains are what this run left on the host. Others use it as well, so only
// what bears our names or lies in our groups counts.
func remains(before leak.Snapshot) ([]string, error) {
	left, err := leak.Since(before, 0)
	for deadline := time.Now().Add(15 * time.Second); err == nil && len(ours(left)) > 0 && time.Now().Before(deadline); {
		<-time.After(100 * time.Millisecond)
		left, err = leak.Since(before, 0)
	}
	return append(ours(left), engineRemains(storeIDs())...), err
}

func ours(left []string) []string {
	names := append(stores(), w.dir, w.token, "glovebox-hostile-"+strconv.Itoa(os.Getpid()))
	return slices.DeleteFunc(slices.Clone(left), func(line string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(line, name) }) ||
			strings.HasPrefix(line, "file "+w.dir+":") // the run's own, removed last
	})
}

// stores are the prefixes of group names that this run's executors use.
func stores() (out []string) {
	for _, id := range storeIDs() {
		out = append(out, "glovebox-"+id+"-")
	}
	return out
}

func storeIDs() (out []string) {
	files, _ := filepath.Glob(filepath.Join(w.dir, "*", "store"))
	more, _ := filepath.Glob(filepath.Join(w.dir, "*", "*", "store"))
	for _, f := range append(files, more...) {
		if id, err := os.ReadFile(f); err == nil {
			out = append(out, strings.TrimSpace(string(id)))
		}
	}
	return out
}
