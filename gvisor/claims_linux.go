package gvisor

import "github.com/glovebox-dev/glovebox/backend"

// capabilities is what h lets the backend claim. Every line here is attacked by
// the tests.
func (h host) capabilities() backend.Capabilities {
	caps := backend.Capabilities{
		Driver: driverName, Isolation: backend.IsolationKernel, Claims: h.claims(),
		Networks: []backend.NetworkMode{backend.NetworkNone, backend.NetworkAllowlist},
		Features: []backend.Feature{
			backend.FeatureProbe, backend.FeatureExtend, backend.FeatureUsage, backend.FeatureProcesses,
			backend.FeatureTerminal, backend.FeatureInput, backend.FeatureRange, backend.FeatureWatch,
			backend.FeatureFind, backend.FeatureEnvd, backend.FeatureDial, backend.FeaturePrivateRoot, backend.FeatureMounts,
			backend.FeatureTemplates, backend.FeatureUsers, backend.FeaturePause,
		},
	}
	if h.rootless() {
		// gVisor's tmpfs keeps extended attributes; the host's, through its
		// gofer, does not.
		caps.Features = append(caps.Features, backend.FeatureMetadata)
	}
	return caps
}

func enforced(mechanism string) backend.Claim {
	return backend.Claim{Enforcement: backend.Enforced, Mechanism: mechanism}
}

func bestEffort(mechanism, note string) backend.Claim {
	return backend.Claim{Enforcement: backend.BestEffort, Mechanism: mechanism, Note: note}
}

func missing(note string) backend.Claim {
	return backend.Claim{Enforcement: backend.Unsupported, Note: note}
}

// fixGroups says how to get what control groups limit.
const fixGroups = "run as root, or give cgroup_parent a group delegated to this user"

func (h host) claims() map[backend.Control]backend.Claim {
	c := map[backend.Control]backend.Claim{
		backend.ControlWallTime:    enforced("agent's timer, and the host's behind it"),
		backend.ControlOutput:      enforced("agent"),
		backend.ControlOpenFiles:   enforced("RLIMIT_NOFILE"),
		backend.ControlFileSize:    enforced("RLIMIT_FSIZE"),
		backend.ControlCore:        enforced("RLIMIT_CORE"),
		backend.ControlPids:        enforced("RLIMIT_NPROC of each account, in gVisor's kernel"),
		backend.ControlPrivileges:  enforced("no_new_privs, empty bounding set"),
		backend.ControlSyscalls:    enforced("gVisor's kernel, and seccomp inside"),
		backend.ControlLifetime:    enforced("agent's deadline, and the host's behind it"),
		backend.ControlDisk:        enforced("tmpfs size"),
		backend.ControlInodes:      enforced("tmpfs nr_inodes, on the host"),
		backend.ControlNetworkOff:  enforced("gVisor's own network stack, with a loopback alone"),
		backend.ControlNetworkList: enforced("gVisor's own network stack, and the host's proxy"),
		backend.ControlReadOnly:    enforced("read-only mounts"),
		backend.ControlHostFiles:   enforced("gVisor's gofer shows the root and the mounts alone"),
		backend.ControlHostProcs:   enforced("gVisor's kernel has no others"),
		backend.ControlHostIPC:     enforced("gVisor's kernel has its own; host sockets and FIFOs are refused"),
		backend.ControlKillAll:     enforced("all processes end with gVisor's kernel"),
		backend.ControlBound:       enforced("parent-death signal"),
		backend.ControlMountsRO:    enforced("read-only mounts"),
		backend.ControlAgent:       enforced("own uid, not dumpable"),
		backend.ControlCPUTime:     bestEffort("session, by the agent", "descendants that leave the session are not counted"),
		backend.ControlKillTree:    bestEffort("session", "descendants that leave the session live until the sandbox ends"),
		backend.ControlOwnUID:      bestEffort("gVisor's kernel", "no program has a uid of the host's; the kernels of all sandboxes run as one"),
		backend.ControlFileRules:   missing("gVisor has no Landlock"),
		backend.ControlSync:        bestEffort("scratch in memory", "a sandbox's files are never on the host's disks"),
		backend.ControlSwap:        missing("no memory cgroup; " + fixGroups),
		backend.ControlCPU:         missing("no cgroup with a cpu controller; " + fixGroups),
		backend.ControlMemory:      bestEffort("sampled by the agent", "resident memory is sampled every 50 ms and the commands killed, what processes share counts for each; "+fixGroups+" for a hard limit"),
	}
	if h.rootless() {
		c[backend.ControlInodes] = missing("gVisor's tmpfs does not limit the number of files; run as root")
	}
	if mechanism, ok := h.has("memory"); ok {
		c[backend.ControlMemory], c[backend.ControlSwap] = enforced(mechanism), enforced(mechanism)
	}
	if mechanism, ok := h.has("cpu"); ok {
		c[backend.ControlCPU] = enforced(mechanism)
	}
	return c
}
