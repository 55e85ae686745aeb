//go:build linux

package hostiletest_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// scenarios are the cases that are more than one program in one sandbox.
func scenarios() map[string]func(*testing.T) {
	all := map[string]func(*testing.T){
		"CT-11":    func(t *testing.T) { startUnderDeadline(t) },
		"CT-12":    cancelled,
		"FP-19":    supervisorKilled,
		"FP-21":    startFailure,
		"FP-24":    signalsAfterTheEnd,
		"FR-05":    secretsOnCommandLines,
		"FR-18":    errorsTellNothing,
		"FW-03":    namesThatLeave,
		"FW-04":    plantedLinks,
		"FW-04-ag": linksToTheAgent,
		"FW-04-rc": linkRace,
		"FW-06":    notRegular,
		"FW-08":    hardLinks,
		"FW-09":    hugeFiles,
		"LA-01":    largeProgram,
		"LA-04":    hugeArguments,
		"LA-06":    nothingWeaker,
		"LA-09":    manyHostile,
		"LA-10":    impossibleLimits,
		"NW-18":    ingress,
		"OU-01":    func(t *testing.T) { flood(t, "stdout", 1024) },
		"OU-02":    func(t *testing.T) { flood(t, "stderr", 256) },
		"OU-11":    exitCodes,
		"OU-13":    infrastructure,
		"PE-26-t":  terminalIsOwn,
		"XR-07":    uidsAreApart,
		"XR-08":    nothingAccumulates,
		"XR-09":    sweptAfterCrash,
		"FR-07":    hostPaths,
		"NW-06":    metadata,
	}
	if w.target.sentry {
		maps.Copy(all, gvisorTraps())
	}
	return all
}

// many is a number of sandboxes, fewer where each takes long to make.
func many(n int) string {
	if sentry() || w.target.engine {
		n = n * 2 / 5
	}
	return itoa(n)
}

// startUnderDeadline ends a creation at every moment of it.
func startUnderDeadline(t *testing.T) {
	h := startHelper(t, "many", many(60))
	line := h.line(t)
	h.in.Close()
	_ = h.cmd.Wait()
	if left := carrying(h.dir); len(left) > 0 {
		t.Errorf("open: %v are left", left)
	}
	if f := strings.Fields(line); len(f) != 4 {
		t.Fatalf("%q", line)
	}
	b := newBox(t, backend.Spec{})
	exit, err := backend.RunIn(t.Context(), b, backend.Command{Args: []string{"/bin/sleep", "60"}, Timeout: time.Millisecond})
	if err != nil || exit.Reason != backend.ReasonTimeout {
		t.Errorf("a timeout of a millisecond: %s, %v", exit, err)
	}
}

func cancelled(t *testing.T) {
	b := newBox(t, backend.Spec{})
	ctx, cancel := context.WithCancel(t.Context())
	var out watched
	s := &scene{T: t, a: &attack{program: "fork.py"}, nonce: nonce(), args: []string{"ignore"}}
	s.upload(b)
	began := time.Now()
	time.AfterFunc(500*time.Millisecond, cancel)
	exit, err := backend.RunIn(ctx, b, backend.Command{
		Args: s.argv(backend.DefaultHome, s.args), Output: backend.Output{Stdout: &out}, Timeout: time.Minute,
	})
	if !errors.Is(err, context.Canceled) || exit.Reason != backend.ReasonCanceled {
		t.Errorf("open: it ended with %s, %v", exit, err)
	}
	if took := time.Since(began); took > 1500*time.Millisecond+grace() {
		t.Errorf("open: it took %v", took)
	}
	treeIsGone(s, b, nil)
}

// supervisorKilled kills the process that made sandboxes: all of theirs end
// within a second.
func supervisorKilled(t *testing.T) {
	h := startHelper(t, "hold", "2")
	var ids []string
	for line := h.line(t); line != "READY"; line = h.line(t) {
		ids = append(ids, line)
	}
	mark := "HOSTILE_RUN=" + filepath.Base(h.dir)
	pids, want := carrying(mark), 10
	if sentry() {
		pids, want = nil, 2*len(ids)
		for _, id := range ids {
			pids = append(pids, hostProcesses(t, id)...)
		}
	}
	if n := len(pids); n < want {
		t.Fatalf("inconclusive: only %d processes run", n)
	}
	namespaces := map[string]bool{}
	for _, pid := range pids {
		if ns := pidNamespace(pid); ns != pidNamespace(os.Getpid()) {
			namespaces[ns] = true
		}
	}
	h.killAndWait(t)
	if !eventually(time.Second+grace(), func() bool {
		for pid := range processes() {
			if namespaces[pidNamespace(pid)] && !strings.HasPrefix(status(pid, "State"), "Z") {
				return false
			}
		}
		return len(carrying(mark)) == 0
	}) {
		t.Errorf("open: %v outlive the supervisor", carrying(mark))
	}
	sweep(t, h.dir)
	// A process that is nobody's lives on.
	g := newPen(t)
	outside := "HOSTILE_RUN=outside" + nonce()
	cmd := g.command(t.Context(), "/bin/sh", "-c", "setsid sleep 60 </dev/null >/dev/null 2>&1 & sleep 60")
	cmd.Env = []string{"PATH=/usr/bin:/bin", outside}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(5*time.Second, func() bool { return len(carrying(outside)) >= 2 })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if len(carrying(outside)) == 0 {
		t.Error("inconclusive: outside nothing survives either")
	}
}

