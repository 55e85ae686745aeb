package conformance

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func limitCases() []Case {
	return []Case{
		{ID: "LM-01", Area: Limits, Title: "processes over the limit are refused with EAGAIN, those below it are not", Needs: needs(enforced(backend.ControlPids), python()), Run: pidsLimit},
		{ID: "LM-02", Area: Limits, Title: "a full disk is ENOSPC and a hit, and room again is room", Needs: needs(enforced(backend.ControlDisk), python()), Run: diskLimit},
		{ID: "LM-03", Area: Limits, Title: "files over the limit of inodes are ENOSPC and a hit", Needs: needs(enforced(backend.ControlInodes), python()), Run: inodeLimit},
		{ID: "LM-04", Area: Limits, Title: "descriptors over the limit are EMFILE", Needs: needs(enforced(backend.ControlOpenFiles), python()), Run: openFilesLimit},
		{ID: "LM-05", Area: Limits, Title: "a file over the limit is EFBIG", Needs: needs(enforced(backend.ControlFileSize), python()), Run: fileSizeLimit},
		{ID: "LM-06", Area: Limits, Title: "no process can raise its limits", Needs: needs(enforced(backend.ControlOpenFiles), python()), Run: raiseLimits},
		{ID: "LM-07", Area: Limits, Title: "no core is dumped", Needs: needs(enforced(backend.ControlCore), shell()), Run: noCore},
		{ID: "LM-08", Area: Limits, Title: "a fifth of a core is a fifth of a core", Needs: needs(enforced(backend.ControlCPU), python()), Alone: true, Run: cpuShare},
		{ID: "LM-09", Area: Limits, Title: "output over the limit is dropped and flagged, each stream for itself", Needs: needs(enforced(backend.ControlOutput), shell()), Run: outputTruncated},
		{ID: "LM-10", Area: Limits, Title: "output below the limit is whole and no hit", Needs: needs(enforced(backend.ControlOutput), shell()), Run: outputBelow},
		{ID: "LM-11", Area: Limits, Title: "what a one-shot collects is bounded without a limit too", Needs: needs(shell()), Run: outputCollected},
		{ID: "LM-12", Area: Limits, Title: "one sandbox's full disk leaves another's alone", Needs: needs(enforced(backend.ControlDisk), python()), Run: diskOfOne},
		{ID: "LM-13", Area: Limits, Title: "one sandbox's processes leave another's room", Needs: needs(enforced(backend.ControlPids), python()), Run: pidsOfOne},
		{ID: "LM-14", Area: Limits, Title: "a hit of one command is not the next one's", Needs: needs(enforced(backend.ControlDisk), python()), Run: hitsOfOne},
		{ID: "LM-15", Area: Limits, Title: "a limit that is hit does not end the sandbox", Needs: needs(enforced(backend.ControlPids), python()), Run: livesAfterPids},
	}
}

func (t *T) limited(ctx context.Context, l backend.Limits) backend.Sandbox {
	return t.Create(ctx, backend.Spec{Limits: l})
}

// forks makes processes until it cannot, and says how many there were and why
// there are no more.
const forks = `
import errno, os, signal, sys, time
pids = []
try:
    while len(pids) < 200:
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        pids.append(pid)
    print(len(pids), "enough", flush=True)
except OSError as e:
    print(len(pids), errno.errorcode[e.errno], flush=True)
time.sleep(float(sys.argv[1]))
for pid in pids: os.kill(pid, signal.SIGKILL)
for pid in pids: os.waitpid(pid, 0)
`

func pidsLimit(ctx context.Context, t *T) {
	got := t.exec(ctx, t.limited(ctx, backend.Limits{Pids: 40}), "python3", "-c", forks, "0")
	n, why, _ := strings.Cut(strings.TrimSpace(t.good(got)), " ")
	// A group holds user code alone and counts what it refuses; a resource limit
	// has no counter, and holds what runs the commands as well, with its reserve.
	most, counted := 40, strings.Contains(t.Caps().Claim(backend.ControlPids).Mechanism, "cgroup")
	if !counted {
		most += 24
	}
	if count, err := strconv.Atoi(n); err != nil || count < 8 || count > most || why != "EAGAIN" {
		t.Errorf("%q, hits %v", got.out, got.Hits)
	}
	if counted && !got.has(backend.HitPids) {
		t.Errorf("no hit: %v", got.Hits)
	}
}

