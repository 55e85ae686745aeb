package boot

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/agent"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
)

// watchEvery is how often memory is sampled where no cgroup limits it. Between
// two samples a program can use more: the limit is a monitored one.
const watchEvery = 50 * time.Millisecond

// watchMemory kills every command when user code's memory is over limit.
func watchMemory(limit int64, srv *agent.Server) {
	for range time.Tick(watchEvery) {
		pids := descendants()
		// Looking at who shares a page is dear, so it comes second.
		if sum(pids, resident) > limit && sum(pids, proportional) > limit {
			srv.KillAll(gloveboxv1.End_REASON_MEMORY_LIMIT)
		}
	}
}

func sum(pids []int, of func(pid int) int64) int64 {
	var n int64
	for _, pid := range pids {
		n += of(pid)
	}
	return n
}

// resident is the bytes of pid that are its own: a shared library counts for
// nobody, shared memory that it made counts. What it shares with its parent
// since a fork counts for both.
func resident(pid int) int64 {
	n, _ := fields("/proc/"+strconv.Itoa(pid)+"/status", "RssAnon:", "RssShmem:")
	return n
}

// proportional is the same with each shared page split among those that share
// it. A process that hides that is counted in full.
func proportional(pid int) int64 {
	n, ok := fields("/proc/"+strconv.Itoa(pid)+"/smaps_rollup", "Pss_Anon:", "Pss_Shmem:")
	if !ok {
		return resident(pid)
	}
	return n
}

// fields sums up lines of a file of /proc that hold kilobytes, in bytes. It
// tells whether all of them were there.
func fields(path string, keys ...string) (sum int64, ok bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	found := 0
	for line := range strings.Lines(string(data)) {
		for _, key := range keys {
			if v, ok := strings.CutPrefix(line, key); ok {
				n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
				sum += n << 10
				found++
			}
		}
	}
	return sum, found == len(keys)
}

// descendants lists the processes below this one. Orphans come to the agent,
// which is their reaper, so none is missed for long.
func descendants() []int {
	self := os.Getpid()
	parents := map[int]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
		if f := strings.Fields(rest); len(f) > 1 && f[0] != "Z" {
			parents[pid], _ = strconv.Atoi(f[1])
		}
	}
	var out []int
	for pid := range parents {
		for up, hops := pid, 0; up != 0 && hops < 1<<16; up, hops = parents[up], hops+1 {
			if up == self && pid != self {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// killDescendants stops, kills and forgets everything below this process,
// again until nothing is left: a stopped process cannot fork.
func killDescendants() {
	for range 200 {
		pids := descendants()
		if len(pids) == 0 {
			return
		}
		for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
			for _, pid := range pids {
				unix.Kill(pid, sig) //nolint:errcheck // gone is what we want
			}
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil) //nolint:errcheck // a pause
	}
}
