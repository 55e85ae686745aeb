//go:build linux

package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// keeper is the program for kept sandboxes. Whatever a test leaves is ended.
func keeper(t *testing.T) *glovebox {
	t.Helper()
	g := real(t)
	t.Cleanup(func() { g.endAll() })
	return g
}

// endAll ends every sandbox and fails the test when a process stays.
func (g *glovebox) endAll() {
	cmd := g.cmd(g.t.Context(), "kill", "--all")
	if g.t.Context().Err() != nil { // in a cleanup it is over
		cmd = exec.Command(g.exe, "kill", "--all")
		cmd.Dir, cmd.SysProcAttr, cmd.Env = g.dir, g.as, g.cmd(g.t.Context()).Env
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		g.t.Errorf("ending all: %v\n%s", err, out)
	}
	g.eventually("no process is left", func() bool { return len(g.processes()) == 0 })
	for _, sub := range []string{"state/sandboxes/*", "state/run/*"} {
		if left, _ := filepath.Glob(filepath.Join(g.dir, sub)); len(left) > 0 {
			g.t.Errorf("left: %q", left)
		}
	}
}

// processes are those of this host that work with this test's state: the
// program's, and every agent and command of its sandboxes has its own name.
func (g *glovebox) processes() []string {
	var out []string
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, p := range all {
		if env, err := os.ReadFile(p); err == nil && bytes.Contains(env, []byte("GLOVEBOX_STATE_DIR="+g.dir)) {
			out = append(out, p)
		}
	}
	return out
}

func (g *glovebox) eventually(what string, ok func() bool) {
	g.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			g.t.Errorf("not within 20s: %s", what)
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}

// create makes a kept sandbox.
func (g *glovebox) create(args ...string) string {
	g.t.Helper()
	r := g.run(append([]string{"create", "-q", "--lifetime", "5m"}, args...)...)
	if r.code != 0 {
		g.t.Fatalf("create %q: %+v", args, r)
	}
	return strings.TrimSpace(r.out)
}

// want runs a command and fails unless it gives code and output.
func (g *glovebox) want(code int, out string, args ...string) ran {
	g.t.Helper()
	r := g.run(args...)
	if r.code != code || out != "*" && r.out != out {
		g.t.Errorf("%q: %+v, want code %d and %q", args, r, code, out)
	}
	return r
}

// asNobody makes g an unprivileged user's.
func (g *glovebox) asNobody() {
	g.t.Helper()
	// t.TempDir lies below a directory that only root can enter.
	dir, err := os.MkdirTemp("", "glovebox-nobody-")
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program, err := os.ReadFile(g.exe)
	if err != nil {
		g.t.Fatal(err)
	}
	g.dir, g.exe = dir, filepath.Join(dir, "glovebox")
	if err := errors.Join(os.WriteFile(g.exe, program, 0o755), os.Chown(dir, testenv.Nobody, testenv.Nobody), os.Chmod(dir, 0o755)); err != nil {
		g.t.Fatal(err)
	}
	g.as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testenv.Nobody, Gid: testenv.Nobody}}
}

// keepers runs a test as root and as nobody.
func keepers(t *testing.T, test func(t *testing.T, g *glovebox)) {
	t.Run("as we are", func(t *testing.T) {
		t.Parallel()
		test(t, keeper(t))
	})
	t.Run("as nobody", func(t *testing.T) {
		t.Parallel()
		testenv.NeedRoot(t)
		g := real(t)
		g.asNobody()
		if d := g.run("doctor", "--require", "process"); d.code != 0 {
			t.Skipf("nobody keeps nothing here: %+v", d)
		}
		t.Cleanup(func() { g.endAll() })
		test(t, g)
	})
}

