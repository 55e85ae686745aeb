//go:build !linux

// Package boot is the agent's program, which exists on Linux only.
package boot

// Argv0 is the name by which a process knows that it is an agent.
const Argv0 = "glovebox-agent:sandbox"

// Wanted is false where there are no agents.
func Wanted() bool { return false }

// Main reports failure.
func Main() int { return 1 }
