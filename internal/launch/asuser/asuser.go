//go:build linux

// Package asuser runs a function with a user's rights on files, on a thread
// of its own, while the rest of the program keeps its identity.
//
// Only what Linux checks for files is switched (file-system uid and gid and
// supplementary groups): the user can neither signal nor trace the program
// meanwhile, which changing its uid would allow.
package asuser

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Cred is whose rights are taken.
type Cred struct {
	UID, GID uint32
	// Groups are the supplementary groups; nil means none.
	Groups []uint32
}

// Do runs fn with cred's rights on files and returns fn's error. Capabilities
// that loosen file permissions are put aside meanwhile, for uid 0 too. The
// program needs CAP_SETUID and CAP_SETGID for any Cred but its own; without
// them, or when the kernel did not do as asked, fn is not run and the error
// says which step failed.
//
// fn must do its work on the calling goroutine: goroutines that it starts have
// the program's rights. Descriptors it opens stay usable afterwards, so long
// transfers belong outside. A panic in fn becomes an error, since it may happen
// on a goroutine where no caller could recover it. Do may be nested and called concurrently. If the
// thread's identity cannot be restored, the error says so and the thread ends
// with its goroutine.
func Do(cred Cred, fn func() error) error {
	if cred.UID == noID || cred.GID == noID {
		return errors.New("switch user: uid and gid 4294967295 are not valid")
	}
	own, err := current()
	if err != nil {
		return err
	}
	if own.is(cred) {
		return fn()
	}
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		err = own.switched(cred, fn)
		runtime.UnlockOSThread()
		return err
	}
	// The kernel forgets a thread's parent-death signal when its file-system
	// uid changes. The main thread is the one that has it, so it is spared:
	// while it is locked here, the new goroutine runs elsewhere. That costs
	// several times more than the switch; a program whose main goroutine
	// keeps the main thread locked never comes here.
	defer runtime.UnlockOSThread()
	done := make(chan error, 1)
	go func() {
		result := errors.New("switch user: the function did not return")
		defer func() { done <- result }()
		result = own.switched(cred, fn)
	}()
	return <-done
}

// noID is the uid and gid that means "leave as it is".
const noID = ^uint32(0)

// identity is what of a thread Do changes.
type identity struct {
	uid, gid  uint32
	groups    []uint32
	effective uint64 // capabilities
	dumpable  int
	// plain says that the kernel has no ids for file access alone, as gVisor's:
	// the effective ones are switched then. Real and saved ones stay, which are
	// what decides who may signal or trace.
	plain bool
}

// current reads the calling thread's identity. All threads that are not in Do
// have the same.
func current() (identity, error) {
	id := identity{plain: !hasFileIDs()}
	id.uid, id.gid = id.fileUID(), id.fileGID()
	groups, err := unix.Getgroups()
	if err != nil {
		return id, fmt.Errorf("switch user: read groups: %w", err)
	}
	for _, g := range groups {
		id.groups = append(id.groups, uint32(g))
	}
	if id.effective, err = capget(); err != nil {
		return id, err
	}
	id.dumpable, err = unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return id, fmt.Errorf("switch user: read dumpable: %w", err)
	}
	return id, nil
}

// is reports whether cred's rights are this identity's. Order and repetition
// of groups mean nothing to the kernel, but comparing them exactly only costs
// a needless switch.
func (id identity) is(cred Cred) bool {
	return id.uid == cred.UID && id.gid == cred.GID && slices.Equal(id.groups, cred.Groups)
}

// switched runs fn as cred on the calling thread, which is locked by the
// caller; it stays locked for good when it cannot be restored.
func (id identity) switched(cred Cred, fn func() error) (err error) {
	runtime.LockOSThread()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("switch user: the function panicked: %v", p)
		}
		if rerr := id.restore(); rerr != nil {
			err = errors.Join(err, fmt.Errorf("switch user: thread not restored: %w", rerr))
			return
		}
		runtime.UnlockOSThread()
	}()
	if err := id.apply(cred.UID, cred.GID, cred.Groups, id.effective&^fileCaps); err != nil {
		return fmt.Errorf("switch user: %w", err)
	}
	if err := id.keepDumpable(); err != nil {
		return err
	}
	return fn()
}

func (id identity) restore() error {
	if err := id.apply(id.uid, id.gid, id.groups, id.effective); err != nil {
		return err
	}
	return id.keepDumpable()
}

// keepDumpable undoes what the switch does on hosts where fs.suid_dumpable
// is 1: there each change of uid makes the whole process traceable again.
func (id identity) keepDumpable() error {
	if id.dumpable != 0 {
		return nil
	}
	now, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err == nil && now != 0 {
		err = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	}
	if err != nil {
		return fmt.Errorf("switch user: keep not dumpable: %w", err)
	}
	return nil
}
