package examples_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
)

func TestAttacks_areAllTested(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("attacks/*")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"attacks/fill.py", "attacks/fork_bomb.py", "attacks/outlive.py", "attacks/steal.py", "attacks/wreck.sh"}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("give each a test below (-tested +there):\n%s", diff)
	}
}

// marker is a word that stands in the command line of what a test starts and
// nowhere else.
func marker() string { return "marker-" + rand.Text() }

// alive lists the host's processes with mark in their command line.
func alive(t *testing.T, mark string) (pids []string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		// It may be gone by now.
		if data, err := os.ReadFile(l); err == nil && bytes.Contains(data, []byte(mark)) {
			pids = append(pids, filepath.Base(filepath.Dir(l)))
		}
	}
	return pids
}

// granted is a limit as the receipt tells it.
func granted(r report, control backend.Control) backend.Grant {
	for _, g := range r.Receipt.Limits {
		if g.Control == control {
			return g
		}
	}
	return backend.Grant{}
}

func TestAttack_forkBomb(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.need("python")
	mark := marker()
	r := w.run("attacks/fork_bomb.py", mark)
	if r.Exit.Reason != backend.ReasonTimeout || r.Code != 124 {
		t.Errorf("it ended with %v, shown as %d; want a timeout, shown as 124", r.Exit, r.Code)
	}
	// A resource limit, unlike a cgroup, does not tell that it was reached.
	if strings.HasPrefix(granted(r, backend.ControlPids).Mechanism, "cgroup") && !slices.Contains(r.Exit.Hits, backend.HitPids) {
		t.Errorf("it hit %q, and pids is not among them", r.Exit.Hits)
	}
	made := 0
	if l := r.lines(); len(l) > 1 {
		_, _ = fmt.Sscanf(l[1], "refused after %d children", &made) // 0 is judged below
	}
	// Its children make most of them, on a busy machine nearly all, but never
	// more than the limit.
	if made < 1 || made > 64 {
		t.Errorf("the attack itself did not work, or the limit did not hold:\n%s", r.Stdout.Text)
	}
	// Where the kernel counts them it says how many there were at once.
	if n := r.Exit.Usage.PeakProcesses; n != 0 && (n < 32 || n > 64) {
		t.Errorf("%d processes at once, of 64 allowed", n)
	}
	if left := alive(t, mark); len(left) > 0 {
		t.Errorf("processes %q are left", left)
	}
}

// TestAttack_steal plants a file, a variable and a listener. The control finds
// all three, so the attack works where nothing is in its way.
func TestAttack_steal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.need("python")
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	caught := make(chan struct{}, 16)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(caught)
				return
			}
			c.Close()
			caught <- struct{}{}
		}
	}()
	secret := filepath.Join(w.dir, "secret")
	if err := os.WriteFile(secret, []byte("the plans"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.env = append(w.env, "PLANTED=secret")
	planted := []string{"file=" + secret, "env=PLANTED", "tcp=" + l.Addr().String()}

	out, _, _ := w.shell("python3 examples/attacks/steal.py " + strings.Join(planted, " "))
	if n := stolen(out, planted); n != len(planted) {
		t.Fatalf("the control stole %d of %d planted things:\n%s", n, len(planted), out)
	}
	<-caught

	r := w.run("attacks/steal.py", planted...)
	wantExit(t, r, 0)
	if strings.Contains(r.Stdout.Text, "STOLEN") || strings.Count(r.Stdout.Text, "contained ") < 9+len(planted) {
		t.Errorf("from the sandbox:\n%s%s", r.Stdout.Text, r.Stderr.Text)
	}
	l.Close()
	if _, more := <-caught; more {
		t.Error("a connection from the sandbox arrived")
	}
}

func stolen(out string, what []string) (n int) {
	for _, w := range what {
		if strings.Contains(out, "STOLEN     "+w+": ") {
			n++
		}
	}
	return n
}

func TestAttack_wreck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	canary := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(canary, []byte("alive"), 0o666); err != nil {
		t.Fatal(err)
	}
	// Of the same user as the sandbox's supervisor.
	victim := exec.CommandContext(t.Context(), "sleep", "600")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	programsBefore := names(t, "/usr/bin")

	r := w.run("attacks/wreck.sh")
	wantExit(t, r, 0)
	wantLines(t, r, []string{"its own helper: killed", "its own files: 50 before, 0 after", "/usr/bin: still there", "/etc: still there"})
	if err := victim.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process of the host: %v", err)
	}
	_ = victim.Process.Kill()
	if err := victim.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("it ended before the test killed it: %v", err)
	}
	if data, err := os.ReadFile(canary); err != nil || string(data) != "alive" {
		t.Errorf("a file of the host: %q, %v", data, err)
	}
	if diff := cmp.Diff(programsBefore, names(t, "/usr/bin")); diff != "" {
		t.Errorf("/usr/bin (-before +after):\n%s", diff)
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestAttack_fill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.need("python")
	checkFill(t, w.run("attacks/fill.py"))
}

func checkFill(t *testing.T, r report) {
	t.Helper()
	if r.Exit.Reason != backend.ReasonMemoryLimit || r.Code != 137 {
		t.Errorf("it ended with %v, shown as %d; want memory_limit, shown as 137\n%s%s", r.Exit, r.Code, r.Stdout.Text, r.Stderr.Text)
	}
	disk := regexp.MustCompile(`^disk: (\d+) MiB written, then: No space left on device$`).FindStringSubmatch(r.lines()[0])
	if disk == nil {
		t.Fatalf("the disk did not fill as a disk does:\n%s", r.Stdout.Text)
	}
	// The program itself and the file system's own pages take something.
	if n := atoi(t, disk[1]); n < 28 || n > 32 {
		t.Errorf("%d MiB fitted on a disk of 32", n)
	}
	const limit = 256 << 20
	if granted(r, backend.ControlMemory).Enforcement == backend.Enforced && r.Exit.Usage.PeakMemory > limit {
		t.Errorf("%d bytes were held under an enforced limit of %d", r.Exit.Usage.PeakMemory, limit)
	}
	if r.Exit.Usage.PeakMemory < limit/2 {
		t.Errorf("it was killed with %d bytes under a limit of %d", r.Exit.Usage.PeakMemory, limit)
	}
}

// TestAttack_outlive: the control's daemon is there when its starter has ended,
// and gives up by itself.
func TestAttack_outlive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.need("python")
	mark := marker()
	if _, errs, code := w.shell("python3 examples/attacks/outlive.py " + mark + " 3"); code != 0 {
		t.Fatal(errs)
	}
	// Between one of its lives and the next it may not be seen.
	if !eventually(t, func() bool { return len(alive(t, mark)) > 0 }) {
		t.Fatal("the control's daemon is not there")
	}
	if !eventually(t, func() bool { return len(alive(t, mark)) == 0 }) {
		t.Fatal("the control's daemon does not give up")
	}

	mark = marker()
	r := w.run("attacks/outlive.py", mark)
	wantExit(t, r, 0)
	wantLines(t, r, []string{"daemon is on its way"})
	for range 20 {
		if left := alive(t, mark); len(left) > 0 {
			t.Fatalf("processes %q are left", left)
		}
	}
}

// eventually waits until is says so, for at most ten seconds.
func eventually(t *testing.T, is func() bool) bool {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); <-tick.C {
		if is() {
			return true
		}
	}
	return false
}
