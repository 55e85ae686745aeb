//go:build linux

package subprocess_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// hostDir is a directory of the host that every user may read.
func hostDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "glovebox-test-mount-") //nolint:usetesting // t.TempDir's parents are closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestMounts_readOnly(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		dir := hostDir(t)
		if err := os.MkdirAll(filepath.Join(dir, "data/deep"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"data/x.csv", "data/deep/y", "single"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		target := func(t string) string { // without a mount namespace a mount keeps its path
			if h.privilege == subprocess.PrivilegeRestricted {
				return filepath.Join(dir, filepath.Base(t))
			}
			return t
		}
		sb := h.create(t, backend.Spec{Mounts: []backend.Mount{
			{HostPath: filepath.Join(dir, "data"), Target: target("/mnt/data"), ReadOnly: true},
			{HostPath: filepath.Join(dir, "single"), Target: target("/opt/single"), ReadOnly: true},
		}})
		data, single := target("/mnt/data"), target("/opt/single")
		if out := sh(t, sb, "cat "+data+"/x.csv "+data+"/deep/y "+single).succeed(t).out; out != "data/x.csvdata/deep/ysingle" {
			t.Errorf("%q", out)
		}
		for _, cmd := range []string{"touch " + data + "/new", "echo x >" + single, "rm " + data + "/x.csv", "chmod 777 " + data + "/x.csv", "mv " + data + "/deep " + data + "/d"} {
			if strings.HasPrefix(cmd, "chmod") && !h.enforces(backend.ControlMountsRO) {
				continue
			}
			if got := sh(t, sb, cmd); got.Success() {
				t.Errorf("%s works", cmd)
			}
		}
		if left, err := os.ReadDir(filepath.Join(dir, "data")); err != nil || len(left) != 2 {
			t.Errorf("%v %v", left, err)
		}
		if m := sb.Receipt().Mounts; len(m) != 2 || m[0].Target != data {
			t.Errorf("receipt: %+v", m)
		}
	})
}

func TestMounts_refused(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		dir := hostDir(t)
		link := func(name, to string) string {
			path := filepath.Join(dir, name)
			if err := os.Symlink(to, path); err != nil {
				t.Fatal(err)
			}
			return path
		}
		l, err := net.Listen("unix", filepath.Join(dir, "sock"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
			t.Fatal(err)
		}
		state := h.cfg.StateDir
		for _, tt := range []struct {
			path string
			kind backend.Kind
		}{
			{"/", backend.ErrDenied},
			{"/proc", backend.ErrDenied},
			{"/proc/self", backend.ErrDenied},
			{"/sys", backend.ErrDenied},
			{"/sys/fs/cgroup", backend.ErrDenied},
			{"/dev", backend.ErrDenied},
			{"/dev/shm", backend.ErrDenied},
			{"/run", backend.ErrDenied},
			{"/var/run", backend.ErrDenied},
			{state, backend.ErrDenied},
			{filepath.Join(state, "sandboxes"), backend.ErrDenied},
			{filepath.Dir(state), backend.ErrDenied},
			{filepath.Join(dir, "sock"), backend.ErrDenied},
			{filepath.Join(dir, "fifo"), backend.ErrDenied},
			{link("toroot", "/"), backend.ErrDenied},
			{link("toproc", "/proc"), backend.ErrDenied},
			{link("tostate", state), backend.ErrDenied},
			{link("tosock", filepath.Join(dir, "sock")), backend.ErrDenied},
			{link("up", "../../../.."), backend.ErrDenied},
			{"/usr/../proc", backend.ErrDenied},
			{filepath.Join(dir, "missing"), backend.ErrInvalid},
			{link("dangling", "/nowhere"), backend.ErrInvalid},
			{"relative/path", backend.ErrInvalid},
		} {
			target := "/mnt/x"
			if real, err := filepath.EvalSymlinks(tt.path); err == nil && h.privilege == subprocess.PrivilegeRestricted && strings.Count(real, "/") > 0 && !strings.HasPrefix(real, "/proc") && !strings.HasPrefix(real, "/dev") && !strings.HasPrefix(real, "/sys") && real != "/" {
				target = real
			}
			_, err := h.ex.Create(t.Context(), backend.Spec{Mounts: []backend.Mount{{HostPath: tt.path, Target: target, ReadOnly: true}}})
			if backend.KindOf(err) != tt.kind || !strings.Contains(err.Error(), "mounts[0]") {
				t.Errorf("%s: %s: %v", tt.path, backend.KindOf(err), err)
			}
		}
		if h.privilege != subprocess.PrivilegeRestricted {
			_, err = h.ex.Create(t.Context(), backend.Spec{Mounts: []backend.Mount{{HostPath: dir, Target: "/mnt/x", ReadOnly: true}}})
			wantKind(t, err, backend.ErrDenied, "mounts[0]", "socket")
		}
		_, err = h.ex.Create(t.Context(), backend.Spec{Mounts: []backend.Mount{{HostPath: "/usr", Target: "/mnt/x"}}})
		wantKind(t, err, backend.ErrUnsupported, "mounts[0]", "add :ro")
		_, err = h.ex.Create(t.Context(), backend.Spec{Mounts: []backend.Mount{{Volume: "v", Target: "/mnt/x"}}})
		wantKind(t, err, backend.ErrUnsupported, "mounts[0].volume")
		for _, target := range []string{"/", "/proc/x", "/dev/x", "/sys", "rel", "/a/../b", ""} {
			_, err := h.ex.Create(t.Context(), backend.Spec{Mounts: []backend.Mount{{HostPath: "/usr/share", Target: target, ReadOnly: true}}})
			wantKind(t, err, backend.ErrInvalid, "mounts[0]")
		}
	})
}

