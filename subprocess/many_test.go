//go:build linux

package subprocess_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/leak"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// TestMany_leaveNothing makes, uses and destroys 300 sandboxes, one after the
// other and eight at a time. Nothing of them may be left: no goroutine or
// descriptor in this process, nothing on the host.
func TestMany_leaveNothing(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		serial, parallel := 100, 200
		if h.privilege == subprocess.PrivilegeRestricted {
			serial, parallel = 20, 40
		}
		use := func(i int) error {
			sb, err := h.ex.Create(t.Context(), backend.Spec{Keep: i%10 == 0 && h.caps.Has(backend.FeatureFind)})
			if err != nil {
				return err
			}
			if i%3 > 0 {
				_, err = tryRun(t.Context(), sb, backend.Command{Args: []string{"sh", "-c", "echo $$ >file; (sleep 60 >/dev/null 2>&1 &)"}})
			}
			if derr := sb.Destroy(t.Context()); err == nil {
				err = derr
			}
			return err
		}
		for i := range 20 { // what is made once is there now
			if err := use(i); err != nil {
				t.Fatal(err)
			}
		}
		before, err := leak.Host()
		if err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		fds, routines := descriptors(t), runtime.NumGoroutine()
		began := time.Now()
		for i := range serial {
			if err := use(i); err != nil {
				t.Fatal(err)
			}
		}
		one := time.Since(began)
		began = time.Now()
		var wg sync.WaitGroup
		errs := make([]error, parallel)
		next := make(chan int)
		for range 8 {
			wg.Go(func() {
				for i := range next {
					errs[i] = use(i)
				}
			})
		}
		for i := range errs {
			next <- i
		}
		close(next)
		wg.Wait()
		t.Logf("%.1f sandboxes a second, one at a time; %.1f, eight at a time", float64(serial)/one.Seconds(), float64(parallel)/time.Since(began).Seconds())
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "descriptors and goroutines are as before", func() bool {
			runtime.GC()
			// Other tests of this process come and go.
			return descriptors(t) <= fds+40 && runtime.NumGoroutine() <= routines+40
		})
		if rest := left(t, h.cfg); len(rest) != 0 {
			t.Errorf("left: %q", rest)
		}
		checkHost(t, h, before)
	})
}

// checkHost fails the test for what of this executor's is on the host and was
// not before. Other tests, of other packages too, have sandboxes of their own.
func checkHost(t *testing.T, h *harness, before leak.Snapshot) {
	t.Helper()
	store := storeID(t, h.cfg.StateDir)
	var mine []string
	for range 50 {
		now, err := leak.Host()
		if err != nil {
			t.Fatal(err)
		}
		mine = slices.DeleteFunc(now.Diff(before), func(s string) bool {
			return !strings.Contains(s, store) && !orphan(s)
		})
		if len(mine) == 0 {
			return
		}
		<-time.After(200 * time.Millisecond)
	}
	t.Errorf("left on the host:\n%s", strings.Join(mine, "\n"))
}

// orphan tells whether an entry is a process of this user's that nobody waits
// for.
func orphan(entry string) bool {
	var pid int
	if n, _ := fmt.Sscanf(entry, "process %d ", &pid); n != 1 {
		return false
	}
	info, err := os.Stat("/proc/" + strconv.Itoa(pid))
	if err != nil {
		return false
	}
	own, err := os.Stat("/proc/self")
	return err == nil && parent(pid) == 1 && sameOwner(info, own)
}

func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestMany_memoryOfIdleOnes prints what an idle sandbox takes.
func TestMany_memoryOfIdleOnes(t *testing.T) {
	inModes(t, asRoot, func(t *testing.T, h *harness) {
		const n = 20
		var ids []string
		for range n {
			sb := h.create(t, backend.Spec{})
			sh(t, sb, "true").succeed(t)
			ids = append(ids, sb.ID())
		}
		var sum int64
		for _, id := range ids {
			procs := processesOf(t, id)
			if len(procs) != 1 {
				t.Fatalf("%s has the processes %v", id, procs)
			}
			sum += proportional(t, procs[0])
		}
		each := sum / n
		t.Logf("%d KiB for each of %d idle sandboxes", each>>10, n)
		if each > 16<<20 {
			t.Errorf("%d bytes for each", each)
		}
	})
}

// processesOf lists a sandbox's processes by their control group.
func processesOf(t testing.TB, id string) []int {
	t.Helper()
	var pids []int
	for _, deep := range []string{"", "*/", "*/*/", "*/*/*/"} {
		files, err := filepath.Glob("/sys/fs/cgroup/" + deep + "glovebox-*-" + id + "/cgroup.procs")
		if err != nil {
			t.Fatal(err)
		}
		more, _ := filepath.Glob("/sys/fs/cgroup/" + deep + "glovebox-*-" + id + "/*/cgroup.procs")
		for _, f := range append(files, more...) {
			data, _ := os.ReadFile(f)
			for s := range strings.FieldsSeq(string(data)) {
				if pid, err := strconv.Atoi(s); err == nil && !slices.Contains(pids, pid) {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids
}

// proportional is a process's memory with what it shares split among those
// that share it.
func proportional(t testing.TB, pid int) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); f[0] == "Pss:" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no Pss")
	return 0
}

func parent(pid int) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	n, _ := strconv.Atoi(f[1])
	return n
}

func sameOwner(a, b os.FileInfo) bool {
	x, ok := a.Sys().(*syscall.Stat_t)
	y, ok2 := b.Sys().(*syscall.Stat_t)
	return ok && ok2 && x.Uid == y.Uid
}
