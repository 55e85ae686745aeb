//go:build linux

package runsc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
)

// command runs one of runsc's commands on the sandbox and returns at most
// stateSize bytes of its output.
func (c *Config) command(ctx context.Context, b Binary, verb ...string) ([]byte, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, b.Path, append(c.flags(b), verb...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &limited{buf: &out, left: stateSize}, &limited{buf: &errs, left: tailSize}
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{}, "/", time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("runsc: %s: %w: %s", verb[0], err, strings.ToValidUTF8(strings.TrimSpace(errs.String()), "?"))
	}
	return out.Bytes(), nil
}

// Pause stops everything inside. A paused sandbox is killed like any other: the
// sentry, which holds its processes back, goes on.
func (c *Config) Pause(ctx context.Context, b Binary) error {
	_, err := c.command(ctx, b, "pause", c.ID)
	return err
}

// Resume undoes Pause.
func (c *Config) Resume(ctx context.Context, b Binary) error {
	_, err := c.command(ctx, b, "resume", c.ID)
	return err
}

// Checkpoint saves the sandbox, its memory included, into the directory dir,
// which must exist and be empty. It ends the sandbox unless leaveRunning. What
// lies in bind mounts is not part of it.
func (c *Config) Checkpoint(ctx context.Context, b Binary, dir string, leaveRunning bool) error {
	// No compression: it takes several times longer than it saves in reading.
	_, err := c.command(ctx, b, "checkpoint", "--image-path="+dir, "--compression=none",
		fmt.Sprintf("--leave-running=%t", leaveRunning), c.ID)
	return err
}

// Status is what runsc says of the sandbox: created, running, paused or stopped.
func (c *Config) Status(ctx context.Context, b Binary) (string, error) {
	out, err := c.command(ctx, b, "state", c.ID)
	if err != nil {
		return "", err
	}
	var s struct{ Status string }
	if err := json.Unmarshal(out, &s); err != nil {
		return "", fmt.Errorf("runsc: state: %w", err)
	}
	return s.Status, nil
}

// Usage is what the sentry tells of its guest. It is the guest's kernel that
// counts, so no verdict rests on it.
type Usage struct {
	CPU    time.Duration
	Memory int64
	Tasks  int64
}

// Usage asks the sentry.
func (c *Config) Usage(ctx context.Context, b Binary) (Usage, error) {
	out, err := c.command(ctx, b, "events", "--stats", c.ID)
	if err != nil {
		return Usage{}, err
	}
	var e struct {
		Data struct {
			CPU    struct{ Usage struct{ Total uint64 } }
			Memory struct{ Usage struct{ Usage uint64 } }
			Pids   struct{ Current uint64 }
		}
	}
	if err := json.Unmarshal(out, &e); err != nil {
		return Usage{}, fmt.Errorf("runsc: events: %w", err)
	}
	d := e.Data
	return Usage{CPU: time.Duration(d.CPU.Usage.Total), Memory: int64(d.Memory.Usage.Usage), Tasks: int64(d.Pids.Current)}, nil
}

// Kill kills the sandbox at once, without asking runsc. It does not wait for
// its end. What is in a group besides, the caller kills through that.
func (c *Config) Kill() error {
	procs, err := c.Processes()
	if err != nil {
		c.killLeft()
		return err
	}
	procs.Sentry.Kill()
	procs.Gofer.Kill()
	return nil
}

// killLeft kills every process of the sandbox that its state does not name.
func (c *Config) killLeft() {
	for _, i := range c.everyProcess() {
		i.Kill()
	}
}

// Remove kills the sandbox and removes what lies in c.Dir and in group, the one
// it was started with, which may be nil. It returns when nothing is left or ctx
// ends. It is idempotent and needs no runsc: `runsc delete` waits for a reaper's
// next round, and refuses what a start that failed half-way has left.
func (c *Config) Remove(ctx context.Context, group *cgroup.Group) error {
	if err := c.validate(); err != nil {
		return err
	}
	killGroup(group)
	if !holdsAll(group) {
		if err := c.endAll(ctx); err != nil {
			return err
		}
	}
	var err error
	if group != nil {
		err = group.Remove(ctx)
	}
	return errors.Join(err, os.RemoveAll(c.Dir))
}

// holdsAll tells whether a sandbox's processes are all in its group, where they
// were born: the kernel then removes the group only after the last has ended,
// and nobody has to look through the host's processes.
func holdsAll(g *cgroup.Group) bool {
	if g == nil {
		return false
	}
	dir, err := g.AgentDir()
	closeAll(dir)
	return dir != nil || errors.Is(err, fs.ErrNotExist)
}

// endAll kills the sandbox's processes until there are none.
func (c *Config) endAll(ctx context.Context) error {
	for {
		left := c.everyProcess()
		if len(left) == 0 {
			return nil
		}
		for _, i := range left {
			i.Kill()
		}
		for _, i := range left {
			if err := i.wait(ctx); err != nil {
				return fmt.Errorf("runsc: process %d: %w", i.PID, err)
			}
		}
	}
}

// wait returns when the process has ended, or ctx.
func (i Ident) wait(ctx context.Context) error {
	f, err := i.open()
	if err != nil {
		return nil //nolint:nilerr // it is gone
	}
	defer f.Close() //nolint:errcheck // read side
	for {
		if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}, 20); n > 0 {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// cgroupRoot is where runsc makes a sandbox's v1 groups besides those that
// exist, one below each hierarchy's directory.
const cgroupRoot = "/sys/fs/cgroup"

// RemoveGroups removes the groups called name, a path as in a bundle's
// CgroupsPath, that runsc made in v1 hierarchies in which the caller had made
// none. The sandbox must have ended. Groups still in use are left and named in
// the error.
func RemoveGroups(ctx context.Context, name string) error {
	if !filepath.IsAbs(name) || filepath.Clean(name) != name || name == "/" {
		return fmt.Errorf("runsc: %q names no group", name)
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil //nolint:nilerr // no groups at all
	}
	var left []error
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(cgroupRoot, e.Name(), name)
		for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
			err := unix.Rmdir(dir)
			if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
				break
			}
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
				continue
			case <-ctx.Done():
				timer.Stop()
				left = append(left, fmt.Errorf("runsc: group %s: %w", dir, err))
			}
			break
		}
	}
	return errors.Join(left...)
}

// Contained tells, by the host kernel's account, whether sentry and gofer are
// in the v1 groups of these controllers called name. A sandbox that is not is
// not limited, whatever its bundle says.
func (p Processes) Contained(name string, controllers ...string) error {
	for _, i := range []Ident{p.Sentry, p.Gofer} {
		data, err := readBounded(fmt.Sprintf("/proc/%d/cgroup", i.PID), 64<<10)
		if err != nil {
			return fmt.Errorf("runsc: process %d: %w", i.PID, err)
		}
		for _, want := range controllers {
			if !inGroup(string(data), want, name) {
				return fmt.Errorf("runsc: process %d is not in the %s group %s", i.PID, want, name)
			}
		}
	}
	return nil
}

// inGroup looks for a line "N:...,controller,...:name" of /proc/PID/cgroup.
func inGroup(lines, controller, name string) bool {
	for line := range strings.Lines(lines) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) == 3 && strings.Contains(","+parts[1]+",", ","+controller+",") &&
			(parts[2] == name || strings.HasSuffix(parts[2], name)) {
			return true
		}
	}
	return false
}
