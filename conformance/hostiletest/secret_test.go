//go:build linux

package hostiletest_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv/testimage"
)

func secretAttacks() []attack {
	return []attack{
		{id: "FR-01", program: "secrets.py", args: []string{"canary"}, before: plantSecrets, outside: secretsKept, control: control{works: secretsRead}},
		{id: "FR-01-root", only: asRoot, user: "root", program: "secrets.py", args: []string{"canary"}, before: plantSecrets, outside: secretsKept, control: control{works: secretsRead}},
		{id: "FR-02", program: "secrets.py", args: append([]string{"files"}, privateFiles()...), inside: notTheHosts, control: control{works: atLeast(1)}},
		{id: "FR-02-root", only: asRoot, user: "root", program: "secrets.py", args: append([]string{"files"}, privateFiles()...), inside: notTheHosts, control: control{works: atLeast(3)}},
		{id: "FR-03", program: "secrets.py", args: []string{"environment"}, inside: noTokens, control: control{works: tokensFound}},
		{id: "FR-03-root", only: asRoot, user: "root", program: "secrets.py", args: []string{"environment"}, inside: noTokens, control: control{works: tokensFound}},
		{id: "FR-08", program: "secrets.py", args: []string{"kernel"}, inside: kernelHidden, control: control{shows: []string{
			"/proc/kallsyms", "/proc/keys", "/proc/interrupts", "/proc/iomem", "/proc/zoneinfo", "list /sys/class", "syslog",
		}}},
		{id: "FR-08-root", only: asRoot, user: "root", program: "secrets.py", args: []string{"kernel"}, inside: kernelHidden, control: control{shows: []string{"/proc/kallsyms", "/proc/zoneinfo"}}},
		{id: "FR-10", program: "secrets.py", args: []string{"devices"}, control: control{shows: []string{"kvm", "mknod c 1:3"}, fact: "an unprivileged user may open none of these devices"}},
		{id: "FR-10-root", only: asRoot, user: "root", program: "secrets.py", args: []string{"devices"}, control: control{shows: []string{"kvm", "mknod c 1:3"}}},
		{id: "FR-11", program: "secrets.py", args: []string{"handles"}, control: control{
			shows: []string{"name_to_handle_at", "open_by_handle_at", "open_by_handle_at of inode 2"},
		}},
		{id: "FR-19", program: "secrets.py", args: []string{"identity"}, inside: nobodyInParticular, control: control{works: func(s *scene, o *outcome) {
			if !strings.Contains(s.report(o, "outside").Text, bootID(s.T)) {
				s.Error("inconclusive: outside it does not find the boot's id either")
			}
		}}},
	}
}

// kernelHidden: what the kernel tells of the host is covered. Container runtimes
// show a sysfs, which names devices and none of their content, and the image has
// a home of root's.
func kernelHidden(s *scene, o *outcome) {
	r := s.report(o, "inside")
	if w.mode == modeDocker {
		for _, name := range []string{"list /sys/class", "list /sys/fs/cgroup", "/sys/devices/system/cpu/vulnerabilities/meltdown", "list /root"} {
			delete(r.Tries, name)
		}
	}
	s.blocked(o)
}

// plantSecrets are canaries in many places, for the program to read and write.
func plantSecrets(s *scene, _ *box) {
	var all []canary
	dirs := []string{"/tmp", "/var/tmp", "/dev/shm"}
	if rooted() {
		dirs = append(dirs, "/opt", "/home", "/run", "/root", "/var/lib")
	}
	for _, dir := range dirs {
		c := plant(s.T, dir)
		all = append(all, c)
		s.args = append(s.args, c.path)
	}
	s.kept["canaries"] = all
	s.outArgs = append(slices.Clone(s.args), "keep")
}

func secretsKept(s *scene, _ *box, o *outcome) {
	for _, c := range s.kept["canaries"].([]canary) {
		if !c.intact() {
			s.Errorf("open: %s was changed", c.path)
		}
		if bytes.Contains(append(o.stdout, o.stderr...), []byte(c.secret)) {
			s.Errorf("open: the secret of %s was read", c.path)
		}
	}
}

