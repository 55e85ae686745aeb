//go:build linux

package hostiletest_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// fewTasks is the limit that the bombs meet.
const fewTasks = 64

// agentTasks is what the agent has on top where its uid is user code's.
const agentTasks = 16

// loneUID is a user that has no other process.
const loneUID = 61999

func forkAttacks() []attack {
	bounded := backend.Limits{Pids: fewTasks}
	if w.mode == modeRootless {
		bounded.Memory = 2 << 30 // what processes share is counted for each
	}
	many := control{args: nil, works: manyWork}
	return []attack{
		{id: "FP-01", program: "fork.py", args: []string{"sleepers"}, limits: bounded, during: hostStillForks, inside: someThenRefused, outside: pidsWereHit, control: many},
		{id: "FP-02", program: "fork.py", args: []string{"bomb"}, limits: bounded, timeout: time.Second, inside: timedOut, outside: treeIsGone, control: control{
			args: []string{"sleepers"}, works: manyWork,
		}},
		{id: "FP-02-many", only: modeRoot + modeDocker, program: "fork.py", args: []string{"bomb"}, timeout: time.Second, inside: timedOut, outside: treeIsGone, control: control{
			args: []string{"sleepers"}, works: manyWork,
		}},
		{id: "FP-02-groups", only: asRoot, program: "fork.py", args: []string{"bomb", "groups"}, limits: bounded, timeout: time.Second, inside: timedOut, outside: treeIsGone, control: control{
			args: []string{"sleepers"}, works: manyWork,
		}},
		{id: "FP-03", program: "fork.py", args: []string{"threads"}, limits: bounded, during: hostStillForks, inside: someThenRefused, outside: pidsWereHit, control: many},
		{id: "FP-04", program: "fork.py", args: []string{"zombies"}, limits: bounded, during: hostStillForks, inside: someThenRefused, outside: noZombies, control: many},
		{id: "FP-05", program: "fork.py", args: []string{"daemon"}, inside: exits(0), outside: diesWithSandbox, control: control{works: survives}},
		{id: "FP-07", program: "fork.py", args: []string{"ignore"}, timeout: time.Second, inside: timedOut, outside: treeIsGone, control: control{
			shell: timebomb, works: survives,
		}},
		{id: "FP-08", program: "fork.py", args: []string{"stop"}, timeout: time.Second, inside: timedOut, outside: diesWithSandbox, control: control{
			shell: timebomb, works: survives,
		}},
		{id: "FP-09", program: "fork.py", args: []string{"orphan"}, inside: returnsPromptly, outside: diesWithSandbox, control: control{works: survives}},
		{id: "FP-12", program: "fork.py", args: []string{"escape"}, timeout: time.Second, inside: timedOut, outside: escapersAreGone, control: control{
			shell: timebomb, works: survives,
		}},
		{id: "FP-17", program: "fork.py", args: []string{"respawn"}, limits: bounded, timeout: time.Second, inside: timedOut, outside: escapersAreGone, control: control{
			shell: timebomb, works: survives,
		}},
		{id: "FP-22", program: "fork.py", args: []string{"some", "30"}, limits: bounded, before: neighbourForks, during: func(*scene, *box) {}, inside: allThirty, outside: releaseNeighbour, control: control{
			works: starves, uid: loneUID,
		}},
		{id: "FP-23", program: "fork.py", args: []string{"priority"}, control: control{
			shows: []string{"SCHED_FIFO", "SCHED_RR", "nice -20"},
			fact:  "an unprivileged user may not raise priorities or limits anywhere",
		}},
	}
}

// timebomb ends a control as a careless supervisor would: it asks the group to
// end, and then kills the program alone.
const timebomb = `p=$$; (trap '' TERM; sleep 1; kill -TERM -$p; kill -9 $p) </dev/null >/dev/null 2>&1 &`

