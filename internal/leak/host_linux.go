package leak

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/glovebox-dev/glovebox/internal/state"
)

const ours = "glovebox"

// Host takes a Snapshot: processes that are ours by name, control group, uid
// or because they live in another pid namespace than the caller, control
// groups, mounts, files in the temporary directories, named network
// namespaces, System V IPC objects, sockets, loop devices, uid leases and
// markers. It sees more as root.
func Host() (Snapshot, error) {
	s := Snapshot{}
	if err := s.processes(); err != nil {
		return nil, err
	}
	if err := s.mounts(); err != nil {
		return nil, err
	}
	s.sockets()
	s.ipc()
	globs := []string{"/tmp", "/var/tmp", "/dev/shm", "/run/netns", "/dev/mqueue", os.TempDir()}
	slices.Sort(globs)
	for _, dir := range slices.Compact(globs) {
		s.files("file", filepath.Join(dir, ours+"*"))
		s.files("file", filepath.Join(dir, "."+ours+"*"))
	}
	s.loops()
	s.leases()
	if dir, err := state.Dir(""); err == nil {
		s.files("marker", filepath.Join(dir, "sandboxes", "*"))
	}
	return s, nil
}

func (s Snapshot) files(kind, pattern string) {
	paths, _ := filepath.Glob(pattern) // the patterns are ours
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil {
			s[kind+" "+path] = fmt.Sprintf("%v, made %v", info.Mode(), info.ModTime())
		}
	}
}

func (s Snapshot) processes() error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		if kernelThread(dir) {
			continue // half of what is there, and nobody's
		}
		start, err := state.StartTime(pid)
		if err != nil {
			continue // it has just ended
		}
		if why := suspicion(dir, own); why != "" {
			cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			s[fmt.Sprintf("process %d started %d", pid, start)] = fmt.Sprintf("%s, %.200q", why,
				bytes.ReplaceAll(bytes.TrimRight(cmdline, "\x00"), []byte{0}, []byte{' '}))
		}
	}
	return nil
}

// kernelThread tells a thread of the kernel's own by its flags in stat.
func kernelThread(dir string) bool {
	const kthread = 0x00200000 // PF_KTHREAD of include/linux/sched.h
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&kthread != 0
}

// suspicion says why a process is one of ours; "" when it is not.
func suspicion(dir, ownPIDNamespace string) string {
	comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
	exe, _ := os.Readlink(filepath.Join(dir, "exe"))
	cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	argv0, _, _ := strings.Cut(string(cmdline), "\x00")
	for _, name := range []string{string(comm), filepath.Base(exe), filepath.Base(argv0)} {
		if strings.HasPrefix(name, ours) {
			return "named " + strings.TrimSpace(name)
		}
	}
	cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	for line := range strings.Lines(string(cgroup)) {
		if strings.Contains(line, "/"+ours+"-") {
			return "in group " + strings.TrimSpace(line)
		}
	}
	if info, err := os.Stat(dir); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && state.LeasedUID(st.Uid) {
			return fmt.Sprintf("uid %d", st.Uid)
		}
	}
	if ns, err := os.Readlink(filepath.Join(dir, "ns", "pid")); err == nil && ns != ownPIDNamespace {
		return "in another namespace, " + ns
	}
	return ""
}

func (s Snapshot) mounts() error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		fields := strings.Fields(line)
		if strings.Contains(line, ours) && len(fields) > 4 {
			s["mount "+fields[0]+" "+fields[4]] = line
		}
		if _, after, ok := strings.Cut(line, " - "); ok && strings.HasPrefix(after, "cgroup") {
			s.groups(fields[4])
		}
	}
	return nil
}

func (s Snapshot) groups(root string) {
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir():
			return nil // it may have just gone
		case strings.HasPrefix(d.Name(), ours):
			procs, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			s["group "+path] = fmt.Sprintf("processes %q", strings.Fields(string(procs)))
		}
		return nil
	})
}

func (s Snapshot) sockets() {
	data, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 7 && strings.Contains(fields[7], ours) {
			s["socket "+fields[6]] = fields[7]
		}
	}
}

func (s Snapshot) ipc() {
	for _, kind := range []string{"shm", "msg", "sem"} {
		data, _ := os.ReadFile("/proc/sysvipc/" + kind)
		for i, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
			if fields := strings.Fields(line); i > 0 && len(fields) > 1 {
				s["System V "+kind+" "+fields[1]] = strings.TrimSpace(line)
			}
		}
	}
}

func (s Snapshot) loops() {
	paths, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, path := range paths {
		if file, err := os.ReadFile(path); err == nil && bytes.Contains(file, []byte(ours)) {
			s["loop device "+path] = string(bytes.TrimSpace(file))
		}
	}
}

// leases lists those in use: what a killed process leaves of one is an empty
// file without a lock, which the next one takes.
func (s Snapshot) leases() {
	paths, _ := filepath.Glob(filepath.Join(state.UIDLeaseDir, "*"))
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			s["uid lease "+path] = "held"
		}
		f.Close() //nolint:errcheck // read side
	}
}
