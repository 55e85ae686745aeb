//go:build linux

package docker_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/internal/engine"
)

func TestBound_creatorKilled(t *testing.T) {
	f := setUp(t, nil)
	h := f.helper("bound")
	st := f.container(h.id)
	if left, err := engine.FindRemains(st.ID); err != nil || len(left[0].Processes) < 3 || len(left[0].Groups) == 0 {
		t.Fatalf("inconclusive: of a running sandbox only %v is seen, %v", left, err)
	}
	h.kill()
	eventually(t, 6*time.Second, "its processes live", func() bool { return inside(t, st.ID) == 0 })
	if err := f.ex.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if list := f.containers(t.Context()); len(list) != 0 {
		t.Errorf("the sweep leaves %v", list)
	}
}

// A frozen sandbox whose creator dies cannot end by itself.
func TestBound_creatorKilledWhilePaused(t *testing.T) {
	f := setUp(t, nil)
	h := f.helper("bound-paused")
	st := f.container(h.id)
	if !st.Paused {
		t.Fatalf("inconclusive: it is %s", st.Status)
	}
	h.kill()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := f.ex.Sweep(ctx); err != nil {
		t.Error(err)
	}
	eventually(t, 2*time.Second, "its processes live", func() bool { return inside(t, st.ID) == 0 })
	if list := f.containers(t.Context()); len(list) != 0 {
		t.Errorf("the sweep leaves %v", list)
	}
}

