// Package config reads, checks and shows the configuration, and makes the
// executors that it describes.
//
// A value comes from the last of these that gives it: built-in defaults, the
// user's file, the project's file when the operator trusts it, the environment
// (GLOVEBOX_A__B for a.b), flags. Nothing is ignored: an unknown key is an
// error that names its file and suggests the known key it resembles.
package config

import (
	"cmp"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// Version is the only configuration version so far.
const Version = 1

// Auto is the executor's choice of all configured backends, strongest first.
const Auto = "auto"

// DefaultExecutor is the executor that commands use.
const DefaultExecutor = "default"

// Config is the whole configuration. Load gives a valid one.
type Config struct {
	Version   int                 `json:"version" doc:"The version of this format: 1."`
	Backends  map[string]Backend  `json:"backends" doc:"Backends by name. A backend is a driver with its settings."`
	Executors map[string]Executor `json:"executors" doc:"Executors by name. An executor chooses among backends. Commands use the one named default."`
	Templates map[string]Template `json:"templates" doc:"Templates by name: what sandboxes are made from."`
	Builds    Builds              `json:"builds" doc:"How the steps of templates are run: packages of pip and npm, Dockerfiles."`
	Limits    Limits              `json:"limits" doc:"Limits of every sandbox and command that does not set its own."`
	Warnings  Warnings            `json:"warnings" doc:"The share of a limit above which a result carries a warning."`
}

// Backend is a named instance of a driver.
type Backend struct {
	Driver string         `json:"driver" doc:"The driver's name."`
	With   map[string]any `json:"with" doc:"The driver's own settings."`
}

// Executor is a policy for choosing a backend.
type Executor struct {
	Use          Use                `json:"use" doc:"auto (all backends, strongest first), a backend's name, or a list in order of preference."`
	MinIsolation *backend.Isolation `json:"min_isolation" doc:"The least isolation accepted. Weaker backends are never used."`
	Required     bool               `json:"required" doc:"Never fall back: only the first backend that reaches the isolation is tried."`
	Strict       bool               `json:"strict" doc:"Refuse what would only be best effort."`
}

// DefaultMinIsolation is the least isolation where nothing is configured:
// running without any containment must be asked for by name.
const DefaultMinIsolation = backend.IsolationRestricted

// Minimum is the executor's least isolation.
func (e Executor) Minimum() backend.Isolation {
	if e.MinIsolation == nil {
		return DefaultMinIsolation
	}
	return *e.MinIsolation
}

// Template is what sandboxes can be made from. One of Rootfs, Image and
// Dockerfile is set.
type Template struct {
	Rootfs     string            `json:"rootfs" doc:"A built image's name (glovebox image list), or the absolute path of a directory that holds a root file system."`
	Image      string            `json:"image" doc:"A container engine's image, such as python:3.12-slim."`
	Dockerfile string            `json:"dockerfile" doc:"The absolute path of a Dockerfile. Its steps run in gVisor."`
	Packages   Packages          `json:"packages" doc:"Packages to add."`
	Limits     Limits            `json:"limits" doc:"Limits that replace the general ones."`
	Env        map[string]string `json:"env" doc:"Environment variables of every command."`
	Start      string            `json:"start" doc:"A command line for sh that a sandbox starts with."`
	Ready      Ready             `json:"ready" doc:"A command line that succeeds, or a port that is open, once what start began works."`
	// ReadyTimeout and ReadyInterval are those of backend.Startup.
	ReadyTimeout  Duration `json:"ready_timeout" doc:"How long what start began may take to be ready: 1m when not set."`
	ReadyInterval Duration `json:"ready_interval" doc:"How long is waited between two tries of ready: 500ms when not set."`

	User     string   `json:"user" doc:"The account that commands run as: user unless it says root."`
	WorkDir  string   `json:"workdir" doc:"The directory that commands start in, made when it is missing: the account's home when not set."`
	Root     bool     `json:"root" doc:"Give root inside its capabilities. Only where the level is kernel or above."`
	Backends []string `json:"backends" doc:"The backends it may run on; all when empty."`
}

// Builds says how the steps of templates are run, besides what is fixed: in
// gVisor, with the package registries and no other network.
type Builds struct {
	Allow    []string `json:"allow" doc:"What steps may reach besides the package registries, each a host, HOST:PORT, an address or a range. Registries at a private address need that address here too."`
	CAFile   string   `json:"ca_file" doc:"The absolute path of the certificate authorities, in PEM, that steps trust, and no image keeps. The host's own when empty."`
	Memory   Size     `json:"memory" doc:"Memory of the sandbox that steps run in: 4GiB when not set."`
	Disk     Size     `json:"disk" doc:"Bytes that steps can write: half of the memory when not set."`
	CPUs     Cores    `json:"cpus" doc:"CPU cores: 2 when not set."`
	Pids     Count    `json:"pids" doc:"Processes and threads: 1024 when not set."`
	Timeout  Duration `json:"timeout" doc:"Wall time of each step: 10m when not set."`
	Lifetime Duration `json:"lifetime" doc:"Wall time of all steps: 1h when not set."`
}

// Limits are b's as those of a sandbox; what is not set is zero.
func (b Builds) Limits() Limits {
	return Limits{Memory: b.Memory, Disk: b.Disk, CPUs: b.CPUs, Pids: b.Pids, Timeout: b.Timeout, Lifetime: b.Lifetime}
}

// Packages are packages that a template adds.
type Packages struct {
	Apt []string `json:"apt" doc:"Debian packages, from the archive that this host's apt is configured with."`
	Pip []string `json:"pip" doc:"Python packages, as pip's requirements. Installed in gVisor."`
	NPM []string `json:"npm" doc:"Node packages, with @VERSION where it matters. Installed in gVisor."`
}

// Limits are limits as they are configured. A zero field is not set.
type Limits struct {
	Memory        Size         `json:"memory" doc:"Memory of everything in the sandbox; there is no swap."`
	CPUs          Cores        `json:"cpus" doc:"CPU cores."`
	Pids          Count        `json:"pids" doc:"Processes and threads."`
	Disk          Size         `json:"disk" doc:"Bytes that can be written."`
	Inodes        Count        `json:"inodes" doc:"Files and directories that can be made."`
	OpenFiles     Count        `json:"open_files" doc:"Open files of each process."`
	FileSize      Size         `json:"file_size" doc:"Bytes of one file."`
	CPUTime       Duration     `json:"cpu_time" doc:"CPU time of a command."`
	Output        Size         `json:"output" doc:"Bytes of each output stream of a command."`
	OnOutputLimit OutputAction `json:"on_output_limit" doc:"What happens at the output limit."`
	Timeout       Duration     `json:"timeout" doc:"Wall time of a command."`
	MaxTimeout    Duration     `json:"max_timeout" doc:"The longest wall time that may be asked for."`
	Lifetime      Duration     `json:"lifetime" doc:"Life of a sandbox."`
}

// Backend is l in the contract's terms, without the fields that are not the
// sandbox's.
func (l Limits) Backend() backend.Limits {
	return backend.Limits{
		Memory: int64(l.Memory), CPUs: float64(l.CPUs), Pids: int64(l.Pids), Disk: int64(l.Disk),
		Inodes: int64(l.Inodes), OpenFiles: int64(l.OpenFiles), FileSize: int64(l.FileSize),
		CPUTime: time.Duration(l.CPUTime), Output: int64(l.Output), KillOnOutput: l.OnOutputLimit == OutputKill,
	}
}

// Over is l with what is not set taken from base.
func (l Limits) Over(base Limits) Limits {
	or := func(a, b Size) Size {
		if a == 0 {
			return b
		}
		return a
	}
	count := func(a, b Count) Count { return Count(or(Size(a), Size(b))) }
	dur := func(a, b Duration) Duration { return Duration(or(Size(a), Size(b))) }
	l.Memory, l.Disk, l.FileSize, l.Output = or(l.Memory, base.Memory), or(l.Disk, base.Disk), or(l.FileSize, base.FileSize), or(l.Output, base.Output)
	l.Pids, l.Inodes, l.OpenFiles = count(l.Pids, base.Pids), count(l.Inodes, base.Inodes), count(l.OpenFiles, base.OpenFiles)
	l.CPUTime, l.Timeout = dur(l.CPUTime, base.CPUTime), dur(l.Timeout, base.Timeout)
	l.MaxTimeout, l.Lifetime = dur(l.MaxTimeout, base.MaxTimeout), dur(l.Lifetime, base.Lifetime)
	if l.CPUs == 0 {
		l.CPUs = base.CPUs
	}
	if l.OnOutputLimit == "" {
		l.OnOutputLimit = base.OnOutputLimit
	}
	return l
}

// LimitsFor is the limits of sandboxes made from template; "" is none. Its own
// come before the general ones, but no template raises the general cap on a
// command's wall time.
func (c Config) LimitsFor(template string) Limits {
	own := c.Templates[template].Limits
	l := own.Over(c.Limits)
	if general := c.Limits.MaxTimeout; general != 0 {
		l.MaxTimeout = min(l.MaxTimeout, general)
	}
	if own.Timeout == 0 && l.MaxTimeout != 0 {
		l.Timeout = min(l.Timeout, l.MaxTimeout)
	}
	return l
}

// complete is spec with the configured limits where it has none.
func (c Config) complete(spec backend.Spec) backend.Spec {
	def := c.LimitsFor(spec.Template)
	if spec.Lifetime == 0 {
		spec.Lifetime = time.Duration(def.Lifetime)
	}
	l, d := &spec.Limits, def.Backend()
	if *l == (backend.Limits{}) {
		*l = d // what happens at the output's limit too, which zero does not say
		return spec
	}
	l.Memory, l.CPUs, l.Pids = cmp.Or(l.Memory, d.Memory), cmp.Or(l.CPUs, d.CPUs), cmp.Or(l.Pids, d.Pids)
	l.Disk, l.Inodes, l.FileSize = cmp.Or(l.Disk, d.Disk), cmp.Or(l.Inodes, d.Inodes), cmp.Or(l.FileSize, d.FileSize)
	l.OpenFiles, l.CPUTime, l.Output = cmp.Or(l.OpenFiles, d.OpenFiles), cmp.Or(l.CPUTime, d.CPUTime), cmp.Or(l.Output, d.Output)
	return spec
}

// MaxTimeoutOr is the configured cap on a command's wall time, or the default.
func (l Limits) MaxTimeoutOr() time.Duration {
	if l.MaxTimeout == 0 {
		return backend.MaxTimeout
	}
	return time.Duration(l.MaxTimeout)
}
