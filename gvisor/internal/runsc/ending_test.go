//go:build linux

package runsc_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/gvisor/internal/runsc"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// envCreator makes the test binary a creator of one bound sandbox: the value is
// a file that says which.
const envCreator = "GLOVEBOX_TEST_CREATOR"

// order is what a creator is told.
type order struct {
	Config runsc.Config
	Bin    runsc.Binary
	Bundle string
	Exec   string
	Group  string
	Bound  bool
}

// creator starts a sandbox, says so and holds it until it is killed.
func creator(file string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println("creator:", err)
			os.Exit(1)
		}
	}
	data, err := os.ReadFile(file)
	fail(err)
	var o order
	fail(json.Unmarshal(data, &o))
	f, err := os.Open(o.Exec)
	fail(err)
	host, err := cgroup.Detect("")
	fail(err)
	p, err := runsc.NewLauncher().Start(context.Background(), o.Bin, &o.Config,
		runsc.Start{Bundle: o.Bundle, Exec: f, Group: host.Find(o.Group), Bound: o.Bound})
	fail(err)
	k := &talk{Process: p, out: bufio.NewReader(p.Out)}
	answer, err := k.try("stay up", 30*time.Second)
	fail(err)
	fmt.Println(answer)
	<-p.Done()
	fmt.Println("ended")
}

// create has another process create b and returns once it runs.
func (b *box) create(t *testing.T, bound bool) *exec.Cmd {
	t.Helper()
	s := b.bundle(t)
	data, err := json.Marshal(order{Config: b.Config, Bin: b.bin, Bundle: s.Bundle, Exec: b.exec.Name(), Group: b.name, Bound: bound})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(b.dir, "order")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), envCreator+"="+file)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	if line != "up\n" {
		t.Fatalf("the creator says %q", line)
	}
	return cmd
}

