package docker

import (
	"fmt"

	"github.com/glovebox-dev/glovebox/backend"
)

// capabilities is what the backend claims. Every line here is attacked by the
// tests.
func capabilities(root bool, landlock int) backend.Capabilities {
	return backend.Capabilities{
		Driver: driverName, Isolation: backend.IsolationContainer, Claims: claims(root, landlock),
		Networks: []backend.NetworkMode{backend.NetworkNone, backend.NetworkAllowlist},
		Features: []backend.Feature{
			backend.FeatureProbe, backend.FeatureExtend, backend.FeatureUsage, backend.FeatureProcesses, backend.FeatureTerminal,
			backend.FeatureInput, backend.FeatureRange, backend.FeatureMetadata, backend.FeatureWatch, backend.FeatureEnvd,
			backend.FeatureFind, backend.FeatureDial, backend.FeaturePrivateRoot, backend.FeatureMounts, backend.FeatureTemplates,
			backend.FeatureUsers, backend.FeaturePause,
		},
	}
}

func enforced(mechanism string) backend.Claim {
	return backend.Claim{Enforcement: backend.Enforced, Mechanism: mechanism}
}

func bestEffort(mechanism, note string) backend.Claim {
	return backend.Claim{Enforcement: backend.BestEffort, Mechanism: mechanism, Note: note}
}

func claims(root bool, landlock int) map[backend.Control]backend.Claim {
	c := map[backend.Control]backend.Claim{
		backend.ControlMemory: enforced("container's memory cgroup, agent included"),
		backend.ControlSwap:   enforced("container's memory cgroup"),
		backend.ControlCPU:    enforced("container's cpu cgroup"),
		backend.ControlPids: {
			Enforcement: backend.Enforced, Mechanism: "RLIMIT_NPROC of a uid of its own, the container's pids limit behind it",
			Note: "reaching it is not told as a hit",
		},
		backend.ControlDisk:        enforced("tmpfs size"),
		backend.ControlInodes:      enforced("tmpfs nr_inodes"),
		backend.ControlOpenFiles:   enforced("RLIMIT_NOFILE"),
		backend.ControlFileSize:    enforced("RLIMIT_FSIZE"),
		backend.ControlCore:        enforced("RLIMIT_CORE"),
		backend.ControlCPUTime:     bestEffort("session, by the agent", "descendants that leave the session are not counted"),
		backend.ControlWallTime:    enforced("agent's timer, and the host's behind it"),
		backend.ControlKillTree:    bestEffort("session", "descendants that leave the session live until the sandbox ends"),
		backend.ControlOutput:      enforced("agent"),
		backend.ControlLifetime:    enforced("agent's deadline, and the sweep behind it"),
		backend.ControlKillAll:     enforced("pid namespace"),
		backend.ControlBound:       enforced("the agent, first process of the pid namespace, ends with its connection"),
		backend.ControlNetworkOff:  enforced("network namespace"),
		backend.ControlNetworkList: enforced("network namespace, and the host's proxy"),
		backend.ControlReadOnly:    enforced("read-only root"),
		backend.ControlHostFiles:   enforced("mount namespace, image"),
		backend.ControlHostProcs:   enforced("pid namespace"),
		backend.ControlHostIPC:     enforced("ipc and network namespaces, own keyring"),
		backend.ControlPrivileges:  enforced("no_new_privs, empty bounding set"),
		backend.ControlSyscalls:    enforced("seccomp: the container's profile and the agent's filter"),
		backend.ControlMountsRO:    enforced("read-only binds"),
		backend.ControlAgent:       enforced("own uid"),
		backend.ControlOwnUID: {
			Enforcement: backend.Enforced, Mechanism: "host uid range of its own, or the engine's user namespace",
			Note: "root inside is the host's uid without capabilities, unless the engine maps users: what the kernel counts for each uid, such as inotify instances, it shares",
		},
		backend.ControlSync: bestEffort("", "sync storms reach the host's other disks"),
	}
	if landlock > 0 {
		c[backend.ControlFileRules] = enforced(fmt.Sprintf("Landlock ABI %d", landlock))
	} else {
		c[backend.ControlFileRules] = backend.Claim{Enforcement: backend.Unsupported, Note: "this kernel has no Landlock"}
	}
	if !root {
		c[backend.ControlPids] = backend.Claim{Enforcement: backend.Enforced, Mechanism: "container's pids cgroup", Note: "with a reserve of 32 for the agent's threads"}
		c[backend.ControlOwnUID] = bestEffort("random host uid", "run glovebox as root for one that no other sandbox has")
	}
	return c
}
