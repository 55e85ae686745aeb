//go:build linux

package docker_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
)

// What an image declares reaches programs at most, never the agent.
func TestImage_declares(t *testing.T) {
	long := strings.Repeat("v", 50<<10)
	changes := []string{
		"ENV LD_PRELOAD=/evil.so", "ENV GODEBUG=inittrace=1", "ENV GOMEMLIMIT=1", "ENV HOME=/evil", "ENV PATH=/evil:/bin", "ENV OF_IMAGE=seen",
		"USER nobody", `ENTRYPOINT ["/evil"]`, `CMD ["/evil"]`, "WORKDIR /evil", "VOLUME /tmp", "EXPOSE 80",
		`HEALTHCHECK --interval=1s CMD echo x > /tmp/checked`, "ONBUILD RUN /evil", "LABEL dev.glovebox.store=evil",
	}
	for v := range strings.FieldsSeq("A B C") {
		changes = append(changes, "ENV LONG_"+v+"="+long)
	}
	ref := image(t, "", nil, changes...)
	f := setUp(t, func(c *docker.Config) { c.Image = ref })
	sb := f.create(backend.Spec{User: "user", Dir: "/home/user"})
	st := f.container(sb.ID())
	env, err := os.ReadFile("/proc/" + strconv.Itoa(st.PID) + "/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"LD_PRELOAD", "GODEBUG", "GOMEMLIMIT", "OF_IMAGE", "LONG_A", "/evil"} {
		if strings.Contains(string(env), name) {
			t.Errorf("the agent was started with %s", name)
		}
	}
	exit, out := run(t, sb, "", "echo $OF_IMAGE $HOME $PATH; id -un; ls -A /tmp")
	if want := "seen /home/user /evil:/bin\nuser\n"; !exit.Success() || out != want {
		t.Errorf("%s, %q", exit, out)
	}
	if got := st.Labels["dev.glovebox.store"]; got != f.store() {
		t.Errorf("the label is the image's: %q", got)
	}
}

// What an image says of its commands holds where the spec says nothing; what
// cannot be had is refused before anything is made.
func TestImage_begins(t *testing.T) {
	ref := image(t, "", map[string]string{"srv/app/": ""}, "USER 0:0", "WORKDIR /srv/app")
	f := setUp(t, func(c *docker.Config) { c.Image = ref })
	for want, spec := range map[string]backend.Spec{
		"0 /srv/app\n": {}, "0 /tmp\n": {Dir: "/tmp"},
	} {
		sb := f.create(spec)
		if exit, out := run(t, sb, "", "echo $(id -u) $PWD"); !exit.Success() || out != want {
			t.Errorf("%+v: %s, %q, want %q", spec, exit, out, want)
		}
	}
	sb := f.create(backend.Spec{User: "user"})
	if exit, out := run(t, sb, "", "id -un; pwd"); !exit.Success() || out != "user\n/srv/app\n" {
		t.Errorf("%s, %q", exit, out)
	}
	for field, change := range map[string]string{"user": "USER nobody", "dir": "WORKDIR /not/made"} {
		ref := image(t, "", nil, change)
		f := setUp(t, func(c *docker.Config) { c.Image = ref })
		_, err := f.ex.Create(t.Context(), backend.Spec{})
		if be, ok := errors.AsType[*backend.Error](err); !ok || be.Field != field || be.Fix == "" {
			t.Errorf("%s: %v", change, err)
		}
	}
}

func TestImage_refused(t *testing.T) {
	for what, tt := range map[string]struct {
		arch    string
		changes []string
		want    string
	}{
		"a volume":        {"", []string{"VOLUME /data"}, "volume"},
		"another machine": {"arm64", nil, "arm64"},
	} {
		t.Run(what, func(t *testing.T) {
			ref := image(t, tt.arch, nil, tt.changes...)
			f := setUp(t, func(c *docker.Config) { c.Image = ref })
			sb, err := f.ex.Create(t.Context(), backend.Spec{})
			if backend.KindOf(err) != backend.ErrInvalid || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, %v", sb, err)
			}
		})
	}
	f := setUp(t, func(c *docker.Config) { c.Image = "glovebox-test-none/such:1" })
	if _, err := f.ex.Create(t.Context(), backend.Spec{}); err == nil {
		t.Error("an image that is nowhere")
	}
	g := setUp(t, func(c *docker.Config) { c.Runtime = "none-such" })
	if _, err := g.ex.Create(t.Context(), backend.Spec{}); backend.KindOf(err) != backend.ErrUnavailable || !strings.Contains(err.Error(), "none-such") {
		t.Errorf("a runtime that is nowhere: %v", err)
	}
}

