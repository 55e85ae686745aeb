package host_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/conformance/host"
)

func TestWitness_seesWhatThisProcessStarts(t *testing.T) {
	t.Parallel()
	const mark = "7654.25"
	w := host.New(func() []string { return []string{mark} })
	sees := func() bool {
		s, err := w.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range s {
			if strings.HasPrefix(key, "process ") && strings.Contains(value, mark) {
				return true
			}
		}
		return false
	}
	if sees() {
		t.Fatal("it is there before")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sleep", mark)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen := sees()
	cancel()
	if cmd.Wait() == nil || !seen {
		t.Error("it was not seen")
	}
	if sees() {
		t.Error("it is still seen")
	}
}
