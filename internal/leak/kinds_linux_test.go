package leak_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/leak"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// TestHost_seesEveryKind leaves one thing of each kind and looks for it.
func TestHost_seesEveryKind(t *testing.T) {
	testenv.NeedRoot(t)
	before, err := leak.Host()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "glovebox-leak-test-") //nolint:usetesting // the place is what is tested
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })

	group := filepath.Join(anyGroup(t), filepath.Base(dir))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(group) })

	point := filepath.Join(dir, "mount")
	if err := os.Mkdir(point, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", point, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(point, 0) })

	socket := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })

	const ipcPrivate, ipcRemove = 0, 0
	shm, _, e := syscall.Syscall(syscall.SYS_SHMGET, ipcPrivate, 4096, 0o600)
	if e != 0 {
		t.Fatal(e)
	}
	t.Cleanup(func() { _, _, _ = syscall.Syscall(syscall.SYS_SHMCTL, shm, ipcRemove, 0) })

	lease, err := state.LeaseUIDs("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Release() })
	uid := lease.Base() + 5
	if !state.LeasedUID(uid) || state.LeasedUID(uint32(os.Getuid())) || state.LeasedUID(testenv.Nobody) {
		t.Error("LeasedUID")
	}
	asLeased := start(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}})
	elsewhere := start(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})

	now, err := leak.Host()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(now.Diff(before), "\n")
	for _, want := range []string{
		"file " + dir, "group " + group, " " + point + ":", ": " + socket, fmt.Sprintf("System V shm %d:", shm), "uid lease ",
		fmt.Sprintf(": uid %d", uid), fmt.Sprintf("process %d ", asLeased), fmt.Sprintf("process %d ", elsewhere), "in another namespace",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// anyGroup is a directory of a cgroup hierarchy in which groups can be made.
func anyGroup(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[2], "cgroup") {
			return f[1]
		}
	}
	t.Fatal("no cgroups are mounted")
	return ""
}

// start runs a program that waits until the test ends.
func start(t *testing.T, how *syscall.SysProcAttr) (pid int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/cat")
	cmd.SysProcAttr = how
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}
