//go:build linux

package seccomp

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_X86_64
	// x32Bit marks system calls of the x32 ABI.
	x32Bit = 0x40000000
	// maxNr is the newest system call that was looked at; newer ones do not
	// exist for the sandbox.
	maxNr = unix.SYS_MSEAL
)

// native lists the refusals that only this architecture has.
func native() []rule {
	eperm := errno(unix.EPERM)
	var rules []rule
	for _, nr := range []uint32{
		unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS,
		unix.SYS__SYSCTL, unix.SYS_CREATE_MODULE, unix.SYS_QUERY_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_NFSSERVCTL,
		unix.SYS_LOOKUP_DCOOKIE,
	} {
		rules = append(rules, rule{nr: nr, ret: eperm})
	}
	return rules
}
