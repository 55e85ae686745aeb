//go:build linux

package hostiletest_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv/testimage"
)

// gvisorTraps are where gVisor behaves as no other kernel does. Each would make
// a wrong report, or touch the host.
func gvisorTraps() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"GV-01": memoryTakesAll,
		"GV-02": kernelCrashes,
		"GV-03": kernelWithoutThreads,
		"GV-04": streamsAreNoFiles,
		"GV-05": inodesAreHeld,
		"FW-18": rootStaysClean,
	}
}

// memoryTakesAll: at the limit the host's kernel ends gVisor's and with it all, or
// what that lends one program. Everybody who waits is told that it was the limit,
// never the status of a runtime.
func memoryTakesAll(t *testing.T) {
	b := newBox(t, backend.Spec{Limits: backend.Limits{Memory: smallMemory}})
	beside := ready(t, b, "echo READY; sleep 60")
	exit, err := backend.RunIn(t.Context(), b, backend.Command{
		Args: []string{"/usr/bin/python3", "-c", "x=[bytearray(b'x'*(1<<20)) for _ in range(4000)]"}, Timeout: time.Minute,
	})
	if err != nil || exit.Reason != backend.ReasonMemoryLimit || !slices.Contains(exit.Hits, backend.HitMemory) {
		t.Errorf("a program at the limit ended with %s, hits %v, %v", exit, exit.Hits, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if w.ex.Capabilities().Claim(backend.ControlMemory).Enforcement != backend.Enforced {
		// Whoever samples the sum kills all commands.
		if exit, err := beside.Wait(ctx); err != nil || exit.Reason != backend.ReasonMemoryLimit {
			t.Errorf("one beside it ended with %s, %v", exit, err)
		}
		return
	}
	if exit, err := backend.RunIn(ctx, b, backend.Command{Args: []string{"/bin/sh", "-c", "exit 7"}}); err == nil {
		if exit.Code != 7 {
			t.Errorf("the sandbox lives on, and a command in it ended with %s", exit)
		}
		if err := beside.Signal(ctx, backend.SIGKILL); err != nil {
			t.Errorf("open: what ran beside it has gone: %v", err)
		}
		return
	}
	if exit, err := beside.Wait(ctx); exit.Reason != backend.ReasonMemoryLimit {
		t.Errorf("one beside it ended with %s, %v", exit, err)
	}
	if _, err := b.Start(ctx, backend.Command{Args: []string{"/bin/true"}}); backend.KindOf(err) != backend.ErrLost || !strings.Contains(err.Error(), "memory") {
		t.Errorf("the next one: %v", err)
	}
}

// ready starts a shell's text and waits until it says READY.
func ready(t *testing.T, b *box, text string) backend.Process {
	t.Helper()
	var out watched
	p, err := b.Start(t.Context(), backend.Command{Args: []string{"/bin/sh", "-c", text}, Output: backend.Output{Stdout: &out}})
	if err != nil {
		t.Fatal(err)
	}
	if !out.saying("READY", p) {
		t.Fatalf("inconclusive: it never was ready: %s", out.bytes())
	}
	return p
}

// isLost demands that a command's outcome is not known.
func isLost(t *testing.T, what string, p backend.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if exit, err := p.Wait(ctx); backend.KindOf(err) != backend.ErrLost {
		t.Errorf("open: %s, and the command ended with %s, %v", what, exit, err)
	}
}

// kernelCrashes: a sandbox whose kernel crashes is lost, however it crashes.
func kernelCrashes(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGSEGV, syscall.SIGABRT, syscall.SIGBUS} {
		b := newBox(t, backend.Spec{})
		p := ready(t, b, "echo READY; sleep 60")
		if err := syscall.Kill(b.agentPID, sig); err != nil {
			t.Fatal(err)
		}
		isLost(t, "the kernel got "+sig.String(), p)
		b.end(t)
	}
}

// kernelWithoutThreads: where the host gives gVisor's kernel no more threads, it
// crashes with the status 2 of a Go program, which is not the command's.
func kernelWithoutThreads(t *testing.T) {
	b := newBox(t, backend.Spec{})
	dir := b.groups["pids"]
	if dir == "" {
		declared(t, "no pids cgroup: the host bounds the threads of gVisor's kernel no more than its user's")
	}
	p := ready(t, b, "echo READY; read x; for i in $(seq 200); do sleep 60 & done; wait")
	now := number(filepath.Join(dir, "pids.current"))
	if most := number(filepath.Join(dir, "pids.max")); most < outerTasks {
		t.Errorf("the limit of its threads is %d: it would crash of what programs may do", most)
	}
	if err := give(dir, "pids.max", strconv.FormatInt(now+1, 10)); err != nil {
		t.Fatal(err)
	}
	_ = p
	var out watched
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	exit, err := backend.RunIn(ctx, b, backend.Command{
		Args: []string{"/bin/sh", "-c", "for i in $(seq 100); do sleep 60 & done; wait"}, Timeout: 20 * time.Second, Output: backend.Output{Stderr: &out},
	})
	switch {
	case err != nil && backend.KindOf(err) == backend.ErrLost:
	case err == nil && exit.Reason == backend.ReasonTimeout:
		t.Logf("gVisor's kernel went on with %d threads", now+1)
	case err == nil && exit.Reason == backend.ReasonExited && strings.Contains(string(out.bytes()), "fork"):
		t.Log("gVisor's kernel refused to fork")
	default:
		t.Errorf("open: without threads for the kernel the command ended with %s, %v", exit, err)
	}
}

// streamsAreNoFiles: gVisor's kernel writes to a file it is given from its
// beginning, so it is given none that it could write to.
func streamsAreNoFiles(t *testing.T) {
	b := newBox(t, backend.Spec{})
	looked := 0
	for _, pid := range b.members(t) {
		fds, _ := os.ReadDir("/proc/" + itoa(pid) + "/fd")
		for _, fd := range fds {
			path := "/proc/" + itoa(pid) + "/fd/" + fd.Name()
			to, err := os.Readlink(path)
			st, serr := os.Stat(path)
			if err != nil || serr != nil {
				continue
			}
			looked++
			// Memory files and deleted ones are nobody's; the scratch is its own.
			if !st.Mode().IsRegular() || strings.Contains(to, "(deleted)") || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "/memfd:") || strings.Contains(to, "/"+b.ID()+"/") {
				continue
			}
			if writable(pid, fd.Name()) {
				t.Errorf("open: process %d may write to the file %s", pid, to)
			}
		}
	}
	if looked < 6 {
		t.Errorf("inconclusive: only %d descriptors were seen", looked)
	}
}

