package backend

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Receipt is what one sandbox really got. It can be filed: it holds no secret.
type Receipt struct {
	Sandbox  string    `json:"sandbox"`
	Backend  string    `json:"backend"` // the configured name
	Driver   string    `json:"driver"`
	Asked    Isolation `json:"asked"`    // Spec.MinIsolation
	Achieved Isolation `json:"achieved"` // measured
	Measured bool      `json:"measured"` // false: only declared
	Template string    `json:"template,omitempty"`
	// User and Dir are what commands begin with that name none; "" are "user" and
	// its home.
	User string `json:"user,omitempty"`
	Dir  string `json:"dir,omitempty"`
	// Labels are Spec.Labels; set by the router.
	Labels     map[string]string `json:"labels,omitempty"`
	Lifetime   string            `json:"lifetime"` // "bound" or "kept"
	Deadline   time.Time         `json:"deadline"`
	Kernel     string            `json:"kernel,omitempty"`
	Privileges string            `json:"privileges,omitempty"` // how the backend itself ran: "root", "user namespace", "unprivileged"

	Limits   []Grant                  `json:"limits"`
	Controls map[Control]Claim        `json:"controls"` // everything that is not a limit
	Network  NetworkMode              `json:"network"`
	Mounts   []Mount                  `json:"mounts,omitempty"`
	Warnings []string                 `json:"warnings,omitempty"`
	Passed   []Candidate              `json:"candidates,omitempty"` // backends passed over; set by the router
	Timings  map[string]time.Duration `json:"timings_ns,omitempty"`
	// PolicyHash identifies the Spec and configuration that were applied.
	PolicyHash string `json:"policy_hash,omitempty"`
}

// Grant is one limit as it was granted.
type Grant struct {
	Control     Control     `json:"control"`
	Value       string      `json:"value"`   // with its unit
	Default     bool        `json:"default"` // the caller did not ask for it
	Enforcement Enforcement `json:"enforcement"`
	Mechanism   string      `json:"mechanism,omitempty"`
	Note        string      `json:"note,omitempty"`
}

// Candidate is a backend that was considered and not used.
type Candidate struct {
	Backend   string    `json:"backend"`
	Isolation Isolation `json:"isolation"`
	Reason    string    `json:"reason"`
}

// Receipt is the receipt of a sandbox that has spec, which its creator gave as
// asked, from a driver with these capabilities: all that follows from the three.
// The driver adds what it alone knows.
func (c Capabilities) Receipt(asked, spec Spec) Receipt {
	r := Receipt{
		Driver: c.Driver, Asked: spec.MinIsolation, Achieved: c.Isolation, Template: spec.Template, Lifetime: "bound",
		Controls: maps.Clone(c.Claims), Network: spec.Network.Mode, Mounts: slices.Clone(spec.Mounts), Labels: maps.Clone(spec.Labels),
	}
	if spec.Keep {
		r.Lifetime = "kept"
	}
	l, a := spec.Limits, asked.Limits
	for _, g := range []struct {
		control Control
		value   string
		def     bool
	}{
		{ControlMemory, bytesText(l.Memory), a.Memory == 0},
		{ControlCPU, strconv.FormatFloat(l.CPUs, 'g', -1, 64) + " cores", a.CPUs == 0},
		{ControlPids, strconv.FormatInt(l.Pids, 10), a.Pids == 0},
		{ControlDisk, bytesText(l.Disk), a.Disk == 0},
		{ControlInodes, strconv.FormatInt(l.Inodes, 10), a.Inodes == 0},
		{ControlOpenFiles, strconv.FormatInt(l.OpenFiles, 10), a.OpenFiles == 0},
		{ControlFileSize, bytesText(l.FileSize), a.FileSize == 0},
		{ControlCPUTime, durationText(l.CPUTime), a.CPUTime == 0},
		{ControlOutput, outputText(l.Output), a.Output == 0},
		{ControlLifetime, spec.Lifetime.String(), asked.Lifetime == 0},
	} {
		claim := c.Claim(g.control)
		delete(r.Controls, g.control)
		r.Limits = append(r.Limits, Grant{
			Control: g.control, Value: g.value, Default: g.def,
			Enforcement: claim.Enforcement, Mechanism: claim.Mechanism, Note: claim.Note,
		})
	}
	return r
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
		return "collected: " + bytesText(DefaultOutput) + " a stream; streamed: none"
	}
	return bytesText(n) + " a stream"
}

// PolicyHash identifies what was applied, for Receipt.PolicyHash: the Spec and
// the driver's configuration, or whatever else decides. Values that are no
// plain data give "".
func PolicyHash(applied ...any) string {
	data, err := json.Marshal(applied)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
