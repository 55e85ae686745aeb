//go:build linux

// Package spawn starts and reaps the commands of a sandbox. Each is confined
// between fork and exec: its user, groups, limits, cgroup and session are its
// own, no capability and no descriptor beyond 0 to 2 is left. What all commands
// share, a Landlock domain and a session keyring, belongs to the one thread
// that forks them.
package spawn

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Attr is one command to start.
type Attr struct {
	Path string
	Argv []string
	Env  []string
	Dir  string
	// Files become descriptors 0, 1 and 2. The caller closes its copies.
	Files [3]*os.File
	// Terminal makes descriptor 0 the controlling terminal.
	Terminal bool
	// SetUser switches to UID, GID and Groups; otherwise the agent's own stay.
	SetUser bool
	UID     uint32
	GID     uint32
	Groups  []uint32
	// Cgroup is the descriptor of a cgroup v2 directory to be born in; 0 for
	// none. Unlike a write to cgroup.procs this never waits for the kernel's
	// grace period.
	Cgroup int
	// Confine is what the command is held to; nil for nothing.
	Confine *Confinement
}

// Confinement is what every command of a sandbox is held to.
type Confinement struct {
	// Join are descriptors of cgroup files (tasks, cgroup.procs) that each
	// command writes itself into before anything else.
	Join []int
	// Limits are resource limits, soft and hard alike.
	Limits []Rlimit
	// Filter is a seccomp program each command installs for itself, on top of
	// what it inherits from the agent.
	Filter []unix.SockFilter
	// Victim has the kernel choose commands before the agent when they are out
	// of memory together.
	Victim bool
	// Elevate lets programs with set-user-id bits raise privileges.
	Elevate bool
}

// Rlimit is a resource limit: unix.RLIMIT_NOFILE and a value for both its soft
// and its hard end.
type Rlimit struct {
	Resource int
	Value    uint64
}

// Error says which step of a start was refused. It unwraps to the errno.
type Error struct {
	Stage string // clone, cgroup, session, files, terminal, limits, user, directory, privileges, exec
	Errno syscall.Errno
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("start: %s: %v", e.Stage, e.Errno) }

// Unwrap gives the errno.
func (e *Error) Unwrap() error { return e.Errno }

// Status is how a process ended.
type Status struct {
	Code   int            // exit code, -1 when signalled
	Signal syscall.Signal // 0 when it exited
	CPU    time.Duration  // of it and its waited-for descendants
	MaxRSS int64          // bytes, of the largest of them
}

func statusOf(ws syscall.WaitStatus, ru *syscall.Rusage) Status {
	s := Status{Code: -1, CPU: time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), MaxRSS: ru.Maxrss << 10}
	switch {
	case ws.Exited():
		s.Code = ws.ExitStatus()
	case ws.Signaled():
		s.Signal = ws.Signal()
	}
	return s
}

// plan turns a into what the child reads.
func (a *Attr) plan() (*plan, error) {
	p := &plan{cgroup: a.Cgroup, terminal: a.Terminal, setUser: a.SetUser, uid: uintptr(a.UID), gid: uintptr(a.GID), groups: a.Groups}
	var err error
	if p.path, err = syscall.BytePtrFromString(a.Path); err != nil {
		return nil, &Error{Stage: stageExec.String(), Errno: unix.EINVAL}
	}
	if p.argv, err = syscall.SlicePtrFromStrings(a.Argv); err != nil {
		return nil, &Error{Stage: stageExec.String(), Errno: unix.EINVAL}
	}
	if p.envv, err = syscall.SlicePtrFromStrings(a.Env); err != nil {
		return nil, &Error{Stage: stageExec.String(), Errno: unix.EINVAL}
	}
	if a.Dir != "" {
		if p.dir, err = syscall.BytePtrFromString(a.Dir); err != nil {
			return nil, &Error{Stage: stageDir.String(), Errno: unix.EINVAL}
		}
	}
	if c := a.Confine; c != nil {
		p.elevate = c.Elevate
		if c.Victim {
			const score = "1000\x00"
			if p.victimPath, err = syscall.BytePtrFromString("/proc/self/oom_score_adj"); err != nil {
				return nil, &Error{Stage: stageFiles.String(), Errno: unix.EINVAL}
			}
			b := []byte(score)
			p.victimScore, p.victimLen = &b[0], uintptr(len(score)-1)
		}
		p.join = append(p.join, c.Join...)
		if len(c.Filter) > 0 {
			p.filter = &unix.SockFprog{Len: uint16(len(c.Filter)), Filter: &c.Filter[0]}
		}
		for _, l := range c.Limits {
			p.limits = append(p.limits, rlimit{uintptr(l.Resource), unix.Rlimit{Cur: l.Value, Max: l.Value}})
		}
	}
	for i, f := range a.Files {
		fd := int(f.Fd())
		if fd < 3 {
			return nil, &Error{Stage: stageFiles.String(), Errno: unix.EBADF}
		}
		p.fds[i] = fd
	}
	return p, nil
}