func secretsRead(s *scene, o *outcome) {
	r := s.report(o, "outside")
	for _, c := range s.kept["canaries"].([]canary) {
		if !strings.Contains(r.Text, c.secret) || r.Tries["append "+c.path] != "ok" {
			s.Errorf("inconclusive: %s is not read outside either", c.path)
		}
	}
}

func privateFiles() []string {
	return []string{
		"/etc/shadow", "/etc/gshadow", "/etc/passwd", "/etc/group", "/etc/sudoers", "/etc/ssh/ssh_host_rsa_key", "/etc/ssh/sshd_config", "/etc/hosts",
		"/etc/hostname", "/etc/resolv.conf", "/etc/fstab", "/etc/machine-id", "/etc/ssl/private/ssl-cert-snakeoil.key", "/etc/docker/daemon.json",
		"/root/.bashrc", "/root/.profile", "/root/.ssh/id_rsa", "/root/.ssh/authorized_keys", "/root/.aws/credentials", "/root/.kube/config",
		"/root/.npmrc", "/root/.netrc", "/root/.gitconfig", "/root/.docker/config.json", "/root/.config/gcloud/credentials.db", "/root/.bash_history",
		"/var/lib/dpkg/status", "/var/log/dpkg.log", "/var/lib/glovebox/store", "/run/secrets/kubernetes.io/serviceaccount/token", "/proc/1/environ",
		"/proc/cmdline", "/proc/self/cgroup", "/etc/environment", "/etc/default/grub", "/etc/apt/sources.list", "/boot/config",
	}
}

// notTheHosts: what can be read under these names is not what the host has.
func notTheHosts(s *scene, o *outcome) {
	var found map[string]string
	if err := json.Unmarshal([]byte(s.report(o, "inside").Text), &found); err != nil {
		s.Fatal(err)
	}
	for path, hash := range found {
		data, err := os.ReadFile(path)
		// The kernel's own command line is everybody's.
		if err == nil && len(data) > 0 && path != "/proc/cmdline" && hash == hashOf(s.T, path) && !inImage(path, data) {
			s.Errorf("open: %s is the host's", path)
		}
	}
}

// inImage tells whether the image that sandboxes are made from has the same
// file.
func inImage(path string, data []byte) bool {
	if w.target.level < backend.IsolationContainer {
		return false
	}
	root, why := w.rootfs, ""
	if root == "" {
		root, why = testimage.Rootfs()
	}
	got, err := os.ReadFile(filepath.Join(root, path))
	return why == "" && err == nil && bytes.Equal(got, data)
}

// noTokens: neither this process's secrets nor anybody's but the run's own.
func noTokens(s *scene, o *outcome) {
	r := s.report(o, "inside")
	for _, secret := range []string{w.token, "HOSTILE_API_KEY", "HTTP_PROXY", "https_proxy", "GLOVEBOX"} {
		if strings.Contains(r.Text, secret) {
			i := strings.Index(r.Text, secret)
			s.Errorf("open: %q is seen inside: %.200q", secret, r.Text[max(0, i-80):])
		}
	}
	if r.N > 8 {
		s.Errorf("open: %d processes are seen", r.N)
	}
}

func tokensFound(s *scene, o *outcome) {
	if r := s.report(o, "outside"); !strings.Contains(r.Text, w.token) || r.N < 8 {
		s.Errorf("inconclusive: outside it sees neither the secret nor %d processes", r.N)
	}
}

func bootID(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Skipf("inconclusive: %v", err)
	}
	return strings.TrimSpace(string(data))
}

