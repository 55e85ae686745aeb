//go:build linux

package runsc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
)

// Start is what a sandbox is started with.
type Start struct {
	// Bundle is the directory with config.json.
	Bundle string
	// Image is the directory of a checkpoint to restore; "" for a new start.
	Image string
	// Exec is the program of the first process, in place of the one the
	// bundle's first argument names, which then need not exist inside. Such a
	// sandbox cannot be saved: runsc refuses. Not with Image.
	Exec *os.File
	// Group holds the sandbox; nil for none. Its v2 group gets all processes of
	// the sandbox from their birth. Into v1 groups runsc moves the sentry and
	// the gofer, if Config.Groups is set.
	Group *cgroup.Group
	// Bound: the sandbox dies with the Launcher, and so with its process,
	// whatever kills that. Otherwise it is kept.
	Bound bool
}

// Process is a started sandbox's stream, and its end as its starter sees it.
type Process struct {
	// In and Out are the first process's standard input and output. Both have
	// deadlines. The caller closes them.
	In, Out *os.File

	mu    sync.Mutex // guards pidfd against use after close
	pidfd *os.File   // of runsc if bound, else of the sentry
	done  chan struct{}
	errs  *tail
}

// Kill kills the sandbox at once, one that is still starting too.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd != nil {
		killPidfd(p.pidfd)
	}
}

// finish closes what Kill uses, and Done.
func (p *Process) finish() {
	p.mu.Lock()
	closeAll(p.pidfd)
	p.pidfd = nil
	p.mu.Unlock()
	close(p.done)
}

// Done is closed when the sandbox has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Words are the last that runsc and the first process said on their standard
// error: hostile bytes if user code can write there, bounded and valid UTF-8.
func (p *Process) Words() string { return p.errs.words() }

// streams are the two ends of a sandbox's standard files.
type streams struct {
	in, out, err          *os.File // the child's
	toIn, fromOut, fromEr *os.File // ours
}

func newStreams() (s *streams, err error) {
	s = &streams{}
	defer func() {
		if err != nil {
			s.closeChild()
			s.closeOurs()
		}
	}()
	if s.in, s.toIn, err = os.Pipe(); err != nil {
		return s, err
	}
	if s.fromOut, s.out, err = os.Pipe(); err != nil {
		return s, err
	}
	s.fromEr, s.err, err = os.Pipe()
	return s, err
}

func (s *streams) closeChild() { closeAll(s.in, s.out, s.err) }
func (s *streams) closeOurs()  { closeAll(s.toIn, s.fromOut, s.fromEr) }

// Start starts the sandbox c with b. A bound one is still starting when it
// returns; a kept one runs its first process. On error, ctx's end included,
// nothing is left running, though Remove is still to be called for what lies in
// c.Dir and in the groups.
func (l *Launcher) Start(ctx context.Context, b Binary, c *Config, s Start) (*Process, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if err := private(c.Dir); err != nil {
		return nil, err
	}
	if s.Image != "" && s.Exec != nil {
		return nil, errors.New("runsc: a restored sandbox has its program")
	}
	st, err := newStreams()
	if err != nil {
		return nil, fmt.Errorf("runsc: %w", err)
	}
	pid, pidfd, err := l.runsc(b, c, s, st)
	st.closeChild()
	if err != nil {
		st.closeOurs()
		return nil, fmt.Errorf("runsc: start: %w", err)
	}
	p := &Process{In: st.toIn, Out: st.fromOut, pidfd: pidfd, done: make(chan struct{}), errs: newTail(st.fromEr)}
	if s.Bound {
		go func() {
			waitPidfd(pidfd)
			p.finish() // before the number can be another's
			reap(pid)
		}()
		return p, nil
	}
	if err := p.detach(ctx, c, pid); err != nil {
		killGroup(s.Group)
		c.Kill() //nolint:errcheck // the start's error says more
		closeAll(p.In, p.Out)
		return nil, err
	}
	return p, nil
}

// private refuses a directory that others may write to.
//
// Security: in it lie the sandbox's control socket and the state that says whom
// to kill.
func private(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("runsc: %w", err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || !st.IsDir() || st.Mode().Perm()&0o022 != 0 || int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("runsc: %s is not a directory of this user's alone", dir)
	}
	return nil
}

// detach waits for runsc, which ends once the sandbox runs without it, and
// takes up the sentry.
func (p *Process) detach(ctx context.Context, c *Config, pid int) error {
	ended := make(chan syscall.WaitStatus, 1)
	go func() { ended <- reap(pid) }()
	var ws syscall.WaitStatus
	select {
	case ws = <-ended:
	case <-ctx.Done():
		killPidfd(p.pidfd)
		<-ended
	}
	p.pidfd.Close() //nolint:errcheck // runsc has ended
	if err := ctx.Err(); err != nil {
		return err
	}
	if ws != 0 {
		c.killLeft()
		return fmt.Errorf("runsc: start: %s", describe(ws, p.errs.words()))
	}
	procs, err := c.Processes()
	if err != nil {
		return err
	}
	sentry, err := procs.Sentry.open()
	if err != nil {
		return fmt.Errorf("runsc: the sandbox ended as it started: %s", p.errs.words())
	}
	p.pidfd = sentry
	go func() {
		waitPidfd(sentry)
		p.finish()
	}()
	return nil
}

func describe(ws syscall.WaitStatus, words string) string {
	if words == "" {
		words = "it said nothing"
	}
	if ws.Signaled() {
		return fmt.Sprintf("killed by %s: %s", ws.Signal(), words)
	}
	return words
}

// runsc forks runsc with the child's ends of st.
func (l *Launcher) runsc(b Binary, c *Config, s Start, st *streams) (pid int, pidfd *os.File, err error) {
	files := []*os.File{st.in, st.out, st.err}
	verb := []string{"run"}
	if s.Image != "" {
		verb = []string{"restore", "--image-path=" + s.Image}
	}
	if !s.Bound {
		verb = append(verb, "--detach")
	}
	if s.Exec != nil {
		verb = append(verb, "--exec-fd="+strconv.Itoa(len(files)))
		files = append(files, s.Exec)
	}
	verb = append(verb, "--bundle="+s.Bundle, c.ID)
	fd := -1
	attr := &syscall.ProcAttr{
		Dir: "/",
		// Security: nothing of our environment reaches runsc, the sentry or the
		// gofer, whose memory is the guest's first goal.
		Env: []string{},
		Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &fd},
	}
	if s.Bound {
		// runsc in turn has the kernel kill the sentry and the gofer with it.
		attr.Sys.Pdeathsig = syscall.SIGKILL
	}
	if s.Group != nil {
		dir, err := s.Group.AgentDir()
		if err != nil {
			return 0, nil, err
		}
		if dir != nil {
			defer dir.Close() //nolint:errcheck // the child is inside
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(dir.Fd())
		}
	}
	for _, f := range files {
		// Fd makes the child's end of a pipe blocking, ours is another.
		attr.Files = append(attr.Files, f.Fd())
	}
	pid, err = l.fork(b.Path, append([]string{"runsc"}, append(c.flags(b), verb...)...), attr)
	runtime.KeepAlive(files)
	if err != nil {
		return 0, nil, err
	}
	return pid, os.NewFile(uintptr(fd), "pidfd"), nil
}

// waitPidfd returns when the process has ended.
func waitPidfd(f *os.File) {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	for {
		if n, err := unix.Poll(fds, -1); n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return
		}
	}
}
