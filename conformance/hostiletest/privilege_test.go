//go:build linux

package hostiletest_test

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
)

func privilegeAttacks() []attack {
	all := control{shows: []string{"CapEff", "CapPrm", "CapBnd", "new privileges", "every system call", "setuid elsewhere", "chown", "file capabilities", "setgroups"}}
	return []attack{
		{id: "PE-01", program: "kernel.py", args: []string{"privileges"}, during: nil, inside: unprivileged, outside: statusFromOutside, control: all},
		{id: "PE-01-root", only: asRoot, user: "root", program: "kernel.py", args: []string{"privileges"}, inside: unprivileged, outside: statusFromOutside, control: all},
		{id: "PE-02", program: "kernel.py", args: []string{"setuid"}, control: control{uid: loneUID, works: func(s *scene, o *outcome) {
			for name, how := range s.tries(o, "outside") {
				if how == "ok" && strings.HasPrefix(name, "/") {
					return
				}
			}
			s.Errorf("inconclusive: no program gives root outside either: %v", o.said.Tries)
		}}},
	}
}

func kernelAttacks() []attack {
	surface := control{shows: []string{
		"bpf map", "perf_event_open", "userfaultfd", "io_uring_setup", "fanotify", "kcmp", "modify_ldt", "no ASLR",
	}}
	admin := control{
		shows: []string{"reboot with wrong numbers", "sethostname to what it is", "setdomainname to what it is", "swapon", "acct"},
	}
	return []attack{
		{id: "PE-14", program: "kernel.py", args: []string{"surface"}, control: surface},
		{id: "PE-14-root", only: asRoot, user: "root", program: "kernel.py", args: []string{"surface"}, control: surface},
		{id: "PE-11", program: "kernel.py", args: []string{"admin"}, before: rememberHost, outside: hostUnchanged, control: admin},
		{id: "PE-11-root", only: asRoot, user: "root", program: "kernel.py", args: []string{"admin"}, before: rememberHost, outside: hostUnchanged, control: admin},
		{id: "PE-23", program: "kernel.py", args: []string{"abis"}, control: control{shows: []string{"int 0x80 getpid", "int 0x80 geteuid"}}},
		{id: "PE-26", program: "kernel.py", args: []string{"terminal"}, inside: noTerminalOfOthers, control: control{shows: []string{"TIOCSTI", "TIOCSTI, high bits set"}}},
		{id: "PE-21", program: "kernel.py", args: []string{"runtime"}, before: func(s *scene, _ *box) {
			s.kept["agent"] = hashOf(s.T, w.agent)
		}, outside: func(s *scene, b *box, o *outcome) {
			if hashOf(s.T, w.agent) != s.kept["agent"] {
				s.Error("open: the agent's binary was changed")
			}
			agentLives(s, b, o)
		}, control: control{none: "outside /proc/1/exe is the host's init, which must not be tried"}},
		{id: "NW-11", program: "gate.c", args: []string{}, control: control{shows: []string{"vsock by socketcall", "inet by socketcall", "AF_UNIX by socket"}}},
	}
}

// unprivileged: nothing but setting one's own ids to what they are works.
func unprivileged(s *scene, o *outcome) {
	s.blocked(o)
	if s.a.user == "root" && o.said.Tries["setuid 0"] == "ok" {
		s.Error("open: it became another")
	}
}

// statusFromOutside reads what the kernel says of the commands and the agent.
func statusFromOutside(s *scene, b *box, _ *outcome) {
	p, err := b.Start(s.Context(), backend.Command{Args: []string{"/bin/sleep", "60"}, User: s.a.user})
	if err != nil {
		s.Fatal(err)
	}
	_ = p
	if sentry() {
		kernelFromOutside(s, b)
		return
	}
	if !eventually(5e9, func() bool { return len(b.code(s.T)) == 1 && status(b.code(s.T)[0], "Name") == "sleep" }) {
		s.Fatalf("inconclusive: %v run", b.code(s.T))
	}
	pid := b.code(s.T)[0]
	for key, want := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2", "CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none} {
		if got := status(pid, key); got != want {
			s.Errorf("open: %s of the command is %s", key, got)
		}
		if key == "CapBnd" {
			continue // its own commands have none, whatever the agent's is
		}
		if got := status(b.agentPID, key); got != want && !(rooted() && fewCaps(got)) {
			s.Errorf("open: %s of the agent is %s", key, got)
		}
	}
	if groups := status(pid, "Groups"); rooted() && groups != "" {
		s.Errorf("open: the command has the groups %s", groups)
	}
	if uid := hostUID(s.T, pid); rooted() && uid < 1<<16 && !(uid == 0 && s.a.user == "root" && w.mode == modeDocker) {
		// Root inside is the host's, without capabilities, where the engine maps no
		// users.
		s.Errorf("open: the command is the host's uid %d", uid)
	}
}

