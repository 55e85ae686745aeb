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

func (s *Server) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	now := time.Now()
	m := metricsBody{TS: now.Unix(), CPUs: int64(runtime.NumCPU())}
	mem, _ := readBounded("/proc/meminfo", 64<<10)
	m.MemTotal = memField(mem, "MemTotal:")
	m.MemUsed = m.MemTotal - memField(mem, "MemAvailable:")
	m.MemCache = memField(mem, "Cached:")
	s.diskMetrics(&m)
	if t := s.opts.Totals; t.CPUs > 0 {
		m.CPUs = int64(math.Ceil(t.CPUs))
	}
	if s.opts.Totals.Memory > 0 {
		m.MemTotal = s.opts.Totals.Memory
	}
	if s.opts.Totals.Disk > 0 {
		m.DiskSize = s.opts.Totals.Disk
	}
	if u := s.usage(); s.opts.Measure != nil && u.GetCpuNs() > 0 {
		m.CPUPct = s.metrics.share(float64(u.GetCpuNs()), float64(now.UnixNano())*float64(m.CPUs))
		m.MemUsed, m.MemCache = u.GetMemoryBytes(), 0
		if u.GetDiskBytes() > 0 {
			m.DiskUsed = u.GetDiskBytes()
		}
	} else {
		stat, _ := readBounded("/proc/stat", 1<<20)
		m.CPUPct = s.metrics.share(cpuTimes(stat))
	}
	m.TotalMiB, m.UsedMiB = m.MemTotal>>20, m.MemUsed>>20
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	writeJSON(w, m)
}

// diskMetrics measures the file system of the default account's home.
func (s *Server) diskMetrics(m *metricsBody) {
	dir := "/"
	if a, err := s.Account(""); err == nil {
		dir = a.Home
	}
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil && unix.Statfs("/", &st) != nil {
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

// cpuTimes is the first line of /proc/stat: ticks used, and in all.
func cpuTimes(b []byte) (used, of float64) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	for i, f := range bytes.Fields(line) {
		if i == 0 || i > 8 {
			continue // guest time is counted in user time already
		}
		n, _ := strconv.ParseFloat(string(f), 64)
		of += n
		if i != 4 && i != 5 { // idle, iowait
			used += n
		}
	}
	return used, of
}
