//go:build linux

package runsc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
)

// Ident is a host process, told from a later one with the same number.
type Ident struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
}

// Processes are those of a sandbox that hold it: without its sentry it is gone.
type Processes struct{ Sentry, Gofer Ident }

// stateSize bounds runsc's own file about a sandbox.
const stateSize = 1 << 20

// Processes reads from runsc's state which processes the sandbox has. They need
// not live any more.
func (c *Config) Processes() (Processes, error) {
	p, err := c.readProcesses()
	// runsc writes its state over the older one: half of it may be there.
	for tries := 0; errors.Is(err, errTorn) && tries < 100; tries++ {
		<-time.After(10 * time.Millisecond)
		p, err = c.readProcesses()
	}
	return p, err
}

// errTorn is that a state is not whole.
var errTorn = errors.New("not whole")

func (c *Config) readProcesses() (Processes, error) {
	data, err := readBounded(filepath.Join(c.Dir, c.ID+"_sandbox:"+c.ID+".state"), stateSize)
	if err != nil {
		return Processes{}, fmt.Errorf("runsc: %w", err)
	}
	var state struct {
		GoferPid int
		Sandbox  struct{ Pid int }
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return Processes{}, fmt.Errorf("runsc: state: %w: %w", errTorn, err)
	}
	return Processes{Sentry: c.ident(state.Sandbox.Pid), Gofer: c.ident(state.GoferPid)}, nil
}

// ident is the process pid if it is this sandbox's: its command line names the
// sandbox's state directory, which only its own processes get. That tells it
// from one that took the number later.
func (c *Config) ident(pid int) Ident {
	if pid <= 1 {
		return Ident{}
	}
	start := startTime(pid)
	data, err := readBounded(fmt.Sprintf("/proc/%d/cmdline", pid), 64<<10)
	if err != nil || !strings.Contains(string(data), "\x00--root="+c.Dir+"\x00") || startTime(pid) != start {
		return Ident{}
	}
	return Ident{PID: pid, Start: start}
}

// open gives a descriptor of the process, or an error if it is gone.
func (i Ident) open() (*os.File, error) {
	if i.PID <= 1 || i.Start == 0 {
		return nil, os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(i.PID, 0)
	if err != nil {
		return nil, os.ErrProcessDone
	}
	if startTime(i.PID) != i.Start {
		unix.Close(fd) //nolint:errcheck // another's
		return nil, os.ErrProcessDone
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// Alive tells whether the process still runs; one that has ended and was not
// reaped does not.
func (i Ident) Alive() bool {
	f, err := i.open()
	if err != nil {
		return false
	}
	defer f.Close() //nolint:errcheck // read side
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}, 0)
	return n == 0
}

// Kill kills the process, if it still is the one.
func (i Ident) Kill() {
	if f, err := i.open(); err == nil {
		killPidfd(f)
		f.Close() //nolint:errcheck // read side
	}
}

// startTime is a process's start, 0 if there is none.
func startTime(pid int) uint64 {
	data, err := readBounded("/proc/"+strconv.Itoa(pid)+"/stat", 4096)
	if err != nil {
		return 0
	}
	// The name in parentheses may hold anything.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 20 {
		return 0
	}
	n, _ := strconv.ParseUint(fields[19], 10, 64)
	return n
}

func readBounded(path string, size int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read side
	data, err := io.ReadAll(io.LimitReader(f, size+1))
	if err == nil && int64(len(data)) > size {
		err = errors.New("file too large")
	}
	return data, err
}

// everyProcess finds all processes that were given the sandbox's state
// directory, those of a start that failed half-way and of rootless ones without
// a group too.
func (c *Config) everyProcess() []Ident {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []Ident
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
			if i := c.ident(pid); i.PID != 0 {
				out = append(out, i)
			}
		}
	}
	return out
}

// killGroup kills what is in a group; nil is none.
func killGroup(g *cgroup.Group) {
	if g != nil {
		g.Kill()
	}
}
