package backend

import (
	"io"
	"time"
)

// Command is a program to start in a sandbox. Exactly one argument vector; no
// shell is involved unless Args names one.
type Command struct {
	// Args is the program and its arguments. A program without a slash is
	// looked up in the PATH of the command's environment.
	Args []string
	// Env is added to the sandbox's environment; nothing of the host's is.
	Env map[string]string
	// Dir is the working directory; Spec.Dir or the user's home when empty. A missing one
	// is ErrInvalid.
	Dir string
	// User is the account to run as; Spec.User or "user" when empty. ErrUnsupported where
	// only one account exists.
	User string
	// Tag is the caller's name for the command.
	Tag string

	// Stdin is read until its end and then closed. Without it the command reads
	// from /dev/null, unless KeepInput is set.
	Stdin io.Reader
	// KeepInput leaves standard input open for Inputter.
	KeepInput bool
	// Output takes what the command writes, as it writes it. A slow writer
	// slows the command.
	Output Output
	// Terminal gives the command a terminal of this size; its output then goes
	// to Output.Stdout.
	Terminal *TerminalSize

	// Timeout bounds the command's wall time: 0 is DefaultTimeout,
	// UntilSandboxEnds none.
	Timeout time.Duration
	// CPUTime bounds its CPU time; 0 is Limits.CPUTime.
	CPUTime time.Duration
}

// UntilSandboxEnds is a Command.Timeout without an end of its own.
const UntilSandboxEnds time.Duration = -1

// Output is where a command's output goes; nil discards. The writers are
// called from one goroutine each, and for one command never after Wait
// returned. A write error stops delivery, not the command.
type Output struct {
	Stdout io.Writer
	Stderr io.Writer
}

// TerminalSize is a terminal's size in characters; zero means 80 by 24.
type TerminalSize struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// Signal is a Linux signal number, whatever system the caller is on.
type Signal int

// The signals that callers send.
const (
	SIGHUP  Signal = 1
	SIGINT  Signal = 2
	SIGQUIT Signal = 3
	SIGABRT Signal = 6
	SIGKILL Signal = 9
	SIGSEGV Signal = 11
	SIGTERM Signal = 15
	SIGSTOP Signal = 19
)
