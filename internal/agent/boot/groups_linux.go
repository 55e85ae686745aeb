package boot

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/agent"
)

// groups makes a cgroup for each command in a directory of the v2 tree that
// was delegated to the agent. It works on descriptors: no cgroup file system
// is mounted in the sandbox.
type groups struct {
	dir int

	mu   sync.Mutex
	left map[string]bool // closed, not yet removed
}

func newGroups(dir int) *groups { return &groups{dir: dir, left: map[string]bool{}} }

// New implements agent.CommandGroups.
func (g *groups) New(id string) (agent.Group, error) {
	g.sweep()
	if err := unix.Mkdirat(g.dir, id, 0o755); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(g.dir, id, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Unlinkat(g.dir, id, unix.AT_REMOVEDIR) //nolint:errcheck // the host removes it with the sandbox
		return nil, err
	}
	return &group{all: g, id: id, fd: fd}, nil
}

// sweep removes the groups of ended commands that are empty by now.
func (g *groups) sweep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id := range g.left {
		if err := unix.Unlinkat(g.dir, id, unix.AT_REMOVEDIR); err == nil || errors.Is(err, unix.ENOENT) {
			delete(g.left, id)
		}
	}
}

// group is one command's.
type group struct {
	all *groups
	id  string
	fd  int

	mu     sync.Mutex
	closed bool
	cpu    time.Duration // at Close
}

// Cgroup implements agent.Group.
func (g *group) Cgroup() int { return g.fd }

// Kill implements agent.Group. It opens by name, so that it works after Close
// while descendants are left.
func (g *group) Kill() error {
	fd, err := unix.Openat(g.all.dir, g.id+"/cgroup.kill", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		if unix.Faccessat(g.all.dir, g.id, unix.F_OK, 0) != nil {
			return nil // removed: nothing was left in it
		}
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing to do about it
	_, err = unix.Write(fd, []byte("1"))
	return err
}

// CPU implements agent.Group.
func (g *group) CPU() (time.Duration, error) {
	g.mu.Lock()
	closed, last := g.closed, g.cpu
	g.mu.Unlock()
	if closed {
		return last, nil
	}
	return g.readCPU()
}

func (g *group) readCPU() (time.Duration, error) {
	fd, err := unix.Openat(g.all.dir, g.id+"/cpu.stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd) //nolint:errcheck // read side
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(buf[:n])) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "usage_usec "); ok {
			usec, err := strconv.ParseInt(v, 10, 64)
			return time.Duration(usec) * time.Microsecond, err
		}
	}
	return 0, errors.ErrUnsupported
}

// Close implements agent.Group.
func (g *group) Close() error {
	cpu, _ := g.readCPU()
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed, g.cpu = true, cpu
	unix.Close(g.fd) //nolint:errcheck // nothing to do about it
	g.mu.Unlock()
	g.all.mu.Lock()
	g.all.left[g.id] = true
	g.all.mu.Unlock()
	g.all.sweep()
	return nil
}