// someThenRefused: enough were made to be sure that it is the limit.
func someThenRefused(s *scene, o *outcome) {
	r := s.report(o, "inside")
	most := fewTasks
	if w.mode == modeUserns {
		most += agentTasks
	}
	if r.N < 8 || r.N > most {
		s.Errorf("open: %d were made with a limit of %d", r.N, fewTasks)
	}
	if r.Errno == "" {
		s.Error("open: nothing was ever refused")
	}
}

// manyWork: without a sandbox there are no such limits.
func manyWork(s *scene, o *outcome) {
	if r := s.report(o, "outside"); r.N < 200 {
		s.Errorf("inconclusive: only %d were made outside (%s)", r.N, r.Errno)
	}
}

// hostStillForks: while the sandbox is full, the host is not, and what counts
// its tasks agrees.
func hostStillForks(s *scene, b *box) {
	ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
	defer cancel()
	if err := exec.CommandContext(ctx, "/bin/true").Run(); err != nil {
		s.Errorf("open: the host cannot fork: %v", err)
	}
	n, most := 0, fewTasks
	switch {
	case sentry():
		n, most = b.tasksOfKernel(s.T), outerTasks
	default:
		n = b.threads(s.T)
	}
	if w.mode == modeUserns {
		most += agentTasks
	}
	if n > most {
		s.Errorf("open: the host sees %d tasks", n)
	}
	s.kept["seen"] = n
}

// pidsWereHit: the kernel counted the tasks, and the exit says that the limit
// was reached.
func pidsWereHit(s *scene, b *box, o *outcome) {
	if n, _ := s.kept["seen"].(int); n < 8 {
		s.Errorf("inconclusive: the host saw only %d tasks", n)
	}
	if b.groups["pids"] == "" || !nested() {
		return
	}
	if peak := number(filepath.Join(b.groups["pids"], "pids.peak")); peak > fewTasks {
		s.Errorf("open: the peak was %d", peak)
	}
	if !slices.Contains(o.exit.Hits, backend.HitPids) {
		s.Errorf("the exit does not say that the limit was hit: %+v", o.exit)
	}
}

// noZombies: what nobody waited for is collected once its parent has ended.
func noZombies(s *scene, b *box, _ *outcome) {
	if sentry() {
		if !eventually(time.Second+grace(), func() bool { return b.zombies(s.T) == 0 }) {
			s.Error("open: zombies stay in the sandbox")
		}
		return
	}
	if !eventually(time.Second+grace(), func() bool {
		for pid := range processes() {
			if pid != b.agentPID && pidNamespace(pid) == b.pidns {
				return false
			}
		}
		return true
	}) {
		s.Error("open: zombies stay in the sandbox")
	}
}

// timedOut: the command was ended in time, for that reason.
func timedOut(s *scene, o *outcome) {
	s.report(o, "inside")
	if o.exit.Reason != backend.ReasonTimeout {
		s.Errorf("it ended with %s instead of a timeout", o.exit)
	}
	s.Logf("it ended %v after its timeout, by killing its %s", o.took-s.a.timeout, o.exit.KillScope)
	if most := s.a.timeout + time.Second + grace(); o.took > most {
		s.Errorf("open: it took %v with a timeout of %v", o.took, s.a.timeout)
	}
}

func exits(code int) func(*scene, *outcome) {
	return func(s *scene, o *outcome) {
		s.report(o, "inside")
		if o.exit.Reason != backend.ReasonExited || o.exit.Code != code {
			s.Errorf("it ended with %s instead of %d", o.exit, code)
		}
	}
}

func returnsPromptly(s *scene, o *outcome) {
	exits(7)(s, o)
	if o.took > 2*time.Second+grace() || !o.exit.OutputHeld {
		s.Errorf("open: Wait took %v, output held %v", o.took, o.exit.OutputHeld)
	}
}

// treeIsGone: the command's processes have gone though the sandbox lives on.
func treeIsGone(s *scene, b *box, _ *outcome) {
	if !eventually(time.Second+grace(), func() bool { return len(b.code(s.T)) == 0 }) {
		s.Errorf("open: %d processes outlive the timeout", len(b.code(s.T)))
	}
	if _, out := runIn(s.T, b, "echo alive"); out != "alive\n" {
		s.Errorf("the sandbox is unusable afterwards: %q", out)
	}
	if sentry() {
		b.idle(s.T)
	}
}

