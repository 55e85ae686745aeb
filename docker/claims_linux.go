package docker

import (
	"fmt"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// capabilities is what the backend claims. Every line here is attacked by the
// tests.
func capabilities(root bool, landlock int) backend.Capabilities {
	networks := []backend.NetworkMode{backend.NetworkNone, backend.NetworkAllowlist}
	if why, _ := launch.DeviceProblem(false); why == "" {
		networks = append(networks, backend.NetworkFull)
	}
	return backend.Capabilities{
		Driver: driverName, Isolation: backend.IsolationContainer, Claims: claims(root, landlock),
		Networks: networks,
		Features: []backend.Feature{
			backend.FeatureProbe, backend.FeatureExtend, backend.FeatureUsage, backend.FeatureProcesses, backend.FeatureTerminal,
			backend.FeatureInput, backend.FeatureRange, backend.FeatureMetadata, backend.FeatureWatch, backend.FeatureEnvd,
			backend.FeatureFind, backend.FeatureDial, backend.FeaturePrivateRoot, backend.FeatureMounts, backend.FeatureTemplates,
			backend.FeatureUsers, backend.FeaturePause, backend.FeatureStartup,
		},
	}
}

func claims(root bool, landlock int) map[backend.Control]backend.Claim {
	c := map[backend.Control]backend.Claim{
		backend.ControlMemory: box.Enforced("container's memory cgroup, agent included"),
		backend.ControlSwap:   box.Enforced("container's memory cgroup"),
		backend.ControlCPU:    box.Enforced("container's cpu cgroup"),
		backend.ControlPids: {
			Enforcement: backend.Enforced, Mechanism: "RLIMIT_NPROC of a uid of its own, the container's pids limit behind it",
			Note: "reaching it is not told as a hit",
		},
		backend.ControlDisk:        box.Enforced("tmpfs size"),
		backend.ControlInodes:      box.Enforced("tmpfs nr_inodes"),
		backend.ControlOpenFiles:   box.Enforced("RLIMIT_NOFILE"),
		backend.ControlFileSize:    box.Enforced("RLIMIT_FSIZE"),
		backend.ControlCore:        box.Enforced("RLIMIT_CORE"),
		backend.ControlCPUTime:     box.BestEffort("session, by the agent", "descendants that leave the session are not counted"),
		backend.ControlWallTime:    box.Enforced("agent's timer, and the host's behind it"),
		backend.ControlKillTree:    box.BestEffort("session", "descendants that leave the session live until the sandbox ends"),
		backend.ControlOutput:      box.Enforced("agent"),
		backend.ControlLifetime:    box.Enforced("agent's deadline, and the sweep behind it"),
		backend.ControlKillAll:     box.Enforced("pid namespace"),
		backend.ControlBound:       box.Enforced("the agent, first process of the pid namespace, ends with its connection"),
		backend.ControlNetworkOff:  box.Enforced("network namespace"),
		backend.ControlNetworkList: box.Enforced("network namespace, and the host's proxy"),
		backend.ControlReadOnly:    box.Enforced("read-only root"),
		backend.ControlHostFiles:   box.Enforced("mount namespace, image"),
		backend.ControlHostProcs:   box.Enforced("pid namespace"),
		backend.ControlHostIPC:     box.Enforced("ipc and network namespaces, own keyring"),
		backend.ControlPrivileges:  box.Enforced("no_new_privs, empty bounding set"),
		backend.ControlSyscalls:    box.Enforced("seccomp: the container's profile and the agent's filter"),
		backend.ControlMountsRO:    box.Enforced("read-only binds"),
		backend.ControlAgent:       box.Enforced("own uid"),
		backend.ControlOwnUID: {
			Enforcement: backend.Enforced, Mechanism: "host uid range of its own, or the engine's user namespace",
			Note: "root inside is the host's uid without capabilities, unless the engine maps users: what the kernel counts for each uid, such as inotify instances, it shares",
		},
		backend.ControlSync: box.BestEffort("", "sync storms reach the host's other disks"),
	}
	if landlock > 0 {
		c[backend.ControlFileRules] = box.Enforced(fmt.Sprintf("Landlock ABI %d", landlock))
	} else {
		c[backend.ControlFileRules] = backend.Claim{Enforcement: backend.Unsupported, Note: "this kernel has no Landlock"}
	}
	if !root {
		c[backend.ControlPids] = backend.Claim{Enforcement: backend.Enforced, Mechanism: "container's pids cgroup", Note: "with a reserve of 32 for the agent's threads"}
		c[backend.ControlOwnUID] = box.BestEffort("random host uid", "run glovebox as root for one that no other sandbox has")
	}
	return c
}
