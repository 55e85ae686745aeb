//go:build linux

package hostiletest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func timeAttacks() []attack {
	// Without a sandbox's deadline the programs go on: SIGTERM, which a careless
	// supervisor sends, comes too late for the time promised.
	endless := control{shell: `p=$$; (sleep 2; kill -9 $p) </dev/null >/dev/null 2>&1 &`, works: func(s *scene, o *outcome) {
		s.report(o, "outside")
		if o.took < 2*time.Second {
			s.Errorf("inconclusive: it ended by itself after %v", o.took)
		}
	}}
	return []attack{
		{id: "CT-01", program: "clock.py", args: []string{"spin"}, timeout: time.Second, inside: timedOut, outside: treeIsGone, control: endless},
		{id: "CT-03", program: "clock.py", args: []string{"native"}, timeout: time.Second, inside: timedOut, outside: treeIsGone, control: endless},
		{id: "CT-04", program: "clock.py", args: []string{"wait"}, timeout: time.Second, inside: timedOut, outside: treeIsGone, control: endless},
		{id: "CT-05", program: "clock.py", args: []string{"stdin"}, input: "given", inside: sawInput, control: control{works: func(s *scene, o *outcome) {
			if s.report(o, "outside").N != 5 {
				s.Error("inconclusive: it does not read its input")
			}
		}}},
		{id: "CT-06", program: "clock.py", args: []string{"fifo"}, timeout: time.Second, inside: timedOut, outside: treeIsGone, control: endless},
		{id: "CT-09", program: "clock.py", args: []string{"clocks"}, control: control{
			shows: []string{"settimeofday", "clock_settime", "adjtimex", "clock_adjtime"}, fact: "an unprivileged user may not set clocks anywhere",
		}},
		{id: "CT-09-root", only: asRoot, user: "root", program: "clock.py", args: []string{"clocks"}, control: control{shows: []string{"settimeofday"}}},
		{id: "CT-10", program: "clock.py", args: []string{"sleep", "0.7"}, timeout: 3 * time.Second, inside: exits(0), outside: tooLongIsKilled, control: control{
			none: "the negative half is the control",
		}},
	}
}

func sawInput(s *scene, o *outcome) {
	if r := s.report(o, "inside"); r.N != 5 || !o.exit.Success() || o.took > 5*time.Second+grace() {
		s.Errorf("it read %d bytes, ended with %s after %v", r.N, o.exit, o.took)
	}
}

// tooLongIsKilled is the negative half of a deadline's accuracy.
func tooLongIsKilled(s *scene, b *box, _ *outcome) {
	s.args = []string{"sleep", "20"}
	o := s.start(b)
	if o.exit.Reason != backend.ReasonTimeout || o.took < s.a.timeout || o.took > s.a.timeout+time.Second+grace() {
		s.Errorf("open: with a timeout of %v it ended with %s after %v", s.a.timeout, o.exit, o.took)
	}
	if o.said != nil {
		s.Error("open: it got to its end")
	}
}

// measured are the names of those.
func measured() []string { return []string{"CT-02", "XR-12"} }

// exclusive are the tests that measure, before all others start.
func exclusive(t *testing.T) {
	t.Helper()
	if !w.target.wants("CT-02") {
		return
	}
	t.Run("CT-02", func(t *testing.T) {
		t.Cleanup(func() { verdict(t, "CT-02") })
		spinnersMeetQuota(t)
	})
	if !w.target.wants("XR-12") {
		return
	}
	t.Run("XR-12", func(t *testing.T) {
		t.Cleanup(func() { verdict(t, "XR-12") })
		neighbourIsServed(t)
	})
}

// spinnersMeetQuota judges by the CPU time that the kernel counted, since a
// busy host slows them anyway.
func spinnersMeetQuota(t *testing.T) {
	const share = 0.2
	limits := backend.Limits{CPUs: share}
	if w.ex.Capabilities().Claim(backend.ControlCPU).Enforcement == backend.Unsupported {
		_, err := w.ex.Create(t.Context(), backend.Spec{Limits: limits})
		if !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("a share of cores that cannot be held was not refused: %v", err)
		}
		return
	}
	s := &scene{T: t, a: &attack{program: "clock.py", limits: limits}, nonce: nonce(), args: []string{"spinners", "2"}}
	b := newBox(t, backend.Spec{Limits: limits})
	s.upload(b)
	before, began := cpuOf(t, b), time.Now()
	s.report(s.start(b), "inside")
	used, wall, held := cpuOf(t, b)-before, time.Since(began), throttled(b)
	if got := used.Seconds() / wall.Seconds(); got > share*1.25+0.05 || got < share/8 {
		t.Errorf("open: %v of CPU in %v is %.2f cores of %.2f", used, wall, got, share)
	}
	if held > 5 {
		return // the kernel held it back so often: without the share it had had more
	}
	s.readyOutside()
	s.outArgs = s.args
	var got float64
	for range 5 { // a host that others fill leaves little
		o := s.outsider(0, 0)
		s.report(o, "outside")
		if got = o.cpu.Seconds() / o.took.Seconds(); got >= share*1.5 {
			return
		}
	}
	t.Errorf("inconclusive: outside it used only %.2f cores as well", got)
}

// throttled is how often the kernel held a sandbox back at its share.
func throttled(b *box) int {
	data, _ := os.ReadFile(filepath.Join(b.groups["cpu"], "cpu.stat"))
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "nr_throttled "); ok {
			n, err := strconv.Atoi(v)
			if err == nil && b.groups["cpu"] != "" {
				return n
			}
		}
	}
	return 0
}

// cpuOf is the CPU time of a sandbox by the kernel's count.
func cpuOf(t *testing.T, b *box) time.Duration {
	t.Helper()
	if dir := b.groups["cpuacct"]; dir != "" {
		return time.Duration(number(filepath.Join(dir, "cpuacct.usage")))
	}
	for _, dir := range append(groups(b.ID()), b.groups["cpu"]) {
		data, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "usage_usec "); ok {
				n, err := strconv.ParseInt(v, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return time.Duration(n) * time.Microsecond
			}
		}
	}
	t.Skip("inconclusive: no v2 tree counts CPU time here")
	return 0
}

// neighbourIsServed runs a bomb beside a sandbox and compares how long that
// one's small programs take.
func neighbourIsServed(t *testing.T) {
	if w.ex.Capabilities().Claim(backend.ControlCPU).Enforcement == backend.Unsupported {
		declared(t, "without CPU groups neighbours are not held apart")
	}
	b := newBox(t, backend.Spec{})
	small := func() time.Duration {
		best := time.Hour
		for range 7 {
			began := time.Now()
			runIn(t, b, "true")
			best = min(best, time.Since(began))
		}
		return best
	}
	small()
	for range 3 {
		alone := small()
		noisy := newBox(t, backend.Spec{Limits: backend.Limits{Pids: fewTasks}})
		s := &scene{T: t, a: &attack{program: "fork.py"}, nonce: nonce(), args: []string{"bomb"}}
		s.upload(noisy)
		p, err := noisy.Start(t.Context(), backend.Command{Args: s.argv(backend.DefaultHome, s.args), Timeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if !eventually(10*time.Second, func() bool { return noisy.noise(t) > 20 }) {
			t.Error("inconclusive: the neighbour makes no noise")
		}
		beside := small()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_ = p.Signal(ctx, backend.SIGKILL)
		cancel()
		noisy.end(t)
		t.Logf("alone %v, beside a bomb %v", alone, beside)
		if beside <= 3*alone+20*time.Millisecond {
			return
		}
	}
	t.Error("open: a bomb beside it makes a small program more than three times as slow")
}
