//go:build linux

package asuser

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestKeepDumpable: what the kernel makes of a switch on a host where
// fs.suid_dumpable is 1 is undone, for a program that was not dumpable.
func TestKeepDumpable(t *testing.T) { //nolint:paralleltest // it is the whole process's
	before, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	set := func(n int) {
		t.Helper()
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, uintptr(n), 0, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	defer set(before & 1)
	for was, want := range map[int]int{0: 0, 1: 1} {
		set(1)
		if err := (identity{dumpable: was}).keepDumpable(); err != nil {
			t.Fatal(err)
		}
		if now, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || now != want {
			t.Errorf("a program that was %d: %d, %v", was, now, err)
		}
	}
}