func TestKept_life(t *testing.T) {
	t.Parallel()
	keepers(t, func(t *testing.T, g *glovebox) {
		id := g.create("--name", "web", "--label", "job=7", "-e", "GREETING=hello")
		other := g.create("--label", "job=8")
		g.want(0, "hello\n", "exec", "web", "sh", "-c", "echo $GREETING; echo kept >note")
		g.want(0, "kept\n", "exec", id, "cat", "note")
		g.want(0, id+"\n"+other+"\n", "ps", "-q")
		g.want(0, id+"\n", "ps", "-q", "--filter", "label=job=7")
		if r := g.run("ps"); !strings.Contains(r.out, id) || !strings.Contains(r.out, "job=8") || !strings.Contains(r.out, "running") {
			t.Errorf("%+v", r)
		}
		if r := g.run("create", "--name", "web"); r.code != 1 || !strings.Contains(r.err, "already") {
			t.Errorf("a second of that name: %+v", r)
		}
		g.want(0, id+"\n"+other+"\n", "extend", id, other, "30m")
		var infos []struct {
			ID       string
			Deadline time.Time
			Keep     bool
		}
		if err := json.Unmarshal([]byte(g.run("ps", "--json").out), &infos); err != nil || len(infos) != 2 || time.Until(infos[0].Deadline) < 20*time.Minute || !infos[0].Keep {
			t.Errorf("%v %+v", err, infos)
		}
		var samples []struct {
			ID    string
			Usage struct {
				CPU int64 `json:"cpu_ns"`
			}
		}
		if err := json.Unmarshal([]byte(g.run("stats", "--no-stream", "--json").out), &samples); err != nil || len(samples) != 2 || samples[0].Usage.CPU == 0 {
			t.Errorf("%v %+v", err, samples)
		}
		g.pauses(id)
		g.want(0, "", "logs", "--command", strings.TrimSpace(g.want(0, "*", "exec", "-d", id, "true").out), id)
		if r := g.want(1, id+"\n", "kill", "web", "nosuch"); !strings.Contains(r.err, `no sandbox "nosuch"`) {
			t.Errorf("%+v", r)
		}
		g.want(0, "nosuch\n", "kill", "-f", "nosuch")
		g.want(0, other+"\n", "kill", other[:8])
		g.want(0, "", "ps", "-q")
		if r := g.want(125, "", "exec", id, "true"); !strings.Contains(r.err, "glovebox ps") {
			t.Errorf("%+v", r)
		}
	})
}

// pauses pauses and resumes, or is refused clearly.
func (g *glovebox) pauses(id string) {
	g.t.Helper()
	if r := g.run("pause", id); r.code != 0 {
		if !strings.Contains(r.err, "cannot do that") {
			g.t.Errorf("pause: %+v", r)
		}
		return
	}
	if r := g.run("ps"); !strings.Contains(r.out, "paused") {
		g.t.Errorf("%+v", r)
	}
	if r := g.run("exec", id, "true"); r.code != 125 || !strings.Contains(r.err, "paused") {
		g.t.Errorf("%+v", r)
	}
	if r := g.run("stats", "--no-stream", id); r.code != 0 || !strings.Contains(r.out, "paused") {
		g.t.Errorf("%+v", r)
	}
	g.want(1, "", "pause", id)
	g.want(0, id+"\n", "resume", id)
	g.want(0, "", "exec", id, "true")
}

func TestKept_detached(t *testing.T) {
	t.Parallel()
	keepers(t, func(t *testing.T, g *glovebox) {
		script := g.write("p.sh", "echo out $1; echo err >&2\nuntil test -e go; do sleep 0.05; done\necho late; exit 7\n")
		r := g.run("run", "-d", "--json", "--lifetime", "3m", script, "arg")
		var doc struct {
			ID, Command string
			Receipt     struct{ Lifetime string }
		}
		if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != 0 || doc.Command == "" || doc.Receipt.Lifetime != "kept" {
			t.Fatalf("%v %+v", err, r)
		}
		g.eventually("it has written", func() bool { return g.run("logs", doc.ID).out == "out arg\n" })
		if r := g.want(0, "out arg\n", "logs", doc.ID); r.err != "err\n" {
			t.Errorf("%+v", r)
		}
		waiter := g.cmd(t.Context(), "wait", doc.ID)
		follower := g.cmd(t.Context(), "logs", "-f", doc.ID)
		var followed bytes.Buffer
		follower.Stdout = &followed
		if err := errors.Join(waiter.Start(), follower.Start()); err != nil {
			t.Fatal(err)
		}
		g.want(0, "", "exec", doc.ID, "touch", "go")
		_ = waiter.Wait()
		if err := follower.Wait(); err != nil || followed.String() != "out arg\nlate\n" {
			t.Errorf("%v %q", err, followed.String())
		}
		if code := waiter.ProcessState.ExitCode(); code != 7 {
			t.Errorf("wait ended with %d", code)
		}
		g.want(0, "out arg\nlate\n", "logs", doc.ID)
		g.want(7, "7\n", "wait", "--rm", doc.ID)
		g.want(125, "", "wait", doc.ID)
		id := strings.TrimSpace(g.want(0, "*", "run", "-dq", "--", "sleep", "1000").out)
		g.want(0, id+"\n", "kill", "-s", "TERM", id)
		if r := g.want(143, "*", "wait", "--json", id); !strings.Contains(r.out, `"signaled"`) {
			t.Errorf("%+v", r)
		}
		g.want(1, "", "logs", g.create())
	})
}

