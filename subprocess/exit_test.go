//go:build linux

package subprocess_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess"
)

func TestExit_codesAndSignals(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		tests := []struct {
			args   []string
			exit   string
			code   int
			stderr string
		}{
			{[]string{"/bin/true"}, "exited(0)", 0, ""},
			{[]string{"sh", "-c", "exit 3"}, "exited(3)", 3, ""},
			{[]string{"sh", "-c", "exit 255"}, "exited(255)", 255, ""},
			{[]string{"sh", "-c", "kill -TERM $$"}, "signaled(15)", 143, ""},
			{[]string{"sh", "-c", "kill -KILL $$"}, "signaled(9)", 137, ""},
			{[]string{"sh", "-c", "kill -SEGV $$"}, "signaled(11)", 139, ""},
			{[]string{"no-such-program"}, "exited(127)", 127, "no-such-program: not found\n"},
			{[]string{"/no/such/program"}, "exited(127)", 127, "/no/such/program: not found\n"},
			{[]string{"/usr/share"}, "exited(126)", 126, "Permission denied"},
			{[]string{"/etc/passwd"}, "exited(126)", 126, "Permission denied"},
			{[]string{"sh", "-c", "sh -c 'kill -9 $$'; exit 7"}, "exited(7)", 7, ""},
		}
		for _, tt := range tests {
			got := run(t, sb, backend.Command{Args: tt.args})
			if got.String() != tt.exit || got.Code != tt.code || !strings.Contains(got.err, tt.stderr) {
				t.Errorf("%q: %v, code %d, %q", tt.args, got.Exit, got.Code, got.err)
			}
			if len(got.Hits) != 0 {
				t.Errorf("%q: hits %v", tt.args, got.Hits)
			}
		}
		if err := backend.WriteFile(t.Context(), sb.Files(), "noexec", []byte("#!/bin/sh\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := run(t, sb, backend.Command{Args: []string{"./noexec"}}); got.String() != "exited(126)" {
			t.Errorf("a file that is not executable: %v", got.Exit)
		}
		if err := backend.WriteFile(t.Context(), sb.Files(), "lost", []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := run(t, sb, backend.Command{Args: []string{"./lost"}}); got.String() != "exited(127)" {
			t.Errorf("a script whose interpreter is missing: %v", got.Exit)
		}
	})
}

func TestExit_timeoutKillsWhatItStarted(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		got := run(t, sb, backend.Command{
			Args: []string{"sh", "-c", "trap '' TERM INT HUP; sleep 1000 & sleep 1001; echo survived"}, Timeout: 300 * time.Millisecond,
		})
		if got.Reason != backend.ReasonTimeout || got.Signal != backend.SIGKILL || got.out != "" {
			t.Errorf("%v %q", got.Exit, got.out)
		}
		scope := "session"
		if h.enforces(backend.ControlKillTree) {
			scope = "tree"
		}
		if got.KillScope != scope {
			t.Errorf("scope %q, want %q", got.KillScope, scope)
		}
		if h.privilege == subprocess.PrivilegeNone || h.privilege == subprocess.PrivilegeRestricted {
			return // the host's processes are to be seen as well
		}
		if left := sh(t, sb, "ps -eo args | grep '[s]leep 100'"); left.out != "" {
			t.Errorf("alive: %q", left.out)
		}
	})
}

func TestExit_treeIsKilledThoughItLeftTheSession(t *testing.T) {
	inModes(t, asRoot, func(t *testing.T, h *harness) {
		needsV2(t, h.enforces(backend.ControlKillTree))
		sb := h.create(t, backend.Spec{})
		run(t, sb, backend.Command{Args: []string{"sh", "-c", "setsid sh -c 'setsid sleep 1000 & sleep 1001' & sleep 1002"}, Timeout: 500 * time.Millisecond})
		eventually(t, "the tree is dead", func() bool { return sh(t, sb, "ps -eo args | grep '[s]leep 100'").out == "" })
	})
}

func TestExit_cpuLimit(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{CPUTime: 20 * time.Second}})
		got := run(t, sb, backend.Command{
			Args: []string{"sh", "-c", "sh -c 'while :; do :; done' & wait"}, CPUTime: 300 * time.Millisecond, Timeout: 20 * time.Second,
		})
		if got.Reason != backend.ReasonCPULimit || got.Usage.CPU < 200*time.Millisecond || got.Usage.CPU > 3*time.Second {
			t.Errorf("%v after %v of CPU", got.Exit, got.Usage.CPU)
		}
	})
}

// eat is a program that touches n MiB and then sleeps.
const eat = `
import sys, time
hold = []
for i in range(int(sys.argv[1])):
    hold.append(b"x" * (1 << 20))
time.sleep(float(sys.argv[2]))
`

