//go:build linux

package gvisor_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// asRooted is asBoth with a template "own" that asks for a root with
// capabilities, and "plain" of the same image that does not.
func asRooted(t *testing.T, f func(t *testing.T, h *harness)) {
	t.Helper()
	asBoth(t, func(t *testing.T, h *harness) {
		cfg := h.cfg
		cfg.Templates = map[string]string{"own": cfg.Rootfs, "plain": cfg.Rootfs}
		cfg.RootTemplates = []string{"own"}
		cfg.StateDir = t.TempDir()
		f(t, newHarness(t, cfg))
	})
}

// TestRooted_root has what a container's root has, and its user what sudo gives.
func TestRooted_root(t *testing.T) {
	asRooted(t, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Template: "own"})
		got := run(t, sb, backend.Command{User: "root", Dir: "/", Args: []string{"/bin/bash", "-ec", `
id -u; echo new > /usr/bin/new; chown 1234:99 /usr/bin/new; stat -c '%u:%g' /usr/bin/new
mknod /mnt/null c 1 3; echo x > /mnt/null
touch /tmp/x /var/tmp/x /dev/shm/x
! mount -t tmpfs none /mnt 2>/dev/null || echo mounted
hostname; cat /etc/hostname; id -u user`}})
		if got.out != "0\n1234:99\nsandbox\nsandbox\n1000\n" || got.err != "" {
			t.Errorf("as root: %q %q", got.out, got.err)
		}
		if !h.root {
			return // the image is not this user's, and what is root's there is nobody's to it
		}
		if got := run(t, sb, backend.Command{User: "root", Args: []string{"/bin/bash", "-ec", `useradd -m other; su other -c 'id -un'`}}); got.out != "other\n" {
			t.Errorf("another account: %+v", got)
		}
		if got := sh(t, sb, "id -u; touch /usr/x 2>/dev/null && echo wrote; grep CapEff /proc/self/status | grep -v 0000000000000000; sudo -n id -u; pwd; touch ~/x /tmp/y"); got.out != "1000\n0\n/home/user\n" || got.err != "" {
			t.Errorf("as user: %q %q", got.out, got.err)
		}
		plain := h.create(t, backend.Spec{Template: "plain"})
		if got := run(t, plain, backend.Command{User: "root", Args: []string{"/bin/bash", "-c", "touch /usr/x || cat /usr/bin/new"}}); got.out != "" {
			t.Errorf("without the request: %q", got.out)
		}
		if got := sh(t, plain, "sudo -n id -u"); strings.Contains(got.out, "0") {
			t.Errorf("without the request sudo works: %q", got.out)
		}
	})
}

// TestRooted_imageStays: whatever root inside does to its root, others see
// nothing of it, nor does the host.
func TestRooted_imageStays(t *testing.T) {
	asRooted(t, func(t *testing.T, h *harness) {
		before := listing(t, h.cfg.Rootfs)
		sb := h.create(t, backend.Spec{Template: "own"})
		run(t, sb, backend.Command{User: "root", Dir: "/", Timeout: 2 * time.Minute, Args: []string{"/bin/bash", "-c", `
chown 4242 /etc/passwd /usr; chmod 4777 /usr/bin/env; mv /etc/hostname /etc/other; ln -sf /x /bin; rm -rf --no-preserve-root /home /opt /usr /etc /var 2>/dev/null
rm -rf --no-preserve-root / 2>/dev/null; true`}})
		if err := sb.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		if after := listing(t, h.cfg.Rootfs); after != before {
			t.Error("the image has changed")
		}
		if got := sh(t, h.create(t, backend.Spec{Template: "own"}), "ls /usr/bin/env && echo whole"); !strings.HasSuffix(got.out, "whole\n") {
			t.Errorf("%+v", got)
		}
	})
}

// listing tells names, modes, owners, sizes and times of all below dir.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			return nil // nor can a sandbox look there, then
		}
		if err != nil {
			return err
		}
		st, err := os.Lstat(p)
		if err != nil {
			return err
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		if !ok {
			return errors.New("no stat")
		}
		out.WriteString(strings.Join([]string{p, st.Mode().String(), st.ModTime().String()}, " "))
		out.WriteString(" " + time.Unix(sys.Ctim.Unix()).String() + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestRooted_disk: one cap for everything that is written, wherever.
func TestRooted_disk(t *testing.T) {
	asRooted(t, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Template: "own", Limits: backend.Limits{Disk: 64 << 20}})
		got := run(t, sb, backend.Command{User: "root", Dir: "/", Args: []string{"/bin/bash", "-c", `
for f in /usr/a /tmp/b /var/tmp/c /dev/shm/d /home/user/e; do head -c 20M /dev/zero 2>&1 > $f; done | grep -c 'No space left'
cat /usr/a /tmp/b /var/tmp/c /dev/shm/d /home/user/e | wc -c`}})
		lines := strings.Fields(got.out)
		if len(lines) != 2 || lines[0] == "0" || len(lines[1]) > 8 || lines[1] > "67108864" || lines[1] < "60000000" {
			t.Errorf("%q %q", got.out, got.err)
		}
	})
}

