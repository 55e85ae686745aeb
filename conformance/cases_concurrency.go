package conformance

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/glovebox-dev/glovebox/backend"
)

func concurrencyCases() []Case {
	return []Case{
		{ID: "CC-01", Area: Concurrency, Title: "32 commands at once, each with its own output and code", Needs: needs(shell()), Run: manyCommands},
		{ID: "CC-02", Area: Concurrency, Title: "eight sandboxes do not see each other's files", Needs: needs(shell()), Run: filesApart},
		{ID: "CC-03", Area: Concurrency, Title: "a sandbox does not see another's processes, nor signal them", Needs: needs(shell(), python(), enforced(backend.ControlHostProcs)), Run: processesApart},
		{ID: "CC-04", Area: Concurrency, Title: "a sandbox does not reach another's sockets, abstract ones included", Needs: needs(python(), feature(backend.FeatureDial), enforced(backend.ControlNetworkOff)), Run: socketsApart},
		{ID: "CC-05", Area: Concurrency, Title: "a sandbox does not see another's System V objects", Needs: needs(shell(), python(), enforced(backend.ControlHostIPC)), Run: ipcApart},
		{ID: "CC-06", Area: Concurrency, Title: "files are written and read by many at once", Needs: needs(shell()), Run: manyFiles},
		{ID: "CC-07", Area: Concurrency, Title: "commands, files and destroys of many sandboxes at once", Needs: needs(shell()), Run: storm},
		{ID: "CC-08", Area: Concurrency, Title: "a destroy during commands and uploads ends them with closed", Needs: needs(shell()), Run: destroyDuringCalls},
	}
}

func manyCommands(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			script := fmt.Sprintf("for n in 1 2 3; do echo %d; echo err%d >&2; sleep 0.05; done; exit %d", i, i, i)
			got, err := tryRun(ctx, sb, backend.Command{Args: []string{"sh", "-c", script}})
			want, wantErr := strings.Repeat(fmt.Sprintf("%d\n", i), 3), strings.Repeat(fmt.Sprintf("err%d\n", i), 3)
			if err != nil || got.String() != fmt.Sprintf("exited(%d)", i) || got.out != want || got.err != wantErr {
				t.Errorf("%d: %v %v %q %q", i, got.Exit, err, got.out, got.err)
			}
		})
	}
	wg.Wait()
}

func filesApart(ctx context.Context, t *T) {
	var sbs []backend.Sandbox
	for i := range 8 {
		sb := t.Create(ctx, backend.Spec{})
		sbs = append(sbs, sb)
		t.good(t.sh(ctx, sb, fmt.Sprintf("for d in . /tmp /var/tmp /dev/shm; do (echo %d >$d/conformance%d) 2>/dev/null; done; true", i, i)))
	}
	for i, sb := range sbs {
		got := t.good(t.sh(ctx, sb, "for d in . /tmp /var/tmp /dev/shm; do cat $d/conformance* 2>/dev/null; done; true"))
		if got == "" || strings.Trim(got, fmt.Sprintf("%d\n", i)) != "" {
			t.Errorf("%d sees %q", i, got)
		}
	}
}

func processesApart(ctx context.Context, t *T) {
	one, two := t.Create(ctx, backend.Spec{}), t.Create(ctx, backend.Spec{})
	p, _, _ := t.start(ctx, one, backend.Command{Args: []string{"sleep", "98765.25"}, Timeout: backend.UntilSandboxEnds})
	const look = `
import os
found = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        found += b"98765.2" + b"5" in open("/proc/%s/cmdline" % pid, "rb").read()
    except OSError:
        pass
print(found)
`
	t.until(ctx, "its own sandbox sees it", func() bool { return t.good(t.python(ctx, one, look)) == "1\n" }) // the control
	if got := t.good(t.python(ctx, two, look)); got != "0\n" {
		t.Errorf("the other sees %q", got)
	}
	// Nor does a signal to every number there is reach it.
	t.python(ctx, two, `
import os, signal
for pid in range(2, 70000):
    if pid not in (os.getpid(), os.getppid()):
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
`)
	if got := t.good(t.python(ctx, one, look)); got != "1\n" {
		t.Errorf("it is gone: %q", got)
	}
	t.signal(ctx, p, backend.SIGKILL)
}

