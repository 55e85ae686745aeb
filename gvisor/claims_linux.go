package gvisor

import (
	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
)

// capabilities is what h lets the backend claim. Every line here is attacked by
// the tests.
func (h host) capabilities() backend.Capabilities {
	caps := backend.Capabilities{
		Driver: driverName, Isolation: backend.IsolationKernel, Claims: h.claims(),
		Networks: []backend.NetworkMode{backend.NetworkNone, backend.NetworkAllowlist, backend.NetworkFull},
		Features: []backend.Feature{
			backend.FeatureProbe, backend.FeatureExtend, backend.FeatureUsage, backend.FeatureProcesses,
			backend.FeatureTerminal, backend.FeatureInput, backend.FeatureRange, backend.FeatureWatch,
			backend.FeatureFind, backend.FeatureEnvd, backend.FeatureDial, backend.FeaturePrivateRoot, backend.FeatureMounts,
			backend.FeatureTemplates, backend.FeatureUsers, backend.FeaturePause, backend.FeatureStartup,
		},
	}
	if !h.rootless() {
		// runsc restores as root only.
		caps.Features = append(caps.Features, backend.FeatureSnapshot)
	}
	if h.rootless() {
		// gVisor's tmpfs keeps extended attributes; the host's, through its
		// gofer, does not.
		caps.Features = append(caps.Features, backend.FeatureMetadata)
	}
	return caps
}

// fixGroups says how to get what control groups limit.
const fixGroups = "run as root, or give cgroup_parent a group delegated to this user"

func (h host) claims() map[backend.Control]backend.Claim {
	c := map[backend.Control]backend.Claim{
		backend.ControlWallTime:    box.Enforced("agent's timer, and the host's behind it"),
		backend.ControlOutput:      box.Enforced("agent"),
		backend.ControlOpenFiles:   box.Enforced("RLIMIT_NOFILE"),
		backend.ControlFileSize:    box.Enforced("RLIMIT_FSIZE"),
		backend.ControlCore:        box.Enforced("RLIMIT_CORE"),
		backend.ControlPids:        box.Enforced("RLIMIT_NPROC of each account, in gVisor's kernel"),
		backend.ControlPrivileges:  box.Enforced("no_new_privs, empty bounding set"),
		backend.ControlSyscalls:    box.Enforced("gVisor's kernel, and seccomp inside"),
		backend.ControlLifetime:    box.Enforced("agent's deadline, and the host's behind it"),
		backend.ControlDisk:        box.Enforced("tmpfs size"),
		backend.ControlInodes:      box.Enforced("tmpfs nr_inodes, on the host"),
		backend.ControlNetworkOff:  box.Enforced("gVisor's own network stack, with a loopback alone"),
		backend.ControlNetworkList: box.Enforced("gVisor's own network stack, and the host's proxy"),
		backend.ControlReadOnly:    box.Enforced("read-only mounts"),
		backend.ControlHostFiles:   box.Enforced("gVisor's gofer shows the root and the mounts alone"),
		backend.ControlHostProcs:   box.Enforced("gVisor's kernel has no others"),
		backend.ControlHostIPC:     box.Enforced("gVisor's kernel has its own; host sockets and FIFOs are refused"),
		backend.ControlKillAll:     box.Enforced("all processes end with gVisor's kernel"),
		backend.ControlBound:       box.Enforced("parent-death signal"),
		backend.ControlMountsRO:    box.Enforced("read-only mounts"),
		backend.ControlAgent:       box.Enforced("own uid, not dumpable"),
		backend.ControlCPUTime:     box.BestEffort("session, by the agent", "descendants that leave the session are not counted"),
		backend.ControlKillTree:    box.BestEffort("session", "descendants that leave the session live until the sandbox ends"),
		backend.ControlOwnUID:      box.BestEffort("gVisor's kernel", "no program has a uid of the host's; the kernels of all sandboxes run as one"),
		backend.ControlFileRules:   box.Missing("gVisor has no Landlock"),
		backend.ControlSync:        box.BestEffort("scratch in memory", "a sandbox's files are never on the host's disks"),
		backend.ControlSwap:        box.Missing("no memory cgroup; " + fixGroups),
		backend.ControlCPU:         box.Missing("no cgroup with a cpu controller; " + fixGroups),
		backend.ControlMemory:      box.BestEffort("sampled by the agent", "resident memory is sampled every 50 ms and the commands killed, what processes share counts for each; "+fixGroups+" for a hard limit"),
	}
	if h.rootless() {
		c[backend.ControlInodes] = box.Missing("gVisor's tmpfs does not limit the number of files; run as root")
	}
	if mechanism, ok := h.has("memory"); ok {
		c[backend.ControlMemory], c[backend.ControlSwap] = box.Enforced(mechanism), box.Enforced(mechanism)
	}
	if mechanism, ok := h.has("cpu"); ok {
		c[backend.ControlCPU] = box.Enforced(mechanism)
	}
	return c
}