func TestKept_exec(t *testing.T) {
	t.Parallel()
	keepers(t, func(t *testing.T, g *glovebox) {
		id := g.create()
		g.want(3, "", "exec", id, "sh", "-c", "exit 3")
		g.want(127, "", "exec", id, "no-such-program")
		g.want(139, "", "exec", id, "sh", "-c", "kill -11 $$")
		if r := g.want(124, "", "exec", "--timeout", "1s", id, "sleep", "30"); !strings.Contains(r.err, "timeout") {
			t.Errorf("%+v", r)
		}
		g.want(0, "/tmp v\n", "exec", "-w", "/tmp", "-e", "K=v", id, "--", "sh", "-c", "echo $PWD $K")
		g.want(125, "", "exec", id)
		g.want(125, "", "exec", "--timeout", "9h", id, "true")
		g.in = "a\x00b"
		g.want(0, "a\x00b", "exec", "-i", id, "cat")
		g.want(0, "", "exec", id, "cat")
		if os.Geteuid() == 0 && g.as == nil {
			g.want(0, "0\n", "exec", "-u", "root", id, "id", "-u")
		}
		if r := g.want(5, "*", "exec", "--json", id, "sh", "-c", "echo x; exit 5"); !strings.Contains(r.out, `"text": "x\n"`) {
			t.Errorf("%+v", r)
		}
		if r := g.want(125, "*", "exec", "--json", "nosuch", "true"); !strings.Contains(r.out, `"not_found"`) {
			t.Errorf("%+v", r)
		}
		cmd := strings.TrimSpace(g.want(0, "*", "exec", "-d", id, "sh", "-c", "echo behind; exit 6").out)
		g.want(6, "6\n", "wait", "--command", cmd, id)
		g.want(0, "behind\n", "logs", "--command", cmd, id)
	})
}

// ready starts the program and returns once its first line has come.
func (g *glovebox) ready(args ...string) (*exec.Cmd, io.ReadCloser) {
	g.t.Helper()
	cmd := g.cmd(g.t.Context(), args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		g.t.Fatal(err)
	}
	return cmd, out
}

func TestKept_signalsArePassedOn(t *testing.T) {
	t.Parallel()
	g := keeper(t)
	id := g.create()
	cmd, _ := g.ready("exec", id, "sh", "-c", "trap 'exit 9' INT; echo ready; while :; do sleep 0.05; done")
	_ = cmd.Process.Signal(syscall.SIGINT)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Errorf("code %d", code)
	}
	// One that heeds none is ended by the third.
	cmd, out := g.ready("exec", id, "sh", "-c", "trap 'echo again' TERM; echo ready; while :; do sleep 0.05; done")
	for range 2 {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if _, err := io.ReadFull(out, make([]byte, len("again\n"))); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 143 {
		t.Errorf("code %d", code)
	}
	if r := g.run("exec", id, "ps", "ax"); strings.Contains(r.out, "trap") {
		t.Errorf("it runs on:\n%s", r.out)
	}
	// Nobody reads: the command ends.
	cmd, out = g.ready("exec", id, "sh", "-c", "echo ready; exec yes")
	_ = out.Close()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 141 {
		t.Errorf("code %d", code)
	}
	if r := g.run("exec", id, "ps", "ax"); strings.Contains(r.out, "yes") {
		t.Errorf("it runs on:\n%s", r.out)
	}
}

