//go:build linux

package subprocess_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// unled is a Python program's beginning: leave ends the main thread and leaves
// the others running, which ps and the like take for a zombie; hog takes bytes
// of memory in another thread and keeps them.
const unled = `
import ctypes, os, platform, sys, threading, time
def leave():
    sys.stdout.flush()
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
kept = []
def hog(size, wait=0):
    time.sleep(wait)
    kept.append(b"x" * size)
    time.sleep(60)
def background(f):
    if os.fork() == 0:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        f()
        os._exit(0)
def unled(size):
    threading.Thread(target=hog, args=(size, 0.3)).start()
    leave()
`

// monitored are the ways of working in which the agent itself has to find what
// user code started, and how much memory that has.
var monitored = []subprocess.Privilege{subprocess.PrivilegeUserns, subprocess.PrivilegeRestricted}

// TestUnled_endsWithItsSandbox: a process whose main thread has ended is one,
// and what it started has parents up to the agent.
func TestUnled_endsWithItsSandbox(t *testing.T) {
	inModes(t, []subprocess.Privilege{subprocess.PrivilegeRestricted, subprocess.PrivilegeNone}, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		got := python(t, sb, unled+`
r, w = os.pipe()
def child():
    if os.fork() == 0:
        os.write(w, b"%d " % os.getpid())
        time.sleep(60)
    os.write(w, b"%d " % os.getpid())
    unled(1)
background(child)
said = b""
while said.count(b" ") < 2:
    said += os.read(r, 99)
time.sleep(0.2)
print(said.decode())
`).succeed(t)
		pids := strings.Fields(got.out)
		if len(pids) != 2 {
			t.Fatalf("%q", got.out)
		}
		// Not so when it has ended and only waits for init to notice.
		there := func(pid string) bool {
			data, err := os.ReadFile("/proc/" + pid + "/stat")
			if err != nil {
				return false
			}
			f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
			return len(f) > 17 && (f[0] != "Z" || f[17] != "0" && f[17] != "1")
		}
		for _, pid := range pids {
			if !there(pid) {
				t.Fatalf("%s is not there", pid)
			}
		}
		destroy(t, sb)
		for _, pid := range pids {
			if there(pid) {
				t.Errorf("%s outlives its sandbox", pid)
				if n, err := strconv.Atoi(pid); err == nil {
					_ = unix.Kill(n, unix.SIGKILL)
				}
			}
		}
	})
}

// TestUnled_isKilledWithItsCommand: a kill of the session finds it.
func TestUnled_isKilledWithItsCommand(t *testing.T) {
	inModes(t, monitored, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		mark := backend.DefaultHome
		if h.privilege == subprocess.PrivilegeRestricted {
			mark = strings.TrimSpace(sh(t, sb, "echo $HOME").succeed(t).out)
		}
		mark += "/mark"
		got := run(t, sb, backend.Command{Timeout: 1500 * time.Millisecond, Args: []string{"/usr/bin/python3", "-c", unled + `
def tick():
    while True:
        with open("` + mark + `", "a") as f:
            f.write("x")
        time.sleep(0.05)
if os.fork() == 0:
    threading.Thread(target=tick).start()
    time.sleep(0.2)
    leave()
time.sleep(60)
`}})
		if got.Reason != backend.ReasonTimeout {
			t.Fatalf("%v %q", got.Exit, got.err)
		}
		size := func() string { return sh(t, sb, "wc -c <"+mark).succeed(t).out }
		before := size()
		<-time.After(300 * time.Millisecond)
		if after := size(); after != before || before == "0\n" {
			t.Errorf("it goes on: %q, then %q", before, after)
		}
	})
}

// TestUnled_memoryCounts: its memory is seen, and the limit ends it.
func TestUnled_memoryCounts(t *testing.T) {
	inModes(t, monitored, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{Memory: 128 << 20}})
		got := python(t, sb, unled+"unled(200 << 20)\n")
		if got.Reason != backend.ReasonMemoryLimit {
			t.Errorf("%v %q", got.Exit, got.err)
		}
		sh(t, sb, "echo fine").succeed(t)
	})
}

// TestMemory_ofASessionOfItsOwn: what is counted is killed, whatever session it
// is in, or every later command would die for it.
func TestMemory_ofASessionOfItsOwn(t *testing.T) {
	inModes(t, monitored, func(t *testing.T, h *harness) {
		for _, how := range []string{"hog", "unled"} {
			sb := h.create(t, backend.Spec{Limits: backend.Limits{Memory: 128 << 20}})
			began := time.Now()
			got := python(t, sb, unled+fmt.Sprintf("background(lambda: %s(200 << 20))\ntime.sleep(20)\n", how))
			if got.Reason != backend.ReasonMemoryLimit {
				t.Fatalf("%s: %v %q after %v", how, got.Exit, got.err, time.Since(began))
			}
			<-time.After(200 * time.Millisecond) // for more looks at what is left
			if got := sh(t, sb, "sleep 0.3; echo fine"); got.out != "fine\n" {
				t.Errorf("%s: the next command: %v %q", how, got.Exit, got.err)
			}
			if h.privilege != subprocess.PrivilegeRestricted {
				if left := strings.TrimSpace(sh(t, sb, "cat /proc/[0-9]*/comm | grep -c python").out); left != "0" {
					t.Errorf("%s: %s are left", how, left)
				}
			}
		}
	})
}

// TestDestroy_whileCommandsStart: a command that starts as its sandbox ends
// does not outlive it.
func TestDestroy_whileCommandsStart(t *testing.T) {
	inModes(t, []subprocess.Privilege{subprocess.PrivilegeRestricted, subprocess.PrivilegeNone}, func(t *testing.T, h *harness) {
		mark := "GLOVEBOX_TEST_MARK=" + strconv.FormatInt(time.Now().UnixNano(), 36)
		key, value, _ := strings.Cut(mark, "=")
		for range 10 {
			sb := h.create(t, backend.Spec{})
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for {
						_, err := sb.Start(t.Context(), backend.Command{Args: []string{"/bin/sleep", "60"}, Env: map[string]string{key: value}})
						if err != nil {
							return
						}
					}
				})
			}
			eventually(t, "commands run", func() bool { return len(carrying(t, mark)) > 8 })
			destroy(t, sb)
			wg.Wait()
			if left := carrying(t, mark); len(left) > 0 {
				t.Errorf("%d commands outlive their sandbox", len(left))
				for _, pid := range left {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
				return
			}
		}
	})
}

// carrying lists the processes with a variable in their environment.
func carrying(t *testing.T, variable string) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		if bytes.Contains(data, []byte(variable)) {
			pids = append(pids, pid)
		}
	}
	return pids
}