func TestImage_withoutShell(t *testing.T) {
	ref := image(t, "", map[string]string{"bin/sh": ""})
	f := setUp(t, func(c *docker.Config) { c.Image = ref })
	sb := f.create(backend.Spec{})
	exit, err := backend.RunIn(t.Context(), sb, backend.Command{Args: []string{"/bin/sh", "-c", "true"}})
	if err != nil || exit.Code != 127 {
		t.Errorf("%s, %v", exit, err)
	}
	if exit, err = backend.RunIn(t.Context(), sb, backend.Command{Args: []string{"/bin/true"}}); err != nil || !exit.Success() {
		t.Errorf("%s, %v", exit, err)
	}
}

// Links in an image, where something is mounted: the sandbox is made and is as
// tight as any, or it is refused; the host never changes.
func TestImage_links(t *testing.T) {
	hostFiles := []string{"/etc/passwd", "/etc/hosts", "/proc/sys/kernel/core_pattern"}
	before := map[string]string{}
	for _, name := range hostFiles {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		before[name] = string(data)
	}
	made := 0
	for what, files := range map[string]map[string]string{
		"tmp to etc":            {"tmp": "->/etc"},
		"tmp up":                {"tmp": "->../../../../../etc"},
		"tmp to proc":           {"tmp": "->/proc"},
		"var/tmp to sys":        {"var/tmp": "->/sys"},
		"home to the root":      {"home/user": "->/"},
		"agent elsewhere":       {".glovebox": "->/home/user"},
		"agent's file":          {".glovebox/agent": "->/opt/agent"},
		"run in the scratch":    {".glovebox/run": "->/tmp/run"},
		"run is etc":            {".glovebox/run": "->/etc"},
		"passwd is a setting":   {"etc/passwd": "->/proc/sys/kernel/core_pattern"},
		"passwd is a directory": {"etc/passwd/": ""},
		"etc is the host's":     {"etc": "->/proc/1/root/etc"},
		"dev is tmp":            {"dev": "->/tmp"},
		"proc is tmp":           {"proc": "->/tmp"},
	} {
		t.Run(what, func(t *testing.T) {
			ref := image(t, "", files)
			f := setUp(t, func(c *docker.Config) { c.Image = ref })
			sb, err := f.ex.Create(t.Context(), backend.Spec{})
			f.containers(t.Context())
			if err != nil {
				if kind := backend.KindOf(err); kind != backend.ErrUnavailable && kind != backend.ErrInvalid {
					t.Errorf("it is %q: %v", kind, err)
				}
				if strings.Contains(err.Error(), f.cfg.StateDir) || strings.Contains(err.Error(), "/overlay2/") && strings.Contains(err.Error(), "/var/lib") {
					t.Errorf("the error has a path of the host: %v", err)
				}
				t.Logf("refused: %v", err)
			} else {
				made++
				tight(t, f, sb)
			}
		})
	}
	for _, name := range hostFiles {
		if data, err := os.ReadFile(name); err != nil || string(data) != before[name] {
			t.Errorf("%s was changed: %v", name, err)
		}
	}
	if made == 0 {
		t.Error("inconclusive: every image was refused")
	}
}

// tight: neither user code nor root inside reaches what agent and launcher
// share, or changes what is mounted from the host.
func tight(t *testing.T, f *fixture, sb backend.Sandbox) {
	t.Helper()
	for _, user := range []string{"user", "root"} {
		var got bytes.Buffer
		cmd := backend.Command{User: user, Dir: "/", Output: backend.Output{Stdout: &got}, Args: []string{"/bin/sh", "-c", `
			ls /.glovebox/run && echo OPEN list
			cat /.glovebox/run/agent.sock && echo OPEN socket
			echo x >>/.glovebox/agent && echo OPEN agent
			echo x >/.glovebox/x && echo OPEN directory
			echo x >>/etc/passwd && echo OPEN passwd
			echo x >/etc/hostname && echo OPEN hostname
			rm -f /etc/hosts && echo OPEN hosts
			mv /.glovebox /.g && echo OPEN move
			echo x >/x && echo OPEN root
			echo DONE`}}
		exit, err := backend.RunIn(t.Context(), sb, cmd)
		if err != nil {
			t.Logf("as %s nothing runs: %v", user, err)
			continue
		}
		out := got.String()
		if !exit.Success() || !strings.HasSuffix(out, "DONE\n") {
			t.Errorf("inconclusive: as %s: %s, %q", user, exit, out)
		}
		// Where the image makes it a link to the home, that is what is written to.
		if exit, _ := run(t, sb, "", "[ -L /.glovebox ]"); exit.Success() {
			out = strings.ReplaceAll(out, "OPEN directory\n", "")
		}
		if strings.Contains(out, "OPEN") {
			t.Errorf("as %s: %s", user, out)
		}
	}
	if data, err := os.ReadFile(f.cfg.Agent); err != nil || len(data) < 1<<20 {
		t.Errorf("the agent's binary was changed: %v", err)
	}
}

