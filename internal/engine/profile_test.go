//go:build linux && amd64

package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/launch/seccomp"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

func agentProfile(t *testing.T) string {
	t.Helper()
	p, err := seccomp.Profile(seccomp.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}

func probeCalls(t *testing.T, e *Engine, profile string) map[string]syscall.Errno {
	t.Helper()
	c := spec(t, "calls")
	c.Seccomp = profile
	out, tail, state := output(t, e, c)
	var got map[string]syscall.Errno
	if err := json.Unmarshal([]byte(out), &got); err != nil || state.ExitCode != 0 {
		t.Fatalf("%+v %v %s %s", state, err, out, tail)
	}
	return got
}

// TestProfile_inAContainer: the profile refuses what it says, with the errno it
// says, and the engine's own default profile lets enough of that through for
// the probes to mean something.
func TestProfile_inAContainer(t *testing.T) {
	t.Parallel()
	e := docker(t)
	control := probeCalls(t, e, "")
	strict := probeCalls(t, e, agentProfile(t))
	const eperm, enosys, noFamily = syscall.EPERM, syscall.ENOSYS, syscall.EAFNOSUPPORT
	refused := map[string]syscall.Errno{
		"socket vsock": noFamily, "socket vsock high": noFamily, "socket netlink": noFamily, "socket alg": noFamily,
		"socket packet": noFamily, "io_uring_setup": enosys, "bpf": eperm, "perf_event_open": eperm, "userfaultfd": eperm,
		"keyctl": eperm, "add_key": eperm, "ptrace": eperm, "process_vm_readv": eperm, "mount": eperm, "unshare": eperm,
		"unshare files": eperm, "clone newuser": eperm, "clone3": enosys, "personality": eperm, "TIOCSTI": eperm,
		"TIOCSTI high": eperm, "TIOCLINUX": eperm, "name_to_handle_at": eperm, "kcmp": eperm, "memfd_secret": enosys,
		"mbind": eperm, "newer than known": enosys,
	}
	looser := 0
	for name, got := range strict {
		want, isRefused := refused[name]
		switch {
		case !isRefused && got != control[name]:
			t.Errorf("%s should be let through: %v, by default %v", name, got, control[name])
		case isRefused && got != want:
			t.Errorf("%s: %v, want %v", name, got, want)
		case isRefused && control[name] != got:
			looser++
		}
		delete(refused, name)
	}
	if len(refused) > 0 {
		t.Errorf("not tried: %v", refused)
	}
	for _, name := range []string{"socket vsock", "socket netlink", "TIOCSTI", "personality query", "ptrace"} {
		if control[name] == strict[name] && name != "personality query" {
			t.Errorf("%s: the control shows nothing: %v", name, control[name])
		}
	}
	if looser < 5 {
		t.Errorf("only %d probes are answered otherwise by default", looser)
	}
	t.Logf("by default: %v", control)
}

// TestProfile_otherArchitectures: calls of the 32-bit and x32 gates kill, as
// only a filter that looks at the architecture can.
func TestProfile_otherArchitectures(t *testing.T) {
	t.Parallel()
	e := docker(t)
	const x32 = `
import ctypes
print("pid", ctypes.CDLL(None).syscall(0x40000000 | 39))
`
	const gate = `
import ctypes, mmap
m = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
m.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
print("pid", f())
`
	for name, program := range map[string]string{"x32": x32, "int 0x80": gate} {
		if out, tail, _ := python(t, e, "", program); !strings.HasPrefix(out, "pid ") {
			t.Errorf("%s: the control did not get through: %q %s", name, out, tail)
		}
		if out, _, state := python(t, e, agentProfile(t), program); out != "" || state.ExitCode != 128+int(syscall.SIGSYS) {
			t.Errorf("%s: %q %+v", name, out, state)
		}
	}
}

// python runs a program of the host's Python in a container.
func python(t *testing.T, e *Engine, profile, program string) (string, string, State) {
	t.Helper()
	testenv.NeedProgram(t, "python3")
	c := spec(t)
	c.Args = []string{"/usr/bin/python3", "-I", "-c", program}
	c.Binds = []Bind{{Source: "/usr", Target: "/usr"}}
	c.Tmpfs = map[string]string{"/tmp": "size=4m"}
	c.Seccomp = profile
	return output(t, e, c)
}

// TestProfile_python: what programs do all day works under the profile.
func TestProfile_python(t *testing.T) {
	t.Parallel()
	e := docker(t)
	out, tail, state := python(t, e, agentProfile(t), `
import subprocess, threading, socket, tempfile, os, select, time, hashlib, ssl, json, selectors
print(subprocess.run(["/usr/bin/env"], capture_output=True).returncode)
t = threading.Thread(target=lambda: print("thread")); t.start(); t.join()
a, b = socket.socketpair(); a.send(b"x"); print(b.recv(1))
s = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(s.getsockname()); print(c.getsockname()[0])
with tempfile.NamedTemporaryFile() as f: f.write(b"x"); f.flush(); os.fsync(f.fileno())
p = os.fork()
if p == 0: os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))
sel = selectors.DefaultSelector(); sel.register(c, selectors.EVENT_WRITE); print(len(sel.select(1)))
print(os.memfd_create("x") > 0, len(os.urandom(4)), os.sched_getaffinity(0) != set())
`)
	if want := "0\nthread\nb'x'\n127.0.0.1\n7\n1\nTrue 4 True\n"; out != want || state.ExitCode != 0 {
		t.Errorf("%+v %q %s", state, out, tail)
	}
}

// TestProfile_isNoLooserThanTheEngines compares with the default profile as the
// runtime gets it: nothing is let through that it refuses, but for calls newer
// than the engine that are known to do no harm.
func TestProfile_isNoLooserThanTheEngines(t *testing.T) {
	t.Parallel()
	e := docker(t)
	testenv.NeedRoot(t)
	id := create(t, e, spec(t, "sleep"))
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	bundles, _ := filepath.Glob("/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/" + id + "/config.json")
	more, _ := filepath.Glob("/run/containerd/io.containerd.runtime.v2.task/moby/" + id + "/config.json")
	bundles = append(bundles, more...)
	if len(bundles) != 1 {
		t.Skipf("the runtime's configuration is not where it is looked for: %q", bundles)
	}
	data, err := os.ReadFile(bundles[0])
	if err != nil {
		t.Fatal(err)
	}
	type calls struct {
		Names  []string          `json:"names"`
		Action string            `json:"action"`
		Args   []json.RawMessage `json:"args"`
	}
	var theirs struct {
		Linux struct {
			Seccomp struct {
				DefaultAction string  `json:"defaultAction"`
				Syscalls      []calls `json:"syscalls"`
			} `json:"seccomp"`
		} `json:"linux"`
	}
	var ours struct {
		Syscalls []calls `json:"syscalls"`
	}
	if err := json.Unmarshal(data, &theirs); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(agentProfile(t)), &ours); err != nil {
		t.Fatal(err)
	}
	if theirs.Linux.Seccomp.DefaultAction != "SCMP_ACT_ERRNO" || len(theirs.Linux.Seccomp.Syscalls) == 0 {
		t.Fatalf("this is no default profile: %+v", theirs.Linux.Seccomp)
	}
	allowed := map[string]bool{
		// The agent's own sandboxing, and calls newer than some engines' lists.
		"landlock_create_ruleset": true, "landlock_add_rule": true, "landlock_restrict_self": true, "process_mrelease": true,
		"futex_waitv": true, "futex_wake": true, "futex_wait": true, "futex_requeue": true, "cachestat": true, "fchmodat2": true,
		"map_shadow_stack": true, "mseal": true, "lsm_get_self_attr": true, "lsm_list_modules": true, "pidfd_send_signal": true,
		"epoll_pwait2": true, "close_range": true, "pkey_alloc": true, "pkey_free": true, "pkey_mprotect": true,
	}
	for _, c := range theirs.Linux.Seccomp.Syscalls {
		if c.Action == "SCMP_ACT_ALLOW" {
			for _, n := range c.Names {
				allowed[n] = true
			}
		}
	}
	compared := 0
	for _, c := range ours.Syscalls {
		for _, n := range c.Names {
			if c.Action == "SCMP_ACT_ALLOW" {
				compared++
				if !allowed[n] {
					t.Errorf("%s is let through, and not by the engine's own profile", n)
				}
			}
		}
	}
	if compared < 200 {
		t.Errorf("only %d names were compared", compared)
	}
}
