package subprocess

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/agent/boot"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// launcher owns the one thread that starts agents. A death signal is bound to
// the thread that forked, so the thread must live as long as the process; and a
// thread that visits a sandbox's cgroups must be nobody else's meanwhile.
type launcher struct {
	work chan func()
	busy chan struct{} // closed when a thread was found
	wg   sync.WaitGroup
}

func newLauncher() *launcher {
	l := &launcher{work: make(chan func()), busy: make(chan struct{})}
	l.wg.Go(l.loop)
	return l
}

func (l *launcher) loop() {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// Not the main thread: for the kernel its groups are the process's, which
		// would be charged to the sandbox.
		l.wg.Go(l.loop) // starts on another, since this one is taken
		for range l.busy {
		}
		runtime.UnlockOSThread()
		return
	}
	close(l.busy)
	for f := range l.work {
		f()
	}
}

// do runs f on the launcher's thread.
func (l *launcher) do(f func()) {
	done := make(chan struct{})
	l.work <- func() { defer close(done); f() }
	<-done
}

// close ends the thread, and with it every bound agent that still runs.
func (l *launcher) close() {
	close(l.work)
	l.wg.Wait()
}

// start is what an agent is started with.
type start struct {
	cfg    launch.Config
	binary *os.File
	path   string   // of binary, in the child
	conn   *os.File // becomes launch.ConnFD
	extra  []*os.File
	group  *cgroup.Group // nil: none
	// baseUID is the first host uid of the sandbox's range, in mapped mode.
	baseUID int
	bound   bool
}

// add gives the agent a descriptor and returns its number there.
func (s *start) add(f *os.File) int {
	s.extra = append(s.extra, f)
	return launch.FirstFD + len(s.extra) - 1
}

// process is a running agent as its parent sees it.
type process struct {
	pid    int
	pidfd  *os.File
	done   chan struct{} // closed when it was reaped
	status syscall.WaitStatus
	errs   *tail
}

// run starts the agent.
func (l *launcher) run(s *start) (p *process, err error) {
	// Executed through a descriptor of the child's own: any other number could
	// be taken by what the child is given.
	binary, err := dup(s.binary)
	if err != nil {
		return nil, err
	}
	fd := s.add(binary)
	s.path, s.cfg.HoldFDs = fmt.Sprintf("/proc/self/fd/%d", fd), append(s.cfg.HoldFDs, fd)
	cfgFile, err := configFile(&s.cfg)
	if err != nil {
		return nil, err
	}
	defer cfgFile.Close() //nolint:errcheck // the child has its own
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close() //nolint:errcheck // the child has its own
	er, ew, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	files := append([]*os.File{null, null, ew, cfgFile, s.conn}, s.extra...)
	attr := &syscall.ProcAttr{Dir: "/", Env: []string{}, Sys: s.attributes()}
	for _, f := range files {
		attr.Files = append(attr.Files, f.Fd())
	}
	pidfd := -1
	attr.Sys.PidFD = &pidfd
	var agentDir *os.File
	if s.group != nil {
		if agentDir, err = s.group.AgentDir(); err != nil {
			return nil, errors.Join(err, er.Close(), ew.Close())
		}
	}
	if agentDir != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(agentDir.Fd())
		defer agentDir.Close() //nolint:errcheck // the child is inside
	}
	var pid int
	l.do(func() { pid, err = s.fork(attr) })
	ew.Close() //nolint:errcheck // the child has its own
	runtime.KeepAlive(files)
	if err != nil {
		er.Close() //nolint:errcheck // on the way out
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	p = &process{pid: pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd"), done: make(chan struct{}), errs: newTail(er)}
	go p.wait()
	return p, nil
}

// fork visits the sandbox's v1 groups, so that the child is born in them.
func (s *start) fork(attr *syscall.ProcAttr) (pid int, err error) {
	if s.group != nil {
		leave, err := s.group.Enter()
		if err != nil {
			return 0, err
		}
		defer func() {
			if lerr := leave(); lerr != nil && err == nil {
				err = lerr
			}
		}()
	}
	if s.cfg.Mode == launch.ModeMapped {
		back, err := actAs(s.baseUID)
		if err != nil {
			return 0, err
		}
		defer func() {
			if berr := back(); berr != nil && err == nil {
				err = berr
			}
		}()
	}
	return syscall.ForkExec(s.path, []string{boot.Argv0}, attr)
}

// actAs gives the calling thread, which must be locked, another effective uid
// and leaves it its capabilities; back undoes it and must be called.
//
// Security: what the kernel counts for each user (inotify instances, message
// queues, pending signals) it counts in a user namespace and again, above it,
// for the uid that made the namespace. Were that root for all of them, one
// sandbox could use up what the others and the host's own daemons need.
func actAs(uid int) (back func() error, err error) {
	const noSetuidFixup = 1 << 2
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("securebits: %w", err)
	}
	if bits&noSetuidFixup == 0 {
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits|noSetuidFixup), 0, 0, 0); err != nil {
			return nil, fmt.Errorf("securebits: %w", err)
		}
	}
	if err := setThreadEUID(uid); err != nil {
		return nil, err
	}
	return func() error { return setThreadEUID(0) }, nil
}

