package host

import (
	"os"
	"strconv"
	"strings"
)

// Kernel is the release of this host's kernel, "" where /proc does not say.
func Kernel() string {
	data, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// Distribution is what this host's os-release file calls itself, "" without one.
func Distribution() string {
	for line := range lines("/etc/os-release") {
		if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			if s, err := strconv.Unquote(v); err == nil {
				return s
			}
			return v
		}
	}
	return ""
}

// Memory is this host's memory in bytes, 0 where /proc does not say.
func Memory() int64 {
	for line := range lines("/proc/meminfo") {
		if v, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(v, "kB")), 10, 64)
			if err != nil {
				return 0
			}
			return n << 10
		}
	}
	return 0
}
