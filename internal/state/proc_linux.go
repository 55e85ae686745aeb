package state

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// BootID names this boot of the host; "" where the system does not tell.
func BootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// StartTime is when the process started, in the kernel's ticks since the boot:
// with the boot's ID it tells a process from a later one with its number.
func StartTime(pid int) (uint64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses, any bytes at all.
	i := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[i+1:]))
	const startTime = 22 - 3 // numbered from 1, the name and what is before it left out
	if i < 0 || len(fields) <= startTime {
		return 0, fmt.Errorf("state: /proc/%d/stat has %d fields", pid, len(fields))
	}
	return strconv.ParseUint(fields[startTime], 10, 64)
}

// ended tells whether a process is only there for its parent to see how it
// ended, which may take that long.
func ended(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	rest := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	return len(rest) == 0 || rest[0] == "Z" || rest[0] == "X"
}
