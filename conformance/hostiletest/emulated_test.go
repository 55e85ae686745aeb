//go:build linux

package hostiletest_test

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// emulations are the tests in which something worked inside that a sandbox's
// own kernel answers by itself.
var emulations sync.Map

// emulated are the tries that may work on a kernel of the sandbox's own: it has
// what they ask for, and nothing of the host's is behind it, which the host's
// own state shows afterwards. What is not here is open when it works. A name
// that ends in * stands for all that begin so.
func emulated(id string) []string {
	return map[string][]string{
		// Nobody is told of the datagram that opens a connection: NW-01's
		// listeners hear nothing.
		"NW-01": {"tfo *"},
		// gVisor's network stack answers echoes of its own loopback.
		"NW-10": {"ping"}, "NW-13-root": {"ping"},
		// Options and devices of that stack.
		"NW-14": {"IP_TRANSPARENT", "SO_MARK", "TUN device"},
		// Its own drivers: the kernel holds none of the host's devices.
		"FR-10": {"fuse", "fuse for reading", "net/tun", "net/tun for reading"}, "FR-10-root": {"fuse", "fuse for reading", "net/tun", "net/tun for reading"},
		// Empty but for what gVisor says of its own interfaces.
		"FR-08": {"list /sys/class"}, "FR-08-root": {"list /sys/class"},
		"FW-16-root": {"open /proc/sysrq-trigger"},
		// Numbers that its scheduler and its memory do not look at.
		"FP-16-limits": {"sched_setaffinity", "setpriority"}, "FP-23": {"nice -20"}, "ME-12": {"-1000", "below what others have"}, "ME-13": {"MAP_HUGETLB"},
		// Names of namespaces, which setns refuses; and a counter of the agent's.
		"FP-16": {"ns *", "io"}, "FP-16-root": {"io"},
	}[id]
}

// emulates tells whether a try that worked may have, and notes it.
func (s *scene) emulates(name string) bool {
	if !sentry() {
		return false
	}
	for _, pattern := range emulated(s.a.id) {
		prefix, any := strings.CutSuffix(pattern, "*")
		if name == pattern || any && strings.HasPrefix(name, prefix) {
			emulations.Store(s.Name(), true)
			return true
		}
	}
	return false
}

// emulatedOnly demands, of a kernel of the sandbox's own, that the host is as it
// was before the attack.
func (s *scene) emulatedOnly(b *box, before map[string]string) {
	s.Helper()
	if !sentry() {
		return
	}
	b.kernelUnchanged(s.T)
	for key, now := range hostState(s.T) {
		if now != before[key] && (key != "mounts" || strings.Contains(now, s.nonce)) {
			s.Errorf("open: of the host %s was %q and is %q", key, before[key], now)
		}
	}
}

// kernelUnchanged looks from the host at the sandbox's kernel, if it has not
// ended: what was asked of that must not have been asked of the host's.
func (b *box) kernelUnchanged(t *testing.T) {
	t.Helper()
	if status(b.agentPID, "State") == "" {
		return
	}
	if nice, err := unix.Getpriority(unix.PRIO_PROCESS, b.agentPID); err == nil && nice != 20 {
		t.Errorf("open: the sandbox's kernel has the priority %d", 20-nice)
	}
	score, own := procFile(b.agentPID, "oom_score_adj"), procFile(os.Getpid(), "oom_score_adj")
	if n, err := strconv.Atoi(strings.TrimSpace(string(score))); err == nil {
		if mine, merr := strconv.Atoi(strings.TrimSpace(string(own))); merr == nil && n < mine {
			t.Errorf("open: the sandbox's kernel has the oom_score_adj %d, this process %d", n, mine)
		}
	}
	fds, _ := os.ReadDir("/proc/" + itoa(b.agentPID) + "/fd")
	for _, fd := range fds {
		to, _ := os.Readlink("/proc/" + itoa(b.agentPID) + "/fd/" + fd.Name())
		if strings.HasPrefix(to, "/dev/") && to != "/dev/null" {
			t.Errorf("open: the sandbox's kernel holds the host's %s", to)
		}
	}
}
