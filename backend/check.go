package backend

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"
)

var idPattern = regexp.MustCompile(`^[a-z][a-z0-9]{1,40}$`)

// ValidID tells whether id has the form of a sandbox's ID.
func ValidID(id string) bool { return idPattern.MatchString(id) }

func invalid(field, format string, args ...any) error {
	return &Error{Op: "spec", Kind: ErrInvalid, Field: field, Err: fmt.Errorf(format, args...)}
}

// Validate tells what is wrong with spec whatever the backend. Errors are
// ErrInvalid and name the field.
func (s Spec) Validate() error {
	if err := s.Limits.Validate(); err != nil {
		return err
	}
	if s.Lifetime < 0 || s.Lifetime > MaxLifetime {
		return invalid("lifetime", "%v is not between 0 and %v", s.Lifetime, MaxLifetime)
	}
	if err := ValidateEnv("env", s.Env); err != nil {
		return err
	}
	if err := s.validateAccount(); err != nil {
		return err
	}
	if s.MinIsolation > IsolationVM {
		return invalid("min_isolation", "unknown level %d", s.MinIsolation)
	}
	switch s.OnExpiry {
	case "", ExpiryDestroy, ExpiryPause:
	default:
		return invalid("on_expiry", "unknown action %q, known are destroy, pause", s.OnExpiry)
	}
	if err := s.Network.Validate(); err != nil {
		return err
	}
	if len(s.Secrets) > 0 && (s.Network.Mode == "" || s.Network.Mode == NetworkNone) {
		return invalid("secrets", "secrets without a network, where nothing uses them")
	}
	for _, c := range s.Advisory {
		if !slices.Contains(Controls(), c) {
			return invalid("advisory", "unknown control %q", c)
		}
	}
	for i, m := range s.Mounts {
		field := fmt.Sprintf("mounts[%d]", i)
		if err := m.Validate(field); err != nil {
			return err
		}
		if slices.ContainsFunc(s.Mounts[:i], func(o Mount) bool { return o.Target == m.Target }) {
			return invalid(field, "target %q is used twice", m.Target)
		}
	}
	return nil
}

// Validate tells what is wrong with m; field names it in the error.
func (m Mount) Validate(field string) error {
	switch {
	case (m.HostPath == "") == (m.Volume == ""):
		return invalid(field, "exactly one of host_path and volume must be set")
	case m.HostPath != "" && !m.ReadOnly:
		return &Error{
			Op: "spec", Kind: ErrUnsupported, Field: field,
			Err: errors.New("a host path can only be mounted read-only"), Fix: "add :ro, or copy files in and out",
		}
	case m.HostPath != "" && !path.IsAbs(m.HostPath):
		return invalid(field, "host path %q is not absolute", m.HostPath)
	case !path.IsAbs(m.Target) || path.Clean(m.Target) != m.Target || m.Target == "/":
		return invalid(field, "target %q is not a clean absolute path below /", m.Target)
	case strings.ContainsRune(m.HostPath+m.Target, 0):
		return invalid(field, "a NUL byte in a path")
	}
	for _, p := range []string{"/proc", "/sys", "/dev"} {
		if m.Target == p || strings.HasPrefix(m.Target, p+"/") {
			return invalid(field, "target %q is below %s", m.Target, p)
		}
	}
	return nil
}

// Validate tells what is wrong with l. Zero fields are fine.
func (l Limits) Validate() error {
	ints := []struct {
		field     string
		v, lo, hi int64
	}{
		{"limits.memory", l.Memory, MinMemory, MaxBytes},
		{"limits.pids", l.Pids, MinPids, MaxPids},
		{"limits.disk", l.Disk, 4096, MaxBytes},
		{"limits.inodes", l.Inodes, 16, 1 << 40},
		{"limits.open_files", l.OpenFiles, 8, 1 << 20},
		{"limits.file_size", l.FileSize, 1, MaxBytes},
		{"limits.output", l.Output, 1, MaxBytes},
	}
	for _, f := range ints {
		if f.v != 0 && (f.v < f.lo || f.v > f.hi) {
			return invalid(f.field, "%d is not between %d and %d", f.v, f.lo, f.hi)
		}
	}
	if math.IsNaN(l.CPUs) || l.CPUs < 0 || l.CPUs > MaxCPUs || (l.CPUs > 0 && l.CPUs < 0.01) {
		return invalid("limits.cpus", "%v is not between 0.01 and %v", l.CPUs, MaxCPUs)
	}
	if l.CPUTime < 0 {
		return invalid("limits.cpu_time", "%v is negative", l.CPUTime)
	}
	return nil
}

