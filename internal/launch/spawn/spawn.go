//go:build linux

// Package spawn starts and reaps the commands of a sandbox, each confined
// between fork and exec.
package spawn

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Attr is one command to start. Path is absolute.
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
	// Join are descriptors of cgroup files (tasks, cgroup.procs) that the
	// child writes itself into before anything else.
	Join []int
	// Confine is applied last; nil applies nothing.
	Confine *Confinement
}

// Confinement is what every command of a sandbox is held to, prepared once.
type Confinement struct{}

// Status is how a process ended.
type Status struct {
	Code   int            // exit code, -1 when signalled
	Signal syscall.Signal // 0 when it exited
	CPU    time.Duration  // of it and its waited-for descendants
	MaxRSS int64          // bytes, of the largest of them
}

// Process is a started command, a session leader of its own.
type Process struct {
	PID    int
	pidfd  int
	mu     sync.Mutex // guards pidfd against use after close
	done   chan struct{}
	status Status
}

// Done is closed when the process has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status is how it ended; valid once Done is closed.
func (p *Process) Status() Status { return p.status }

// Signal sends sig to the process alone; unix.ESRCH when it has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd < 0 {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(p.pidfd, sig, nil, 0)
}

// Reaper starts processes and collects their ends. One Reaper a program.
type Reaper struct {
	mu    sync.Mutex
	procs map[int]*Process
}

// NewReaper makes a Reaper. With orphans it also collects every other child of
// the program, as the first process of a pid namespace must; it then takes the
// statuses of children that others start.
func NewReaper(orphans bool) *Reaper {
	return &Reaper{procs: map[int]*Process{}}
}

// Start starts a command. The error is the errno of what could not be done:
// unix.ENOENT, EACCES, ENOEXEC, E2BIG, ... of exec, or ErrSetup.
func (r *Reaper) Start(a Attr) (*Process, error) {
	attr := &syscall.ProcAttr{Dir: a.Dir, Env: a.Env, Sys: &syscall.SysProcAttr{Setsid: true}}
	for _, f := range a.Files {
		attr.Files = append(attr.Files, f.Fd())
	}
	if a.Terminal {
		attr.Sys.Setctty = true
	}
	if a.SetUser {
		attr.Sys.Credential = &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: a.Groups}
	}
	pidfd := -1
	attr.Sys.PidFD = &pidfd
	pid, err := syscall.ForkExec(a.Path, a.Argv, attr)
	if err != nil {
		return nil, err
	}
	p := &Process{PID: pid, pidfd: pidfd, done: make(chan struct{})}
	go func() {
		var ws syscall.WaitStatus
		var ru syscall.Rusage
		for {
			if _, err := syscall.Wait4(pid, &ws, 0, &ru); !errors.Is(err, syscall.EINTR) {
				break
			}
		}
		p.finish(ws, ru)
	}()
	return p, nil
}

func (p *Process) finish(ws syscall.WaitStatus, ru syscall.Rusage) {
	p.mu.Lock()
	unix.Close(p.pidfd)
	p.pidfd = -1
	p.mu.Unlock()
	p.status = Status{Code: -1, CPU: time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), MaxRSS: ru.Maxrss << 10}
	if ws.Exited() {
		p.status.Code = ws.ExitStatus()
	} else if ws.Signaled() {
		p.status.Signal = ws.Signal()
	}
	close(p.done)
}