// nobodyInParticular: nothing tells which machine it is.
func nobodyInParticular(s *scene, o *outcome) {
	r := s.report(o, "inside")
	var got map[string]string
	if err := json.Unmarshal([]byte(r.Text), &got); err != nil {
		s.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		s.Fatal(err)
	}
	for _, name := range []string{"uname", "hostname", "hostname file"} {
		if got[name] != "sandbox" {
			s.Errorf("open: %s is %q, the host's %q", name, got[name], host)
		}
	}
	if got["machine-id"] != "" || got["dbus"] != "" {
		s.Errorf("open: a machine's id is seen: %q", got["machine-id"]+got["dbus"])
	}
	if strings.Contains(r.Text, bootID(s.T)) {
		s.Error("open: the boot's id is the host's")
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		s.Fatal(err)
	}
	for line := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && len(f[2]) > 1 && strings.Contains(got["cgroup"], f[2]) || strings.Contains(got["cgroup"], "glovebox") {
			s.Errorf("open: groups of the host are seen: %q", got["cgroup"])
			break
		}
	}
	// FR-07: what a mount was made of is shown by the kernel, and is harmless.
	for line := range strings.Lines(got["mountinfo"]) {
		if strings.Contains(line, w.dir) {
			s.Logf("a path of the host is seen: %s", strings.TrimSpace(line))
		}
	}
}

// secretsOnCommandLines: what is given as environment, input or file is in no
// command line of the host's; FR-05.
func secretsOnCommandLines(t *testing.T) {
	secret := "argv-" + nonce()
	b := newBox(t, backend.Spec{Env: map[string]string{"SPEC_SECRET": secret + "1"}})
	if err := backend.WriteFile(t.Context(), b.Files(), "program.sh", []byte("# "+secret+"\necho READY $SPEC_SECRET $OWN_SECRET; read x"), 0); err != nil {
		t.Fatal(err)
	}
	var out watched
	p, err := b.Start(t.Context(), backend.Command{
		Args: []string{"/bin/sh", "program.sh"}, Env: map[string]string{"OWN_SECRET": secret + "2"}, Stdin: blocked(t, secret),
		Output: backend.Output{Stdout: &out},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !out.saying("READY "+secret+"1 "+secret+"2", p) {
		t.Fatalf("inconclusive: the program did not start: %s", out.bytes())
	}
	for pid := range processes() {
		for _, name := range []string{"cmdline", "comm"} {
			data, _ := os.ReadFile(filepath.Join("/proc", itoa(pid), name))
			if bytes.Contains(data, []byte(secret)) {
				t.Errorf("open: process %d shows it: %q", pid, data)
			}
		}
	}
	// Outside, an argument is seen by everybody.
	v := victim(t, 0, "/bin/sh", "-c", "sleep 600; : "+secret)
	if data, _ := os.ReadFile(filepath.Join("/proc", itoa(v.Process.Pid), "cmdline")); !bytes.Contains(data, []byte(secret)) {
		t.Error("inconclusive: command lines do not show arguments")
	}
}

// errorsTellNothing provokes errors and looks for the host in them; FR-18.
func errorsTellNothing(t *testing.T) {
	b := newBox(t, backend.Spec{})
	var texts []string
	note := func(err error) {
		if err != nil {
			texts = append(texts, err.Error())
		}
	}
	for _, name := range []string{"absent", "/etc/shadow", "/root/x", "a\x00b", "/proc/1/mem", "/dev/null", "."} {
		_, err := b.Files().Open(t.Context(), name)
		note(err)
		note(backend.WriteFile(t.Context(), b.Files(), name, []byte("x"), 0))
		_, err = b.Files().List(t.Context(), name)
		note(err)
	}
	for _, cmd := range []backend.Command{
		{Args: []string{"true"}, Dir: "/absent"}, {Args: []string{"true"}, User: "nobody-such"}, {Args: []string{"true"}, User: "../x"}, {Args: []string{"\x00"}},
	} {
		_, err := b.Start(t.Context(), cmd)
		note(err)
	}
	_, err := w.ex.Create(t.Context(), backend.Spec{Template: "../../etc"})
	note(err)
	_, err = w.ex.Create(t.Context(), backend.Spec{Limits: backend.Limits{Memory: 1 << 50}})
	note(err)
	if len(texts) < 12 {
		t.Errorf("inconclusive: only %d errors", len(texts))
	}
	for _, text := range texts {
		for _, secret := range []string{w.dir, w.token, w.agent, "/work/", "/sys/fs/cgroup", "/proc/self/fd"} {
			if strings.Contains(text, secret) {
				t.Errorf("open: an error names %q: %s", secret, text)
			}
		}
	}
}