func TestExit_memoryLimit(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{Memory: 64 << 20}})
		got := run(t, sb, backend.Command{Args: []string{"/usr/bin/python3", "-c", eat, "200", "5"}})
		if got.Reason != backend.ReasonMemoryLimit || !slices.Contains(got.Hits, backend.HitMemory) {
			t.Errorf("%v, hits %v, %s", got.Exit, got.Hits, got.err)
		}
		if warned := backend.DefaultWarnings().Check(backend.Limits{Memory: 64 << 20}, 0, got.Exit); len(warned) == 0 {
			t.Errorf("the peak of %d bytes warns of nothing", got.Usage.PeakMemory)
		}
		// The sandbox lives on, and the next command is not blamed.
		if got := sh(t, sb, "echo still here").succeed(t); slices.Contains(got.Hits, backend.HitMemory) {
			t.Errorf("the next command has the hit too: %v", got.Hits)
		}
	})
}

func TestExit_memoryHitOfAChild(t *testing.T) {
	inModes(t, asRoot, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{Memory: 64 << 20}})
		got := run(t, sb, backend.Command{Args: []string{"sh", "-c", "/usr/bin/python3 -c '" + eat + "' 200 5; exit 0"}})
		if got.String() != "exited(0)" || !slices.Contains(got.Hits, backend.HitMemory) {
			t.Errorf("%v, hits %v", got.Exit, got.Hits)
		}
	})
}

func TestExit_pidsHit(t *testing.T) {
	inModes(t, asRoot, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{Pids: 20}})
		got := python(t, sb, `
import os, time
n = 0
try:
    while n < 100:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        n += 1
except BlockingIOError:
    print(n)
`).succeed(t)
		if !slices.Contains(got.Hits, backend.HitPids) || got.out != "19\n" {
			t.Errorf("hits %v, %q forks", got.Hits, got.out)
		}
	})
}

func TestExit_outputLimit(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		t.Run("truncates", func(t *testing.T) {
			sb := h.create(t, backend.Spec{Limits: backend.Limits{Output: 1000}})
			got := sh(t, sb, "head -c 5000 /dev/zero; head -c 10 /dev/zero >&2")
			if !got.Success() || !got.StdoutTruncated || got.StderrTruncated || len(got.out) != 1000 || len(got.err) != 10 ||
				!slices.Contains(got.Hits, backend.HitOutput) || got.Usage.Stdout != 5000 {
				t.Errorf("%+v, %d and %d bytes", got.Exit, len(got.out), len(got.err))
			}
		})
		t.Run("kills", func(t *testing.T) {
			sb := h.create(t, backend.Spec{Limits: backend.Limits{Output: 1000, KillOnOutput: true}})
			got := sh(t, sb, "yes >&2")
			if got.Reason != backend.ReasonOutputLimit || !got.StderrTruncated || len(got.err) != 1000 {
				t.Errorf("%+v, %d bytes", got.Exit, len(got.err))
			}
		})
	})
}

func TestExit_canceled(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		ctx, cancel := context.WithCancel(t.Context())
		pr, pw := io.Pipe()
		go func() {
			pr.Read(make([]byte, 10))
			cancel()
		}()
		got, err := tryRun(ctx, sb, backend.Command{
			Args: []string{"sh", "-c", "sleep 2000 & echo go; wait"}, Output: backend.Output{Stdout: pw},
		})
		if !errors.Is(err, context.Canceled) || got.Reason != backend.ReasonCanceled {
			t.Errorf("%v, %v", got.Exit, err)
		}
		if h.caps.Isolation == backend.IsolationProcess {
			eventually(t, "its child is dead", func() bool { return sh(t, sb, "ps -eo args | grep '[s]leep 2000'").out == "" })
		}
	})
}

func TestExit_expired(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Lifetime: 700 * time.Millisecond})
		got := run(t, sb, backend.Command{Args: []string{"sleep", "1000"}, Timeout: backend.UntilSandboxEnds})
		if got.Reason != backend.ReasonExpired {
			t.Errorf("%v", got.Exit)
		}
		_, err := sb.Start(t.Context(), backend.Command{Args: []string{"true"}})
		wantKind(t, err, backend.ErrExpired)
	})
}

func TestExit_outputHeld(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		began := time.Now()
		got := sh(t, sb, "sleep 30 & echo done")
		if !got.Success() || !got.OutputHeld || got.out != "done\n" || time.Since(began) > 10*time.Second {
			t.Errorf("%+v %q after %v", got.Exit, got.out, time.Since(began))
		}
		if got := sh(t, sb, "sleep 30 >/dev/null 2>&1 & echo done"); got.OutputHeld {
			t.Error("held by a child that let go of it")
		}
	})
}
