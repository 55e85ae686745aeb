//go:build linux

package hostiletest_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// mib is a mebibyte; smallMemory and smallDisk are the limits that the
// programs, which want 300 to 500 MiB, meet.
const (
	mib         = 1 << 20
	smallMemory = 256 * mib
	smallDisk   = 64 * mib
)

func memoryAttacks() []attack {
	limits := backend.Limits{Memory: smallMemory, Disk: smallDisk}
	takes := func(n int) control {
		return control{works: func(s *scene, o *outcome) {
			if r := s.report(o, "outside"); r.N < n {
				s.Errorf("inconclusive: only %d were had outside (%s)", r.N, r.Errno)
			}
		}}
	}
	return []attack{
		{id: "ME-01", program: "memory.py", args: []string{"anonymous"}, limits: limits, inside: outOfMemory, outside: peakBounded, control: takes(400)},
		{id: "ME-02", program: "memory.py", args: []string{"spread"}, limits: limits, inside: notAll(5), outside: peakBounded, control: takes(5)},
		{id: "ME-03", program: "memory.py", args: []string{"tmp"}, limits: limits, during: hostUnfilled("/tmp"), inside: diskFull, outside: peakBounded, control: takes(300)},
		{id: "ME-04", program: "memory.py", args: []string{"shm"}, limits: limits, during: hostUnfilled("/dev/shm"), inside: diskFull, outside: peakBounded, control: takes(300)},
		{id: "ME-05", program: "memory.py", args: []string{"shared"}, limits: limits, inside: outOfMemory, outside: peakBounded, control: takes(400)},
		// Where memory is sampled, files in memory that nothing maps are not
		// seen: the claim says best effort.
		{id: "ME-05-memfd", only: asRoot, program: "memory.py", args: []string{"memfd"}, limits: limits, inside: outOfMemory, outside: peakBounded, control: takes(400)},
		{id: "ME-06", program: "memory.py", args: []string{"sysv"}, before: ipcKey, during: noHostIPC, inside: exits(0), control: control{works: ipcWorks}},
		{id: "ME-10", program: "memory.py", args: []string{"stack"}, limits: limits, inside: crashed, control: control{works: func(s *scene, o *outcome) {
			if o.signal == 0 && o.code == 0 {
				s.Error("inconclusive: it does no harm outside")
			}
		}}},
		{id: "ME-11", program: "memory.py", args: []string{"giant"}, limits: limits, inside: refusedOrKilled, control: control{
			none: "what the host's overcommit allows is not touched, so it need not fail outside either",
		}},
		{id: "ME-12", program: "memory.py", args: []string{"adjust"}, control: control{
			fact: "lowering it takes CAP_SYS_RESOURCE, which neither an unprivileged user nor root in some containers has",
		}},
		{id: "ME-13", program: "memory.py", args: []string{"lock"}, control: control{
			shows: []string{"mlock of 64 MiB"}, fact: "RLIMIT_MEMLOCK holds an unprivileged user outside as well",
		}},
		{id: "ME-14", only: asRoot, program: "memory.py", args: []string{"child"}, limits: limits, inside: childKilled, outside: peakBounded, control: control{works: func(s *scene, o *outcome) {
			if r := s.report(o, "outside"); r.N != 0 {
				s.Error("inconclusive: the child is killed outside as well")
			}
		}}},
	}
}

// outOfMemory: the program was killed, or refused, at its limit.
func outOfMemory(s *scene, o *outcome) {
	if o.said != nil && o.said.N*mib > smallMemory {
		s.Errorf("open: it got %d MiB", o.said.N)
	}
	if o.exit.Reason != backend.ReasonMemoryLimit || !slices.Contains(o.exit.Hits, backend.HitMemory) {
		s.Errorf("it ended with %s, hits %v", o.exit, o.exit.Hits)
	}
}

func notAll(n int) func(*scene, *outcome) {
	return func(s *scene, o *outcome) {
		if o.said != nil && o.said.N >= n {
			s.Errorf("open: all %d had their memory", n)
		}
		if !slices.Contains(o.exit.Hits, backend.HitMemory) {
			s.Errorf("the exit does not say that the limit was hit: %+v", o.exit)
		}
	}
}

