// Package launch turns a fresh process into a sandbox: it is what the agent
// runs before it serves. The launching side passes a Config over a descriptor;
// the package's subdirectories hold the mechanisms both sides use.
package launch

// Protocol counts the changes of Config and Hello: an agent and a launcher of
// different counts do not understand each other.
const Protocol = 1

// Mode is how a sandbox is built.
type Mode string

// The modes.
const (
	// ModeMapped has all namespaces and a range of host uids: the agent starts
	// as uid 0 of its user namespace and then keeps AgentUID.
	ModeMapped Mode = "mapped"
	// ModeSingle has all namespaces and one uid, shared by agent and user code.
	ModeSingle Mode = "single"
	// ModeContained has its namespaces, root and limits from a container runtime:
	// the agent starts as uid 0 with the capabilities it needs and then keeps
	// Config.AgentUID.
	ModeContained Mode = "contained"
	// ModeRestricted has no namespaces.
	ModeRestricted Mode = "restricted"
	// ModePlain contains nothing.
	ModePlain Mode = "plain"
)

// The accounts of a sandbox. Code refers to the name "user", never to its uid.
const (
	UserUID  = 1000
	AgentUID = 65533
)

// Descriptors of an agent at its start.
const (
	ConfigFD = 3 // a Config as JSON
	ConnFD   = 4 // the connection, or the listening socket, to serve on
	FirstFD  = 5 // the first of those that Config names
)

// Config is what an agent is told at its start. Descriptor numbers of 0 mean
// that there is none.
type Config struct {
	Protocol int    `json:"protocol"`
	Mode     Mode   `json:"mode"`
	Sandbox  string `json:"sandbox"`
	Hostname string `json:"hostname,omitempty"`
	// Listen: ConnFD is a listening socket, and the sandbox outlives its
	// creator; otherwise the agent ends with its one connection.
	Listen bool `json:"listen,omitempty"`
	// DeadlineNS arms the agent's own deadline, in nanoseconds from now.
	DeadlineNS int64 `json:"deadline_ns,omitempty"`

	// UserUID and AgentUID are the ids, and group ids, of user and of the agent
	// in contained mode, where no others are mapped in their place.
	UserUID  int `json:"user_uid,omitempty"`
	AgentUID int `json:"agent_uid,omitempty"`

	Root    Root    `json:"root"`
	Mounts  []Bind  `json:"mounts,omitempty"`
	Scratch Scratch `json:"scratch"`

	// JoinFDs are cgroup files that each command joins; GroupFD is a v2
	// directory in which the agent makes a group for each.
	JoinFDs []int `json:"join_fds,omitempty"`
	GroupFD int   `json:"group_fd,omitempty"`
	// HoldFDs stay open and are not used: locks that live as long as the agent.
	HoldFDs []int `json:"hold_fds,omitempty"`
	// ReadyFD is a pipe from the creator of a sandbox that is to outlive it: a
	// byte says that it may, and the pipe's end before that ends the agent.
	ReadyFD int `json:"ready_fd,omitempty"`

	Rlimits []Rlimit `json:"rlimits,omitempty"`
	// MemoryWatch is the bytes above which the agent kills, where no cgroup
	// limits memory.
	MemoryWatch int64 `json:"memory_watch,omitempty"`

	// LimitMemory (bytes) and LimitCPUs are what user code may use, whoever
	// enforces it: the agent tells it to those who ask. 0 is no limit.
	LimitMemory int64   `json:"limit_memory,omitempty"`
	LimitCPUs   float64 `json:"limit_cpus,omitempty"`

	// Egress gives the sandbox its side of network mode allowlist: a proxy and
	// a name server on its loopback, variables that name them, and a
	// resolv.conf. It needs a network namespace of the sandbox's own.
	Egress bool `json:"egress,omitempty"`
	// RootCaps are the capabilities, as bits, of uid 0 among the commands; 0 gives
	// it none. With some, programs with set-user-id bits raise privileges, there
	// is no filter of system calls, and the root is the sandbox's own: it can be
	// written, and its runtime caps that at Scratch.Bytes. Contained mode on
	// gVisor's kernel alone.
	RootCaps uint64 `json:"root_caps,omitempty"`
	// Full gives the sandbox a network device whose packets the agent carries, in
	// mode full. It needs a network namespace of its own too, with the right to
	// change it. DevicesFD is a directory that has the device's node, where the
	// agent may not open the host's own.
	Full      bool `json:"full,omitempty"`
	DevicesFD int  `json:"devices_fd,omitempty"`
	// bindLow: the agent needs a capability to listen on ports below 1024.
	bindLow bool

	Env map[string]string `json:"env,omitempty"`
	// Token is the access token that requests need from the start on; "" lets
	// everybody in until /init sets one.
	Token string `json:"token,omitempty"`
	// NoSeccomp and NoLandlock record that the host was measured not to have
	// them; the agent fails when it was told nothing and cannot apply them.
	NoSeccomp  bool `json:"no_seccomp,omitempty"`
	NoLandlock bool `json:"no_landlock,omitempty"`
	// MaybeLandlock: nobody could measure the kernel, and one without Landlock
	// will do.
	MaybeLandlock bool `json:"maybe_landlock,omitempty"`
	// Heartbeat ends the agent when its owner does not answer any more, where
	// the byte stream to it can end without a word.
	Heartbeat bool `json:"heartbeat,omitempty"`
}

