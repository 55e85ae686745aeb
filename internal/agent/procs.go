//go:build linux

package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// procStat is what we need of /proc/PID/stat.
type procStat struct {
	ppid    int
	pgrp    int
	session int
	alive   bool
	stopped bool
	cpu     time.Duration // its own and its waited-for children's
}

// userHZ is the unit of times in /proc, the same on every Linux we run on.
const userHZ = 100

// parseStat reads a stat line. The program chooses its own name in it, which
// may hold spaces and parentheses.
func parseStat(b []byte) (procStat, bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return procStat{}, false
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 18 {
		return procStat{}, false
	}
	var st procStat
	var err error
	if st.ppid, err = strconv.Atoi(string(f[1])); err != nil {
		return procStat{}, false
	}
	if st.pgrp, err = strconv.Atoi(string(f[2])); err != nil {
		return procStat{}, false
	}
	if st.session, err = strconv.Atoi(string(f[3])); err != nil {
		return procStat{}, false
	}
	var ticks int64
	for _, v := range f[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil || n < 0 || n > 1<<40 {
			return procStat{}, false
		}
		ticks += n
	}
	st.cpu = time.Duration(ticks) * (time.Second / userHZ)
	threads, err := strconv.Atoi(string(f[17]))
	if err != nil {
		return procStat{}, false
	}
	// The state is the main thread's, which may end long before the others.
	st.stopped = f[0][0] == 'T' || f[0][0] == 't'
	st.alive = f[0][0] != 'X' && (f[0][0] != 'Z' || threads > 1)
	return st, true
}

// readStat reads the stat line of a process; false when there is none.
func readStat(pid int) (procStat, bool) {
	b, err := readBounded("/proc/"+strconv.Itoa(pid)+"/stat", 4096)
	if err != nil {
		return procStat{}, false
	}
	return parseStat(b)
}

// eachProcess calls f with every live process there is.
func eachProcess(f func(pid int, st procStat)) {
	d, err := os.Open("/proc")
	if err != nil {
		return
	}
	defer d.Close() //nolint:errcheck // read side
	for {
		names, err := d.Readdirnames(256)
		for _, name := range names {
			pid, perr := strconv.Atoi(name)
			if perr != nil {
				continue
			}
			if st, ok := readStat(pid); ok && st.alive {
				f(pid, st)
			}
		}
		if err != nil {
			return
		}
	}
}

// Descendants lists the live processes below this one. Orphans come to the
// agent, which is their reaper, so none is missed for long.
func Descendants() []int {
	self := os.Getpid()
	parents := map[int]int{}
	eachProcess(func(pid int, st procStat) { parents[pid] = st.ppid })
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

// descends tells whether pid is the agent or below it.
func descends(pid int) bool {
	self := os.Getpid()
	for range 128 {
		if pid == self {
			return true
		}
		if pid <= 1 {
			return false
		}
		st, ok := readStat(pid)
		if !ok {
			return false
		}
		pid = st.ppid
	}
	return false
}

// member is a live process of a session.
type member struct {
	pid, ppid, pgrp, sid int
	stopped              bool
	cpu                  time.Duration
}

// processes lists the live processes of the sessions that want accepts.
func processes(want func(sid int) bool) []member {
	var out []member
	eachProcess(func(pid int, st procStat) {
		if want(st.session) {
			out = append(out, member{pid, st.ppid, st.pgrp, st.session, st.stopped, st.cpu})
		}
	})
	return out
}

// ResidentMemory is the bytes of pid that are its own: a shared library counts
// for nobody, shared memory that it made counts. What it shares with its parent
// since a fork counts for both. A kernel that does not tell them apart, such as
// gVisor's, has the libraries count too.
func ResidentMemory(pid int) int64 {
	n, ok := memoryOf(pid, "status", "RssAnon:", "RssShmem:")
	if !ok {
		n, _ = memoryOf(pid, "status", "VmRSS:")
	}
	return n
}

// ProportionalMemory is the same with each shared page split among those that
// share it. A process that hides that is counted in full.
func ProportionalMemory(pid int) int64 {
	n, ok := memoryOf(pid, "smaps_rollup", "Pss_Anon:", "Pss_Shmem:")
	if !ok {
		return ResidentMemory(pid)
	}
	return n
}

// memoryOf sums up lines of one of pid's files, in bytes, and tells whether all
// of them were there. A main thread that has ended has none: then the first
// thread that is left answers for all.
func memoryOf(pid int, file string, keys ...string) (sum int64, ok bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	if sum, ok = kilobytes(filepath.Join(dir, file), keys...); ok {
		return sum, ok
	}
	d, err := os.Open(filepath.Join(dir, "task"))
	if err != nil {
		return sum, false
	}
	defer d.Close() //nolint:errcheck // read side
	for {
		names, err := d.Readdirnames(64)
		for _, name := range names {
			if sum, ok = kilobytes(filepath.Join(dir, "task", name, file), keys...); ok {
				return sum, ok
			}
		}
		if err != nil {
			return 0, false
		}
	}
}

// kilobytes sums up lines of a file of /proc that hold kilobytes, in bytes. It
// tells whether all of them were there.
func kilobytes(path string, keys ...string) (sum int64, ok bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	found := 0
	for line := range bytes.Lines(data) {
		for _, key := range keys {
			if v, ok := bytes.CutPrefix(line, []byte(key)); ok {
				n, _ := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(v), []byte("kB")))), 10, 64)
				sum += n << 10
				found++
			}
		}
	}
	return sum, found == len(keys)
}
