package subprocess

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// receipt is what the sandbox really got.
func (m *maker) receipt(sb *Sandbox, spawned time.Time) backend.Receipt {
	caps := m.ex.caps
	r := backend.Receipt{
		Sandbox: m.id, Backend: driverName, Driver: driverName,
		Asked: m.spec.MinIsolation, Achieved: caps.Isolation, Measured: true, Template: m.spec.Template,
		Lifetime: "bound", Deadline: time.Unix(0, sb.deadline.Load()), Kernel: sb.kernel, Privileges: privileges(m.ex.host.mode),
		Controls: maps.Clone(caps.Claims), Network: m.spec.Network.Mode, Mounts: slices.Clone(m.spec.Mounts), Warnings: m.warnings,
		Timings:    map[string]time.Duration{"create": time.Since(m.began), "start": time.Since(spawned)},
		PolicyHash: policyHash(m.spec, m.ex.cfg),
	}
	if m.spec.Keep {
		r.Lifetime = "kept"
	}
	if m.ex.host.mode == launch.ModePlain {
		r.Network = backend.NetworkFull
		r.Warnings = append(r.Warnings, "nothing is contained: the program runs as this user, with the host's files and network")
	}
	l, asked := m.spec.Limits, m.asked.Limits
	for _, g := range []struct {
		control backend.Control
		value   string
		def     bool
		extra   string
	}{
		{backend.ControlMemory, bytesText(l.Memory), asked.Memory == 0, m.memoryNote()},
		{backend.ControlCPU, strconv.FormatFloat(l.CPUs, 'g', -1, 64) + " cores", asked.CPUs == 0, ""},
		{backend.ControlPids, strconv.FormatInt(l.Pids, 10), asked.Pids == 0, ""},
		{backend.ControlDisk, bytesText(l.Disk), asked.Disk == 0, ""},
		{backend.ControlInodes, strconv.FormatInt(l.Inodes, 10), asked.Inodes == 0, ""},
		{backend.ControlOpenFiles, strconv.FormatInt(l.OpenFiles, 10), asked.OpenFiles == 0, ""},
		{backend.ControlFileSize, bytesText(l.FileSize), asked.FileSize == 0, ""},
		{backend.ControlCPUTime, durationText(l.CPUTime), asked.CPUTime == 0, ""},
		{backend.ControlOutput, outputText(l.Output), asked.Output == 0, ""},
		{backend.ControlLifetime, m.spec.Lifetime.String(), m.asked.Lifetime == 0, ""},
	} {
		claim := caps.Claim(g.control)
		note := claim.Note
		if g.extra != "" {
			note = g.extra
		}
		r.Limits = append(r.Limits, backend.Grant{
			Control: g.control, Value: g.value, Default: g.def,
			Enforcement: claim.Enforcement, Mechanism: claim.Mechanism, Note: note,
		})
		delete(r.Controls, g.control)
	}
	return r
}

// memoryNote says what is counted.
func (m *maker) memoryNote() string {
	if _, ok := m.ex.host.groups.Has("memory"); ok {
		return fmt.Sprintf("user code alone; the agent has a reserve of %s on top", bytesText(memoryReserve))
	}
	return ""
}

func privileges(m launch.Mode) string {
	switch m {
	case launch.ModeMapped:
		return "root"
	case launch.ModeSingle:
		return "user namespace"
	case launch.ModeRestricted:
		return "unprivileged"
	case launch.ModePlain:
		return "none"
	}
	return string(m)
}

func bytesText(n int64) string {
	switch {
	case n >= 1<<30 && n%(1<<30) == 0:
		return strconv.FormatInt(n>>30, 10) + " GiB"
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + " MiB"
	default:
		return strconv.FormatInt(n, 10) + " bytes"
	}
}

func durationText(d time.Duration) string {
	if d == 0 {
		return "none"
	}
	return d.String()
}

func outputText(n int64) string {
	if n == 0 {
		return "collected: " + bytesText(backend.DefaultOutput) + " a stream; streamed: none"
	}
	return bytesText(n) + " a stream"
}
