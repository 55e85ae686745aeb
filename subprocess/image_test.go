//go:build linux

package subprocess_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
)

// TestTemplates_linksStayInside: what an image's links say, they say of the
// image. None of them shows, or changes, what the host has under that name.
func TestTemplates_linksStayInside(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		const secret = "canary-of-the-host"
		host := hostDir(t)
		for _, dir := range []string{"lib", "cache", "etc"} {
			if err := errors.Join(os.Mkdir(filepath.Join(host, dir), 0o755),
				os.WriteFile(filepath.Join(host, dir, "canary"), []byte(secret), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		victim := filepath.Join(host, "victim")
		if err := errors.Join(os.WriteFile(victim, []byte(secret), 0o644), os.Chmod(victim, 0o666)); err != nil {
			t.Fatal(err)
		}
		up := func(root, to string) string {
			return strings.Repeat("../", strings.Count(root, "/")) + strings.TrimPrefix(to, "/")
		}
		for name, links := range map[string]func(root string) map[string]string{
			"absolute": func(string) map[string]string { return map[string]string{"var": host} },
			"relative": func(root string) map[string]string { return map[string]string{"var": up(root, host)} },
			"below": func(root string) map[string]string {
				return map[string]string{"var/lib": filepath.Join(host, "lib"), "var/cache": up(root+"/var", host+"/cache")}
			},
			"accounts": func(string) map[string]string { return map[string]string{"etc/passwd": victim} },
			"ours": func(string) map[string]string {
				return map[string]string{".boot_id": victim, ".empty": host, ".etc": host, ".scratch": host}
			},
			"top": func(root string) map[string]string {
				return map[string]string{"data": host, "more": up(root, host), "opt": filepath.Join(host, "lib")}
			},
		} {
			root := tinyRoot(t)
			for from, to := range links(root) {
				if err := errors.Join(os.RemoveAll(filepath.Join(root, from)), os.Symlink(to, filepath.Join(root, from))); err != nil {
					t.Fatal(err)
				}
			}
			cfg := h.cfg
			cfg.StateDir, cfg.Templates = "", map[string]string{"tiny": root}
			sb := newHarness(t, cfg).create(t, backend.Spec{Template: "tiny"})
			got, err := tryRun(t.Context(), sb, backend.Command{Args: []string{
				"/bin/sh", "-c",
				"cat /var/canary /var/*/canary /data/canary /data/*/canary /more/*/canary /opt/canary /etc/canary /.e*/canary /.boot_id /etc/passwd; echo ran",
			}})
			if strings.Contains(got.out, secret) {
				t.Errorf("%s: the host's file is there", name)
			}
			// Without accounts nobody can run anything.
			if name != "accounts" && (err != nil || !strings.HasSuffix(got.out, "ran\n")) {
				t.Errorf("%s: %v %q %q", name, err, got.out, got.err)
			}
			if data, err := os.ReadFile(victim); err != nil || string(data) != secret {
				t.Errorf("%s: the host's file is now %q, %v", name, data, err)
			}
		}
		// An /etc of somebody else's is none.
		root := tinyRoot(t)
		if err := errors.Join(os.RemoveAll(filepath.Join(root, "etc")), os.Symlink(filepath.Join(host, "etc"), filepath.Join(root, "etc"))); err != nil {
			t.Fatal(err)
		}
		cfg := h.cfg
		cfg.StateDir, cfg.Templates = "", map[string]string{"tiny": root}
		if _, err := newHarness(t, cfg).ex.Create(t.Context(), backend.Spec{Template: "tiny"}); err == nil {
			t.Error("a root file system whose /etc is a link is accepted")
		}
	})
}

// TestMasks_cannotBeChanged: what covers parts of /proc is no place to keep
// anything in, for root inside neither.
func TestMasks_cannotBeChanged(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		users := []string{"user"}
		if h.enforces(backend.ControlOwnUID) {
			users = append(users, "root")
		}
		for _, user := range users {
			got := run(t, sb, backend.Command{User: user, Args: []string{"/usr/bin/python3", "-c", `
import os
seen = 0
for name in ("fs", "driver", "acpi", "scsi", "asound"):
    at = "/proc/" + name
    if not os.path.isdir(at):
        continue
    seen += 1
    if os.listdir(at):
        print(at, "is not covered")
    for what, f in (("chmod", lambda: os.chmod(at, 0o777)), ("mkdir", lambda: os.mkdir(at + "/x")),
            ("write", lambda: open(at + "/y", "w")), ("times", lambda: os.utime(at))):
        try:
            f()
            print(what, at)
        except OSError:
            pass
for at in ("/proc/sys/kernel/random/boot_id",):
    try:
        os.chmod(at, 0o666)
        open(at, "w").write("x")
        print("chmod", at)
    except OSError:
        pass
print("looked at" if seen else "nothing is covered")
`}}).succeed(t)
			if got.out != "looked at\n" {
				t.Errorf("%s: %s", user, got.out)
			}
		}
	})
}
