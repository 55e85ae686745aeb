//go:build linux

package hostiletest_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func tamperAttacks() []attack {
	settings := control{shows: []string{"write /proc/sys/kernel/core_pattern", "write /proc/sys/kernel/hostname", "write /proc/sys/vm/swappiness", "mkdir in /sys/fs/cgroup/memory"}}
	own := control{shows: []string{"tmpfs", "bind", "proc", "cgroup v1", "overlay", "umount", "chroot", "open_tree", "fsopen", "mount_setattr"}}
	spaces := control{shows: []string{"unshare user", "clone user", "clone3 user", "clone3 mount", "unshare by program", "setns mnt of a process"}}
	return []attack{
		{id: "FW-16", program: "tamper.py", args: []string{"settings"}, before: rememberHost, outside: hostUnchanged, control: settings},
		{id: "FW-16-root", only: asRoot, user: "root", program: "tamper.py", args: []string{"settings"}, before: rememberHost, outside: hostUnchanged, control: settings},
		{id: "PE-05", program: "tamper.py", args: []string{"mounts"}, before: rememberHost, outside: hostUnchanged, control: own},
		{id: "PE-05-root", only: asRoot, user: "root", program: "tamper.py", args: []string{"mounts"}, before: rememberHost, outside: hostUnchanged, control: own},
		{id: "PE-03", program: "tamper.py", args: []string{"namespaces"}, before: initVictim, outside: agentLives, control: spaces},
		{id: "PE-03-root", only: asRoot, user: "root", program: "tamper.py", args: []string{"namespaces"}, before: initVictim, outside: agentLives, control: spaces},
		{id: "FW-02", program: "tamper.py", args: []string{"poison"}, inside: func(s *scene, o *outcome) {
			if s.report(o, "inside").N < 1 {
				s.Error("inconclusive: it could write nothing at all")
			}
		}, outside: nextIsClean, control: control{shell: `HOME="$(dirname "$3")"; export HOME`, works: func(s *scene, o *outcome) {
			if r := s.report(o, "outside"); !strings.Contains(r.Text, "poisoned") {
				s.Errorf("inconclusive: what it plants does nothing: %q", r.Text)
			}
		}}},
		{id: "XR-01", program: "tamper.py", before: func(s *scene, _ *box) { s.args = []string{"residue", "m" + s.nonce, "leave"} }, inside: leftSome, outside: nextFindsNothing, control: control{works: func(s *scene, o *outcome) {
			leftSome(s, o)
			s.outArgs = []string{"residue", "m" + s.nonce, "look"}
			if r := s.report(s.outsider(0, 0), "outside"); r.N < 3 {
				s.Errorf("inconclusive: outside a second run finds only %q", r.Text)
			}
			dropResidue(s)
		}}},
	}
}

// rememberHost notes what only the host's own root may change.
func rememberHost(s *scene, _ *box) {
	s.kept["host"] = hostState(s.T)
}

func hostState(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, path := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname",
		"/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/pid_max", "/proc/sys/kernel/sysrq", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/fs/protected_symlinks",
	} {
		data, _ := os.ReadFile(path)
		out[path] = string(data)
	}
	for line := range strings.Lines(string(procFile(os.Getpid(), "../meminfo"))) {
		if strings.HasPrefix(line, "HugePages_Total") {
			out["huge pages"] = line
		}
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	// Others mount as well: only what bears a test's marks counts.
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, "target-") || strings.Contains(line, "hostile") {
			out["mounts"] += line
		}
	}
	return out
}

func hostUnchanged(s *scene, _ *box, _ *outcome) {
	before := s.kept["host"].(map[string]string)
	for key, now := range hostState(s.T) {
		if now != before[key] && !(key == "mounts" && !strings.Contains(now, s.nonce)) {
			s.Errorf("open: %s was %q and is %q", key, before[key], now)
		}
	}
	for _, at := range []string{"", "*/"} {
		if found, _ := filepath.Glob("/sys/fs/cgroup/" + at + "glovebox-hostile-" + s.nonce); len(found) > 0 {
			s.Errorf("open: the host has %v", found)
		}
	}
}

// nextIsClean: another sandbox's interpreters say nothing odd.
func nextIsClean(s *scene, _ *box, _ *outcome) {
	for _, text := range []string{"/usr/bin/python3 -c 'print(6*7)'", "bash -lc 'echo 42'", "HOME=/home/user bash -ic 'echo 42' 2>/dev/null"} {
		if _, out := runIn(s.T, newBox(s.T, backend.Spec{}), text); !strings.HasSuffix(out, "42\n") || strings.Contains(out, "poisoned") {
			s.Errorf("open: %s says %q", text, out)
		}
	}
}

func leftSome(s *scene, o *outcome) {
	if r := s.report(o, ""); r.N < 4 {
		s.Errorf("inconclusive: it could leave only %q", r.Text)
	}
}

// nextFindsNothing looks from a second sandbox, while the first is there and
// after it has gone.
func nextFindsNothing(s *scene, b *box, _ *outcome) {
	for _, when := range []string{"beside it", "after it"} {
		next := newBox(s.T, backend.Spec{})
		n := &scene{T: s.T, a: s.a, nonce: nonce(), args: []string{"residue", s.args[1], "look"}}
		n.upload(next)
		if r := n.report(n.start(next), "inside"); r.N != 0 {
			s.Errorf("open: %s another finds %s", when, r.Text)
		}
		b.end(s.T)
	}
	if left := carrying("HOSTILE_RUN=" + s.nonce); len(left) > 0 {
		s.Errorf("open: %v outlive it", left)
	}
}

// dropResidue removes what the control left outside.
func dropResidue(s *scene) {
	mark := s.outArgs[1]
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm", "/run", os.Getenv("HOME"), s.dir} {
		_ = os.Remove(filepath.Join(dir, mark))
	}
	data, _ := os.ReadFile("/proc/sysvipc/shm")
	key := uint32(mark[0]) | uint32(mark[1])<<8 | uint32(mark[2])<<16 | uint32(mark[3])<<24
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] == strconv.FormatUint(uint64(key&0x7fffffff), 10) {
			if id, err := strconv.Atoi(f[1]); err == nil {
				_, _, _ = syscall.Syscall(syscall.SYS_SHMCTL, uintptr(id), 0, 0)
			}
		}
	}
}

// soon calls f and demands an answer soon, whatever it is.
func soon(t *testing.T, what string, f func() error) error {
	t.Helper()
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if took := time.Since(began); took > time.Second+grace() {
			t.Errorf("open: %s took %v", what, took)
		}
		return err
	case <-time.After(15 * time.Second):
		t.Fatalf("open: %s hangs", what)
		return nil
	}
}
