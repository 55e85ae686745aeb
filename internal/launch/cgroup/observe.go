//go:build linux

package cgroup

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stats is the kernel's evidence about a sandbox's user code.
type Stats struct {
	OOMKills   int64 // processes killed for memory, in the user group and above it
	PidsDenied int64 // forks and threads refused
	MemoryPeak int64 // bytes
	Memory     int64 // bytes now
	CPU        time.Duration
	Tasks      int64
	TasksPeak  int64 // 0 where the kernel does not count it
}

// Stats reads what there is; what the host does not count is 0.
func (g *Group) Stats() Stats {
	var s Stats
	if v, ok := g.host.Has("memory"); ok {
		for _, l := range g.pair("memory") {
			kills := "memory.events.local"
			if v == 1 {
				kills = "memory.oom_control"
			}
			s.OOMKills += keyed(filepath.Join(l.dir, kills), "oom_kill")
		}
		user := g.pair("memory")[1].dir
		if v == 1 {
			s.MemoryPeak, s.Memory = number(filepath.Join(user, "memory.max_usage_in_bytes")), number(filepath.Join(user, "memory.usage_in_bytes"))
		} else {
			s.MemoryPeak, s.Memory = number(filepath.Join(user, "memory.peak")), number(filepath.Join(user, "memory.current"))
		}
	}
	if _, ok := g.host.Has("pids"); ok {
		for _, l := range g.pair("pids") {
			// events.local, where the kernel has it, counts this group's own
			// limit; events counts those below it as well.
			name := filepath.Join(l.dir, "pids.events.local")
			if _, err := os.Stat(name); err != nil {
				name = filepath.Join(l.dir, "pids.events")
			}
			s.PidsDenied = max(s.PidsDenied, keyed(name, "max"))
		}
		user := g.pair("pids")[1].dir
		s.Tasks, s.TasksPeak = number(filepath.Join(user, "pids.current")), number(filepath.Join(user, "pids.peak"))
	}
	if g.host.V2 != "" {
		s.CPU = time.Duration(keyed(filepath.Join(g.host.V2, g.name, "user", "cpu.stat"), "usage_usec")) * time.Microsecond
	}
	return s
}

func number(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n
}

func keyed(path, key string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}
	return 0
}

// Freeze stops everything in the sandbox, agent included; Thaw continues it.
// Both need the v2 tree: under the v1 freezer even SIGKILL stays pending.
func (g *Group) Freeze(ctx context.Context) error { return g.freezer(ctx, "1") }

// Thaw continues what Freeze stopped.
func (g *Group) Thaw(ctx context.Context) error { return g.freezer(ctx, "0") }

func (g *Group) freezer(ctx context.Context, state string) error {
	if g.host.V2 == "" {
		return errors.ErrUnsupported
	}
	outer := filepath.Join(g.host.V2, g.name)
	if err := os.WriteFile(filepath.Join(outer, "cgroup.freeze"), []byte(state), 0); err != nil {
		return err
	}
	want, _ := strconv.ParseInt(state, 10, 64)
	return poll(ctx, func() bool { return keyed(filepath.Join(outer, "cgroup.events"), "frozen") == want })
}

// CanFreeze tells whether Freeze can work here.
func (h Host) CanFreeze() bool {
	if h.V2 == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(h.V2, "cgroup.events"))
	return err == nil || rootHasFreeze(h.V2)
}

// rootHasFreeze asks a child group, since the tree's root has no such file.
func rootHasFreeze(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.IsDir() {
			_, err := os.Stat(filepath.Join(dir, e.Name(), "cgroup.freeze"))
			return err == nil
		}
	}
	// A kernel that can kill a group (5.14) can freeze one (5.2).
	return true
}

// Kill kills everything in the sandbox, at once where the kernel can.
func (g *Group) Kill() {
	if g.host.V2 != "" {
		file := filepath.Join(g.host.V2, g.name, "cgroup.kill")
		if os.WriteFile(file, []byte("1"), 0) == nil {
			return
		}
	}
	for _, pid := range g.Procs() {
		g.killOne(pid)
	}
}

// killOne kills a process that was in the sandbox's groups. A process is listed
// as well when only a thread of it is there, as one that starts a sandbox is
// for a moment; and its number may be another's by now.
func (g *Group) killOne(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // gone
	}
	defer unix.Close(fd) //nolint:errcheck // nothing to do about it
	if pid != os.Getpid() && g.holds(pid) {
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) //nolint:errcheck // gone is what we want
	}
}

// holds tells whether the main thread of pid is in the sandbox's groups.
func (g *Group) holds(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if strings.Contains(strings.TrimSuffix(line, "\n")+"/", "/"+g.name+"/") {
			return true
		}
	}
	return false
}

// Procs lists the processes in the sandbox's groups, by the host's numbers.
func (g *Group) Procs() []int {
	var out []int
	for _, dir := range g.host.dirs() {
		filepath.WalkDir(filepath.Join(dir, g.name), func(path string, d fs.DirEntry, err error) error { //nolint:errcheck // what vanished holds nothing
			if err != nil || !d.IsDir() {
				return nil //nolint:nilerr // groups come and go
			}
			f, err := os.Open(filepath.Join(path, "cgroup.procs"))
			if err != nil {
				return nil //nolint:nilerr // groups come and go
			}
			defer f.Close() //nolint:errcheck // read side
			for sc := bufio.NewScanner(f); sc.Scan(); {
				if pid, err := strconv.Atoi(sc.Text()); err == nil && pid > 0 && !slices.Contains(out, pid) {
					out = append(out, pid)
				}
			}
			return nil
		})
	}
	return out
}

// Remove kills what is left and removes the groups. It returns when they are
// gone or ctx ends.
func (g *Group) Remove(ctx context.Context) error {
	if g.rmdirs() {
		return nil
	}
	g.Kill()
	return poll(ctx, func() bool {
		if g.rmdirs() {
			return true
		}
		g.Kill()
		return false
	})
}

// rmdirs removes the groups bottom up and tells whether all are gone.
func (g *Group) rmdirs() bool {
	gone := true
	for _, dir := range g.host.dirs() {
		if !removeTree(filepath.Join(dir, g.name)) {
			gone = false
		}
	}
	return gone
}

func removeTree(dir string) bool {
	if err := unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
		return true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	for _, e := range entries {
		if e.IsDir() {
			removeTree(filepath.Join(dir, e.Name()))
		}
	}
	err = unix.Rmdir(dir)
	return err == nil || errors.Is(err, unix.ENOENT)
}

// poll asks done with growing pauses until it holds or ctx ends.
func poll(ctx context.Context, done func() bool) error {
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		if done() {
			return nil
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
}