// Root says what a sandbox's root is made of.
type Root struct {
	// Dir is a root file system; "" makes one of the host's system directories.
	Dir string `json:"dir,omitempty"`
	// DirFD is Dir as the launcher opened it (OpenTree); 0 opens it by name.
	DirFD int `json:"dir_fd,omitempty"`
	// Etc is the /etc of a root without Dir; see PrepareEtc.
	Etc string `json:"etc,omitempty"`
	// Home is user's home directory inside.
	Home string `json:"home"`
}

// Bind shows a host path inside, read-only. With FD it is the mount that the
// launcher opened (OpenTree); otherwise the agent opens Source, and Dev and Ino
// are what the launcher saw there: anything else is refused.
type Bind struct {
	FD     int    `json:"fd,omitempty"`
	Source string `json:"source"`
	Target string `json:"target"`
	Dev    uint64 `json:"dev"`
	Ino    uint64 `json:"ino"`
	Dir    bool   `json:"dir"`
}

// Scratch is the one place that can be written.
type Scratch struct {
	Bytes  int64 `json:"bytes,omitempty"`
	Inodes int64 `json:"inodes,omitempty"`
	// Dir is a host directory used as scratch, without a cap, by modes that
	// cannot mount.
	Dir string `json:"dir,omitempty"`
	// Mount is an existing directory where an agent in contained mode mounts the
	// scratch before it binds its parts to where they are expected; "" when the
	// runtime has done so.
	Mount string `json:"mount,omitempty"`
}

// Rlimit is a resource limit of every command.
type Rlimit struct {
	Resource int    `json:"resource"`
	Value    uint64 `json:"value"`
}

// Hello is what an agent says on its standard error, one line of JSON, when it
// is ready to serve. Anything else there is why it ended.
type Hello struct {
	PID         int  `json:"pid"` // in its own pid namespace
	LandlockABI int  `json:"landlock_abi"`
	Seccomp     bool `json:"seccomp"`
	NoNewPrivs  bool `json:"no_new_privs"`
	// Kernel is what the kernel calls itself; Sentry says that it was recognised
	// as gVisor's.
	Kernel string `json:"kernel,omitempty"`
	Sentry bool   `json:"sentry,omitempty"`
	// Error is why there is no sandbox, in contained mode, where nothing else
	// tells the launcher.
	Error string `json:"error,omitempty"`
}

// How an agent in contained mode is started: the program, Argv0 of package boot,
// then one of these.
const (
	// OverStdio serves on standard input and output.
	OverStdio = "stdio"
	// OverSocket connects to HostSocket in ContainedDir.
	OverSocket = "socket"
)

// Where a container runtime brings in what an agent in contained mode needs.
const (
	// ContainedBinary is the agent, read-only.
	ContainedBinary = "/.glovebox/agent"
	// ContainedDir is the directory that agent and launcher share; user code
	// cannot enter it.
	ContainedDir = "/.glovebox/run"
	// HostSocket is where, in ContainedDir, the launcher awaits the agent: it
	// sends a Config as a line of JSON and gets a Hello.
	HostSocket = "host.sock"
	// AgentSocket is where, in ContainedDir, the agent of a kept sandbox listens.
	AgentSocket = "agent.sock"
)

// MaxLine bounds a Config or Hello that is sent as a line.
const MaxLine = 1 << 20
