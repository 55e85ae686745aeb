//go:build linux

package spawn

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process is a started command, a session leader of its own.
type Process struct {
	PID    int
	mu     sync.Mutex // guards pidfd against use after close
	pidfd  int
	reaper *Reaper // where there are no pidfds
	done   chan struct{}
	status Status
}

// Done is closed when the process has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status is how it ended; valid once Done is closed.
func (p *Process) Status() Status { return p.status }

// Signal sends sig to the process alone; unix.ESRCH when it has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	if p.reaper != nil {
		return p.reaper.signal(p, sig)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd < 0 {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(p.pidfd, sig, nil, 0)
}

func (p *Process) finish(s Status) {
	p.mu.Lock()
	if p.pidfd >= 0 {
		unix.Close(p.pidfd) //nolint:errcheck // nothing to do about it
	}
	p.pidfd = -1
	p.mu.Unlock()
	p.status = s
	close(p.done)
}

// Reaper starts processes and collects their ends. It is safe for concurrent
// use; a program has at most one that collects orphans.
type Reaper struct {
	opts  Options
	work  chan request
	stop  chan struct{}
	wg    sync.WaitGroup
	mu    sync.Mutex // held from fork to registration, so no end is missed
	procs map[int]*Process
}

type request struct {
	p     *plan
	reply chan<- reply
}

type reply struct {
	proc   *Process
	answer *os.File // where proc reports whether it executed; nil when it did
	err    error
}

// Options say how a Reaper works.
type Options struct {
	// Orphans: it also collects every other child of the program, as the first
	// process of a pid namespace must; it then takes the statuses of children
	// that others start.
	Orphans bool
	// Enter runs first on the thread that does all forks: what it changes about
	// the thread (a Landlock domain, a keyring), every command inherits.
	Enter func() error
	// Separate gives a child an address space of its own until it execs, and
	// nobody waits for it on a thread: for agents whose user code may signal
	// such a child and would hold up the agent with it.
	Separate bool
	// NoPidfd is for kernels without pidfds, such as gVisor's: signals then go
	// by number, to children that are known not to be reaped yet. It needs
	// Orphans.
	NoPidfd bool
}

// New makes a Reaper. Its error is Enter's.
func New(o Options) (*Reaper, error) {
	if o.NoPidfd && !o.Orphans {
		return nil, errors.New("spawn: without pidfds somebody else could reap a process that is about to be signalled")
	}
	r := &Reaper{opts: o, work: make(chan request), stop: make(chan struct{}), procs: map[int]*Process{}}
	started := make(chan error)
	r.wg.Go(func() { r.forker(started) })
	if err := <-started; err != nil {
		return nil, err
	}
	if o.Orphans {
		r.wg.Go(r.collect)
	}
	return r, nil
}

// Close stops the Reaper's goroutines. Processes that still run are left to
// whoever waits for them; with orphans their ends are no longer collected.
func (r *Reaper) Close() {
	close(r.stop)
	r.wg.Wait()
}

// forker owns the thread that forks. The thread is never unlocked, so that it
// ends with the goroutine and nothing else ever runs in its domain.
func (r *Reaper) forker(started chan<- error) {
	runtime.LockOSThread()
	if r.opts.Enter != nil {
		if err := r.opts.Enter(); err != nil {
			started <- err
			return
		}
	}
	started <- nil
	for {
		select {
		case <-r.stop:
			return
		case req := <-r.work:
			req.reply <- r.fork(req.p)
		}
	}
}

// Start starts a command. The error is an *Error.
func (r *Reaper) Start(a Attr) (*Process, error) {
	p, err := a.plan()
	if err != nil {
		return nil, err
	}
	answer := make(chan reply, 1)
	select {
	case r.work <- request{p, answer}:
	case <-r.stop:
		return nil, &Error{Stage: stageClone.String(), Errno: unix.ESHUTDOWN}
	}
	got := <-answer
	runtime.KeepAlive(a)
	if got.err != nil || got.answer == nil {
		return got.proc, got.err
	}
	// Not on the forking thread: user code can hold up its child, and nobody
	// else's start may wait for that.
	if err := executed(got.answer); err != nil {
		got.proc.Signal(unix.SIGKILL) //nolint:errcheck // gone is what we want
		select {
		case <-got.proc.Done():
		case <-r.stop:
		}
		return nil, err
	}
	return got.proc, nil
}

func (r *Reaper) fork(p *plan) reply {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.separate, p.noPidfd = r.opts.Separate, r.opts.NoPidfd
	c, err := run(p)
	if err != nil {
		return reply{err: err}
	}
	proc := &Process{PID: c.pid, pidfd: c.pidfd, done: make(chan struct{})}
	if r.opts.NoPidfd {
		proc.reaper = r
	}
	if r.opts.Orphans {
		r.procs[c.pid] = proc
	} else {
		go proc.wait()
	}
	return reply{proc: proc, answer: c.answer}
}

// signal sends sig by number: while the process is listed it is not reaped, so
// its number is nobody else's.
func (r *Reaper) signal(p *Process, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.procs[p.PID] != p {
		return unix.ESRCH
	}
	return unix.Kill(p.PID, sig)
}

// wait collects one process, where others may have children of their own.
func (p *Process) wait() {
	var ws syscall.WaitStatus
	var ru syscall.Rusage
	for {
		if _, err := syscall.Wait4(p.PID, &ws, 0, &ru); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	p.finish(statusOf(ws, &ru))
}

// collect reaps every child, ours and those the namespace hands to process 1.
func (r *Reaper) collect() {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGCHLD)
	defer signal.Stop(changed)
	for {
		for r.reapOne() {
		}
		select {
		case <-r.stop:
			return
		case <-changed:
		}
	}
}

func (r *Reaper) reapOne() bool {
	var ws syscall.WaitStatus
	var ru syscall.Rusage
	r.mu.Lock()
	pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, &ru)
	if errors.Is(err, syscall.EINTR) {
		r.mu.Unlock()
		return true
	}
	if err != nil || pid <= 0 {
		r.mu.Unlock()
		return false
	}
	proc := r.procs[pid]
	delete(r.procs, pid)
	r.mu.Unlock()
	if proc != nil {
		proc.finish(statusOf(ws, &ru))
	}
	return true
}
