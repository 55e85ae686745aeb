package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
)

// FindRemains looks for what is on this host of the containers with ids, which
// must be full, and gives one Remains for each, in order. It sees more as root.
func FindRemains(ids ...string) ([]Remains, error) {
	out := make([]Remains, len(ids))
	for i, id := range ids {
		if !idForm.MatchString(id) {
			return nil, invalid("remains", "container", fmt.Errorf("%q is no full ID", oneLine(id)))
		}
		out[i].ID = id
	}
	if err := findProcesses(out); err != nil {
		return nil, err
	}
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		for i := range out {
			if strings.Contains(m.point, out[i].ID) {
				out[i].Mounts = append(out[i].Mounts, m.point)
			}
		}
		if m.isCgroup() {
			findGroups(m.point, out)
		}
	}
	for i := range out {
		slices.Reverse(out[i].Groups) // those below come after their parents in a walk
		slices.Reverse(out[i].Mounts)
	}
	return out, nil
}

func findProcesses(out []Remains) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cgroup, cmdline := procFile(pid, "cgroup"), procFile(pid, "cmdline")
		for i := range out {
			inside := bytes.Contains(cgroup, []byte(out[i].ID))
			if !inside && (!bytes.Contains(cmdline, []byte(out[i].ID)) || !isRuntime(pid, cmdline)) {
				continue
			}
			start, err := startTime(pid)
			if err != nil {
				continue // it has just ended
			}
			out[i].Processes = append(out[i].Processes, HostProcess{
				PID: pid, Start: start, Inside: inside, Command: oneLine(string(procFile(pid, "comm"))),
			})
		}
	}
	return nil
}

// procFile reads a process's file; nil when it is gone or may not be read.
func procFile(pid int, name string) []byte {
	data, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name))
	return data
}

// isRuntime tells shims and runtimes from others that happen to name an ID,
// such as somebody who looks at logs.
func isRuntime(pid int, cmdline []byte) bool {
	exe, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	first, _, _ := bytes.Cut(cmdline, []byte{0})
	for _, name := range []string{filepath.Base(exe), filepath.Base(string(first)), string(procFile(pid, "comm"))} {
		for _, prefix := range []string{"containerd-shim", "runsc", "runc", "crun"} {
			if strings.HasPrefix(name, prefix) {
				return true
			}
		}
	}
	return false
}

// startTime is when a process started, in ticks since boot. With its number it
// names a process for good.
func startTime(pid int) (uint64, error) {
	stat := procFile(pid, "stat")
	// The name, in brackets, may hold anything.
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return 0, fs.ErrNotExist
	}
	fields := bytes.Fields(stat[i+1:])
	if len(fields) < 20 {
		return 0, fs.ErrNotExist
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}

// findGroups looks for groups named by an ID below a hierarchy's root.
func findGroups(root string, out []Remains) {
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // it may have just gone
		}
		for i := range out {
			if strings.Contains(path, out[i].ID) {
				out[i].Groups = append(out[i].Groups, path)
			}
		}
		return nil
	})
}

// Clean kills r's processes, removes its control groups and takes its mounts
// away, and those that appear meanwhile. It also ends a container that runs
// well, so whoever knows a daemon that is there asks that first. When ctx ends
// before all is gone the error is lost and says what is left.
func (r Remains) Clean(ctx context.Context) error {
	pause := 5 * time.Millisecond
	for {
		found, err := FindRemains(r.ID)
		if err != nil {
			return err
		}
		left := found[0]
		if left.Empty() {
			return nil
		}
		left.once()
		select {
		case <-time.After(pause):
			pause = min(2*pause, 200*time.Millisecond)
		case <-ctx.Done():
			return &backend.Error{Op: "clean", Kind: backend.ErrLost, Err: fmt.Errorf("left are %s", oneLine(left.String()))}
		}
	}
}

func (r Remains) once() {
	for _, g := range r.Groups {
		// A frozen process does not even die. Errors show in what is left.
		_ = os.WriteFile(filepath.Join(g, "freezer.state"), []byte("THAWED"), 0)
		_ = os.WriteFile(filepath.Join(g, "cgroup.freeze"), []byte("0"), 0)
	}
	for _, p := range r.Processes {
		_ = p.Kill()
	}
	for _, m := range r.Mounts {
		_ = unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	for _, g := range r.Groups {
		_ = unix.Rmdir(g)
	}
}

// Kill kills p unless another process has its number by now. One that has ended
// is no error.
func (p HostProcess) Kill() error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return ended(err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing to do about it
	// The descriptor stays with the process it was opened for, so this look is
	// about the one that is killed.
	if start, err := startTime(p.PID); err != nil || start != p.Start {
		return nil
	}
	return ended(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
}

func ended(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
