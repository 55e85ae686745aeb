//go:build linux

// Package testengine starts Docker engines of a test's own, on this machine or
// as if on another.
package testengine

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/internal/testenv/testimage"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

// Engine is a second engine of a test's own, which may be restarted. It has no
// network of its own and touches nothing of the host's first one.
type Engine struct {
	testing.TB
	dir  string
	args []string
	cmd  *exec.Cmd
	log  bytes.Buffer
}

// New starts an engine, which ends with the test.
func New(t testing.TB, args ...string) *Engine {
	t.Helper()
	testenv.NeedRoot(t)
	_, unavailable := testimage.Ref(t.Context())
	testenv.Require(t, "docker", unavailable)
	program := testenv.NeedProgram(t, "dockerd")
	// A short path: it has sockets in it.
	dir, err := os.MkdirTemp("/var/tmp", "gbd") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	d := &Engine{TB: t, dir: dir, args: append([]string{
		program, "--host=" + "unix://" + dir + "/d.sock", "--data-root=" + dir + "/data", "--exec-root=" + dir + "/exec",
		"--pidfile=" + dir + "/pid", "--bridge=none", "--iptables=false", "--ip6tables=false", "--cgroup-parent=gbd" + filepath.Base(dir), "--config-file=" + dir + "/none",
	}, args...)}
	t.Cleanup(d.remove)
	if err := os.WriteFile(dir+"/none", []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Start()
	return d
}

// Host is the address of its Unix socket.
func (d *Engine) Host() string { return "unix://" + d.dir + "/d.sock" }

// Start starts it again after End.
func (d *Engine) Start() {
	d.Helper()
	d.cmd = exec.CommandContext(context.WithoutCancel(d.Context()), d.args[0], d.args[1:]...)
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	d.cmd.WaitDelay = time.Second
	if err := d.cmd.Start(); err != nil {
		d.Fatal(err)
	}
	e, err := engine.Open(d.Host())
	if err != nil {
		d.Fatal(err)
	}
	defer e.Close() //nolint:errcheck // idle connections
	for until := time.Now().Add(time.Minute); e.Ping(d.Context()) != nil; {
		if time.Now().After(until) {
			d.Fatalf("the second daemon does not answer: %s", d.log.Bytes())
		}
		<-time.After(20 * time.Millisecond)
	}
}

// End ends the daemon, and not what it has started.
func (d *Engine) End(sig syscall.Signal) {
	_ = d.cmd.Process.Signal(sig)
	_ = d.cmd.Wait()
}

// remove ends the daemon with all that it started.
func (d *Engine) remove() {
	d.End(syscall.SIGTERM)
	// Its containerd, and shims of what it left running.
	for range 100 {
		pids := d.processes()
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		<-time.After(50 * time.Millisecond)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], d.dir+"/") {
			_ = unix.Unmount(f[4], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/gbd" + filepath.Base(d.dir))
	for _, g := range groups {
		_ = unix.Rmdir(g)
	}
	if err := tree.Remove(d.dir); err != nil {
		d.Error(err)
	}
	if left := d.processes(); len(left) > 0 {
		d.Errorf("left are %v", left)
	}
}

// processes are those whose command line names the daemon's directory.
func (d *Engine) processes() (out []int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, l := range lines {
		var pid int
		data, _ := os.ReadFile(l)
		if _, err := fmt.Sscanf(l, "/proc/%d/cmdline", &pid); err == nil && bytes.Contains(data, []byte(d.dir+"/")) && pid != os.Getpid() {
			out = append(out, pid)
		}
	}
	return out
}

// Signal sends a signal to the daemon alone.
func (d *Engine) Signal(sig syscall.Signal) { _ = d.cmd.Process.Signal(sig) }