// ValidateEnv tells what is wrong with an environment; field names it. Values
// are never in the error.
func ValidateEnv(field string, env map[string]string) error {
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return invalid(field, "%q is not a variable's name", k)
		}
		if strings.ContainsRune(env[k], 0) {
			return invalid(field, "the value of %s has a NUL byte", k)
		}
	}
	return nil
}

// Validate tells what is wrong with c whatever the backend.
func (c Command) Validate() error {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return invalid("command.args", "no program given")
	}
	for _, a := range c.Args {
		if strings.ContainsRune(a, 0) {
			return invalid("command.args", "an argument has a NUL byte")
		}
	}
	if err := ValidateEnv("command.env", c.Env); err != nil {
		return err
	}
	if strings.ContainsRune(c.Dir+c.User+c.Tag, 0) {
		return invalid("command", "dir, user or tag has a NUL byte")
	}
	if c.Timeout < 0 && c.Timeout != UntilSandboxEnds {
		return invalid("command.timeout", "%v is negative", c.Timeout)
	}
	if c.CPUTime < 0 {
		return invalid("command.cpu_time", "%v is negative", c.CPUTime)
	}
	if c.Stdin != nil && c.KeepInput {
		return invalid("command.stdin", "a reader and keep_input exclude each other")
	}
	return nil
}

// request is a control that a field of Spec can ask for.
type request struct {
	c     Control
	field string
	set   bool
}

// asked lists the controls that spec sets a value for, with their fields.
func (s Spec) asked() []request {
	l := s.Limits
	return []request{
		{ControlMemory, "limits.memory", l.Memory != 0},
		{ControlCPU, "limits.cpus", l.CPUs != 0},
		{ControlPids, "limits.pids", l.Pids != 0},
		{ControlDisk, "limits.disk", l.Disk != 0},
		{ControlInodes, "limits.inodes", l.Inodes != 0},
		{ControlOpenFiles, "limits.open_files", l.OpenFiles != 0},
		{ControlFileSize, "limits.file_size", l.FileSize != 0},
		{ControlCPUTime, "limits.cpu_time", l.CPUTime != 0},
		{ControlOutput, "limits.output", l.Output != 0 || l.KillOnOutput},
		{ControlLifetime, "lifetime", s.Lifetime != 0},
		{ControlMountsRO, "mounts", len(s.Mounts) > 0},
		{ControlNetworkOff, "network.mode", s.Network.Mode == NetworkNone},
		{ControlNetworkList, "network.mode", s.Network.Mode == NetworkAllowlist},
	}
}

// Admit checks spec against the capabilities and returns it with defaults
// filled in and what to warn of. A field that the caller set and the backend
// cannot enforce is refused unless Spec.Advisory names its control; best
// effort is a warning, and refused under Spec.Strict. A default that cannot be
// enforced refuses nothing, but Strict demands the controls without which code
// is not contained. name is the backend's, for the errors.
func (c Capabilities) Admit(name string, spec Spec) (Spec, []string, error) {
	if err := spec.Validate(); err != nil {
		return spec, nil, err
	}
	refuse := func(field, why, fix string) error {
		return &Error{Op: "create", Kind: ErrUnsupported, Backend: name, Field: field, Err: errors.New(why), Fix: fix}
	}
	if c.Isolation < spec.MinIsolation {
		return spec, nil, refuse("min_isolation",
			fmt.Sprintf("isolation %s is asked for, %s is what this backend gives here", spec.MinIsolation, c.Isolation),
			"choose a stronger backend, or run `glovebox doctor` for what this host can do")
	}
	asked := spec.asked()
	if spec.Network.Mode == "" {
		spec.Network.Mode = NetworkNone
	}
	if !slices.Contains(c.Networks, spec.Network.Mode) {
		return spec, nil, refuse("network.mode", fmt.Sprintf("mode %s cannot be given", spec.Network.Mode),
			"use one of "+joinModes(c.Networks))
	}
	if err := c.admitFeatures(spec, refuse); err != nil {
		return spec, nil, err
	}
	warnings, err := c.admitControls(spec, asked, refuse)
	if err != nil {
		return spec, nil, err
	}
	spec.Limits, spec.Startup = spec.Limits.WithDefaults(), spec.Startup.withDefaults()
	if spec.Lifetime == 0 {
		spec.Lifetime = DefaultLifetime
	}
	if spec.OnExpiry == "" {
		spec.OnExpiry = ExpiryDestroy
	}
	return spec, warnings, nil
}

