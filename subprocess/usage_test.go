//go:build linux

package subprocess_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess"
)

func TestUsage(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		limits := backend.Limits{Memory: 128 << 20, Pids: 50}
		if h.privilege == subprocess.PrivilegeRestricted { // where what is shared counts for each
			limits.Memory = 512 << 20
		}
		sb := h.create(t, backend.Spec{Limits: limits})
		got := python(t, sb, `
import os, sys, time
hold = b"x" * (60 << 20)
for i in range(3):
    if os.fork() == 0:
        time.sleep(0.4)
        os._exit(0)
end = time.process_time() + 0.2
while time.process_time() < end: pass
for i in range(3): os.wait()
sys.stdout.write("o" * 1000)
sys.stderr.write("e" * 500)
`).succeed(t)
		u := got.Usage
		if u.Wall < 400*time.Millisecond || u.CPU < 150*time.Millisecond || u.CPU > u.Wall*3 || u.Stdout != 1000 || u.Stderr != 500 {
			t.Errorf("%+v", u)
		}
		if u.PeakMemory < 60<<20 || u.PeakMemory > 129<<20 {
			t.Errorf("peak memory %d", u.PeakMemory)
		}
		if h.enforces(backend.ControlPids) && h.enforces(backend.ControlMemory) && (u.PeakProcesses < 4 || u.PeakProcesses > 50) {
			t.Errorf("peak processes %d", u.PeakProcesses)
		}
		if len(got.Warnings) != 0 {
			t.Errorf("warnings %q", got.Warnings)
		}
		all, err := as[backend.Meter](t, sb).Usage(t.Context())
		if err != nil || all.CPU < u.CPU/2 || all.PeakMemory < 60<<20 {
			t.Errorf("of the sandbox: %+v, %v", all, err)
		}
	})
}

func TestUsage_warnings(t *testing.T) {
	inModes(t, asRoot, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{Memory: 64 << 20, Pids: 10}})
		got := run(t, sb, backend.Command{Args: []string{"/usr/bin/python3", "-c", eat, "50", "0"}}).succeed(t)
		said := backend.DefaultWarnings().Check(backend.Limits{Memory: 64 << 20, Pids: 10}, 0, got.Exit)
		if len(said) != 1 || !strings.Contains(said[0], "memory reached") || len(got.Warnings) > 0 {
			t.Errorf("warnings %q, of the driver's own %q", said, got.Warnings)
		}
		sb = h.create(t, backend.Spec{Limits: backend.Limits{Pids: 10}})
		got = sh(t, sb, "for i in 1 2 3 4 5 6 7; do sleep 0.3 & done; wait").succeed(t)
		said = backend.Warnings{Pids: 0.8}.Check(backend.Limits{Pids: 10}, 0, got.Exit)
		if len(said) != 1 || !strings.Contains(said[0], "processes reached 80%") || len(got.Warnings) > 0 {
			t.Errorf("warnings %q, of the driver's own %q, %+v", said, got.Warnings, got.Usage)
		}
	})
}

// counting counts what is written to it.
type counting struct{ n int64 }

func (c *counting) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

func TestOutput_aGibibyteIsStreamed(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		size := int64(1 << 30)
		if h.privilege != subprocess.PrivilegeRoot {
			size = 128 << 20 // the same way, and half a minute under the race detector
		}
		var out counting
		before := peakMemory(t)
		began := time.Now()
		got := run(t, sb, backend.Command{
			Args: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero", size)}, Output: backend.Output{Stdout: &out}, Timeout: 3 * time.Minute,
		}).succeed(t)
		took := time.Since(began)
		if out.n != size || got.StdoutTruncated || got.Usage.Stdout != size {
			t.Errorf("%d of %d bytes, %+v", out.n, size, got.Exit)
		}
		grown := peakMemory(t) - before
		t.Logf("%.0f MiB/s; the peak of our memory grew by %d MiB", float64(size>>20)/took.Seconds(), grown>>20)
		// Other tests of this process run beside this one; what must not be is
		// that the stream is held.
		if grown > size/2 {
			t.Errorf("our memory grew by %d MiB", grown>>20)
		}
	})
}

func TestOutput_slowAndFailingWriters(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		r, w := io.Pipe()
		go func() {
			io.CopyN(io.Discard, r, 100_000)
			r.Close()
		}()
		got := run(t, sb, backend.Command{Args: []string{"sh", "-c", "head -c 3000000 /dev/zero; echo end >&2"}, Output: backend.Output{Stdout: w}}).succeed(t)
		if got.err != "end\n" || got.Usage.Stdout != 3_000_000 {
			t.Errorf("%q, %+v", got.err, got.Usage)
		}
	})
}

// peakMemory is the most memory this process ever had.
func peakMemory(t testing.TB) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); f[0] == "VmHWM:" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// E2B's clients ask /metrics for what a sandbox may use.
func TestMetrics_areTheSandboxs(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{Memory: 123 << 20, CPUs: 0.5}, Advisory: []backend.Control{backend.ControlCPU}})
		rt, err := as[backend.EnvdTransport](t, sb).Envd(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://sandbox/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var m struct {
			Memory int64 `json:"mem_total"`
		}
		if err := json.NewDecoder(res.Body).Decode(&m); err != nil || m.Memory != 123<<20 {
			t.Errorf("%+v, %v", m, err)
		}
	})
}