// listen waits at a TCP port and an abstract socket, saying what it sees.
const listen = `
import socket, threading
tcp = socket.create_server(("127.0.0.1", 7411))
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\0conformance-7411")
abstract.listen()
def serve(s):
    while True:
        c, _ = s.accept()
        c.sendall(b"hello")
        c.close()
threading.Thread(target=serve, args=(abstract,), daemon=True).start()
print("ready", flush=True)
serve(tcp)
`

const connect = `
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", 7411)), (socket.AF_UNIX, "\0conformance-7411")):
    try:
        s = socket.socket(family)
        s.settimeout(5)
        s.connect(address)
        print(s.recv(10).decode())
    except OSError:
        print("no")
`

func socketsApart(ctx context.Context, t *T) {
	one, two := t.Create(ctx, backend.Spec{}), t.Create(ctx, backend.Spec{})
	_, out, _ := t.start(ctx, one, backend.Command{Args: []string{"python3", "-c", listen}, Timeout: backend.UntilSandboxEnds})
	t.until(ctx, "it listens", func() bool { return out.String() == "ready\n" })
	if got := t.good(t.python(ctx, one, connect)); got != "hello\nhello\n" {
		t.Inconclusivef("its own sandbox does not reach it: %q", got)
	}
	if got := t.good(t.python(ctx, two, connect)); got != "no\nno\n" {
		t.Errorf("another reaches %q", got)
	}
}

func ipcApart(ctx context.Context, t *T) {
	one, two := t.Create(ctx, backend.Spec{}), t.Create(ctx, backend.Spec{})
	const make = `
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.shmget(0x6c6f7665, 4096, 0o1666) >= 0, libc.shmget(0x6c6f7665, 0, 0) >= 0)
`
	made := t.good(t.python(ctx, one, make))
	if made == "False False\n" {
		return // there are none at all
	}
	got := t.good(t.python(ctx, two, strings.Replace(make, "0o1666", "0", 1)))
	if made != "True True\n" || got != "False False\n" {
		t.Errorf("made %q, the other has %q", made, got)
	}
}

func manyFiles(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			name, data := fmt.Sprintf("d/f%d", i), pattern(100_000+i)
			for range 4 {
				if err := backend.WriteFile(ctx, sb.Files(), name, data, 0); err != nil {
					t.Errorf("write %s: %v", name, err)
				}
				if got, err := backend.ReadFile(ctx, sb.Files(), name, 1<<20); err != nil || string(got) != string(data) {
					t.Errorf("read %s: %d bytes, %v", name, len(got), err)
				}
			}
		})
	}
	wg.Wait()
}

func storm(ctx context.Context, t *T) {
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for range 3 {
				sb, err := t.Executor().Create(ctx, t.Spec(backend.Spec{}))
				if err != nil {
					t.Errorf("create: %v", err)
					return
				}
				t.Keep(sb)
				want := fmt.Sprintf("%d in %s", i, sb.ID())
				if err := backend.WriteFile(ctx, sb.Files(), "f", []byte(want), 0); err != nil {
					t.Errorf("write: %v", err)
				}
				if got, err := tryRun(ctx, sb, backend.Command{Args: []string{"cat", "f"}}); err != nil || got.out != want {
					t.Errorf("%v %v %q", got.Exit, err, got.out)
				}
				if err := sb.Destroy(ctx); err != nil {
					t.Errorf("destroy: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func destroyDuringCalls(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	var wg sync.WaitGroup
	begun := make(chan struct{}, 8)
	for i := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				if n == 1 {
					begun <- struct{}{}
				}
				var err error
				if i%2 == 0 {
					_, err = tryRun(ctx, sb, backend.Command{Args: []string{"sh", "-c", "echo x; exec sleep 0.02"}})
				} else {
					err = backend.WriteFile(ctx, sb.Files(), fmt.Sprint(i), pattern(50_000), 0)
				}
				if err != nil {
					t.kind("a call during destroy", err, backend.ErrClosed)
					return
				}
			}
		})
	}
	for range 8 {
		<-begun
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
	wg.Wait()
}