func TestMounts_coverNothingThatProtects(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		dir := hostDir(t)
		if err := os.WriteFile(filepath.Join(dir, "passwd"), []byte("evil"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, target := range []string{"/home/user/data", "/tmp/data", "/usr/share/data", "/new/deep/dir", "/opt"} {
			sb, err := h.ex.Create(t.Context(), backend.Spec{Mounts: []backend.Mount{{HostPath: dir, Target: target, ReadOnly: true}}})
			if err != nil {
				t.Logf("%s: %v", target, err)
				if backend.KindOf(err) == backend.ErrInternal {
					t.Errorf("%s: %v", target, err)
				}
				continue
			}
			if got := sh(t, sb, "cat "+target+"/passwd").succeed(t); got.out != "evil" {
				t.Errorf("%s: %q", target, got.out)
			}
			destroy(t, sb)
		}
	})
}

// tinyRoot is a root file system with one static program in it.
func tinyRoot(t *testing.T) string {
	t.Helper()
	box := testenv.NeedProgram(t, "busybox")
	data, err := os.ReadFile(box)
	if err != nil {
		t.Fatal(err)
	}
	dir := hostDir(t)
	for _, sub := range []string{"bin", "etc", "usr/bin", "var/lib/things", "tmp", "proc"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n", "etc/group": "root:x:0:\nuser:x:1000:\n",
		"etc/motd": "tiny\n", "var/lib/things/one": "1",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/busybox"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, applet := range []string{"sh", "ls", "cat", "id", "touch", "ps", "mount"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTemplates(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		root := tinyRoot(t)
		cfg := h.cfg
		cfg.StateDir, cfg.Templates = "", map[string]string{"tiny": root}
		h = newHarness(t, cfg)
		sb := h.create(t, backend.Spec{Template: "tiny"})
		got := sh(t, sb, "cat /etc/motd /var/lib/things/one; id -un; ls /bin; ls /usr/bin; cd; touch here /tmp/there; ls").succeed(t)
		if got.out != "tiny\n1user\nbusybox\ncat\nid\nls\nmount\nps\nsh\ntouch\nhere\n" {
			t.Errorf("%q %q", got.out, got.err)
		}
		if got := sh(t, sb, "touch /bin/x /etc/x /x /var/lib/x; true"); strings.Count(got.err, "Read-only") != 4 {
			t.Errorf("%q", got.err)
		}
		if r := sb.Receipt(); r.Template != "tiny" {
			t.Errorf("%+v", r.Template)
		}
		_, err := h.ex.Create(t.Context(), backend.Spec{Template: "unknown"})
		wantKind(t, err, backend.ErrNotFound, "template", "unknown")

		cfg.Templates, cfg.Rootfs = nil, root
		h = newHarness(t, cfg)
		if got := sh(t, h.create(t, backend.Spec{}), "cat /etc/motd"); got.out != "tiny\n" {
			t.Errorf("rootfs: %q %q", got.out, got.err)
		}
		cfg.Rootfs = filepath.Join(root, "missing")
		h = newHarness(t, cfg)
		_, err = h.ex.Create(t.Context(), backend.Spec{})
		if err == nil || !strings.Contains(err.Error(), "root file system") {
			t.Errorf("%v", err)
		}
	})
}
