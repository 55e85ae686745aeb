package gvisor

import "github.com/glovebox-dev/glovebox/backend"

// Fact is one thing measured about this host.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	OK    bool   `json:"ok"`
	// Fix says what to do to get it, when it is missing and can be had.
	Fix string `json:"fix,omitempty"`
}

// Report is what Measure found.
type Report struct {
	Privilege    Privilege            `json:"privilege"`
	Health       backend.Health       `json:"health"`
	Capabilities backend.Capabilities `json:"capabilities"`
	Facts        []Fact               `json:"facts"`
}
