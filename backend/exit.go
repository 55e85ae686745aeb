package backend

import (
	"fmt"
	"time"
)

// Reason is why a command ended. Reasons are append-only.
type Reason string

// Why a command ended.
const (
	ReasonExited      Reason = "exited"          // by itself, with Exit.Code
	ReasonSignaled    Reason = "signaled"        // by Exit.Signal, sent by itself or on the caller's word
	ReasonTimeout     Reason = "timeout"         // killed at Command.Timeout
	ReasonCPULimit    Reason = "cpu_limit"       // killed at its CPU time
	ReasonMemoryLimit Reason = "memory_limit"    // killed at the memory limit
	ReasonOutputLimit Reason = "output_limit"    // killed at the output limit
	ReasonCanceled    Reason = "canceled"        // killed since the caller's context ended
	ReasonExpired     Reason = "sandbox_expired" // killed with its sandbox, at its deadline
)

// Hit names a limit that was reached, whatever the command's end.
type Hit string

// The limits that can be hit.
const (
	HitMemory Hit = "memory" // the kernel killed something for memory
	HitPids   Hit = "pids"   // a fork or thread was refused
	HitDisk   Hit = "disk"   // the scratch was full
	HitFiles  Hit = "files"  // a process had no descriptor or inode left
	HitOutput Hit = "output" // output was dropped
)

// Exit is how a command ended. It comes from wait, the runtime and the
// kernel's counters, never from the command's output.
type Exit struct {
	Reason Reason `json:"reason"`
	Code   int    `json:"code"`             // of ReasonExited; 128+signal otherwise
	Signal Signal `json:"signal,omitempty"` // that ended it, 0 when it exited
	Hits   []Hit  `json:"hits,omitempty"`
	Usage  Usage  `json:"usage"`

	StdoutTruncated bool `json:"stdout_truncated,omitempty"`
	StderrTruncated bool `json:"stderr_truncated,omitempty"`
	// KillScope says what a kill of ours reached: "tree" or "session".
	KillScope string `json:"kill_scope,omitempty"`
	// OutputHeld: descendants still held the output when Wait returned.
	OutputHeld bool `json:"output_held,omitempty"`
	// Warnings are shares of limits that were passed, such as 80 % of memory.
	// Run puts them in; others ask Warnings.Check.
	Warnings []string `json:"warnings,omitempty"`
}

// String is the reason with its number: "exited(3)", "signaled(9)", "timeout".
func (e Exit) String() string {
	switch e.Reason {
	case ReasonExited:
		return fmt.Sprintf("exited(%d)", e.Code)
	case ReasonSignaled:
		return fmt.Sprintf("signaled(%d)", int(e.Signal))
	default:
		return string(e.Reason)
	}
}

// Success tells whether the command exited with 0.
func (e Exit) Success() bool { return e.Reason == ReasonExited && e.Code == 0 }

// ShellCode is the exit status a command line shows: the program's own, 128
// plus a signal, 124 for a timeout, 137 for a limit, and 125 otherwise, codes
// and signals that no kernel gives included: 256 would be shown as success. A
// program may return these numbers itself, so it is not evidence.
func (e Exit) ShellCode() int {
	switch e.Reason {
	case ReasonExited:
		if e.Code < 0 || e.Code > 255 {
			return 125
		}
		return e.Code
	case ReasonSignaled:
		if e.Signal < 1 || e.Signal > 64 {
			return 125
		}
		return 128 + int(e.Signal)
	case ReasonTimeout:
		return 124
	case ReasonCPULimit, ReasonMemoryLimit, ReasonOutputLimit:
		return 137
	case ReasonCanceled, ReasonExpired:
		return 125
	default:
		return 125
	}
}

// Usage is what a command, or a whole sandbox, has used. A zero field was not
// measured or was nothing.
type Usage struct {
	Wall          time.Duration `json:"wall_ns,omitempty"`
	CPU           time.Duration `json:"cpu_ns,omitempty"`
	PeakMemory    int64         `json:"peak_memory,omitempty"`    // bytes, of the sandbox
	Memory        int64         `json:"memory,omitempty"`         // bytes now
	PeakProcesses int64         `json:"peak_processes,omitempty"` // of the sandbox where it is tracked, so of earlier commands too
	Disk          int64         `json:"disk,omitempty"`           // bytes of scratch in use
	Stdout        int64         `json:"stdout,omitempty"`         // bytes written
	Stderr        int64         `json:"stderr,omitempty"`
}
