package subprocess

import (
	"fmt"
	"maps"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

const driverName = "subprocess"

// capabilities is what h lets the backend claim. Every line here is attacked by
// the tests.
func (h host) capabilities() backend.Capabilities {
	caps := backend.Capabilities{
		Driver: driverName, Networks: []backend.NetworkMode{backend.NetworkNone},
		Features: []backend.Feature{
			backend.FeatureProbe, backend.FeatureExtend, backend.FeatureUsage, backend.FeatureProcesses,
			backend.FeatureTerminal, backend.FeatureInput, backend.FeatureRange, backend.FeatureMetadata, backend.FeatureWatch, backend.FeatureEnvd,
			backend.FeatureStartup,
		},
	}
	switch {
	case h.mode == launch.ModePlain:
		caps.Isolation, caps.Claims = backend.IsolationNone, h.plain()
		caps.Networks = append(caps.Networks, backend.NetworkFull)
		return caps
	case !h.seccomp:
		// Without a system call filter neither level is what its name says.
		caps.Isolation, caps.Claims = backend.IsolationNone, map[backend.Control]backend.Claim{}
		return caps
	case h.mode == launch.ModeRestricted:
		if h.landlock == 0 {
			caps.Isolation, caps.Claims = backend.IsolationNone, map[backend.Control]backend.Claim{}
			return caps
		}
		caps.Isolation, caps.Claims = backend.IsolationRestricted, h.restricted()
		caps.Features = append(caps.Features, backend.FeatureMounts)
		return caps
	}
	caps.Isolation, caps.Claims = backend.IsolationProcess, h.namespaced()
	caps.Networks = append(caps.Networks, backend.NetworkAllowlist)
	if h.noDevice == "" {
		caps.Networks = append(caps.Networks, backend.NetworkFull)
	}
	caps.Features = append(caps.Features, backend.FeatureFind, backend.FeatureDial, backend.FeaturePrivateRoot,
		backend.FeatureMounts, backend.FeatureTemplates)
	if h.mode == launch.ModeMapped {
		caps.Features = append(caps.Features, backend.FeatureUsers)
	}
	if h.groups.CanFreeze() {
		caps.Features = append(caps.Features, backend.FeaturePause)
	}
	return caps
}

// common are the claims every contained mode makes.
func (h host) common() map[backend.Control]backend.Claim {
	return map[backend.Control]backend.Claim{
		backend.ControlWallTime:   box.Enforced("agent's timer, and the host's behind it"),
		backend.ControlOutput:     box.Enforced("agent"),
		backend.ControlOpenFiles:  box.Enforced("RLIMIT_NOFILE"),
		backend.ControlFileSize:   box.Enforced("RLIMIT_FSIZE"),
		backend.ControlCore:       box.Enforced("RLIMIT_CORE"),
		backend.ControlPrivileges: box.Enforced("no_new_privs, empty bounding set"),
		backend.ControlSyscalls:   box.Enforced("seccomp"),
		backend.ControlLifetime:   box.Enforced("agent's deadline, and the sweep behind it"),
		backend.ControlSync:       box.BestEffort("", "sync storms reach the host's other disks"),
	}
}

// namespaced are the claims of mapped and single mode.
func (h host) namespaced() map[backend.Control]backend.Claim {
	c := h.common()
	maps.Copy(c, map[backend.Control]backend.Claim{
		backend.ControlDisk:       box.Enforced("tmpfs size"),
		backend.ControlInodes:     box.Enforced("tmpfs nr_inodes"),
		backend.ControlNetworkOff: box.Enforced("network namespace"),
		// What leaves the namespace goes over the agent's connection.
		backend.ControlNetworkList: box.Enforced("network namespace, and the host's proxy"),
		backend.ControlReadOnly:    box.Enforced("mount namespace, read-only binds"),
		backend.ControlHostFiles:   box.Enforced("mount namespace, pivot_root"),
		backend.ControlHostProcs:   box.Enforced("pid namespace"),
		backend.ControlHostIPC:     box.Enforced("ipc and network namespaces, own keyring"),
		backend.ControlKillAll:     box.Enforced("pid namespace"),
		backend.ControlBound:       box.Enforced("parent-death signal and the connection's end, on the first process of the pid namespace"),
		backend.ControlMountsRO:    box.Enforced("read-only binds"),
		backend.ControlSwap:        box.Enforced("memory limit counts swap"),
		backend.ControlMemory:      box.BestEffort("sampled by the agent", "resident memory is sampled every 50 ms and the commands killed; run as root, or give cgroup_parent, for a hard limit"),
		backend.ControlCPU:         box.Missing("no cgroup with a cpu controller; run as root or give cgroup_parent"),
		backend.ControlPids:        box.Enforced("RLIMIT_NPROC in an own user namespace"),
		backend.ControlCPUTime:     box.BestEffort("session, by the agent", "descendants that leave the session are not counted"),
		backend.ControlKillTree:    box.BestEffort("session", "descendants that leave the session live until the sandbox ends"),
		backend.ControlOwnUID:      box.Missing("sandboxes share this user's uid; run as root for one each"),
		backend.ControlAgent:       box.Enforced("own uid"),
	})
	if h.landlock > 0 {
		c[backend.ControlFileRules] = box.Enforced(fmt.Sprintf("Landlock ABI %d", h.landlock))
	} else {
		c[backend.ControlFileRules] = box.Missing("this kernel has no Landlock")
	}
	if h.mode == launch.ModeMapped {
		c[backend.ControlOwnUID] = box.Enforced("host uid range of its own")
	} else {
		c[backend.ControlSwap] = box.Missing("no memory cgroup")
		c[backend.ControlAgent] = box.Enforced("seccomp, not dumpable, Landlock signal scope")
		if h.landlock < 6 {
			c[backend.ControlAgent] = box.BestEffort("seccomp, not dumpable", "a kernel with Landlock ABI 6 would scope signals too")
		}
	}
	h.addGroups(c)
	return c
}

// addGroups puts in what cgroups enforce.
func (h host) addGroups(c map[backend.Control]backend.Claim) {
	for control, controller := range map[backend.Control]string{
		backend.ControlMemory: "memory", backend.ControlPids: "pids", backend.ControlCPU: "cpu",
	} {
		if v, ok := h.groups.Has(controller); ok {
			c[control] = box.Enforced(fmt.Sprintf("cgroup v%d %s", v, controller))
		}
	}
	if v, ok := h.groups.Has("memory"); ok {
		c[backend.ControlSwap] = box.Enforced(fmt.Sprintf("cgroup v%d memory", v))
	}
	if h.mode == launch.ModeMapped && h.groups.V2 != "" {
		c[backend.ControlKillTree] = box.Enforced("cgroup.kill of the command's own group")
		c[backend.ControlCPUTime] = box.Enforced("cpu.stat of the command's own group")
	}
}

// metadataNote is what Landlock does not hold.
const metadataNote = "modes, times and extended attributes of this user's own files can be changed, what is in them cannot"

// restricted are the claims without namespaces.
func (h host) restricted() map[backend.Control]backend.Claim {
	c := h.common()
	c[backend.ControlPrivileges] = box.Enforced("no_new_privs; no capability to begin with")
	maps.Copy(c, map[backend.Control]backend.Claim{
		backend.ControlFileRules:   box.Enforced(fmt.Sprintf("Landlock ABI %d", h.landlock)),
		backend.ControlReadOnly:    box.BestEffort("Landlock", metadataNote),
		backend.ControlHostFiles:   box.BestEffort("Landlock", "names and sizes of host files can be seen, contents cannot"),
		backend.ControlHostProcs:   box.BestEffort("Landlock signal scope", "no pid namespace; needs Landlock ABI 6"),
		backend.ControlHostIPC:     box.Enforced("seccomp refuses sockets, System V IPC, message queues and keyrings"),
		backend.ControlNetworkOff:  box.Enforced("seccomp refuses sockets"),
		backend.ControlNetworkList: box.Missing("needs a network namespace"),
		backend.ControlKillAll:     box.BestEffort("subreaper", "what the agent started is stopped, killed and reaped; a killed agent leaves it"),
		backend.ControlBound:       box.BestEffort("agent", "daemons survive when agent and creator are both killed at once"),
		backend.ControlMountsRO:    box.BestEffort("Landlock", metadataNote),
		backend.ControlMemory:      box.BestEffort("sampled by the agent", "resident memory is sampled every 50 ms and the commands killed; what processes share since a fork counts for each"),
		backend.ControlSwap:        box.Missing("no memory cgroup"),
		backend.ControlCPU:         box.Missing("no cgroup"),
		backend.ControlPids:        box.BestEffort("RLIMIT_NPROC", "counts all processes of this uid on the host"),
		backend.ControlDisk:        box.BestEffort("RLIMIT_FSIZE", "bounds each file, not their sum"),
		backend.ControlInodes:      box.Missing("nothing bounds the number of files"),
		backend.ControlCPUTime:     box.BestEffort("session, by the agent", "descendants that leave the session are not counted"),
		backend.ControlKillTree:    box.BestEffort("session", "descendants that leave the session live until the sandbox ends"),
		backend.ControlOwnUID:      box.Missing("user code runs as this user"),
		backend.ControlAgent:       box.Enforced("seccomp, not dumpable, Landlock signal scope"),
	})
	if h.landlock < 6 {
		c[backend.ControlAgent] = box.Missing("needs Landlock ABI 6")
		c[backend.ControlHostProcs] = box.Missing("needs Landlock ABI 6")
	}
	return c
}

// plain are the claims of a mode that contains nothing.
func (h host) plain() map[backend.Control]backend.Claim {
	return map[backend.Control]backend.Claim{
		backend.ControlWallTime:   box.Enforced("agent's timer"),
		backend.ControlOutput:     box.Enforced("agent"),
		backend.ControlOpenFiles:  box.Enforced("RLIMIT_NOFILE"),
		backend.ControlFileSize:   box.Enforced("RLIMIT_FSIZE"),
		backend.ControlCore:       box.Enforced("RLIMIT_CORE"),
		backend.ControlLifetime:   box.Enforced("agent's deadline"),
		backend.ControlKillAll:    box.BestEffort("subreaper", "nothing is contained"),
		backend.ControlNetworkOff: box.Missing("the host's network is shared"),
	}
}
