package backend

import (
	"fmt"
	"strings"
)

// Isolation is how strongly a sandbox is separated from its host. Levels are
// ordered: a greater one may stand in for a smaller one, never the reverse.
// Process and container share the host's kernel; container ranks higher since
// an image replaces the host's own files and its runtime is reviewed by more
// people.
type Isolation uint8

// The levels, weakest first.
const (
	IsolationNone       Isolation = iota // nothing is contained
	IsolationRestricted                  // Landlock, seccomp and rlimits, without namespaces
	IsolationProcess                     // our namespaces, seccomp, Landlock, cgroups where there are any
	IsolationContainer                   // an OCI runtime on the host's kernel
	IsolationKernel                      // a kernel of its own in user space (gVisor)
	IsolationVM                          // a virtual machine (Firecracker)
)

var isolationNames = [...]string{"none", "restricted", "process", "container", "kernel", "vm"} //nolint:gochecknoglobals // a constant table

// Isolations lists all levels, weakest first.
func Isolations() []Isolation {
	return []Isolation{IsolationNone, IsolationRestricted, IsolationProcess, IsolationContainer, IsolationKernel, IsolationVM}
}

// String is the level's name in configuration and reports.
func (i Isolation) String() string {
	if int(i) < len(isolationNames) {
		return isolationNames[i]
	}
	return fmt.Sprintf("isolation(%d)", uint8(i))
}

// ParseIsolation reads a level's name. The error lists the known ones.
func ParseIsolation(s string) (Isolation, error) {
	for i, name := range isolationNames {
		if s == name {
			return Isolation(i), nil
		}
	}
	return IsolationNone, &Error{
		Op: "isolation", Kind: ErrInvalid,
		Err: fmt.Errorf("unknown level %q, known are %s", s, strings.Join(isolationNames[:], ", ")),
	}
}

// MarshalText writes the level's name.
func (i Isolation) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads the level's name.
func (i *Isolation) UnmarshalText(text []byte) (err error) {
	*i, err = ParseIsolation(string(text))
	return err
}