// inside counts the processes of a container.
func inside(t *testing.T, id string) (n int) {
	t.Helper()
	left, err := engine.FindRemains(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range left[0].Processes {
		if p.Inside {
			n++
		}
	}
	return n
}

func TestKept_creatorKilled(t *testing.T) {
	f := setUp(t, nil)
	h := f.helper("kept")
	h.kill()
	finder, _ := backend.As[backend.Finder](f.ex)
	sb, err := finder.Find(t.Context(), h.id)
	if err != nil {
		t.Fatal(err)
	}
	works(t, sb)
	// Its command runs, and what it said can be had again.
	procs, _ := backend.As[backend.ProcessFinder](sb)
	list, err := procs.Processes(t.Context())
	list = slices.DeleteFunc(list, func(p backend.ProcessInfo) bool { return p.Tag != "long" })
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	said := make(chan string, 16)
	p, err := procs.Attach(t.Context(), list[0].ID, backend.AttachOptions{Replay: true, Output: backend.Output{Stdout: writer(func(b []byte) { said <- string(b) })}})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case s := <-said:
		if s != "first\n" {
			t.Errorf("replayed is %q", s)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing is replayed")
	}
	if err := p.Signal(t.Context(), backend.SIGKILL); err != nil {
		t.Error(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Reason != backend.ReasonSignaled {
		t.Errorf("%s, %v", exit, err)
	}
	// It ends at its deadline though nobody is there.
	st := f.container(h.id)
	extender, _ := backend.As[backend.Extender](sb)
	if err := extender.SetLifetime(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if err := f.ex.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, 8*time.Second, "it lives past its deadline", func() bool { return inside(t, st.ID) == 0 })
	f.ex = f.open()
	if _, err := finder.Find(t.Context(), h.id); err == nil {
		t.Error("it is found after its end")
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

func TestPaused_isKilled(t *testing.T) {
	f := setUp(t, nil)
	sb := f.create(backend.Spec{})
	id := f.container(sb.ID()).ID
	p, _ := backend.As[backend.Pauser](sb)
	if err := p.Pause(t.Context(), backend.PauseOptions{}); err != nil {
		t.Fatal(err)
	}
	if !f.container(sb.ID()).Paused {
		t.Error("inconclusive: the engine does not call it paused")
	}
	if err := p.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	works(t, sb)
	if err := p.Pause(t.Context(), backend.PauseOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if n := inside(t, id); n > 0 {
		t.Errorf("%d processes are left", n)
	}
}

// What somebody else does to the container is told in words.
func TestLost_withWords(t *testing.T) {
	for what, tt := range map[string]struct {
		do   func(*fixture, string)
		want string
	}{
		"killed": {func(f *fixture, name string) { behind(f.T, http.MethodPost, "/containers/"+name+"/kill", nil, nil) }, "exit status 137"},
		"removed": {func(f *fixture, name string) {
			behind(f.T, http.MethodDelete, "/containers/"+name, url.Values{"force": {"1"}}, nil)
		}, "remove"},
		"by its host": {func(f *fixture, name string) {
			f.Log(syscall.Kill(f.container(strings.TrimPrefix(name, f.name(""))).PID, syscall.SIGKILL))
		}, "exit status 137"},
	} {
		t.Run(what, func(t *testing.T) {
			f := setUp(t, nil)
			sb := f.create(backend.Spec{})
			p, err := sb.Start(t.Context(), backend.Command{Args: []string{"/bin/sleep", "60"}})
			if err != nil {
				t.Fatal(err)
			}
			tt.do(f, f.name(sb.ID()))
			_, err = p.Wait(t.Context())
			if backend.KindOf(err) != backend.ErrLost {
				t.Errorf("Wait says %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), tt.want) && !strings.Contains(err.Error(), "exit status 137") {
				t.Errorf("no words: %v", err)
			}
			if err := sb.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMemory_agentIsTheVictim(t *testing.T) {
	f := setUp(t, nil)
	sb := f.create(backend.Spec{Limits: backend.Limits{Memory: 96 << 20, Disk: 16 << 20}})
	// Memory of files that nothing maps is nobody's, so that the kernel picks
	// whoever is largest.
	text := "import os\nfds=[]\nwhile True:\n f=os.memfd_create('x'); fds.append(f)\n os.write(f, b'x'*(1<<20))\n"
	exit, err := backend.RunIn(t.Context(), sb, backend.Command{Args: []string{"/usr/bin/python3", "-c", text}})
	if err != nil || exit.Reason != backend.ReasonMemoryLimit {
		t.Errorf("%s, %v", exit, err)
	}
}

// A memory kill explains one end, not a later one.
func TestMemory_isNoExcuse(t *testing.T) {
	f := setUp(t, nil)
	sb := f.create(backend.Spec{Limits: backend.Limits{Memory: 128 << 20, Disk: 16 << 20}})
	exit, out := run(t, sb, "", "python3 -c 'x=bytearray(b\"x\")*(1<<30)'; echo $?")
	if !exit.Success() || out != "137\n" && !strings.Contains(out, "137") {
		t.Fatalf("inconclusive: no child was killed: %s, %q", exit, out)
	}
	for range 3 {
		if exit, _ := run(t, sb, "", "kill -9 $$"); exit.Reason != backend.ReasonSignaled {
			t.Errorf("a program that kills itself ended with %s", exit)
		}
	}
}

func TestDisk_full(t *testing.T) {
	f := setUp(t, nil)
	sb := f.create(backend.Spec{Limits: backend.Limits{Disk: 16 << 20}})
	exit, out := run(t, sb, "", "head -c 64M /dev/zero >big; echo status $?; stat -c %s big; rm big; echo ok >small; cat small")
	if !exit.Success() || !strings.Contains(out, "No space") || !strings.HasSuffix(out, "ok\n") {
		t.Errorf("%s, %s", exit, out)
	}
	if err := backend.WriteFile(t.Context(), sb.Files(), "big", make([]byte, 32<<20), 0); err == nil {
		t.Error("32 MiB were written to 16")
	}
	works(t, sb)
}

func TestImage_removedMeanwhile(t *testing.T) {
	ref := image(t, "", nil)
	f := setUp(t, func(c *docker.Config) { c.Image = ref })
	sb := f.create(backend.Spec{})
	behind(t, http.MethodDelete, "/images/"+ref, url.Values{"force": {"1"}}, nil)
	works(t, sb)
	if _, err := f.ex.Create(t.Context(), backend.Spec{}); err == nil {
		t.Error("a second one was made of an image that is not there")
	}
}

func TestMany_atOnce(t *testing.T) {
	const many = 30
	f := setUp(t, nil)
	other := f.open()
	defer other.Close()
	var wg sync.WaitGroup
	errs := make([]error, many)
	for i := range errs {
		wg.Go(func() {
			ex := f.ex
			if i%2 == 1 {
				ex = other // one store, two executors
			}
			res, err := backend.Run(t.Context(), ex, backend.RunSpec{
				Spec:    backend.Spec{Limits: backend.Limits{Memory: 64 << 20, Disk: 8 << 20}},
				Command: backend.Command{Args: []string{"/bin/sh", "-c", "id -u"}},
			})
			if err == nil && (!res.Exit.Success() || len(res.Stdout) < 5) {
				err = errors.New(res.Exit.String() + string(res.Stdout))
			}
			errs[i] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func TestMany_nothingAccumulates(t *testing.T) {
	f := setUp(t, nil)
	once := func(i int) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if i%10 == 9 {
			ctx, cancel = context.WithTimeout(t.Context(), time.Duration(i)*5*time.Millisecond)
		}
		defer cancel()
		if sb, err := f.ex.Create(ctx, backend.Spec{}); err == nil {
			if err := sb.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	once(0)
	once(9)
	before := counts()
	for i := range 40 {
		once(i)
	}
	eventually(t, 10*time.Second, "there is more than before", func() bool {
		now := counts()
		return now[0] <= before[0]+1 && now[1] <= before[1]+1
	})
	if now := counts(); now[0] > before[0]+1 || now[1] > before[1]+1 {
		t.Errorf("goroutines and descriptors went from %v to %v", before, now)
	}
}

func TestStrict_oldRunc(t *testing.T) {
	ref := image(t, "", nil)
	f := setUp(t, func(c *docker.Config) { c.Templates = map[string]string{"foreign": ref} })
	report, err := docker.Measure(t.Context(), f.cfg)
	if err != nil || !report.Health.Available {
		t.Fatalf("%+v, %v", report.Health, err)
	}
	info, err := f.e.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	strict := backend.Spec{Template: "foreign", Strict: true}
	sb, err := f.ex.Create(t.Context(), strict)
	if info.RuncProblem == "" {
		if err != nil {
			t.Errorf("refused though runc is %s: %v", info.Runc, err)
		}
		return
	}
	if backend.KindOf(err) != backend.ErrDenied || !strings.Contains(err.Error(), info.Runc) {
		t.Errorf("strict, foreign: %v, %v", sb, err)
	}
	strict.Template = ""
	strict.Advisory = advisory(f.ex.Capabilities())
	if sb, err = f.ex.Create(t.Context(), strict); err != nil {
		t.Errorf("strict, ours: %v", err)
	} else if r := sb.Receipt(); strings.Contains(strings.Join(r.Warnings, " "), "runc") {
		t.Errorf("warned of an image of ours: %q", r.Warnings)
	}
	sb = f.create(backend.Spec{Template: "foreign"})
	if r := sb.Receipt(); !strings.Contains(strings.Join(r.Warnings, " "), info.Runc) || !strings.Contains(r.Privileges, "engine "+info.Version) {
		t.Errorf("the receipt does not name runc: %q, %q", r.Warnings, r.Privileges)
	}
}

// advisory are the controls that are claimed with less than enforced.
func advisory(c backend.Capabilities) (out []backend.Control) {
	for name, claim := range c.Claims {
		if claim.Enforcement != backend.Enforced {
			out = append(out, name)
		}
	}
	return out
}

func counts() [2]int {
	fds, _ := os.ReadDir("/proc/self/fd")
	return [2]int{runtime.NumGoroutine(), len(fds)}
}
