package config

import "github.com/glovebox-dev/glovebox/backend"

// Warnings are the shares of limits above which a result carries a warning.
type Warnings struct {
	Memory  Share `json:"memory" doc:"Of the memory limit."`
	Disk    Share `json:"disk" doc:"Of the disk limit."`
	Pids    Share `json:"pids" doc:"Of the limit on processes."`
	Timeout Share `json:"timeout" doc:"Of the command's wall time."`
	CPUTime Share `json:"cpu_time" doc:"Of the command's CPU time."`
}

// Backend is w in the contract's terms.
func (w Warnings) Backend() backend.Warnings {
	return backend.Warnings{
		Memory: float64(w.Memory), Disk: float64(w.Disk), Pids: float64(w.Pids),
		Timeout: float64(w.Timeout), CPUTime: float64(w.CPUTime),
	}
}
