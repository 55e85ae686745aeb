// Package leak finds what tests leave behind: goroutines in their own process,
// and processes, control groups, mounts and files on the host.
package leak

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// patience is how long what is about to end may take.
const patience = 5 * time.Second

// Check fails the test when it ends with goroutines that were not there at the
// call and do not end within some seconds. A test that uses it must not run in
// parallel with others.
func Check(tb testing.TB) {
	tb.Helper()
	before := goroutines()
	tb.Cleanup(func() {
		if left := newGoroutines(before, patience); len(left) > 0 {
			tb.Errorf("%d goroutines are left:\n\n%s", len(left), strings.Join(left, "\n\n"))
		}
	})
}

func newGoroutines(before map[string]string, wait time.Duration) []string {
	deadline := time.Now().Add(wait)
	pause := time.Millisecond
	for {
		var left []string
		for id, stack := range goroutines() {
			if _, old := before[id]; !old && !harmless(stack) {
				left = append(left, stack)
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		<-time.After(pause)
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// goroutines maps their numbers to their stacks.
func goroutines() map[string]string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	all := map[string]string{}
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		id, _, _ := strings.Cut(strings.TrimPrefix(stack, "goroutine "), " ")
		all[id] = stack
	}
	return all
}

// harmless tells goroutines that the runtime and the testing package start
// once and keep.
func harmless(stack string) bool {
	for _, f := range []string{
		"testing.(*T).Run(", "testing.(*M).", "testing.runFuzzing(", "testing.tRunner.", "os/signal.loop(",
		"os/signal.signal_recv(", "runtime.ensureSigM", "runtime/pprof.",
	} {
		if strings.Contains(stack, f) {
			return true
		}
	}
	return false
}