// fill writes until it cannot, and says how many KiB there were and why.
const fill = `
import errno, os
n = 0
try:
    with open("full", "wb", buffering=0) as f:
        while n < 200 << 20:
            n += f.write(b"x" * 65536)
    print(n >> 10, "enough")
except OSError as e:
    print(n >> 10, errno.errorcode[e.errno])
`

func filled(t *T, got outcome, limit int64) {
	n, why, _ := strings.Cut(strings.TrimSpace(t.good(got)), " ")
	kib, err := strconv.ParseInt(n, 10, 64)
	if err != nil || why != "ENOSPC" || kib<<10 > limit || kib<<10 < limit/2 {
		t.Errorf("%q, hits %v", got.out, got.Hits)
	}
}

func diskLimit(ctx context.Context, t *T) {
	sb := t.limited(ctx, backend.Limits{Disk: 16 << 20})
	got := t.python(ctx, sb, fill)
	filled(t, got, 16<<20)
	if !got.has(backend.HitDisk) || got.has(backend.HitMemory) {
		t.Errorf("hits %v", got.Hits)
	}
	t.kind("write", backend.WriteFile(ctx, sb.Files(), "more", pattern(1<<20), 0), backend.ErrTooLarge)
	t.good(t.sh(ctx, sb, "rm full"))
	got = t.sh(ctx, sb, "echo room >room && cat room")
	if t.good(got) != "room\n" || len(got.Hits) != 0 {
		t.Errorf("afterwards %q, hits %v", got.out, got.Hits)
	}
}

func inodeLimit(ctx context.Context, t *T) {
	got := t.python(ctx, t.limited(ctx, backend.Limits{Inodes: 300}), `
import errno
n = 0
try:
    while n < 2000:
        open("file%d" % n, "w").close()
        n += 1
    print(n, "enough")
except OSError as e:
    print(n, errno.errorcode[e.errno])
`)
	n, why, _ := strings.Cut(strings.TrimSpace(t.good(got)), " ")
	if count, err := strconv.Atoi(n); err != nil || count < 50 || count > 300 || why != "ENOSPC" || !got.has(backend.HitFiles) {
		t.Errorf("%q, hits %v", got.out, got.Hits)
	}
}

func openFilesLimit(ctx context.Context, t *T) {
	got := t.good(t.python(ctx, t.limited(ctx, backend.Limits{OpenFiles: 64}), `
import errno, os
fds = []
try:
    while len(fds) < 500: fds.append(os.open("/dev/null", os.O_RDONLY))
    print("enough")
except OSError as e:
    print(max(fds), errno.errorcode[e.errno])
`))
	if got != "63 EMFILE\n" {
		t.Errorf("%q", got)
	}
}

func fileSizeLimit(ctx context.Context, t *T) {
	got := t.good(t.python(ctx, t.limited(ctx, backend.Limits{FileSize: 100_000}), `
import errno
n = 0
try:
    with open("big", "wb", buffering=0) as f:
        while n < 1000000: n += f.write(b"x" * 10000)
    print("enough")
except OSError as e:
    print(n, errno.errorcode[e.errno])
`))
	if got != "100000 EFBIG\n" {
		t.Errorf("%q", got)
	}
}

func raiseLimits(ctx context.Context, t *T) {
	got := t.good(t.python(ctx, t.limited(ctx, backend.Limits{OpenFiles: 64}), `
import resource
print(resource.getrlimit(resource.RLIMIT_NOFILE))
for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
    try:
        resource.setrlimit(what, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("raised", what)
    except (ValueError, OSError):
        pass
`))
	if got != "(64, 64)\n" {
		t.Errorf("%q", got)
	}
}