// setThreadEUID changes the calling thread alone, where the standard library
// would change them all.
func setThreadEUID(uid int) error {
	keep := ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		return fmt.Errorf("effective uid %d: %w", uid, e)
	}
	return nil
}

// attributes are what clone is asked for.
func (s *start) attributes() *syscall.SysProcAttr {
	sys := &syscall.SysProcAttr{Setsid: true}
	if s.bound && (s.cfg.Mode == launch.ModeMapped || s.cfg.Mode == launch.ModeSingle) {
		// Elsewhere the agent has to outlive its creator for a moment, to end
		// what it started; the end of its connection tells it.
		sys.Pdeathsig = syscall.SIGKILL
	}
	switch s.cfg.Mode {
	case launch.ModeMapped:
		sys.Cloneflags = namespaces
		sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: s.baseUID, Size: state.UIDLeaseSize}}
		sys.GidMappings = sys.UidMappings
		sys.GidMappingsEnableSetgroups = true
		// Not as uid 0: that an agent never was it is cheaper than ceasing to
		// be, on every thread.
		sys.Credential = &syscall.Credential{Uid: launch.AgentUID, Gid: launch.AgentUID}
		sys.AmbientCaps = append(setupCaps(), unix.CAP_CHOWN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL, unix.CAP_FOWNER)
	case launch.ModeSingle:
		sys.Cloneflags = namespaces
		sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: launch.UserUID, HostID: os.Geteuid(), Size: 1}}
		sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: launch.UserUID, HostID: os.Getegid(), Size: 1}}
		sys.AmbientCaps = setupCaps()
	case launch.ModeRestricted, launch.ModePlain, launch.ModeContained:
	}
	return sys
}

// setupCaps are the capabilities, in its own user namespace, with which an agent
// makes its root.
func setupCaps() []uintptr {
	return []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP, unix.CAP_NET_ADMIN, unix.CAP_DAC_OVERRIDE}
}

const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// configFile puts cfg into an anonymous file.
func configFile(cfg *launch.Config) (*os.File, error) {
	data, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("config", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	f := os.NewFile(uintptr(fd), "config")
	if _, err := f.Write(data); err != nil {
		f.Close() //nolint:errcheck // on the way out
		return nil, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}

// wait reaps the agent.
func (p *process) wait() {
	for {
		if _, err := syscall.Wait4(p.pid, &p.status, 0, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	close(p.done)
}

// kill ends the agent, and with it its pid namespace.
func (p *process) kill() {
	unix.PidfdSendSignal(int(p.pidfd.Fd()), unix.SIGKILL, nil, 0) //nolint:errcheck // gone is what we want
}

// tail takes what an agent says: a first line, then its last words.
type tail struct {
	line chan []byte
	mu   sync.Mutex
	buf  bytes.Buffer
	done chan struct{}
}

// tailSize bounds what is kept of an agent's last words.
const tailSize = 8 << 10

func newTail(r *os.File) *tail {
	t := &tail{line: make(chan []byte, 1), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		defer r.Close() //nolint:errcheck // read side
		defer close(t.line)
		br := bufio.NewReaderSize(r, tailSize)
		line, err := br.ReadSlice('\n')
		t.line <- bytes.Clone(line)
		for buf := make([]byte, 2048); err == nil || errors.Is(err, bufio.ErrBufferFull); {
			var n int
			n, err = br.Read(buf)
			t.mu.Lock()
			t.buf.Write(buf[:min(n, tailSize-t.buf.Len())])
			t.mu.Unlock()
		}
	}()
	return t
}

// first is the agent's first line.
func (t *tail) first(ctx context.Context) ([]byte, error) {
	select {
	case line := <-t.line:
		return line, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// words waits a moment for the end of what was said and returns it.
func (t *tail) words() string {
	select {
	case <-t.done:
	case <-time.After(200 * time.Millisecond):
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
