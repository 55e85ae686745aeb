//go:build linux

package box

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// Hostname is every sandbox's name for itself.
const Hostname = "sandbox"

// DeviceCapability is what an agent that a container runtime starts needs to make
// the network device of mode full; it drops it before it serves.
const DeviceCapability = "CAP_NET_ADMIN"

// Rlimits are the resource limits of a sandbox's commands, but for the number
// of processes, which is the driver's.
func Rlimits(asked, spec backend.Spec) []launch.Rlimit {
	return []launch.Rlimit{
		{Resource: unix.RLIMIT_NOFILE, Value: uint64(spec.Limits.OpenFiles)},
		{Resource: unix.RLIMIT_CORE, Value: 0},
		{Resource: unix.RLIMIT_FSIZE, Value: fileSize(asked, spec)},
		{Resource: unix.RLIMIT_MEMLOCK, Value: 8 << 20},
		{Resource: unix.RLIMIT_MSGQUEUE, Value: 819200},
	}
}

// Contained is what an agent that a container runtime starts is told. The
// driver adds what its runtime leaves to the agent: Listen for an agent that
// serves on a socket, Scratch.Mount, a limit of processes.
func (b *Birth) Contained(userUID, agentUID int) *launch.Config {
	l := b.Spec.Limits
	return &launch.Config{
		Protocol: launch.Protocol, Mode: launch.ModeContained, Sandbox: b.ID, Hostname: Hostname,
		DeadlineNS: int64(b.Spec.Lifetime), UserUID: userUID, AgentUID: agentUID,
		Root:    launch.Root{Home: backend.DefaultHome},
		Scratch: launch.Scratch{Bytes: l.Disk, Inodes: l.Inodes},
		Env:     b.Spec.Env, Token: b.Token, Rlimits: Rlimits(b.Asked, b.Spec),
		LimitMemory: l.Memory, LimitCPUs: l.CPUs, Egress: b.Spec.Network.Mode == backend.NetworkAllowlist,
		Full: b.Spec.Network.Mode == backend.NetworkFull,
	}
}

// AgentCapabilities are what an agent that a container runtime starts needs to
// become one; most of it goes before it serves. mounts is for an agent that
// mounts its scratch itself.
func AgentCapabilities(mounts bool) []string {
	caps := []string{"CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL", "CAP_CHOWN", "CAP_DAC_OVERRIDE"}
	if mounts {
		caps = append(caps, "CAP_SYS_ADMIN")
	}
	return caps
}

// SentryRlimits makes cfg's limits those of commands under gVisor, pids
// processes included.
func SentryRlimits(cfg *launch.Config, pids int64) {
	// gVisor refuses to set this one, and its queues are its own.
	cfg.Rlimits = slices.DeleteFunc(cfg.Rlimits, func(r launch.Rlimit) bool { return r.Resource == unix.RLIMIT_MSGQUEUE })
	// It lets one more be made than it says.
	cfg.Rlimits = append(cfg.Rlimits, launch.Rlimit{Resource: unix.RLIMIT_NPROC, Value: uint64(max(pids-1, 1))})
}

// CheckDisk refuses a scratch in memory that does not fit. Written pages count
// as memory: within the scratch a full disk must be ENOSPC and not the memory
// limit.
func CheckDisk(driver string, spec backend.Spec) error {
	l := spec.Limits
	if l.Disk <= l.Memory/2 {
		return nil
	}
	return &backend.Error{
		Op: "create", Kind: backend.ErrUnsupported, Backend: driver, Field: "limits.disk",
		Err: fmt.Errorf("the scratch is in memory and can have at most half of it, %d bytes", l.Memory/2),
		Fix: "raise limits.memory to twice the disk, or choose another backend",
	}
}
