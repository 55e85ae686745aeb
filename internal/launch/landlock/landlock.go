//go:build linux

// Package landlock makes and enters Landlock domains with raw system calls, so
// that one thread can enter a domain that the rest of the process stays out of.
package landlock

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Access rights of a file hierarchy, by the ABI that brought them
// (linux/landlock.h).
const (
	fsABI1 = 1<<13 - 1 // execute … make_sym
	fsABI2 = fsABI1 | unix.LANDLOCK_ACCESS_FS_REFER
	fsABI3 = fsABI2 | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	fsABI5 = fsABI3 | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

	// Read allows reading and executing files and listing directories.
	Read = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	// Modify allows writing to files that exist.
	Modify = Read | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	// Device allows reading, writing and controlling devices.
	Device = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR |
		unix.LANDLOCK_ACCESS_FS_IOCTL_DEV | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	// All allows everything but making devices.
	All = fsABI5 &^ (unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK)

	// forFiles are the rights that make sense on what is no directory.
	forFiles = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// ABI is the kernel's Landlock version; 0 when there is none.
func ABI() int {
	v, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return 0
	}
	return int(v)
}

func handled(abi int) uint64 {
	switch {
	case abi <= 0:
		return 0
	case abi == 1:
		return fsABI1
	case abi == 2:
		return fsABI2
	case abi < 5:
		return fsABI3
	default:
		return fsABI5
	}
}

// rulesetAttr is struct landlock_ruleset_attr up to ABI 6.
type rulesetAttr struct{ fs, net, scoped uint64 }

// Rule grants rights below a path. A path that is missing is left out when
// Optional is set and is an error otherwise.
type Rule struct {
	Path     string
	Access   uint64
	Optional bool
}

// Domain says what a Landlock domain holds back. Everything a Rule does not
// grant is refused.
type Domain struct {
	Rules []Rule
	// Scope refuses signals and abstract Unix sockets to outside the domain
	// (ABI 6 and later).
	Scope bool
	// NoTCP refuses TCP bind and connect (ABI 4 and later).
	NoTCP bool
}

// Ruleset is a prepared domain. Close it after the last Enter.
type Ruleset struct{ fd int }

// New prepares d as far as the kernel's ABI goes; on a kernel without Landlock
// it is nil.
func New(d Domain) (*Ruleset, error) {
	abi := ABI()
	if abi == 0 {
		return nil, nil //nolint:nilnil // a nil Ruleset is the documented value without Landlock
	}
	attr := rulesetAttr{fs: handled(abi)}
	if d.NoTCP && abi >= 4 {
		attr.net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if d.Scope && abi >= 6 {
		attr.scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	size := uintptr(24)
	switch { // older kernels take shorter structures
	case abi < 4:
		size = 8
	case abi < 6:
		size = 16
	}
	fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0) //nolint:gosec // a system call's argument
	if e != 0 {
		return nil, fmt.Errorf("landlock: ruleset: %w", e)
	}
	r := &Ruleset{fd: int(fd)}
	for _, rule := range d.Rules {
		if err := r.add(rule, attr.fs); err != nil {
			r.Close()
			return nil, err
		}
	}
	return r, nil
}

func (r *Ruleset) add(rule Rule, handled uint64) error {
	fd, err := unix.Open(rule.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		if rule.Optional {
			return nil
		}
		return fmt.Errorf("landlock: %s: %w", rule.Path, err)
	}
	defer unix.Close(fd) //nolint:errcheck // a path descriptor
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("landlock: %s: %w", rule.Path, err)
	}
	access := rule.Access & handled
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= forFiles
	}
	attr := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&attr)), 0, 0, 0) //nolint:gosec // a system call's argument
	if e != 0 {
		return fmt.Errorf("landlock: rule for %s: %w", rule.Path, e)
	}
	return nil
}

// EnterThread puts the calling thread, which must be locked, into the domain.
// Processes it forks are in it too. It sets no_new_privs.
func (r *Ruleset) EnterThread() error {
	if r == nil {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("landlock: no_new_privs: %w", err)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(r.fd), 0, 0); e != 0 {
		return fmt.Errorf("landlock: enter: %w", e)
	}
	return nil
}

// EnterProcess puts every thread of this process, which must be static Go,
// into domains of the same rules.
func (r *Ruleset) EnterProcess() error {
	if r == nil {
		return nil
	}
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("landlock: no_new_privs: %w", e)
	}
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(r.fd), 0, 0); e != 0 {
		return fmt.Errorf("landlock: enter: %w", e)
	}
	return nil
}

// Close releases the ruleset; domains already entered stay.
func (r *Ruleset) Close() {
	if r != nil {
		unix.Close(r.fd) //nolint:errcheck // nothing to do about it
	}
}