// escapersAreGone: where the kernel tracks the tree, leaving the session does
// not help; elsewhere they live until the sandbox ends, as is declared.
func escapersAreGone(s *scene, b *box, o *outcome) {
	claim := w.ex.Capabilities().Claim(backend.ControlKillTree)
	if claim.Enforcement == backend.Enforced {
		if o.exit.KillScope != "tree" {
			s.Errorf("the kill reached the %s", o.exit.KillScope)
		}
		treeIsGone(s, b, o)
	}
	diesWithSandbox(s, b, o)
}

// diesWithSandbox ends the sandbox and looks for the run's processes anywhere.
func diesWithSandbox(s *scene, b *box, _ *outcome) {
	b.end(s.T)
	if left := carrying("HOSTILE_RUN=" + s.nonce); len(left) > 0 {
		s.Errorf("open: %v outlive the sandbox", left)
	}
}

// survives: outside, the program's processes outlive it.
func survives(s *scene, o *outcome) {
	if s.a.args[0] != "daemon" && s.a.args[0] != "orphan" && o.signal == 0 && o.code != 137 {
		s.Logf("outside it ended with %d", o.code)
	}
	s.report(o, "outside")
	left := carrying("HOSTILE_RUN=" + s.nonce)
	if len(left) == 0 {
		s.Error("inconclusive: nothing survives outside either")
	}
}

// neighbourForks fills another sandbox.
func neighbourForks(s *scene, _ *box) {
	neighbour(s, "fork.py", "some", "56")
}

// neighbour runs a program in another sandbox until releaseNeighbour.
func neighbour(s *scene, program string, args ...string) {
	s.Helper()
	other := newBox(s.T, backend.Spec{Limits: s.a.limits})
	hold, held := make(chan struct{}), make(chan struct{})
	n := &scene{T: s.T, nonce: nonce(), args: args}
	n.a = &attack{program: program, during: func(*scene, *box) {
		close(held)
		<-hold
	}}
	n.upload(other)
	done := make(chan *outcome, 1)
	go func() { done <- n.start(other) }()
	<-held
	s.kept["release"] = func() *report {
		close(hold)
		return n.report(<-done, "beside it")
	}
}

func releaseNeighbour(s *scene, _ *box, _ *outcome) {
	s.kept["neighbour"] = s.kept["release"].(func() *report)()
}

func allThirty(s *scene, o *outcome) {
	if r := s.report(o, "inside"); r.N != 30 {
		s.Errorf("open: with a neighbour's 56 of %d only %d could be made (%s)", fewTasks, r.N, r.Errno)
	}
}

// starves: with one uid and a limit per uid, the second is left with less.
func starves(s *scene, _ *outcome) {
	n, uid := 0, os.Geteuid()
	if uid == 0 {
		uid = loneUID
	}
	for pid := range processes() {
		if f := strings.Fields(status(pid, "Uid")); len(f) == 4 && f[0] == strconv.Itoa(uid) {
			tasks, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
			n += len(tasks)
		}
	}
	limit := strconv.Itoa(n + fewTasks)
	for range 56 {
		victim := s.pen.command(s.Context(), "/bin/sleep", "600")
		victim.SysProcAttr = credential(loneUID)
		if os.Geteuid() != 0 {
			victim.SysProcAttr.Credential = nil
		}
		if err := victim.Start(); err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() {
			_ = victim.Process.Kill()
			_ = victim.Wait()
		})
	}
	s.a.control.shell = "ulimit -u " + limit + " 2>/dev/null || ulimit -p " + limit
	if r := s.report(s.outsider(0, loneUID), "outside"); r.N >= 30 {
		s.Errorf("inconclusive: all %d were made outside", r.N)
	}
}
