package launch

// Renewal is what a copy of an agent is told that woke up from a snapshot: what
// must be its own. The rest of its Config is that of the original.
type Renewal struct {
	Protocol   int               `json:"protocol"`
	DeadlineNS int64             `json:"deadline_ns"`
	Env        map[string]string `json:"env,omitempty"` // over the original's
	Token      string            `json:"token,omitempty"`
	// LimitMemory and LimitCPUs are as in Config.
	LimitMemory int64   `json:"limit_memory,omitempty"`
	LimitCPUs   float64 `json:"limit_cpus,omitempty"`
}
