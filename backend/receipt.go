package backend

import "time"

// Receipt is what one sandbox really got. It can be filed: it holds no secret.
type Receipt struct {
	Sandbox  string    `json:"sandbox"`
	Backend  string    `json:"backend"` // the configured name
	Driver   string    `json:"driver"`
	Asked    Isolation `json:"asked"`    // Spec.MinIsolation
	Achieved Isolation `json:"achieved"` // measured
	Measured bool      `json:"measured"` // false: only declared
	Template string    `json:"template,omitempty"`
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
