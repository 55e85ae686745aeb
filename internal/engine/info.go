package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"
)

// Info is what an engine says of itself.
type Info struct {
	Version    string // such as 20.10.24
	APIVersion string // the one in use
	ID         string // the engine's own, kept over restarts
	Name       string // its host's name
	Kernel     string
	Arch       string // as uname has it
	OS         string // linux or windows

	Runtimes       []Runtime // sorted by name
	DefaultRuntime string
	// Runc is runc's version, "" when the engine does not say.
	Runc string
	// RuncProblem says why containers of this runc can escape through known
	// holes; "" when it has none, or user namespaces close them.
	RuncProblem string

	CgroupVersion int    // 1 or 2
	CgroupDriver  string // cgroupfs, systemd or none
	// UsernsRemap: uid 0 inside is another user outside.
	UsernsRemap bool
	Rootless    bool
	Seccomp     bool // the kernel has it and the engine uses it
	AppArmor    bool
	// Which limits the engine can keep.
	MemoryLimit, SwapLimit, PIDsLimit, CPULimit bool

	CPUs        int
	Memory      int64
	RootDir     string // of the engine, on its host
	LiveRestore bool   // containers outlive a restart of the engine
	// Local: the engine runs on this machine, in this process's pid namespace,
	// and sees the same files: its pids and paths mean the same here.
	Local bool
}

// Runtime is an OCI runtime that an engine is configured with.
type Runtime struct {
	Name string
	Path string // on the engine's host; "" for one known by Type alone
	Type string
	Args []string
	// GVisor is a guess by Path or Type; what runs can only be measured.
	GVisor bool
}

// Runtime is the runtime called name.
func (i Info) Runtime(name string) (Runtime, bool) {
	n := slices.IndexFunc(i.Runtimes, func(r Runtime) bool { return r.Name == name })
	if n < 0 {
		return Runtime{}, false
	}
	return i.Runtimes[n], true
}

// Info asks the engine about itself.
func (e *Engine) Info(ctx context.Context) (Info, error) {
	var info system.Info
	var version types.Version
	err := e.do(ctx, call{op: "info", within: e.limits.quick}, func(ctx context.Context) (err error) {
		if info, err = e.api.Info(ctx); err != nil {
			return err
		}
		version, err = e.api.ServerVersion(ctx)
		return err
	})
	if err != nil {
		return Info{}, err
	}
	out := Info{
		Version: oneLine(info.ServerVersion), APIVersion: e.api.ClientVersion(), ID: oneLine(info.ID), Name: info.Name,
		Kernel: info.KernelVersion, Arch: info.Architecture, OS: info.OSType, DefaultRuntime: info.DefaultRuntime,
		CgroupDriver: info.CgroupDriver, MemoryLimit: info.MemoryLimit, SwapLimit: info.SwapLimit, PIDsLimit: info.PidsLimit,
		CPULimit: info.CPUCfsQuota, CPUs: info.NCPU, Memory: info.MemTotal, RootDir: info.DockerRootDir,
		LiveRestore: info.LiveRestoreEnabled,
	}
	out.CgroupVersion, _ = strconv.Atoi(cmp.Or(info.CgroupVersion, "1"))
	for _, name := range slices.Sorted(maps.Keys(info.Runtimes)) {
		r := info.Runtimes[name]
		out.Runtimes = append(out.Runtimes, Runtime{
			Name: name, Path: r.Path, Type: r.Type, Args: r.Args,
			GVisor: strings.HasPrefix(path.Base(r.Path), "runsc") || strings.HasPrefix(r.Type, "io.containerd.runsc."),
		})
	}
	for _, opt := range info.SecurityOptions {
		switch name, _, _ := strings.Cut(strings.TrimPrefix(opt, "name="), ","); name {
		case "userns":
			out.UsernsRemap = true
		case "rootless":
			out.Rootless = true
		case "seccomp":
			out.Seccomp = true
		case "apparmor":
			out.AppArmor = true
		}
	}
	for _, c := range version.Components {
		if c.Name == "runc" {
			out.Runc = oneLine(c.Version)
		}
	}
	// Without the daemon's own user namespace, uid 0 inside is the host's root.
	if !out.UsernsRemap && !out.Rootless {
		out.RuncProblem = runcProblem(out.Runc)
	}
	out.Local = e.local(ctx, out)
	return out, nil
}

// runcProblem judges a version of runc. Before 1.2.8, 1.3.3 and 1.4.0-rc.3 a
// container can write to the host's /proc (CVE-2025-31133, CVE-2025-52565,
// CVE-2025-52881). Distributions mend older ones without saying so in the
// number, hence "may".
func runcProblem(version string) string {
	m := runcForm.FindStringSubmatch(version)
	if m == nil {
		return "the version of runc is not known"
	}
	var n [4]int
	for i := range n {
		n[i], _ = strconv.Atoi(m[i+1]) // only digits, or nothing
	}
	major, minor, patch := n[0], n[1], n[2]
	candidate := m[4] != ""
	old := false
	switch {
	case major != 1:
		old = major < 1
	case minor < 2:
		old = true
	case minor == 2:
		old = patch < 8
	case minor == 3:
		old = patch < 3
	case minor == 4:
		old = patch == 0 && candidate && n[3] < 3
	}
	if !old {
		return ""
	}
	return fmt.Sprintf("runc %s may let containers write to the host's /proc (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881); "+
		"1.2.8, 1.3.3 and newer do not, nor does userns-remap", version)
}

var runcForm = regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:[-~+]?rc\.?(\d{1,4}))?`)