// peakBounded reads what the kernel counted.
func peakBounded(s *scene, b *box, _ *outcome) {
	dir := b.groups["memory"]
	if dir == "" {
		return
	}
	// Where agent, or kernel, and programs are counted together, the group may
	// have ended with them.
	peak := max(memoryPeak(dir), b.peak.Load())
	if peak <= 0 || peak > smallMemory*105/100 {
		s.Errorf("open: the peak was %d MiB of %d", peak/mib, smallMemory/mib)
	}
}

// diskFull: the scratch takes what it may, and no more.
func diskFull(s *scene, o *outcome) {
	r := s.report(o, "inside")
	if r.N*mib > smallDisk || r.N < 8 || r.Errno != "ENOSPC" && r.Errno != "EFBIG" {
		s.Errorf("open: %d MiB were written with a limit of %d, then %q", r.N, smallDisk/mib, r.Errno)
	}
	if !o.exit.Success() {
		s.Errorf("a full disk ended it: %s", o.exit)
	}
}

// hostUnfilled: nothing of it is in the host's directory.
func hostUnfilled(dir string) func(*scene, *box) {
	return func(s *scene, _ *box) {
		if found, _ := filepath.Glob(filepath.Join(dir, "*"+s.nonce+"*")); len(found) > 0 {
			s.Errorf("open: the host has %v", found)
		}
	}
}

// crashed: deep recursion is the program's own end, not a timeout.
func crashed(s *scene, o *outcome) {
	s.report(o, "inside")
	if o.exit.Reason != backend.ReasonSignaled && o.exit.Reason != backend.ReasonMemoryLimit && (o.exit.Reason != backend.ReasonExited || o.exit.Code == 0) {
		s.Errorf("it ended with %s", o.exit)
	}
}

func refusedOrKilled(s *scene, o *outcome) {
	if o.exit.Reason == backend.ReasonMemoryLimit {
		return
	}
	r := s.report(o, "inside")
	for name, how := range r.Tries {
		if how == "ok" && name != "mmap" {
			s.Errorf("open: %s worked", name)
		}
	}
}

// ipcKey is a key of System V objects that nobody has.
func ipcKey(s *scene, _ *box) {
	key := 0
	for _, c := range s.nonce[:6] {
		key = key*32 + int(c)&31
	}
	s.kept["key"] = strconv.Itoa(key | 1)
	s.args = append(s.args, s.kept["key"].(string))
}

func (s *scene) hostIPC() (found []string) {
	for _, kind := range []string{"shm", "sem", "msg"} {
		data, err := os.ReadFile("/proc/sysvipc/" + kind)
		if err != nil {
			s.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) > 0 && f[0] == s.kept["key"] {
				found = append(found, kind)
			}
		}
	}
	return found
}

// noHostIPC: the sandbox's objects are not the host's.
func noHostIPC(s *scene, _ *box) {
	if found := s.hostIPC(); len(found) > 0 {
		s.Errorf("open: the host has its %v", found)
	}
}

// ipcWorks: outside, the same objects are there for everybody to see. The
// program removes them at its end, so it is asked while it makes them.
func ipcWorks(s *scene, o *outcome) {
	r := s.report(o, "outside")
	for _, name := range []string{"shmget", "semget", "msgget"} {
		if r.Tries[name] != "ok" {
			s.Errorf("inconclusive: %s does not work outside: %s", name, r.Tries[name])
		}
	}
}

func memoryPeak(dir string) int64 {
	return max(number(filepath.Join(dir, "memory.max_usage_in_bytes")), number(filepath.Join(dir, "memory.peak")))
}

// sample keeps the highest that the kernel counted, until the test ends.
func (b *box) sample(t *testing.T) {
	t.Helper()
	dir := b.groups["memory"]
	if dir == "" {
		return
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		<-done
	})
	go func() {
		defer close(done)
		for {
			b.peak.Store(max(b.peak.Load(), memoryPeak(dir)))
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
}

// childKilled: the exit is the parent's, the evidence the kernel's.
func childKilled(s *scene, o *outcome) {
	if sentry() { // whose end at the limit is that of all in it
		if o.exit.Reason != backend.ReasonMemoryLimit && !o.exit.Success() || !slices.Contains(o.exit.Hits, backend.HitMemory) {
			s.Errorf("open: it ended with %s, hits %v", o.exit, o.exit.Hits)
		}
		return
	}
	if r := s.report(o, "inside"); r.N != 1 {
		s.Error("open: the child was not killed")
	}
	if !o.exit.Success() || !slices.Contains(o.exit.Hits, backend.HitMemory) {
		s.Errorf("it ended with %s, hits %v", o.exit, o.exit.Hits)
	}
}
