//go:build linux

package docker_test

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

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/internal/testenv/testimage"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

// daemon is a second engine of a test's own, which may be restarted.
type daemon struct {
	*testing.T
	dir  string
	args []string
	cmd  *exec.Cmd
	log  bytes.Buffer
}

func newDaemon(t *testing.T, args ...string) *daemon {
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
	d := &daemon{T: t, dir: dir, args: append([]string{
		program, "--host=" + "unix://" + dir + "/d.sock", "--data-root=" + dir + "/data", "--exec-root=" + dir + "/exec",
		"--pidfile=" + dir + "/pid", "--bridge=none", "--iptables=false", "--ip6tables=false", "--cgroup-parent=gbd" + filepath.Base(dir), "--config-file=" + dir + "/none",
	}, args...)}
	t.Cleanup(d.remove)
	if err := os.WriteFile(dir+"/none", []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	return d
}

func (d *daemon) host() string { return "unix://" + d.dir + "/d.sock" }

func (d *daemon) start() {
	d.Helper()
	d.cmd = exec.CommandContext(context.WithoutCancel(d.Context()), d.args[0], d.args[1:]...)
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	d.cmd.WaitDelay = time.Second
	if err := d.cmd.Start(); err != nil {
		d.Fatal(err)
	}
	e, err := engine.Open(d.host())
	if err != nil {
		d.Fatal(err)
	}
	defer e.Close()
	eventually(d.T, 60*time.Second, "the second daemon does not answer", func() bool { return e.Ping(d.Context()) == nil })
}

func (d *daemon) end(sig syscall.Signal) {
	_ = d.cmd.Process.Signal(sig)
	_ = d.cmd.Wait()
}

// remove ends the daemon with all that it started.
func (d *daemon) remove() {
	d.end(syscall.SIGTERM)
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
func (d *daemon) processes() (out []int) {
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

// A daemon that restarts: with live-restore sandboxes live on, without it they
// are lost, which is told; either way nothing is left.
func TestDaemon_restarts(t *testing.T) {
	for name, live := range map[string]bool{"live-restore": true, "plain": false} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t, fmt.Sprintf("--live-restore=%v", live))
			f := setUp(t, func(c *docker.Config) { c.Host = d.host() })
			e, err := engine.Open(d.host())
			if err != nil {
				t.Fatal(err)
			}
			f.e.Close()
			f.e = e
			kept := f.create(backend.Spec{Keep: true, Lifetime: 10 * time.Minute})
			bound := f.create(backend.Spec{})
			p, err := bound.Start(t.Context(), backend.Command{Args: []string{"/bin/sleep", "300"}, Timeout: backend.UntilSandboxEnds})
			if err != nil {
				t.Fatal(err)
			}
			d.end(syscall.SIGTERM)
			if live {
				works(t, kept) // also while there is no daemon
			}
			d.start()
			if live {
				works(t, kept)
				works(t, bound)
				if err := p.Signal(t.Context(), backend.SIGKILL); err != nil {
					t.Error(err)
				}
			}
			exit, err := p.Wait(t.Context())
			if live != (err == nil) || !live && backend.KindOf(err) != backend.ErrLost {
				t.Errorf("the command ended with %s, %v", exit, err)
			}
			t.Log(err)
			f.containers(t.Context())
			for _, sb := range []backend.Sandbox{kept, bound} {
				if err := sb.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
			}
			works(t, f.create(backend.Spec{}))
		})
	}
}
