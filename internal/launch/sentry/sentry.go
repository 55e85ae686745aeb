//go:build linux

// Package sentry recognises, from inside a sandbox, whether the kernel is
// gVisor's. It looks at what the kernel says and at how it behaves, never at a
// runtime's name. Its calls change nothing and need no privilege, but they must
// be made before a system call filter of ours refuses some of them.
package sentry

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Evidence is what was observed of the kernel. The errors are nil where Linux
// answers.
type Evidence struct {
	// Log is the beginning of the kernel's message buffer; "" where it is
	// refused.
	Log string
	// Version and Cmdline are the kernel's own files in /proc.
	Version, Cmdline string
	// Securebits is the answer to prctl(PR_GET_SECUREBITS), in Linux since
	// 2.6.26 and without a condition.
	Securebits error
	// FileIDs is ENOSYS where setfsuid(2), which in Linux cannot fail, is
	// missing.
	FileIDs error
}

// logSize is more than the first message of either kernel.
const logSize = 4 << 10

// Observe asks the kernel this program runs on.
func Observe() Evidence {
	e := Evidence{Version: head("/proc/version"), Cmdline: head("/proc/cmdline")}
	const readAll = 3 // SYSLOG_ACTION_READ_ALL
	buf := make([]byte, logSize)
	if n, err := unix.Klogctl(readAll, buf); err == nil && n > 0 {
		e.Log = string(buf[:min(n, len(buf))])
	}
	_, e.Securebits = unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	// An id that is not valid changes nothing.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0); errno == unix.ENOSYS {
		e.FileIDs = errno
	}
	return e
}

// GVisor tells whether the kernel is gVisor's, and if not, why not.
//
// Security: the answer raises a sandbox's level, so it takes all three: words
// that Linux's log does not begin with, and the lack of two calls that every
// Linux has. A container on the host's kernel has none of them, whatever its
// runtime is called; one whose operator sets out to feign each with filters and
// a replaced log can, but decides what runs on that host anyway.
func (e Evidence) GVisor() (ok bool, why string) {
	switch {
	case !e.greets():
		return false, "its log does not begin as gVisor's does"
	case e.Securebits != unix.EINVAL: //nolint:errorlint // an errno from the kernel, never wrapped
		return false, "it knows securebits, as Linux does"
	case e.FileIDs != unix.ENOSYS: //nolint:errorlint // as above
		return false, "it knows setfsuid, as Linux does"
	default:
		return true, ""
	}
}

// greets looks at the first message, which gVisor never varies.
func (e Evidence) greets() bool {
	first, _, _ := strings.Cut(e.Log, "\n")
	return strings.HasSuffix(first, "] Starting gVisor...")
}

// head is the beginning of a file of the kernel's.
func head(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // read side
	data, _ := io.ReadAll(io.LimitReader(f, logSize))
	return strings.TrimSpace(string(data))
}