// TestRooted_agent: root inside can take its own sandbox down and no more, and
// what it is told of is the truth.
func TestRooted_agent(t *testing.T) {
	asRooted(t, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Template: "own"})
		r := sb.Receipt()
		if r.Achieved != backend.IsolationKernel || r.Controls[backend.ControlPrivileges].Enforcement != backend.Unsupported {
			t.Errorf("%v %+v", r.Achieved, r.Controls[backend.ControlPrivileges])
		}
		if h.create(t, backend.Spec{Template: "plain"}).Receipt().Controls[backend.ControlPrivileges].Enforcement != backend.Enforced {
			t.Error("without the request nothing is enforced either")
		}
		got := run(t, sb, backend.Command{User: "root", Dir: "/", Args: []string{"/bin/bash", "-c", `
head -c 1 /proc/1/mem && echo read it; readlink /proc/1/fd/0 && echo saw its stream; (exec 9>/proc/1/fd/1) 2>/dev/null && echo saw its stream; cat /proc/1/environ && echo saw its environment
grep -E '^Cap(Eff|Bnd)' /proc/self/status`}})
		if strings.Contains(got.out, "saw") || strings.Contains(got.out, "read it") || strings.Count(got.out, "00000000a80405fb") != 2 {
			t.Errorf("%q %q", got.out, got.err)
		}
		_, err := tryRun(t, sb, backend.Command{User: "root", Dir: "/", Args: []string{"/bin/bash", "-c", "kill -9 1; kill -9 -1; sleep 5; echo alive"}, Timeout: 3 * time.Second})
		t.Logf("the agent killed: %v", err)
		if got, err := tryRun(t, h.create(t, backend.Spec{Template: "own"}), backend.Command{Args: []string{"echo", "fine"}}); err != nil || got.out != "fine\n" {
			t.Errorf("the next one: %+v %v", got, err)
		}
	})
}

// TestRooted_refuses what such a sandbox cannot keep.
func TestRooted_refuses(t *testing.T) {
	asRooted(t, func(t *testing.T, h *harness) {
		for field, spec := range map[string]backend.Spec{
			"strict": {Strict: true}, "limits.inodes": {Limits: backend.Limits{Inodes: 1000}},
		} {
			spec.Template = "own"
			_, _, err := h.ex.Admit(spec)
			e, ok := errors.AsType[*backend.Error](err)
			if !ok || !errors.Is(err, backend.ErrUnsupported) {
				t.Errorf("%s: %v", field, err)
				continue
			}
			t.Logf("%s: %v", e.Field, err)
		}
		dir := t.TempDir()
		_, _, err := h.ex.Admit(backend.Spec{Template: "own", Mounts: []backend.Mount{{HostPath: dir, Target: "/mnt", ReadOnly: true}}})
		if err != nil {
			t.Error(err)
		}
		if sb, err := h.ex.Create(t.Context(), backend.Spec{Template: "own", Mounts: []backend.Mount{{HostPath: dir, Target: "/none/here", ReadOnly: true}}}); err == nil {
			sb.Destroy(t.Context())
			t.Error("something was made in the image to mount on")
		}
		if _, err := os.Lstat(filepath.Join(h.cfg.Rootfs, "none")); err == nil {
			t.Error("it is in the image")
		}
	})
}

// TestRooted_forkBomb as many accounts: the sandbox may end, the host's own
// limit holds, and the next one works.
func TestRooted_forkBomb(t *testing.T) {
	asRooted(t, func(t *testing.T, h *harness) {
		if !h.root {
			return // no control group bounds it, as the claims say
		}
		sb := h.create(t, backend.Spec{Template: "own", Limits: backend.Limits{Pids: 64}})
		if got := run(t, sb, backend.Command{User: "root", Args: []string{"python3", "-c", forks}}); len(got.out) != 3 || got.out < "50" || got.out > "63\n" {
			t.Errorf("%q beside the first and what its agent began as root, %q", got.out, got.err)
		}
		_, err := tryRun(t, sb, backend.Command{User: "root", Timeout: 20 * time.Second, Args: []string{"python3", "-c", `
import os, time
for i in range(1500):
    if os.fork() == 0:
        os.setuid(2000 + i)
        time.sleep(60)
`}})
		t.Logf("as many accounts: %v", err)
		if got := sh(t, h.create(t, backend.Spec{Template: "own"}), "echo fine"); got.out != "fine\n" {
			t.Errorf("the next one: %+v", got)
		}
	})
}
