//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Limits of a sandbox's user code, and what the outer group has on top for the
// agent. Zero is no limit.
type Limits struct {
	Memory, MemoryReserve int64 // bytes; no swap beyond
	Pids, PidsReserve     int64
	CPUs                  float64 // of agent and user code together
}

// cpuPeriod is the kernel's default scheduling period, in microseconds.
const cpuPeriod = 100_000

// Group is a sandbox's groups. It is not safe for concurrent use, its methods
// that only read or kill excepted.
type Group struct {
	host Host
	name string
}

// file is one value to set in a group.
type file struct {
	dir, name, value string
	optional         bool // the kernel may lack the file
}

// New makes the groups of a sandbox called name. On error nothing is left.
func (h Host) New(name string, l Limits) (*Group, error) {
	g := &Group{host: h, name: name}
	if err := g.make(l); err != nil {
		g.rmdirs()
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	return g, nil
}

// Find takes up the groups called name; they need not exist.
func (h Host) Find(name string) *Group { return &Group{host: h, name: name} }

func (g *Group) make(l Limits) error {
	for _, c := range controllers {
		dir := g.host.V1[c]
		if dir == "" {
			continue
		}
		outer := filepath.Join(dir, g.name)
		if err := mkdir(outer); err != nil {
			return err
		}
		if c == "cpu" {
			continue
		}
		if err := mkdir(filepath.Join(outer, "user")); err != nil {
			return err
		}
	}
	if g.host.V2 != "" {
		if err := enable(g.host.V2, g.host.Controllers); err != nil {
			return err
		}
		outer := filepath.Join(g.host.V2, g.name)
		if err := mkdir(outer); err != nil {
			return err
		}
		if err := enable(outer, g.host.Controllers); err != nil {
			return err
		}
		for _, sub := range []string{"agent", "user"} {
			if err := mkdir(filepath.Join(outer, sub)); err != nil {
				return err
			}
		}
	}
	for _, f := range g.files(l) {
		if err := os.WriteFile(filepath.Join(f.dir, f.name), []byte(f.value), 0); err != nil {
			if f.optional {
				continue
			}
			return err
		}
	}
	return nil
}

// files are the values that set l, outermost groups first: a v1 group's
// memory+swap may not be below its memory.
func (g *Group) files(l Limits) []file {
	var out []file
	num := func(n int64) string { return strconv.FormatInt(n, 10) }
	if v, ok := g.host.Has("memory"); ok && l.Memory > 0 {
		for _, d := range g.pair("memory") {
			n := l.Memory
			if d.outer {
				n += l.MemoryReserve
			}
			if v == 1 {
				out = append(out, file{d.dir, "memory.limit_in_bytes", num(n), false},
					file{d.dir, "memory.memsw.limit_in_bytes", num(n), true},
					file{d.dir, "memory.swappiness", "0", true})
			} else {
				out = append(out, file{d.dir, "memory.max", num(n), false}, file{d.dir, "memory.swap.max", "0", true})
			}
		}
	}
	if _, ok := g.host.Has("pids"); ok && l.Pids > 0 {
		for _, d := range g.pair("pids") {
			n := l.Pids
			if d.outer {
				n += l.PidsReserve
			}
			out = append(out, file{d.dir, "pids.max", num(n), false})
		}
	}
	if v, ok := g.host.Has("cpu"); ok && l.CPUs > 0 {
		quota := max(int64(l.CPUs*cpuPeriod), 1000)
		dir := g.pair("cpu")[0].dir
		if v == 1 {
			out = append(out, file{dir, "cpu.cfs_period_us", num(cpuPeriod), false}, file{dir, "cpu.cfs_quota_us", num(quota), false})
		} else {
			out = append(out, file{dir, "cpu.max", fmt.Sprintf("%d %d", quota, cpuPeriod), false})
		}
	}
	return out
}

type level struct {
	dir   string
	outer bool
}

// pair is the outer group of a controller and its "user" group.
func (g *Group) pair(controller string) []level {
	outer := filepath.Join(g.host.V2, g.name)
	if dir := g.host.V1[controller]; dir != "" {
		outer = filepath.Join(dir, g.name)
	}
	return []level{{outer, true}, {filepath.Join(outer, "user"), false}}
}

func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Enter puts the calling thread, which must be locked, into the outer v1
// groups; a process it forks is born there. leave puts the thread back and must
// be called. The v2 group is entered by descriptor (AgentDir), at birth.
func (g *Group) Enter() (leave func() error, err error) {
	homes, err := g.host.homes()
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	var back []string // the thread's own groups
	leave = func() error {
		var first error
		for _, tasks := range back {
			if err := writeSelf(tasks); err != nil && first == nil {
				first = err
			}
		}
		return first
	}
	for _, c := range controllers {
		dir := g.host.V1[c]
		if dir == "" {
			continue
		}
		home, ok := homes[c]
		if !ok {
			return nil, errors.Join(fmt.Errorf("cgroup: this thread's %s group is not known", c), leave())
		}
		if err := writeSelf(filepath.Join(dir, g.name, "tasks")); err != nil {
			return nil, errors.Join(fmt.Errorf("cgroup: enter %s: %w", c, err), leave())
		}
		back = append(back, filepath.Join(home, "tasks"))
	}
	return leave, nil
}

// writeSelf moves the calling thread: "0" spares the kernel's global lock that
// naming a thread takes.
func writeSelf(tasks string) error {
	fd, err := unix.Open(tasks, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing to do about it
	_, err = unix.Write(fd, []byte("0"))
	return err
}

// AgentDir opens the v2 group that the agent is born in; nil without a v2 tree.
// The caller closes it.
func (g *Group) AgentDir() (*os.File, error) {
	if g.host.V2 == "" {
		return nil, nil //nolint:nilnil // documented
	}
	return os.Open(filepath.Join(g.host.V2, g.name, "agent"))
}

// JoinFiles opens the files that a command writes "0" to, to join the v1 user
// groups. The caller closes them.
func (g *Group) JoinFiles() ([]*os.File, error) {
	var out []*os.File
	for _, c := range []string{"memory", "pids"} {
		dir := g.host.V1[c]
		if dir == "" {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, g.name, "user", "tasks"), os.O_WRONLY, 0)
		if err != nil {
			for _, o := range out {
				o.Close() //nolint:errcheck // on the way out
			}
			return nil, fmt.Errorf("cgroup: %w", err)
		}
		out = append(out, f)
	}
	return out, nil
}

// Delegate lets the host uid of a sandbox's agent make groups for its commands
// and opens the directory to make them in; nil without a v2 tree. The caller
// closes it.
func (g *Group) Delegate(uid int) (*os.File, error) {
	if g.host.V2 == "" {
		return nil, nil //nolint:nilnil // documented
	}
	outer := filepath.Join(g.host.V2, g.name)
	for _, p := range []string{"cgroup.procs", "user", "user/cgroup.procs"} {
		if err := os.Chown(filepath.Join(outer, p), uid, -1); err != nil {
			return nil, fmt.Errorf("cgroup: delegate: %w", err)
		}
	}
	return os.Open(filepath.Join(outer, "user"))
}
