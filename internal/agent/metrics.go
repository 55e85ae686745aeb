//go:build linux

package agent

import (
	"bytes"
	"math"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sampler turns growing CPU times into a share since the last look.
type sampler struct {
	mu   sync.Mutex
	used float64 // of the unit of total
	of   float64
}

// share is the percentage between this sample and the last one.
func (m *sampler) share(used, of float64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	du, dt := used-m.used, of-m.of
	m.used, m.of = used, of
	if dt <= 0 || du < 0 {
		return 0
	}
	return math.Round(min(100, 100*du/dt)*100) / 100
}

// metricsBody is E2B's.
type metricsBody struct {
	TS       int64   `json:"ts"`
	CPUs     int64   `json:"cpu_count"`
	CPUPct   float64 `json:"cpu_used_pct"`
	MemTotal int64   `json:"mem_total"`
	MemUsed  int64   `json:"mem_used"`
	MemCache int64   `json:"mem_cache"`
	TotalMiB int64   `json:"mem_total_mib"`
	UsedMiB  int64   `json:"mem_used_mib"`
	DiskUsed int64   `json:"disk_used"`
	DiskSize int64   `json:"disk_total"`
}

// serveMetrics tells what the sandbox uses of what it has. /proc tells of the
// host, so it is asked for processes only.
func (s *Server) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	now := time.Now()
	totals := s.totals()
	m := metricsBody{TS: now.Unix(), CPUs: int64(runtime.NumCPU()), MemTotal: totals.Memory}
	if n := totals.CPUs; n > 0 {
		m.CPUs = int64(math.Ceil(n))
	}
	if m.MemTotal <= 0 {
		mem, _ := readBounded("/proc/meminfo", 64<<10)
		m.MemTotal = memField(mem, "MemTotal:")
	}
	var cpu time.Duration
	cpu, m.MemUsed = inUse()
	m.CPUPct = s.metrics.share(float64(cpu), float64(now.UnixNano())*float64(m.CPUs))
	s.diskMetrics(&m)
	m.TotalMiB, m.UsedMiB = m.MemTotal>>20, m.MemUsed>>20
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	writeJSON(w, m)
}

// inUse is the time that the agent's descendants have used, those that ended
// among them, and the memory that they have now.
func inUse() (cpu time.Duration, memory int64) {
	for _, pid := range Descendants() {
		if st, ok := readStat(pid); ok {
			cpu += st.cpu
		}
		memory += ResidentMemory(pid)
	}
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_CHILDREN, &ru) == nil {
		cpu += time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	}
	return cpu, memory
}

// diskMetrics measures the file system of the scratch.
func (s *Server) diskMetrics(m *metricsBody) {
	var st unix.Statfs_t
	if (s.opts.Scratch == "" || unix.Statfs(s.opts.Scratch, &st) != nil) && unix.Statfs("/", &st) != nil {
		return
	}
	m.DiskSize = int64(st.Blocks) * st.Bsize
	m.DiskUsed = int64(st.Blocks-st.Bfree) * st.Bsize
}

// memField is a line of /proc/meminfo in bytes.
func memField(b []byte, name string) int64 {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) >= 2 && string(f[0]) == name {
			n, _ := strconv.ParseInt(string(f[1]), 10, 64)
			return n << 10
		}
	}
	return 0
}
