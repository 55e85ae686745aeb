//go:build linux

package agent_test

import (
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestClose_afterACommandWasForgotten: whoever holds the output of a command
// that is remembered no more does not hold up the end.
func TestClose_afterACommandWasForgotten(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	r := b.run(t, request("setsid sleep 60 & echo $!"))
	holder, err := strconv.Atoi(strings.TrimSpace(r.stdout))
	if err != nil || !r.why.GetPipesHeld() {
		t.Fatalf("%+v", r)
	}
	t.Cleanup(func() { _ = syscall.Kill(holder, syscall.SIGKILL) })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				b.runContext(t.Context(), request("exit 0"))
			}
		})
	}
	wg.Wait()
	for _, c := range b.commands(t) {
		if c.GetId() == r.id {
			t.Fatal("the command is remembered")
		}
	}
	began := time.Now()
	if err := b.srv.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
}