// admitControls checks what was asked for, and what Strict demands besides.
func (c Capabilities) admitControls(spec Spec, asked []request, refuse func(field, why, fix string) error) ([]string, error) {
	var warnings []string
	for _, a := range asked {
		if !a.set {
			continue
		}
		claim := c.Claim(a.c)
		advisory := slices.Contains(spec.Advisory, a.c)
		switch {
		case claim.Enforcement == Enforced:
		case claim.Enforcement == BestEffort && !spec.Strict:
			warnings = append(warnings, fmt.Sprintf("%s is best effort: %s", a.field, note(claim)))
		case advisory:
			warnings = append(warnings, fmt.Sprintf("%s is advisory and %s here: %s", a.field, claim.Enforcement, note(claim)))
		case claim.Enforcement == BestEffort:
			return nil, refuse(a.field, "only best effort here ("+note(claim)+") and strict is set",
				"name "+string(a.c)+" in advisory, drop strict, or choose another backend")
		default:
			return nil, refuse(a.field, "cannot be enforced here ("+note(claim)+")",
				"leave it unset, name "+string(a.c)+" in advisory, or choose another backend")
		}
	}
	if spec.Strict {
		demanded := strictControls()
		if spec.Network.Mode == NetworkNone {
			demanded = append(demanded, ControlNetworkOff)
		}
		for _, control := range demanded {
			if cl := c.Claim(control); cl.Enforcement != Enforced && !slices.Contains(spec.Advisory, control) {
				return nil, refuse("strict", fmt.Sprintf("%s is %s here (%s)", control, cl.Enforcement, note(cl)),
					"name "+string(control)+" in advisory, drop strict, or choose another backend")
			}
		}
	}
	return warnings, nil
}

// strictControls are those that Spec.Strict demands whatever was asked for.
func strictControls() []Control {
	return []Control{
		ControlMemory, ControlPids, ControlDisk, ControlWallTime, ControlKillAll, ControlBound, ControlReadOnly,
		ControlHostFiles, ControlHostProcs, ControlPrivileges, ControlSyscalls, ControlAgent, ControlHostIPC,
	}
}

func (c Capabilities) admitFeatures(spec Spec, refuse func(field, why, fix string) error) error {
	switch {
	case spec.Keep && !c.Has(FeatureFind):
		return refuse("keep", "sandboxes cannot outlive their creator here", "use a bound sandbox or another backend")
	case spec.OnExpiry == ExpiryPause && !c.Has(FeaturePause):
		return refuse("on_expiry", "sandboxes cannot be paused here", "use destroy or another backend")
	case spec.From != "" && !c.Has(FeatureSnapshot):
		return refuse("from", "snapshots are not kept here", "choose a backend with snapshots")
	case spec.Template != "" && !c.Has(FeatureTemplates):
		return refuse("template", "templates cannot be used here", "leave it empty or choose another backend")
	}
	for i, m := range spec.Mounts {
		if m.Volume != "" {
			return refuse(fmt.Sprintf("mounts[%d].volume", i), "there are no managed volumes here", "mount a host path read-only")
		}
	}
	return c.admitStartup(spec, refuse)
}

func note(c Claim) string {
	switch {
	case c.Note != "":
		return c.Note
	case c.Mechanism != "":
		return c.Mechanism
	default:
		return "nothing enforces it"
	}
}

func joinModes(modes []NetworkMode) string {
	s := make([]string, len(modes))
	for i, m := range modes {
		s[i] = string(m)
	}
	return strings.Join(s, ", ")
}