// writable tells whether a process's descriptor was opened for writing
// anywhere.
func writable(pid int, fd string) bool {
	for line := range strings.Lines(string(procFile(pid, "fdinfo/"+fd))) {
		if v, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseInt(strings.TrimSpace(v), 8, 64)
			// What is appended to is not written over.
			return err != nil || flags&syscall.O_ACCMODE != syscall.O_RDONLY && flags&syscall.O_APPEND == 0
		}
	}
	return false
}

// inodesAreHeld: gVisor's tmpfs takes nr_inodes and does not heed it. So it is
// the host's, or the limit is refused.
func inodesAreHeld(t *testing.T) {
	const make2000 = "cd /tmp; i=0; while [ $i -lt 2000 ]; do : >f$i || exit 9; i=$((i+1)); done"
	spec := backend.Spec{Limits: backend.Limits{Inodes: fewInodes}}
	if w.ex.Capabilities().Claim(backend.ControlInodes).Enforcement == backend.Unsupported {
		if _, err := w.ex.Create(t.Context(), spec); backend.KindOf(err) != backend.ErrUnsupported {
			t.Errorf("open: a limit that is not held is taken: %v", err)
		}
		if exit, _ := runIn(t, newBox(t, backend.Spec{}), make2000); !exit.Success() {
			t.Errorf("the claim says less than is true: %s", exit)
		}
		return
	}
	if exit, out := runIn(t, newBox(t, spec), make2000); exit.Success() {
		t.Errorf("open: 2000 files with a limit of %d: %s", fewInodes, out)
	}
}

// rootStaysClean: a place that is missing for a mount is made in no root that
// others share.
func rootStaysClean(t *testing.T) {
	dir, name := openDir(t), "hostile-"+nonce()
	root, why := w.rootfs, ""
	if root == "" {
		if root, why = testimage.Rootfs(); why != "" {
			t.Fatal(why)
		}
	}
	before := namesIn(t, root)
	spec := backend.Spec{Mounts: []backend.Mount{{HostPath: dir, Target: "/mnt/" + name + "/deep", ReadOnly: true}, {HostPath: dir, Target: "/" + name, ReadOnly: true}}}
	b := newBox(t, spec)
	if exit, out := runIn(t, b, "ls -d /mnt/"+name+"/deep /"+name); !exit.Success() {
		t.Errorf("inconclusive: nothing is mounted: %s", out)
	}
	if exit, out := runIn(t, newBox(t, backend.Spec{}), "ls -d /mnt/"+name+" /"+name); exit.Success() || strings.Contains(out, "deep") {
		t.Errorf("open: another sandbox finds %s", out)
	}
	if after := namesIn(t, root); !slices.Equal(before, after) {
		t.Errorf("open: the root that all share was %v and is %v", before, after)
	}
}

// namesIn are those of a root's own directories, two levels deep.
func namesIn(t *testing.T, root string) (out []string) {
	t.Helper()
	for _, pattern := range []string{"*", "mnt/*", "home/*", "dev/*", "var/*"} {
		found, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}
