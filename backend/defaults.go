package backend

import "time"

// The defaults that hold on every backend.
const (
	DefaultTimeout  = 30 * time.Second  // of a command's wall time
	MaxTimeout      = 300 * time.Second // the cap that policy puts on it; drivers have none
	DefaultLifetime = 300 * time.Second // of a sandbox
	MaxLifetime     = 24 * time.Hour

	DefaultMemory    int64   = 512 << 20
	DefaultCPUs      float64 = 1
	DefaultPids      int64   = 256
	MaxDefaultDisk   int64   = 1 << 30 // the default disk is min(this, memory/2)
	DefaultInodes    int64   = 65536
	DefaultOpenFiles int64   = 1024
	DefaultOutput    int64   = 10 << 20 // of each stream that we collect

	// MinMemory and MinPids are the least that a sandbox can be made with.
	MinMemory int64 = 8 << 20
	MinPids   int64 = 2
	// MaxBytes is the largest size any limit may name (1 EiB), so that sums
	// of limits cannot overflow.
	MaxBytes int64 = 1 << 60
	// MaxCPUs is the largest CPU share that may be asked for.
	MaxCPUs float64 = 4096
	// MaxPids is the kernel's own end (PID_MAX_LIMIT on 64 bit).
	MaxPids int64 = 4 << 20

	// DefaultUser is the account that commands run as. Its uid is 1000 only
	// where uids are mapped.
	DefaultUser = "user"
	// DefaultHome is its home directory inside a sandbox.
	DefaultHome = "/home/user"
)

// WithDefaults fills the zero fields of l. CPUTime and Output stay zero, which
// means none, but KillOnOutput needs a limit to kill at: DefaultOutput.
func (l Limits) WithDefaults() Limits {
	if l.Memory == 0 {
		l.Memory = DefaultMemory
	}
	if l.CPUs == 0 {
		l.CPUs = DefaultCPUs
	}
	if l.Pids == 0 {
		l.Pids = DefaultPids
	}
	if l.Disk == 0 {
		l.Disk = min(MaxDefaultDisk, l.Memory/2)
	}
	if l.Inodes == 0 {
		l.Inodes = DefaultInodes
	}
	if l.OpenFiles == 0 {
		l.OpenFiles = DefaultOpenFiles
	}
	if l.FileSize == 0 {
		l.FileSize = l.Disk
	}
	if l.Output == 0 && l.KillOnOutput {
		l.Output = DefaultOutput
	}
	return l
}
