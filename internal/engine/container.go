package engine

import (
	"context"
	"fmt"
	"math"
	"path"
	"slices"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/glovebox-dev/glovebox/backend"
)

// Container is what Create makes. Whatever it does not say is the strictest
// that an engine has: no capabilities but CapAdd, no new privileges, private
// namespaces, no log, no init, no health check, no restart, nothing pulled, and
// the engine's own masked and read-only paths.
type Container struct {
	Name  string
	Image string // a name or an ID; must be there

	// Args is the command with its arguments; the image's own is not used.
	Args []string
	// Env is "NAME=value", or "NAME" to leave out what the image has of that
	// name. The image's other variables are there too.
	Env    []string
	Labels map[string]string
	User   string // "" is 0:0
	Dir    string // "" is /
	// Hostname inside; "" is the engine's choice.
	Hostname string

	CapAdd []string
	// WritableRoot leaves the root file system writable, in the engine's own
	// storage and without a limit.
	WritableRoot bool
	// Seccomp is a profile as JSON; "" is the engine's default.
	Seccomp string
	Runtime string // "" is the engine's default
	Network string // "" is none
	Sysctls map[string]string
	// DNS, DNSOptions, DNSSearch and Hosts (name:address) are what the engine
	// writes into files of its own over the image's; empty DNS is its host's.
	DNS, DNSOptions, DNSSearch, Hosts []string
	// Masked are paths inside that are covered beside those that engines cover.
	Masked []string

	Memory  int64 // bytes, swap included: there is none beyond it; required
	CPUs    float64
	PIDs    int64 // required
	Ulimits []Ulimit
	// OOMScoreAdj of the container's first process.
	OOMScoreAdj int

	// Devices are the host's nodes that are there inside under the same name,
	// to read and write, not to make.
	Devices []string

	// Tmpfs maps paths to mount options such as "size=1m,nr_inodes=100,uid=5".
	Tmpfs map[string]string
	Binds []Bind
	// SharedMemory is the size of /dev/shm; 0 is none, for those who mount
	// their own.
	SharedMemory int64

	// Stdio opens the container's standard input and lets Attach reach its
	// streams; otherwise they are closed.
	Stdio bool
	// StdinOnce closes the container's input when the one who attached leaves.
	StdinOnce bool

	StopSignal  string
	StopTimeout time.Duration
}

// Ulimit is a resource limit of every process in a container.
type Ulimit struct {
	Name       string // as setrlimit(2) has it, in small letters and without RLIMIT_
	Soft, Hard int64
}

// Bind shows a host path inside. It must exist.
type Bind struct {
	Source, Target string
	Writable       bool
}

// Created is what Create made.
type Created struct {
	ID       string
	ImageID  string
	Warnings []string // the daemon's, about limits it cannot keep
}

// Create makes a container and does not start it. An image that is not there is
// not_found, a name in use conflict. An image that declares volumes which c
// does not cover with mounts is refused: they would be writable without a
// limit. When the daemon's answer is lost the kind is lost, and whoever removes
// c.Name undoes what may have been done.
func (e *Engine) Create(ctx context.Context, c Container) (Created, error) {
	if err := c.check(); err != nil {
		return Created{}, err
	}
	image, err := e.Image(ctx, c.Image)
	if err != nil {
		return Created{}, err
	}
	for _, v := range image.Volumes {
		if !c.covers(v) {
			return Created{}, volumeError(v)
		}
	}
	// The ID and not the name: what was looked at is what runs.
	c.Image = image.ID
	config, host := c.config()
	var made container.CreateResponse
	err = e.do(ctx, call{
		op: "create", within: e.limits.long, changes: true, field: "image", fix: "it was removed just now; make it again",
	}, func(ctx context.Context) (err error) {
		made, err = e.api.ContainerCreate(ctx, config, host, nil, nil, c.Name)
		return err
	})
	if err != nil {
		return Created{}, err
	}
	if len(image.Volumes) > 0 {
		if err := e.noVolumes(ctx, made.ID); err != nil {
			return Created{}, undone(err, e.Remove(context.WithoutCancel(ctx), made.ID))
		}
	}
	out := Created{ID: made.ID, ImageID: image.ID}
	for _, w := range made.Warnings {
		out.Warnings = append(out.Warnings, oneLine(w))
	}
	if !idForm.MatchString(made.ID) {
		return Created{}, &backend.Error{Op: "create", Kind: backend.ErrLost, Err: fmt.Errorf("the daemon made a container with the ID %q", oneLine(made.ID))}
	}
	return out, nil
}