func TestKept_shell(t *testing.T) {
	t.Parallel()
	g := keeper(t)
	id := g.create()
	if r := g.run("shell", id); r.code != 125 || !strings.Contains(r.err, "terminal") {
		t.Errorf("%+v", r)
	}
	cmd := g.cmd(t.Context(), "shell", id)
	ptmx, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 101, Rows: 33})
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	var mu sync.Mutex
	var seen bytes.Buffer
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := ptmx.Read(buf)
			mu.Lock()
			seen.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	shows := func(text string) {
		t.Helper()
		g.eventually("it shows "+text, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(seen.String(), text)
		})
	}
	_, _ = io.WriteString(ptmx, "echo at $(stty size)\n")
	shows("at 33 101")
	if err := pty.Setsize(ptmx, &pty.Winsize{Cols: 90, Rows: 20}); err != nil {
		t.Fatal(err)
	}
	g.eventually("the new size has arrived", func() bool {
		_, _ = io.WriteString(ptmx, "echo now $(stty size)\n")
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(seen.String(), "now 20 90")
	})
	_, _ = io.WriteString(ptmx, "exit 5\n")
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 5 {
		t.Errorf("code %d", code)
	}
}

func TestKept_severalProcessesAtOnce(t *testing.T) {
	t.Parallel()
	g := keeper(t)
	id := g.create()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { g.want(0, "x\n", "exec", id, "echo", "x") })
		wg.Go(func() { g.create() })
		wg.Go(func() { g.want(0, "*", "ps", "-q") })
	}
	wg.Wait()
	ids := strings.Fields(g.run("ps", "-q").out)
	if len(ids) != 5 {
		t.Errorf("%q", ids)
	}
	for range 2 {
		wg.Go(func() { g.want(0, "*", slices.Concat([]string{"kill", "-f"}, ids)...) })
	}
	wg.Wait()
	g.want(0, "", "ps", "-aq")
}

func TestKept_twoBackendsOfOneState(t *testing.T) {
	t.Parallel()
	g := keeper(t)
	file := g.write("two.yaml", "version: 1\nbackends: {box: {driver: subprocess}, pen: {driver: subprocess}}\n")
	id := strings.TrimSpace(g.want(0, "*", "--config", file, "create", "-q", "--backend", "pen", "--name", "x").out)
	g.want(0, id+"\n", "--config", file, "ps", "-q")
	g.want(0, "y\n", "--config", file, "exec", "x", "echo", "y")
	g.want(0, "y\n", "exec", id, "echo", "y")
	g.want(0, id+"\n", "--config", file, "kill", id)
}

func TestKept_prune(t *testing.T) {
	t.Parallel()
	g := keeper(t)
	id := g.create()
	g.want(0, "", "prune")
	bound, _ := g.ready("run", "-q", "--", "sh", "-c", "echo ready; sleep 100")
	g.want(0, id+"\n", "ps", "-q")
	all := strings.Fields(g.run("ps", "-aq").out)
	if len(all) != 2 {
		t.Fatalf("%q", all)
	}
	left := all[slices.IndexFunc(all, func(s string) bool { return s != id })]
	if r := g.run("kill", left); r.code != 1 || !strings.Contains(r.err, "belongs to the process") {
		t.Errorf("%+v", r)
	}
	_ = bound.Process.Kill()
	_ = bound.Wait()
	g.eventually("it is left over", func() bool { return strings.Contains(g.run("prune", "--dry-run").out, left) })
	if r := g.run("prune", "--json"); r.code != 0 || !strings.Contains(r.out, left) || !strings.Contains(r.out, `"removed": true`) || strings.Contains(r.out, id) {
		t.Errorf("%+v", r)
	}
	g.want(0, "", "prune")
	g.want(0, "", "exec", id, "true")
}
