package state_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/state"
)

func TestStore_fullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts a small file system")
	}
	dir := t.TempDir()
	if err := syscall.Mount("glovebox-test", dir, "tmpfs", 0, "size=256k,mode=0700"); err != nil {
		t.Skip("no tmpfs can be mounted here: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	s := open(t, dir)
	mk, err := s.Mark("before", state.Mark{})
	if err != nil {
		t.Fatal(err)
	}
	fill, err := os.Create(filepath.Join(dir, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	_ = fill.Close()
	_, err = s.Mark("abc", state.Mark{})
	wantError(t, err, backend.ErrCapacity, dir, state.EnvDir)
	_, err = s.Journal(t.Context())
	wantError(t, err, backend.ErrCapacity, dir, state.EnvDir)
	if err := mk.Release(); err != nil {
		t.Errorf("a full disk must not prevent an end: %v", err)
	}
	if left, err := s.Live(); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

func TestOpen_unwritable(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root writes everywhere")
	}
	dir := t.TempDir()
	mkdir(t, filepath.Join(dir, "s"), 0o500)
	_, err := state.Open(filepath.Join(dir, "s"))
	wantError(t, err, backend.ErrInvalid, dir, state.EnvDir)
}

func TestStartTime(t *testing.T) {
	t.Parallel()
	start, err := state.StartTime(os.Getpid())
	if err != nil || start == 0 {
		t.Errorf("StartTime: %d %v", start, err)
	}
	if again, err := state.StartTime(os.Getpid()); err != nil || again != start {
		t.Errorf("again: %d %v", again, err)
	}
	if _, err := state.StartTime(1 << 30); err == nil {
		t.Error("no error for a process that cannot be")
	}
	if len(state.BootID()) != 36 {
		t.Errorf("BootID: %q", state.BootID())
	}
}