func (c Container) check() error {
	if err := checkName("create", "name", c.Name); err != nil {
		return err
	}
	if err := checkImage("create", c.Image); err != nil {
		return err
	}
	switch {
	case len(c.Args) == 0:
		return invalid("create", "args", fmt.Errorf("a command is needed"))
	case len(c.Labels) == 0:
		return invalid("create", "labels", errNoLabels)
	case c.Memory <= 0 || c.PIDs <= 0 || c.CPUs < 0 || c.CPUs > math.MaxInt32:
		return invalid("create", "limits", fmt.Errorf("limits of memory and processes are needed, and none may be negative"))
	}
	for target := range c.Tmpfs {
		if !path.IsAbs(target) || path.Clean(target) != target {
			return invalid("create", "tmpfs", fmt.Errorf("%q is no clean absolute path", target))
		}
	}
	for _, d := range c.Devices {
		if !path.IsAbs(d) || path.Clean(d) != d {
			return invalid("create", "devices", fmt.Errorf("%q is no clean absolute path", d))
		}
	}
	for _, b := range c.Binds {
		if !path.IsAbs(b.Source) || !path.IsAbs(b.Target) || path.Clean(b.Target) != b.Target {
			return invalid("create", "mounts", fmt.Errorf("%q on %q: clean absolute paths are needed", b.Source, b.Target))
		}
	}
	return checkLabels("create", c.Labels)
}

// covers tells whether something will be mounted on an image's volume.
func (c Container) covers(volume string) bool {
	volume = path.Clean(volume)
	_, tmpfs := c.Tmpfs[volume]
	return tmpfs || slices.ContainsFunc(c.Binds, func(b Bind) bool { return b.Target == volume })
}

func volumeError(path string) error {
	return &backend.Error{
		Op: "create", Kind: backend.ErrInvalid, Field: "image", Err: fmt.Errorf("the image declares the volume %q", oneLine(path)),
		Fix: "build it without, or mount something there",
	}
}

// noVolumes asks whether the engine agrees that all volumes are covered.
func (e *Engine) noVolumes(ctx context.Context, id string) error {
	var got container.InspectResponse
	err := e.onContainer(ctx, call{op: "create", within: e.limits.quick}, id, func(ctx context.Context) (err error) {
		got, err = e.api.ContainerInspect(ctx, id)
		return err
	})
	if err != nil {
		return err
	}
	for _, m := range got.Mounts {
		if m.Type == mount.TypeVolume {
			return volumeError(m.Destination)
		}
	}
	return nil
}

func (c Container) config() (*container.Config, *container.HostConfig) {
	no, pids := false, c.PIDs
	var masked []string // nil is the engine's own list: an empty one would unmask
	if len(c.Masked) > 0 {
		masked = slices.Concat(maskedByEngines(), c.Masked)
		slices.Sort(masked)
		masked = slices.Compact(masked)
	}
	config := &container.Config{
		Image: c.Image, Entrypoint: c.Args[:1], Cmd: c.Args[1:], Env: c.Env, Labels: c.Labels,
		User: orDefault(c.User, "0:0"), WorkingDir: orDefault(c.Dir, "/"), Hostname: c.Hostname,
		AttachStdin: c.Stdio, AttachStdout: c.Stdio, AttachStderr: c.Stdio, OpenStdin: c.Stdio, StdinOnce: c.Stdio && c.StdinOnce,
		// Security: an image's health check would run in the container.
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		StopSignal:  c.StopSignal,
	}
	if c.StopTimeout > 0 {
		seconds := int(math.Ceil(c.StopTimeout.Seconds()))
		config.StopTimeout = &seconds
	}
	host := &container.HostConfig{
		LogConfig:   container.LogConfig{Type: "none"},
		NetworkMode: container.NetworkMode(orDefault(c.Network, "none")),
		// ReadonlyPaths stays nil, which is the engine's own list.
		MaskedPaths: masked,
		CapDrop:     []string{"ALL"}, CapAdd: c.CapAdd, CgroupnsMode: container.CgroupnsModePrivate,
		IpcMode: container.IPCModePrivate, ShmSize: c.SharedMemory, OomScoreAdj: c.OOMScoreAdj,
		ReadonlyRootfs: !c.WritableRoot, SecurityOpt: []string{"no-new-privileges"},
		Runtime: c.Runtime, Sysctls: c.Sysctls, Tmpfs: c.Tmpfs, Init: &no,
		DNS: c.DNS, DNSOptions: c.DNSOptions, DNSSearch: c.DNSSearch, ExtraHosts: c.Hosts,
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		Resources: container.Resources{
			Memory: c.Memory, MemorySwap: c.Memory, NanoCPUs: int64(c.CPUs * 1e9), PidsLimit: &pids,
		},
	}
	if c.SharedMemory == 0 {
		host.IpcMode = container.IPCModeNone
	}
	if c.Seccomp != "" {
		host.SecurityOpt = append(host.SecurityOpt, "seccomp="+c.Seccomp)
	}
	for _, u := range c.Ulimits {
		host.Ulimits = append(host.Ulimits, &container.Ulimit{Name: u.Name, Soft: u.Soft, Hard: u.Hard})
	}
	for _, d := range c.Devices {
		host.Devices = append(host.Devices, container.DeviceMapping{PathOnHost: d, PathInContainer: d, CgroupPermissions: "rw"})
	}
	for _, b := range c.Binds {
		host.Mounts = append(host.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: b.Source, Target: b.Target, ReadOnly: !b.Writable,
			// Security: what is mounted below a source would be writable under
			// engines that make only the source itself read-only.
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate, NonRecursive: true},
		})
	}
	return config, host
}

// maskedByEngines are the paths that engines cover of themselves, of every
// version: a list that is given takes the place of theirs.
func maskedByEngines() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
		"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
