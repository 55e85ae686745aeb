//go:build linux

package engine

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), d)
	t.Cleanup(cancel)
	return ctx
}

// TestRemains_areFoundAndCleaned: what runs below the daemon's view is seen and
// ended by process, paused or not, and a bystander who names the ID is not.
func TestRemains_areFoundAndCleaned(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	e := docker(t)
	if info, err := e.Info(t.Context()); err != nil || !info.Local {
		t.Skipf("the engine is not on this host: %v", err)
	}
	id := create(t, e, spec(t, "sleep"))
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	bystander := exec.CommandContext(context.WithoutCancel(t.Context()), "/bin/sh", "-c", "read x", id)
	in, err := bystander.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// It reads a line and ends well, unless it was killed.
		_, werr := in.Write([]byte("x\n"))
		if err := errors.Join(werr, bystander.Wait()); err != nil {
			t.Errorf("the bystander: %v", err)
		}
	})
	other := strings.Repeat("0", 64)
	found, err := FindRemains(other, id)
	if err != nil || len(found) != 2 || !found[0].Empty() || found[1].ID != id {
		t.Fatalf("%+v, %v", found, err)
	}
	inside, shims := 0, 0
	for _, p := range found[1].Processes {
		switch {
		case p.PID == bystander.Process.Pid || p.PID == os.Getpid():
			t.Errorf("a bystander is among them: %+v", p)
		case p.Inside:
			inside++
		case strings.HasPrefix(p.Command, "containerd-shim"):
			shims++
		}
	}
	if inside != 1 || shims != 1 || len(found[1].Groups) == 0 {
		t.Fatalf("%s", found[1])
	}
	stale := found[1].Processes[0]
	stale.Start++
	if err := stale.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := e.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if again, err := FindRemains(id); err != nil || len(again[0].Processes) != len(found[1].Processes) {
		t.Fatalf("killing a process of another start killed one: %+v %v", again, err)
	}
	if err := found[1].Clean(within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	if again, err := FindRemains(id); err != nil || !again[0].Empty() {
		t.Errorf("left are %s, %v", again[0], err)
	}
	// The daemon may go on calling it paused; it must let go of it all the same.
	if err := e.Remove(within(t, 30*time.Second), id); err != nil {
		t.Error(err)
	}
	_, err = FindRemains(id[:12])
	wantKind(t, err, backend.ErrInvalid, "container")
}

// TestRemains_ofAFailedStart: after a start that fails nothing is left, or what
// is can be cleaned.
func TestRemains_ofAFailedStart(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	e := docker(t)
	info, err := e.Info(t.Context())
	if err != nil || !info.Local {
		t.Skipf("the engine is not on this host: %v", err)
	}
	for _, r := range info.Runtimes {
		if r.Path == "" {
			continue
		}
		c := spec(t)
		c.Runtime, c.Args, c.Memory = r.Name, []string{"/missing"}, 256<<20
		id := create(t, e, c)
		wantKind(t, e.Start(t.Context(), id), backend.ErrUnavailable, "")
		if found, err := FindRemains(id); err == nil && !found[0].Empty() {
			t.Logf("%s: left at first are %s", r.Name, found[0])
		}
		if err := (Remains{ID: id}).Clean(within(t, 30*time.Second)); err != nil {
			t.Errorf("%s: %v", r.Name, err)
		}
	}
}

func TestGroups_ofEachKindOfHost(t *testing.T) {
	t.Parallel()
	id := full64()
	v1 := `30 29 0:25 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
31 29 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 29 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`
	v2 := "30 29 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
	part := "30 29 0:25 /docker /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n"
	for name, tt := range map[string]struct {
		mounts, file string
		want         Groups
	}{
		"v1, cgroupfs": {
			v1, "4:memory:/docker/" + id + "\n2:cpu,cpuacct:/docker/" + id + "\n0::/docker/" + id + "\n",
			Groups{V2: "/sys/fs/cgroup/unified/docker/" + id, V1: map[string]string{
				"memory": "/sys/fs/cgroup/memory/docker/" + id,
				"cpu":    "/sys/fs/cgroup/cpu,cpuacct/docker/" + id, "cpuacct": "/sys/fs/cgroup/cpu,cpuacct/docker/" + id,
			}},
		},
		"v1, systemd": {
			v1, "4:memory:/system.slice/docker-" + id + ".scope\n",
			Groups{V1: map[string]string{"memory": "/sys/fs/cgroup/memory/system.slice/docker-" + id + ".scope"}},
		},
		"v2, systemd": {
			v2, "0::/system.slice/docker-" + id + ".scope\n",
			Groups{V2: "/sys/fs/cgroup/system.slice/docker-" + id + ".scope", V1: map[string]string{}},
		},
		"v2, a part of it is mounted": {
			part, "0::/docker/" + id + "\n", Groups{V2: "/mnt/my groups/" + id, V1: map[string]string{}},
		},
	} {
		got, err := parseGroups([]byte(tt.file), parseMounts(tt.mounts), id, 1)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
	for name, file := range map[string]string{
		"another container": "0::/docker/" + strings.Repeat("cd", 32) + "\n", "no process": "", "a part that is not mounted": "0::/elsewhere/" + id,
	} {
		if _, err := parseGroups([]byte(file), parseMounts(part), id, 1); backend.KindOf(err) != backend.ErrUnsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add("30 29 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/docker/x\n")
	f.Fuzz(func(_ *testing.T, mounts, file string) {
		_, _ = parseGroups([]byte(file), parseMounts(mounts), "x", 1)
	})
}
