//go:build linux

package asuser

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fileCaps are the capabilities that let a thread do to files what their
// owner's mode bits, quotas or leases forbid.
const fileCaps uint64 = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH |
	1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_LINUX_IMMUTABLE | 1<<unix.CAP_MKNOD |
	1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_SYS_RESOURCE | 1<<unix.CAP_LEASE |
	1<<unix.CAP_SETFCAP | 1<<unix.CAP_MAC_OVERRIDE | 1<<unix.CAP_MAC_ADMIN

// apply gives the calling thread these ids, groups and effective capabilities
// and checks that it has them: setfsuid and setfsgid report no errors.
func (id identity) apply(uid, gid uint32, groups []uint32, effective uint64) error {
	if id.plain {
		// A user that is left may not set groups, which the program may.
		if err := id.setUID(id.self()); err != nil {
			return err
		}
		if err := capset(effective | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID); err != nil {
			return err
		}
	}
	if err := setgroups(groups); err != nil {
		return fmt.Errorf("set groups: %w", err)
	}
	if err := id.setGID(gid); err != nil {
		return err
	}
	if got := id.fileGID(); got != gid {
		return fmt.Errorf("set file-system gid %d: it is %d", gid, got)
	}
	if err := id.setUID(uid); err != nil {
		return err
	}
	if got := id.fileUID(); got != uid {
		return fmt.Errorf("set file-system uid %d: it is %d", uid, got)
	}
	// The kernel itself drops and raises file capabilities when the uid
	// leaves and becomes 0, so they are compared, not assumed.
	now, err := capget()
	if err != nil {
		return err
	}
	if now == effective {
		return nil
	}
	if err := capset(effective); err != nil {
		return err
	}
	if now, err = capget(); err == nil && now != effective {
		err = errors.New("set capabilities: not done")
	}
	return err
}

// The raw calls act on the calling thread alone; those of package syscall
// change every thread of the program.

// hasFileIDs tells whether the kernel has ids for file access alone.
func hasFileIDs() bool {
	_, _, e := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(noID), 0, 0)
	return e != unix.ENOSYS
}

func (id identity) fileUID() uint32 {
	if id.plain {
		euid, _, _ := unix.RawSyscall(unix.SYS_GETEUID, 0, 0, 0)
		return uint32(euid)
	}
	return setfsuid(noID)
}

func (id identity) fileGID() uint32 {
	if id.plain {
		egid, _, _ := unix.RawSyscall(unix.SYS_GETEGID, 0, 0, 0)
		return uint32(egid)
	}
	return setfsgid(noID)
}

// self is the program's own uid, which no switch changes.
func (id identity) self() uint32 {
	uid, _, _ := unix.RawSyscall(unix.SYS_GETUID, 0, 0, 0)
	return uint32(uid)
}

func (id identity) setUID(uid uint32) error {
	if !id.plain {
		setfsuid(uid)
		return nil
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(noID), uintptr(uid), uintptr(noID)); e != 0 {
		return fmt.Errorf("set effective uid %d: %w", uid, e)
	}
	return nil
}

func (id identity) setGID(gid uint32) error {
	if !id.plain {
		setfsgid(gid)
		return nil
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(noID), uintptr(gid), uintptr(noID)); e != 0 {
		return fmt.Errorf("set effective gid %d: %w", gid, e)
	}
	return nil
}

func setfsuid(uid uint32) uint32 {
	old, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
	return uint32(old)
}

func setfsgid(gid uint32) uint32 {
	old, _, _ := unix.RawSyscall(unix.SYS_SETFSGID, uintptr(gid), 0, 0)
	return uint32(old)
}

func setgroups(groups []uint32) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)),
		uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0) //nolint:gosec // an array for the kernel
	if errno != 0 {
		return errno
	}
	return nil
}

// capget reads the calling thread's effective capabilities.
func capget() (uint64, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return 0, fmt.Errorf("read capabilities: %w", err)
	}
	return uint64(data[0].Effective) | uint64(data[1].Effective)<<32, nil
}

// capset sets the effective capabilities and leaves the other sets.
func capset(effective uint64) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	data[0].Effective, data[1].Effective = uint32(effective), uint32(effective>>32)
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nil
}
