package backend

import "slices"

// Control is something a backend holds untrusted code to. Names are append-only.
type Control string

// The controls.
const (
	ControlMemory      Control = "memory"        // limits.memory, over the whole sandbox
	ControlSwap        Control = "swap"          // no swap beyond limits.memory
	ControlCPU         Control = "cpu"           // limits.cpus, a share of cores
	ControlCPUTime     Control = "cpu_time"      // limits.cpu_time, of one command's tree
	ControlWallTime    Control = "wall_time"     // command.timeout
	ControlPids        Control = "pids"          // limits.pids, processes and threads
	ControlDisk        Control = "disk"          // limits.disk, bytes that can be written
	ControlInodes      Control = "inodes"        // limits.inodes
	ControlOpenFiles   Control = "open_files"    // limits.open_files, per process
	ControlFileSize    Control = "file_size"     // limits.file_size
	ControlCore        Control = "core"          // no core dumps
	ControlOutput      Control = "output"        // limits.output, per stream
	ControlLifetime    Control = "lifetime"      // the sandbox ends at its deadline
	ControlKillAll     Control = "kill_all"      // nothing survives Destroy
	ControlKillTree    Control = "kill_tree"     // a timeout kills the command's whole tree
	ControlBound       Control = "bound"         // nothing survives the creator's sudden end
	ControlNetworkOff  Control = "network_off"   // network mode none
	ControlNetworkList Control = "network_list"  // network mode allowlist
	ControlReadOnly    Control = "read_only"     // nothing but the scratch can be written
	ControlHostFiles   Control = "host_files"    // host files not named by policy cannot be read
	ControlHostProcs   Control = "host_procs"    // host processes cannot be seen or signalled
	ControlPrivileges  Control = "privileges"    // no capabilities, no new privileges
	ControlSyscalls    Control = "syscalls"      // dangerous system calls are refused
	ControlFileRules   Control = "file_rules"    // a second layer of file rules (Landlock)
	ControlOwnUID      Control = "own_uid"       // a host uid that no other sandbox has
	ControlAgent       Control = "agent"         // user code cannot signal, read or impersonate the agent
	ControlMountsRO    Control = "mounts"        // read-only binds of host directories
	ControlHostIPC     Control = "host_ipc"      // no IPC objects, abstract sockets or keyrings of the host
	ControlSync        Control = "io_contention" // sync storms and I/O hogs do not slow others
)

// Controls are all controls.
func Controls() []Control {
	return []Control{
		ControlMemory, ControlSwap, ControlCPU, ControlCPUTime, ControlWallTime, ControlPids, ControlDisk,
		ControlInodes, ControlOpenFiles, ControlFileSize, ControlCore, ControlOutput, ControlLifetime,
		ControlKillAll, ControlKillTree, ControlBound, ControlNetworkOff, ControlNetworkList, ControlReadOnly,
		ControlHostFiles, ControlHostProcs, ControlPrivileges, ControlSyscalls, ControlFileRules, ControlOwnUID,
		ControlAgent, ControlMountsRO, ControlHostIPC, ControlSync,
	}
}

// Enforcement is how firmly a control holds.
type Enforcement string

// How firmly a control holds.
const (
	Enforced    Enforcement = "enforced"
	BestEffort  Enforcement = "best_effort" // accepted with a warning, refused under Spec.Strict
	Unsupported Enforcement = "unsupported" // asking for it is refused
)

// Claim is what a backend says of one control. The conformance suite attacks it.
type Claim struct {
	Enforcement Enforcement `json:"enforcement"`
	Mechanism   string      `json:"mechanism,omitempty"` // what enforces it, such as "cgroup v1 memory"
	Note        string      `json:"note,omitempty"`      // what stays open, or what to do to get it
}

// Feature names an optional ability, one for each optional interface and a few
// that have none. Names are append-only.
type Feature string

// The features.
const (
	FeatureProbe       Feature = "probe"
	FeatureFind        Feature = "find" // kept sandboxes
	FeaturePause       Feature = "pause"
	FeatureSnapshot    Feature = "snapshot"
	FeatureExtend      Feature = "extend"
	FeatureDial        Feature = "dial"
	FeatureUsage       Feature = "usage"
	FeatureProcesses   Feature = "processes"
	FeatureTerminal    Feature = "terminal"
	FeatureInput       Feature = "input"
	FeatureUsers       Feature = "users" // several accounts, root among them
	FeatureRange       Feature = "range"
	FeatureMetadata    Feature = "metadata"
	FeatureWatch       Feature = "watch"
	FeatureEnvd        Feature = "envd"
	FeaturePrivateRoot Feature = "private_root" // absolute file names
	FeatureMounts      Feature = "mounts"
	FeatureTemplates   Feature = "templates"
	FeatureStartup     Feature = "startup" // Spec.User, Dir and Startup
)

// Capabilities is what an executor enforces and can do.
type Capabilities struct {
	Driver    string            `json:"driver"`    // "subprocess", "docker", …
	Isolation Isolation         `json:"isolation"` // the level its sandboxes reach here
	Claims    map[Control]Claim `json:"claims"`    // an absent control is unsupported
	Networks  []NetworkMode     `json:"networks"`
	Features  []Feature         `json:"features"`
}

// Claim is what the backend says of control; an absent one is unsupported.
func (c Capabilities) Claim(control Control) Claim {
	if cl, ok := c.Claims[control]; ok {
		return cl
	}
	return Claim{Enforcement: Unsupported}
}

// Has tells whether feature is claimed.
func (c Capabilities) Has(feature Feature) bool { return slices.Contains(c.Features, feature) }