func TestBound_diesWithItsCreator(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	for _, bound := range []bool{true, false} {
		b := newBox(t)
		cmd := b.create(t, bound)
		procs, err := b.Processes()
		if err != nil || !procs.Sentry.Alive() {
			t.Fatal(procs, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		if !bound {
			// The control: a kept one goes on.
			if !procs.Gofer.Alive() || !procs.Sentry.Alive() {
				t.Error("a kept sandbox died with its creator")
			}
			b.remove(t)
			continue
		}
		from := time.Now()
		for procs.Sentry.Alive() || procs.Gofer.Alive() || len(processesWith(b.Dir)) > 0 {
			if time.Since(from) > 5*time.Second {
				t.Fatalf("alive: %q", processesWith(b.Dir))
			}
		}
		t.Logf("gone %v after its creator was killed", time.Since(from).Round(time.Millisecond))
		b.remove(t)
	}
}

func TestKill_reachesTheStarting(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	for _, wait := range []time.Duration{0, 20 * time.Millisecond, 60 * time.Millisecond, 100 * time.Millisecond} {
		b := newBox(t)
		b.Groups, b.spec.CgroupsPath = false, ""
		s := b.bundle(t)
		s.Group = nil // as where there are none: nothing but the death signals reaches all
		s.Bound = true
		k := b.run(t, s)
		<-time.After(wait)
		k.Kill()
		k.ended(t)
		k.Kill() // no longer anybody
		if err := b.Remove(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if left := processesWith(b.Dir); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		b.remove(t)
	}
}

func TestStart_canceledLeavesNothing(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	for _, wait := range []time.Duration{time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond} {
		b := newBox(t)
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		p, err := b.launcher.Start(ctx, b.bin, &b.Config, b.bundle(t))
		cancel()
		if err == nil {
			p.In.Close()
			p.Out.Close()
			t.Log("it was faster than", wait)
		}
		b.remove(t)
	}
}

func TestLauncher_closeEndsTheBound(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	b := newBox(t)
	k := b.start(t, true)
	k.ask(t, "echo")
	b.launcher.Close()
	k.ended(t)
}

func TestPause(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	b := newBox(t)
	k := b.start(t, false)
	k.ask(t, "echo")
	if err := b.Pause(t.Context(), b.bin); err != nil {
		t.Fatal(err)
	}
	if got, err := k.try("echo paused", 300*time.Millisecond); err == nil {
		t.Errorf("it answers while paused: %q", got)
	}
	if s, err := b.Status(t.Context(), b.bin); err != nil || s != "paused" {
		t.Errorf("status %q, %v", s, err)
	}
	if err := b.Resume(t.Context(), b.bin); err != nil {
		t.Fatal(err)
	}
	if got := k.ask(t, "echo again"); got != "paused" { // the answer that was held up
		t.Errorf("%q", got)
	}
	if err := b.Pause(t.Context(), b.bin); err != nil {
		t.Fatal(err)
	}
	if err := b.Kill(); err != nil {
		t.Error(err)
	}
	t.Logf("killed while paused: ended after %v", k.ended(t))
}

func TestFreeze_killReachesTheFrozen(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	host, err := cgroup.Detect("")
	if err != nil {
		t.Fatal(err)
	}
	if !host.CanFreeze() {
		testenv.Require(t, "cgroup_v2", "no v2 tree on this host")
	}
	b := newBox(t)
	k := b.start(t, true)
	k.ask(t, "echo")
	if err := b.group.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := k.try("echo frozen", 300*time.Millisecond); err == nil {
		t.Errorf("it answers while frozen: %q", got)
	}
	if err := b.group.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := k.ask(t, "echo x"); got != "frozen" {
		t.Errorf("%q", got)
	}
	if err := b.group.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.group.Kill()
	k.ended(t)
}

func TestMemory_isToldFromAKill(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	for _, bound := range []bool{true, false} {
		b := newBox(t)
		if !b.Groups {
			testenv.Require(t, "cgroup_v1", "runsc joins groups of version 1 only")
		}
		k := b.start(t, bound)
		k.ask(t, "echo")
		if b.group.Stats().OOMKills != 0 {
			t.Error("killed for memory already")
		}
		if _, err := k.try("hog", 30*time.Second); err == nil {
			t.Error("memory has no limit")
		}
		k.ended(t)
		if n := b.group.Stats().OOMKills; n == 0 {
			t.Error("the kernel counted no kill for memory")
		}
		b.remove(t)
	}
	b := newBox(t)
	k := b.start(t, true)
	k.ask(t, "echo")
	b.group.Kill()
	k.ended(t)
	if n := b.group.Stats().OOMKills; n != 0 {
		t.Errorf("%d kills for memory after a kill of ours", n)
	}
}

func TestCheckpoint_isRestoredSeveralTimesAtOnce(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	b := newBox(t)
	// A program that was passed as a descriptor cannot be saved.
	b.bindGuest(t)
	k := b.start(t, false)
	k.ask(t, "count")
	k.ask(t, "count")
	image := filepath.Join(b.dir, "image")
	if err := os.Mkdir(image, 0o700); err != nil {
		t.Fatal(err)
	}
	from := time.Now()
	if err := b.Checkpoint(t.Context(), b.bin, image, true); err != nil {
		t.Fatal(err)
	}
	t.Logf("saved in %v", time.Since(from).Round(time.Millisecond))
	if got := k.ask(t, "count"); got != "3" {
		t.Errorf("the original goes on with %s", got)
	}
	var others []*talk
	for _, bound := range []bool{true, false} {
		o := newBox(t)
		o.spec.Root = b.spec.Root
		o.bindGuest(t)
		s := o.bundle(t)
		s.Image, s.Bound = image, bound
		from := time.Now()
		k := o.run(t, s)
		if got := k.ask(t, "count"); got != "3" {
			t.Errorf("bound=%t: a restored one goes on with %s", bound, got)
		}
		t.Logf("bound=%t: restored and answered in %v", bound, time.Since(from).Round(time.Millisecond))
		others = append(others, k)
	}
	for _, k := range others {
		if got := k.ask(t, "count"); got != "4" {
			t.Errorf("they share a count: %s", got)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	b := newBox(t)
	k := b.start(t, false)
	k.ask(t, "echo")
	u, err := b.Usage(t.Context(), b.bin)
	if err != nil || u.Memory <= 0 || u.Tasks < 1 {
		t.Errorf("%+v %v", u, err)
	}
}
