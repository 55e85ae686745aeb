//go:build linux

package hostiletest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
)

// What an attack outside a sandbox may take.
const (
	penMemory = 600 << 20
	penTasks  = 400
)

// pens makes guard cgroups for what runs without a sandbox.
type pens struct {
	why       string // there are none
	file      string // that a process writes "0" to, to be inside
	mem, pids string // directories; the same one under cgroup v2
	made      atomic.Int64
	own       bool // the directories are ours to remove
}

// newPens finds where guard cgroups can be made: in directories that root
// lent, or as root in new ones.
func newPens() (*pens, error) {
	p := &pens{}
	if lent := os.Getenv(envPens); lent != "" {
		p.mem, p.pids, _ = strings.Cut(lent, ":")
		p.file = procsFile(p.mem, p.pids)
		return p, nil
	}
	if os.Geteuid() != 0 {
		p.why = "only root can make guard cgroups for it"
		return p, nil
	}
	h, err := cgroup.Detect("")
	if err != nil {
		return p, err
	}
	name := fmt.Sprintf("glovebox-hostile-%d", os.Getpid())
	switch {
	case h.V1["memory"] != "" && h.V1["pids"] != "":
		p.mem, p.pids = filepath.Join(h.V1["memory"], name), filepath.Join(h.V1["pids"], name)
	case slices.Contains(h.Controllers, "memory") && slices.Contains(h.Controllers, "pids"):
		if err := give(h.V2, "cgroup.subtree_control", "+memory +pids"); err != nil {
			return p, err
		}
		p.mem = filepath.Join(h.V2, name)
		p.pids = p.mem
	default:
		p.why = "this host has no memory and pids cgroups"
		return p, nil
	}
	p.own = true
	p.file = procsFile(p.mem, p.pids)
	return p, p.mkdirs(p.mem, p.pids)
}

func procsFile(mem, pids string) string {
	if mem == pids {
		return "cgroup.procs"
	}
	return "tasks"
}

func (p *pens) mkdirs(dirs ...string) error {
	for _, dir := range slices.Compact(dirs) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if p.mem == p.pids && len(dirs) > 0 && dirs[0] == p.mem {
		return give(p.mem, "cgroup.subtree_control", "+memory +pids")
	}
	return nil
}

func give(dir, file, value string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
}

// lend makes directories in which uid may make pens.
func (p *pens) lend(t *testing.T, uid int) string {
	t.Helper()
	if p.why != "" {
		return ""
	}
	mem, pids := filepath.Join(p.mem, "lent"), filepath.Join(p.pids, "lent")
	if err := p.mkdirs(mem, pids); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rmdirs(t, mem, pids) })
	for _, dir := range slices.Compact([]string{mem, pids}) {
		if p.mem == p.pids {
			if err := give(dir, "cgroup.subtree_control", "+memory +pids"); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []string{"", p.file, "cgroup.procs", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(dir, f), uid, uid); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	return mem + ":" + pids
}

func (p *pens) close() error {
	if !p.own {
		return nil
	}
	var errs []error
	for _, dir := range slices.Compact([]string{p.mem, p.pids}) {
		errs = append(errs, os.Remove(dir))
	}
	return errors.Join(errs...)
}

func rmdirs(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range slices.Compact(dirs) {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}
}

// pen is one guard cgroup.
type pen struct {
	all       *pens
	mem, pids string
}

// pen makes a guard cgroup and removes it, with all that is in it, when the
// test ends. Without one the test is inconclusive.
func newPen(t *testing.T) *pen {
	t.Helper()
	if w.pens.why != "" {
		t.Skipf("inconclusive: the attack was not tried outside a sandbox: %s", w.pens.why)
	}
	name := fmt.Sprintf("pen%d", w.pens.made.Add(1))
	g := &pen{all: w.pens, mem: filepath.Join(w.pens.mem, name), pids: filepath.Join(w.pens.pids, name)}
	if err := w.pens.mkdirs(g.mem, g.pids); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.kill(t)
		rmdirs(t, g.mem, g.pids)
	})
	limit := "memory.limit_in_bytes"
	if g.mem == g.pids {
		limit = "memory.max"
	}
	if err := errors.Join(give(g.mem, limit, strconv.Itoa(penMemory)), give(g.pids, "pids.max", strconv.Itoa(penTasks))); err != nil {
		t.Fatal(err)
	}
	return g
}

// open lets another uid put itself into the pen.
func (g *pen) open(t *testing.T, uid int) {
	t.Helper()
	for _, dir := range slices.Compact([]string{g.mem, g.pids}) {
		if err := os.Chown(filepath.Join(dir, g.all.file), uid, uid); err != nil {
			t.Fatal(err)
		}
	}
}

// enter is a shell's text that puts it, and what it executes, inside.
const enter = `for d in "$0" "$1"; do echo 0 >"$d" || exit 99; done; shift; exec "$@"`

// command is a program that runs inside the pen.
func (g *pen) command(ctx context.Context, args ...string) *exec.Cmd {
	argv := append([]string{"-c", enter, filepath.Join(g.mem, g.all.file), filepath.Join(g.pids, g.all.file)}, args...)
	cmd := exec.CommandContext(ctx, "/bin/sh", argv...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// tasks lists the processes inside.
func (g *pen) tasks() (out []int) {
	data, _ := os.ReadFile(filepath.Join(g.pids, "cgroup.procs"))
	for f := range strings.FieldsSeq(string(data)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
			out = append(out, pid)
		}
	}
	return out
}

// kill ends everything inside: nothing can fork meanwhile.
func (g *pen) kill(t *testing.T) {
	t.Helper()
	if err := give(g.pids, "pids.max", "0"); err != nil {
		t.Error(err)
	}
	if !eventually(10*time.Second, func() bool {
		pids := g.tasks()
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return len(pids) == 0 && number(filepath.Join(g.pids, "pids.current")) == 0
	}) {
		t.Errorf("processes %v cannot be killed", g.tasks())
	}
}

func number(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// eventually tells whether done comes to hold in time.
func eventually(in time.Duration, done func() bool) bool {
	deadline := time.Now().Add(in)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if done() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		<-time.After(pause)
	}
}