// kernelFromOutside reads what the host's kernel says of the sandbox's own: it is
// what a program has that breaks out of it.
func kernelFromOutside(s *scene, b *box) {
	// Without root its capabilities are of a user namespace of its own, which has
	// nobody but its user.
	owned := !rooted()
	for key, want := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2", "CapInh": none, "CapPrm": none, "CapEff": none, "CapAmb": none} {
		if got := status(b.agentPID, key); got != want && !(owned && strings.HasPrefix(key, "Cap")) {
			s.Errorf("open: %s of the sandbox's kernel is %s", key, got)
		}
	}
	if uid := hostUID(s.T, b.agentPID); uid == 0 {
		s.Error("open: the sandbox's kernel is the host's root")
	}
	if entries, err := os.ReadDir("/proc/" + itoa(b.agentPID) + "/root"); err == nil {
		for _, e := range entries {
			if e.Name() != "etc" && e.Name() != "proc" {
				s.Errorf("open: the sandbox's kernel sees %s of the host's", e.Name())
			}
		}
	} else if rooted() {
		s.Errorf("inconclusive: its root: %v", err)
	}
	for _, ns := range []string{"user", "mnt", "pid", "net", "ipc"} {
		own, _ := os.Readlink("/proc/self/ns/" + ns)
		its, err := os.Readlink("/proc/" + itoa(b.agentPID) + "/ns/" + ns)
		if own == its || err != nil {
			s.Errorf("open: the sandbox's kernel has the host's %s namespace (%v)", ns, err)
		}
	}
}

const none = "0000000000000000"

// fewCaps are those that starting commands as others needs.
func fewCaps(hex string) bool {
	got, err := strconv.ParseUint(hex, 16, 64)
	const kill, setgid, setuid = 1 << 5, 1 << 6, 1 << 7
	return err == nil && got&^(kill|setgid|setuid) == 0
}

// noTerminalOfOthers: its own terminals are its own; into none may be typed,
// and the host's are not there.
func noTerminalOfOthers(s *scene, o *outcome) {
	for name, how := range s.tries(o, "inside") {
		switch {
		case how != "ok":
		case name == "TIOCSETD":
			s.Logf("a line discipline could be set")
		default:
			s.Errorf("open: %s works inside", name)
		}
	}
}

// terminalIsOwn: a command with a terminal has one of the sandbox, and cannot
// type into it; E13.
func terminalIsOwn(t *testing.T) {
	b := newBox(t, backend.Spec{})
	var out watched
	text := "import fcntl,os\n" +
		"for r in (0x5412, 0x541c, (1<<32)|0x5412):\n" +
		"    try:\n        fcntl.ioctl(0, r & 0xffffffff, b'x'); print('typed')\n" +
		"    except OSError as e: print('refused', e.errno)\n" +
		"print(os.ttyname(0), os.listdir('/dev/pts'))\n"
	ctx := t.Context()
	exit, err := backend.RunIn(ctx, b, backend.Command{
		Args: []string{"/usr/bin/python3", "-c", text}, Terminal: &backend.TerminalSize{}, Output: backend.Output{Stdout: &out},
	})
	if err != nil || !exit.Success() {
		t.Fatalf("%s, %v, %s", exit, err, out.bytes())
	}
	if said := string(out.bytes()); strings.Count(said, "refused 1") != 3 || !strings.Contains(said, "/dev/pts/0") {
		t.Errorf("open: %s", said)
	}
}

func killPID(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