// sweep makes an executor over the state of another that died and has it clean
// up; then nothing of it may be left.
func sweep(t *testing.T, dir string) {
	t.Helper()
	stateDir := filepath.Join(dir, "state")
	ex, err := w.target.open(t.Context(), w.settings(stateDir))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ex.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := ex.Sweep(t.Context()); err != nil {
		t.Errorf("sweep: %v", err)
	}
	id, err := os.ReadFile(filepath.Join(stateDir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	group := "glovebox-" + string(bytes.TrimSpace(id)) + "-*"
	for _, pattern := range []string{
		filepath.Join(stateDir, "sandboxes/*"), filepath.Join(stateDir, "run/*"),
		"/sys/fs/cgroup/" + group, "/sys/fs/cgroup/*/" + group, "/sys/fs/cgroup/*/*/" + group, "/sys/fs/cgroup/*/*/*/" + group,
	} {
		var found []string
		// The executor's own first sweep may be at work on some of it.
		if !eventually(3*time.Second, func() bool {
			found, _ = filepath.Glob(pattern)
			return len(found) == 0
		}) {
			t.Errorf("open: the sweep leaves %v", found)
		}
	}
}

func sweptAfterCrash(t *testing.T) {
	h := startHelper(t, "hold", "5")
	for h.line(t) != "READY" {
	}
	h.killAndWait(t)
	if found, _ := filepath.Glob(filepath.Join(h.dir, "state", "sandboxes", "*")); len(found) == 0 {
		t.Error("inconclusive: a crash leaves nothing")
	}
	sweep(t, h.dir)
}

// startFailure makes sandboxes that cannot start.
func startFailure(t *testing.T) {
	dir := openDir(t)
	fake := filepath.Join(dir, "agent")
	for what, source := range map[string]string{
		"ends at once":  "int main(void){return 3;}",
		"crashes":       "int main(void){return *(volatile int*)0;}",
		"never answers": "#include <unistd.h>\nint main(void){if(fork()==0)fork();for(;;)pause();}",
		"lies":          "#include <stdio.h>\n#include <unistd.h>\nint main(void){fprintf(stderr,\"{\\\"pid\\\":1}\\n\");for(;;)pause();}",
		"floods":        "#include <unistd.h>\nint main(void){char b[4096]={0};for(;;)if(write(2,b,4096)<0)return 1;}",
	} {
		src := filepath.Join(dir, "agent.c")
		if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
			t.Fatal(err)
		}
		copyFile(t, compileTo(t, src, fake+"-"+nonce()), fake+".new", 0o755)
		if err := os.Rename(fake+".new", fake); err != nil {
			t.Fatal(err)
		}
		ex, err := w.target.open(t.Context(), settings{agent: fake, stateDir: filepath.Join(dir, "state"), rootfs: w.rootfs})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		sb, err := ex.Create(ctx, backend.Spec{})
		cancel()
		if err == nil {
			t.Errorf("open: an agent that %s is taken for one", what)
			_ = sb.Destroy(t.Context())
		}
		if err := ex.Close(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for pid := range processes() {
			if exe, _ := os.Readlink("/proc/" + itoa(pid) + "/exe"); strings.HasPrefix(exe, fake) {
				t.Errorf("open: an agent that %s is left: %d", what, pid)
			}
		}
		sweep(t, dir)
	}
}

// signalsAfterTheEnd: a number that was given anew is never signalled.
func signalsAfterTheEnd(t *testing.T) {
	b := newBox(t, backend.Spec{})
	v := victim(t, b.userUID(t))
	bystander, err := b.Start(t.Context(), backend.Command{Args: []string{"/bin/sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		p, err := b.Start(t.Context(), backend.Command{Args: []string{"/bin/true"}})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = p.Signal(t.Context(), backend.SIGKILL) })
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if err := p.Signal(t.Context(), backend.SIGKILL); !errors.Is(err, backend.ErrNotFound) {
			t.Fatalf("a signal after the end: %v", err)
		}
	}
	if !living(v) {
		t.Error("open: the victim died")
	}
	if err := bystander.Signal(t.Context(), backend.SIGKILL); err != nil {
		t.Errorf("open: the bystander was not there: %v", err)
	}
}

// uidsAreApart: two sandboxes of root's have no host uid in common.
func uidsAreApart(t *testing.T) {
	a, b := newBox(t, backend.Spec{}), newBox(t, backend.Spec{})
	same := a.userUID(t) == b.userUID(t)
	if claim := w.ex.Capabilities().Claim(backend.ControlOwnUID); same == (claim.Enforcement == backend.Enforced) {
		t.Errorf("open: they have the uids %d and %d, the claim is %s", a.userUID(t), b.userUID(t), claim.Enforcement)
	}
}

func nothingAccumulates(t *testing.T) {
	h := startHelper(t, "many", many(100))
	f := strings.Fields(h.line(t))
	h.in.Close()
	err := h.cmd.Wait()
	if err != nil || len(f) != 4 {
		t.Fatalf("%v, %v, %s", err, f, h.errs.bytes())
	}
	n := make([]int, len(f))
	for i := range f {
		n[i], _ = strconv.Atoi(f[i])
	}
	idle := 0 // connections to the engine that are kept for later, two at most
	if w.target.engine {
		idle = 2
	}
	if n[2] > n[0]+2*idle || n[3] > n[1]+idle {
		t.Errorf("open: goroutines went from %s to %s, descriptors from %s to %s\n%s", f[0], f[2], f[1], f[3], h.errs.bytes())
	}
	sweep(t, h.dir)
}
