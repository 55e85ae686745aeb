package backend

import (
	"time"
)

// Spec is what a caller asks a sandbox to be. The zero value is the safest
// sandbox a backend has, with the default limits and no network.
type Spec struct {
	// Template names what the sandbox's root is made from; "" is the backend's
	// default.
	Template string `json:"template,omitempty"`
	// Env is set for every command; a command's own wins.
	Env map[string]string `json:"env,omitempty"`
	// User is the account that commands run as when they name none: "user" when
	// empty, or what an image says that Template names by an engine's name. Dir
	// is where they start then: the account's home when empty. A directory that
	// is not there is made; where that cannot be, Create is ErrInvalid.
	User string `json:"user,omitempty"`
	Dir  string `json:"dir,omitempty"`
	// Startup is what the sandbox starts with. What comes From a snapshot has
	// started before.
	Startup Startup `json:"startup,omitzero"`
	// Labels are the caller's, kept with the sandbox and given back by Info.
	Labels map[string]string `json:"labels,omitempty"`

	Limits  Limits  `json:"limits,omitzero"`
	Network Network `json:"network,omitzero"`
	Mounts  []Mount `json:"mounts,omitempty"`
	// Secrets are put into no command's environment; the network proxy uses them.
	Secrets []SecretRef `json:"secrets,omitempty"`

	// Lifetime is how long the sandbox lives; 0 is DefaultLifetime, more than
	// MaxLifetime is invalid.
	Lifetime time.Duration `json:"lifetime,omitempty"`
	// Keep lets the sandbox outlive its creator until its deadline.
	Keep bool `json:"keep,omitempty"`
	// OnExpiry says what happens at the deadline; "" destroys.
	OnExpiry ExpiryAction `json:"on_expiry,omitempty"`
	// From is a snapshot to start from. Template and limits that are left open
	// are the snapshot's. Environment and labels are this Spec's; a snapshot with
	// memory has its own environment below that, and wants the network mode that
	// it was taken with.
	From string `json:"from,omitempty"`

	// MinIsolation is the least level accepted.
	MinIsolation Isolation `json:"min_isolation,omitempty"`
	// Strict refuses what would only be best effort, defaults included.
	Strict bool `json:"strict,omitempty"`
	// Advisory names controls whose limits may go unenforced.
	Advisory []Control `json:"advisory,omitempty"`
	// IdempotencyKey makes repeated creates with one key return one sandbox,
	// where the backend can.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// ExpiryAction is what happens to a sandbox at its deadline.
type ExpiryAction string

// What happens at a sandbox's deadline.
const (
	ExpiryDestroy ExpiryAction = "destroy"
	ExpiryPause   ExpiryAction = "pause"
)

// Mount shows a host directory or a managed volume inside a sandbox. Exactly
// one of HostPath and Volume is set.
type Mount struct {
	// HostPath is an absolute, existing directory or regular file of the host.
	// "/", /proc, /sys, /dev, sockets and glovebox's own state are refused.
	HostPath string `json:"host_path,omitempty"`
	// Volume is a managed, size-capped volume.
	Volume string `json:"volume,omitempty"`
	// Target is absolute, inside the sandbox.
	Target string `json:"target"`
	// ReadOnly must be true for a HostPath.
	ReadOnly bool `json:"read_only"`
}

// Limits bounds a sandbox and its commands. A zero field takes its default, as
// WithDefaults fills it in; a negative one is invalid.
type Limits struct {
	Memory    int64   `json:"memory,omitempty"`     // bytes, of everything in the sandbox; there is no swap
	CPUs      float64 `json:"cpus,omitempty"`       // cores
	Pids      int64   `json:"pids,omitempty"`       // processes and threads
	Disk      int64   `json:"disk,omitempty"`       // bytes that can be written
	Inodes    int64   `json:"inodes,omitempty"`     // files and directories that can be made
	OpenFiles int64   `json:"open_files,omitempty"` // descriptors of each process
	FileSize  int64   `json:"file_size,omitempty"`  // bytes of one file; the disk's when 0

	// CPUTime bounds each command's CPU time, of its whole tree where that is
	// tracked; 0 is none.
	CPUTime time.Duration `json:"cpu_time,omitempty"`
	// Output bounds each output stream of each command, in bytes. 0: what the
	// caller's writers take is unbounded, what Run collects is DefaultOutput.
	Output int64 `json:"output,omitempty"`
	// KillOnOutput kills a command at the output limit, DefaultOutput when
	// Output is 0, instead of dropping what is over it.
	KillOnOutput bool `json:"kill_on_output,omitempty"`
}