func noCore(ctx context.Context, t *T) {
	got := t.good(t.sh(ctx, t.Create(ctx, backend.Spec{}), "ulimit -c; ulimit -H -c; sh -c 'kill -SEGV $$'; ls -A"))
	if !strings.HasPrefix(got, "0\n0\n") || strings.Contains(got, "core") {
		t.Errorf("%q", got)
	}
}

func cpuShare(ctx context.Context, t *T) {
	const program = `
import time
end = time.monotonic() + 2
while time.monotonic() < end: pass
print(time.process_time())
`
	used := func(cpus float64) float64 {
		sb := t.limited(ctx, backend.Limits{CPUs: cpus})
		m, counted := backend.As[backend.Meter](sb)
		began, before := time.Now(), t.cpu(ctx, m)
		got := t.good(t.python(ctx, sb, program))
		if after := t.cpu(ctx, m); counted && after > before {
			// From outside: an emulated kernel's own clock is no judge.
			return (after - before).Seconds() * 2 / time.Since(began).Seconds()
		}
		s, err := strconv.ParseFloat(strings.TrimSpace(got), 64)
		if err != nil {
			t.Fatalf("%q", got)
		}
		return s
	}
	// The control: with a whole core it gets more, in a moment when the host is
	// not too busy to tell.
	whole := 0.0
	for tries := 0; whole < 0.75 && tries < 15; tries++ {
		whole = used(1)
	}
	if whole < 0.75 {
		t.Inconclusivef("the host is too busy: %v s of CPU in 2 s with a whole core", whole)
	}
	if s := used(0.2); s > 0.65 {
		t.Errorf("%v s of CPU in 2 s", s)
	}
}

// cpu is what a sandbox has used so far; 0 without a meter.
func (t *T) cpu(ctx context.Context, m backend.Meter) time.Duration {
	if m == nil {
		return 0
	}
	u, err := m.Usage(ctx)
	if err != nil {
		t.Fatalf("usage: %v", err)
	}
	return u.CPU
}

func outputTruncated(ctx context.Context, t *T) {
	sb := t.limited(ctx, backend.Limits{Output: 1000})
	got := t.sh(ctx, sb, "head -c 5000 /dev/zero; head -c 10 /dev/zero >&2; exit 3")
	if got.String() != "exited(3)" || !got.StdoutTruncated || got.StderrTruncated || len(got.out) != 1000 || len(got.err) != 10 ||
		!got.has(backend.HitOutput) || got.Usage.Stdout != 5000 || got.Usage.Stderr != 10 {
		t.Errorf("%+v, %d and %d bytes", got.Exit, len(got.out), len(got.err))
	}
}

func outputBelow(ctx context.Context, t *T) {
	sb := t.limited(ctx, backend.Limits{Output: 1000, KillOnOutput: true})
	got := t.sh(ctx, sb, "head -c 1000 /dev/zero; head -c 1000 /dev/zero >&2")
	if !got.Success() || got.StdoutTruncated || got.StderrTruncated || len(got.out) != 1000 || len(got.err) != 1000 || len(got.Hits) != 0 {
		t.Errorf("%+v, %d and %d bytes", got.Exit, len(got.out), len(got.err))
	}
}

func outputCollected(ctx context.Context, t *T) {
	res, err := backend.Run(ctx, t.Executor(), backend.RunSpec{
		Spec: t.Spec(backend.Spec{}), Command: backend.Command{Args: []string{"head", "-c", "11000000", "/dev/zero"}},
	})
	if err != nil || int64(len(res.Stdout)) != backend.DefaultOutput || !res.Exit.StdoutTruncated || !res.Exit.Success() {
		t.Errorf("%d bytes, %+v, %v", len(res.Stdout), res.Exit, err)
	}
}

func diskOfOne(ctx context.Context, t *T) {
	one, two := t.limited(ctx, backend.Limits{Disk: 16 << 20}), t.limited(ctx, backend.Limits{Disk: 16 << 20})
	filled(t, t.python(ctx, one, fill), 16<<20)
	t.write(ctx, two, "f", string(pattern(8<<20)))
}