// What root inside is: the host's, without any capability. It owns files that
// are mounted, which are read-only, and the scratch.
func TestRootInside(t *testing.T) {
	f := setUp(t, nil)
	sb := f.create(backend.Spec{Keep: true})
	tight(t, f, sb)
	// What can be written, all of it counted as disk.
	_, out := run(t, sb, "root", `for d in / /etc /dev /dev/mqueue /dev/shm /tmp /var/tmp /run /var /root /home /home/user /mnt /proc/sys/kernel /sys /sys/fs/cgroup /sys/fs/cgroup/*; do
		( : >$d/x ) 2>/dev/null && echo $d; done; true`)
	got := strings.Fields(out)
	for _, d := range got {
		if !slices.Contains([]string{"/dev/shm", "/tmp", "/var/tmp"}, d) {
			t.Errorf("root inside writes to %s, which no limit of disk counts", d)
		}
	}
	if len(got) < 3 {
		t.Errorf("inconclusive: only %q can be written", got)
	}
	// The host would not honour what it leaves there, and nobody gets at it.
	if exit, out := run(t, sb, "root", "cp /bin/sh /tmp/s && chmod 4755 /tmp/s && chmod 777 /tmp"); !exit.Success() {
		t.Fatal(out)
	}
	own := filepath.Join(f.cfg.StateDir, "run", sb.ID())
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Join(own, "scratch"), &fs); err != nil || fs.Flags&unix.ST_NOSUID == 0 || fs.Flags&unix.ST_NODEV == 0 {
		t.Errorf("the scratch has the flags %x, %v", fs.Flags, err)
	}
	if st, err := os.Stat(own); err != nil || st.Mode().Perm()&0o077 != 0 {
		t.Errorf("its directory is open to others: %v, %v", st, err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMounts(t *testing.T) {
	d := newStandIn(t)
	f := setUp(t, func(c *docker.Config) { c.Host = "unix://" + d.path })
	dir := t.TempDir()
	source, other := filepath.Join(dir, "source"), filepath.Join(dir, "other")
	for path, text := range map[string]string{source: "fine", other: "secret"} {
		if err := errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "file"), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	spec := func(target string) backend.Spec {
		return backend.Spec{Mounts: []backend.Mount{{HostPath: source, Target: target, ReadOnly: true}}}
	}
	// The image has links on the way to one of them.
	for _, target := range []string{"/mnt/in", "/var/run/in"} {
		sb, err := f.ex.Create(t.Context(), spec(target))
		if err != nil {
			t.Errorf("%s: %v", target, err)
			continue
		}
		exit, out := run(t, sb, "root", "cat "+target+"/file; echo x >"+target+"/file")
		if exit.Success() || !strings.Contains(out, "fine") {
			t.Errorf("%s: %s, %q", target, exit, out)
		}
	}
	// Between the check and the start it becomes another.
	for _, at := range []string{"POST .*/containers/create", "POST .*/start$"} {
		d.meanwhile(at, func() {
			if err := unix.Renameat2(unix.AT_FDCWD, source, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
			}
		})
		sb, err := f.ex.Create(t.Context(), spec("/mnt/in"))
		if backend.KindOf(err) != backend.ErrInvalid || !strings.Contains(err.Error(), "changed") {
			t.Errorf("swapped before %s: %v, %v", at, sb, err)
		}
		d.heal(t)
	}
	l, err := net.Listen("unix", filepath.Join(source, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := f.ex.Create(t.Context(), spec("/mnt/in")); backend.KindOf(err) != backend.ErrDenied {
		t.Errorf("a mount with a socket: %v", err)
	}
}
