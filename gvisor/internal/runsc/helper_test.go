//go:build linux

package runsc_test

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/gvisor/internal/runsc"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/internal/oci"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

var builder = &testenv.Builder{}

func TestMain(m *testing.M) {
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

// find gives the host's runsc.
func find(t *testing.T) runsc.Binary {
	t.Helper()
	b, err := runsc.Find(t.Context(), "")
	if err != nil {
		testenv.Require(t, "gvisor", err.Error())
	}
	return b
}

// box is a sandbox in a test.
type box struct {
	runsc.Config
	bin      runsc.Binary
	launcher *runsc.Launcher
	group    *cgroup.Group
	name     string // of the groups
	dir      string // of everything
	spec     oci.Spec
	exec     *os.File
}

// memory is the limit of a box.
const memory = 256 << 20

var boxes atomic.Int64

// newBox makes what a sandbox needs; as root in groups with limits.
func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{bin: find(t), launcher: runsc.NewLauncher()}
	t.Cleanup(b.launcher.Close)
	dir, err := os.MkdirTemp("", "gvb") //nolint:usetesting // a short path, for a socket
	if err != nil {
		t.Fatal(err)
	}
	b.dir = dir
	b.name = fmt.Sprintf("glovebox-test-%d-%d", os.Getpid(), boxes.Add(1))
	b.Config = runsc.Config{ID: "box", Dir: filepath.Join(dir, "state"), Rootless: os.Geteuid() != 0}
	for _, d := range []string{"state", "bundle", "root", "root/tmp"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.spec = oci.Spec{
		Args: []string{"/guest"}, Root: filepath.Join(dir, "root"), Hostname: "box",
		Capabilities: []string{"CAP_SETUID", "CAP_CHOWN"},
		Rlimits:      []oci.Rlimit{{Type: "RLIMIT_NOFILE", Value: 256}, {Type: "RLIMIT_CORE"}},
		Mounts: []oci.Mount{
			{Kind: oci.Proc, Target: "/proc"},
			{Kind: oci.Tmpfs, Target: "/work", Size: 1 << 20, Mode: 0o1777},
		},
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("state: ", b.dir)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { b.remove(t) })
	if b.exec, err = os.Open(builder.Build(t, "gvisor/internal/runsc/guest")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.exec.Close() })
	if b.Rootless {
		return b
	}
	host, err := cgroup.Detect("")
	if err != nil {
		t.Fatal(err)
	}
	if b.group, err = host.New(b.name, cgroup.Limits{Memory: memory, Pids: 1024, CPUs: 1}); err != nil {
		t.Fatal(err)
	}
	if len(host.V1) > 0 {
		b.Groups, b.spec.CgroupsPath = true, "/"+b.name
	}
	return b
}

// remove removes b and checks that nothing is left. It may be called twice.
func (b *box) remove(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) //nolint:usetesting // also used in cleanups
	defer cancel()
	if err := b.Remove(ctx, b.group); err != nil {
		t.Error(err)
	}
	if b.group != nil {
		if err := runsc.RemoveGroups(ctx, "/"+b.name); err != nil {
			t.Error(err)
		}
	}
	b.checkGone(t)
}

// checkGone compares with what the host itself says.
func (b *box) checkGone(t *testing.T) {
	t.Helper()
	if left := processesWith(b.dir); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
	if groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + b.name); len(groups) > 0 {
		t.Errorf("groups are left: %q", groups)
	}
	if data, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(data), b.dir) {
		t.Error("mounts are left")
	}
	if _, err := os.Stat(b.Dir); err == nil {
		t.Error("the state directory is left")
	}
	for _, d := range []string{"/run", "/tmp"} {
		if _, err := os.Stat(filepath.Join(d, "runsc-"+b.ID+".sock")); err == nil {
			t.Errorf("a socket is left in %s", d)
		}
	}
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

// bundle writes config.json.
func (b *box) bundle(t *testing.T) runsc.Start {
	t.Helper()
	if missing, err := b.spec.Missing(); err != nil || len(missing) > 0 {
		t.Fatalf("missing %v, %v", missing, err)
	}
	dir := filepath.Join(b.dir, "bundle")
	if err := b.spec.Write(dir); err != nil {
		t.Fatal(err)
	}
	return runsc.Start{Bundle: dir, Exec: b.exec, Group: b.group}
}

// start starts b.
func (b *box) start(t *testing.T, bound bool) *talk {
	t.Helper()
	s := b.bundle(t)
	s.Bound = bound
	return b.run(t, s)
}

func (b *box) run(t *testing.T, s runsc.Start) *talk {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	p, err := b.launcher.Start(ctx, b.bin, &b.Config, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.In.Close(); p.Out.Close() })
	return &talk{Process: p, out: bufio.NewReader(p.Out)}
}

// talk is a conversation with a guest.
type talk struct {
	*runsc.Process
	out *bufio.Reader
}

// ask sends a command and gives the answer; "" with a failure when there is
// none in time.
func (k *talk) ask(t *testing.T, command string) string {
	t.Helper()
	answer, err := k.try(command, 30*time.Second)
	if err != nil {
		t.Fatalf("%s: %v; %s", command, err, k.Words())
	}
	return answer
}

func (k *talk) try(command string, wait time.Duration) (string, error) {
	if err := k.Out.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(k.In, command); err != nil {
		return "", err
	}
	line, err := k.out.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// ended waits for the sandbox's end.
func (k *talk) ended(t *testing.T) time.Duration {
	t.Helper()
	from := time.Now()
	select {
	case <-k.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("it has not ended")
	}
	return time.Since(from)
}

// tree lists everything below dir, with types, modes and sizes.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		out.WriteString(path + " " + st.Mode().String() + " " + strconv.FormatInt(st.Size(), 10) + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// bindGuest has the guest lie in the root instead of being passed.
func (b *box) bindGuest(t *testing.T) {
	t.Helper()
	b.spec.Mounts = append(b.spec.Mounts, oci.Mount{Kind: oci.Bind, Source: b.exec.Name(), Target: "/guest", ReadOnly: true})
	b.exec.Close()
	b.exec = nil
	if err := os.WriteFile(filepath.Join(b.spec.Root, "guest"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}