func pidsOfOne(ctx context.Context, t *T) {
	one, two := t.limited(ctx, backend.Limits{Pids: 24}), t.limited(ctx, backend.Limits{Pids: 24})
	p, out, _ := t.start(ctx, one, backend.Command{Args: []string{"python3", "-c", forks, "20"}})
	t.until(ctx, "the one has all it gets", func() bool { return strings.Contains(out.String(), "EAGAIN") })
	got := t.exec(ctx, two, "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 0.1 & done; wait; echo fine")
	if !got.Success() || got.out != "fine\n" || got.has(backend.HitPids) {
		t.Errorf("%+v %q %q", got.Exit, got.out, got.err)
	}
	t.signal(ctx, p, backend.SIGKILL)
}

func hitsOfOne(ctx context.Context, t *T) {
	sb := t.limited(ctx, backend.Limits{Disk: 16 << 20})
	filled(t, t.python(ctx, sb, fill+"\nos.unlink('full')"), 16<<20)
	if got := t.sh(ctx, sb, "echo x >y"); !got.Success() || len(got.Hits) != 0 {
		t.Errorf("%+v", got.Exit)
	}
}

func livesAfterPids(ctx context.Context, t *T) {
	sb := t.limited(ctx, backend.Limits{Pids: 24})
	for i := range 3 {
		t.good(t.exec(ctx, sb, "python3", "-c", forks, "0"))
		if got := t.good(t.sh(ctx, sb, fmt.Sprintf("echo %d", i))); got != fmt.Sprintf("%d\n", i) {
			t.Errorf("%q", got)
		}
	}
}

func usageCases() []Case {
	return []Case{
		{ID: "LM-40", Area: Limits, Title: "a command's usage is plausible", Needs: needs(python()), Run: usageOfCommand},
		{ID: "LM-41", Area: Limits, Title: "a sandbox's usage is plausible, and grows", Needs: needs(python(), feature(backend.FeatureUsage)), Run: usageOfSandbox},
		{ID: "LM-42", Area: Limits, Title: "a command that does nothing uses next to nothing", Needs: needs(shell()), Run: usageOfNothing},
	}
}

const work = `
import os, sys, time
hold = bytearray(b"x") * (60 << 20)
end = time.process_time() + 0.3
while time.process_time() < end: pass
time.sleep(0.3)
sys.stdout.write("o" * 1000)
sys.stderr.write("e" * 500)
`

func usageOfCommand(ctx context.Context, t *T) {
	got := t.python(ctx, t.limited(ctx, backend.Limits{}), work)
	u := got.Usage
	t.good(got)
	if u.Wall < 500*time.Millisecond || u.Wall > time.Minute || u.Stdout != 1000 || u.Stderr != 500 {
		t.Errorf("%+v", u)
	}
	// What was not measured is zero; what was is near the truth.
	if u.CPU != 0 && (u.CPU < 200*time.Millisecond || u.CPU > u.Wall*8) {
		t.Errorf("CPU %v of %v", u.CPU, u.Wall)
	}
	if t.Enforces(backend.ControlMemory) && (u.PeakMemory < 60<<20 || u.PeakMemory > backend.DefaultMemory+64<<20) {
		t.Errorf("peak memory %d", u.PeakMemory)
	}
}

func usageOfSandbox(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	m := find[backend.Meter](t, "usage", sb)
	before, err := m.Usage(ctx)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.good(t.python(ctx, sb, work))
	after, err := m.Usage(ctx)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if after.CPU != 0 && after.CPU-before.CPU < 200*time.Millisecond || after.PeakMemory < before.PeakMemory {
		t.Errorf("%+v, and then %+v", before, after)
	}
	if t.Enforces(backend.ControlMemory) && (after.PeakMemory < 60<<20 || after.Memory <= 0 || after.Memory > after.PeakMemory) {
		t.Errorf("memory %+v", after)
	}
}

func usageOfNothing(ctx context.Context, t *T) {
	u := t.exec(ctx, t.Create(ctx, backend.Spec{}), "true").Usage
	if u.Wall <= 0 || u.Wall > 30*time.Second || u.CPU > 2*time.Second || u.Stdout != 0 || u.Stderr != 0 {
		t.Errorf("%+v", u)
	}
}
