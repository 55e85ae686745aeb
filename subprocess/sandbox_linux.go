package subprocess

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

// destroyTimeout bounds how long the end of a sandbox may take.
const destroyTimeout = 30 * time.Second

// cleanupContext bounds an ending that no caller's context governs: it must go on
// when theirs is over.
func cleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), destroyTimeout) //nolint:forbidigo // see above
}

// Sandbox is one child process and all that runs below it.
type Sandbox struct {
	ex      *Executor
	id      string
	keep    bool
	spec    backend.Spec
	receipt backend.Receipt
	kernel  string

	proc   *process // nil when another process started it
	pid    int      // of the agent, on the host
	start  uint64   // when it started, of a kept sandbox
	group  *cgroup.Group
	marker *state.Marker
	lease  *state.UIDLease
	token  string

	client    *envd.Client
	transport *envd.Transport
	conn      net.Conn // to the agent of a bound sandbox
	evidence  evidence
	deadline  atomic.Int64 // Unix nanoseconds

	life   sync.Mutex // serialises pause and resume; destroy waits for neither
	mu     sync.Mutex // guards paused and expiry, held for moments only
	paused bool
	expiry *time.Timer
	closed atomic.Bool
	ended  chan struct{} // closed when it was destroyed
	derr   error         // valid once ended is closed
}

// connect makes the client over dial.
func (sb *Sandbox) connect(dial func(context.Context) (net.Conn, error)) {
	sb.transport = envd.NewTransport(dial)
	sb.client = envd.New(sb.transport, envd.Options{
		Sandbox: sb.id, Backend: driverName, AccessToken: sb.token, Extended: true,
		Output: sb.spec.Limits.Output, KillOnOutput: sb.spec.Limits.KillOnOutput, CPUTime: sb.spec.Limits.CPUTime,
		Judge: sb.judge, Lost: sb.lost,
		Overdue: func(context.Context, string) error { sb.killAll(); return nil },
	})
}

// behind is how long the host's own end of a sandbox comes after the agent's.
const behind = 2 * time.Second

// watch arms the host's own end of the sandbox, behind the agent's.
func (sb *Sandbox) watch() {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.expiry = time.AfterFunc(time.Until(time.Unix(0, sb.deadline.Load()))+behind, sb.atDeadline)
}

// atDeadline ends the sandbox unless its deadline has been moved.
func (sb *Sandbox) atDeadline() {
	ctx, cancel := cleanupContext()
	defer cancel()
	if sb.keep && sb.postponed(ctx) {
		return
	}
	sb.Destroy(ctx) //nolint:errcheck // the sweep tries again
}

// postponed tells whether another process has moved the deadline of a kept
// sandbox, and then waits for the new one. Where the journal cannot be read,
// the agent's own deadline is left to it for a while.
func (sb *Sandbox) postponed(ctx context.Context) bool {
	wait := 10 * time.Second
	if j, err := sb.ex.store.Journal(ctx); err == nil {
		rec, err := j.Get(ctx, sb.id)
		switch {
		case errors.Is(err, backend.ErrNotFound):
			return false
		case err == nil && time.Until(rec.Deadline) <= 0:
			return false
		case err == nil:
			sb.deadline.Store(rec.Deadline.UnixNano())
			wait = time.Until(rec.Deadline)
		}
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.expiry != nil {
		sb.expiry.Reset(wait + behind)
	}
	return true
}

// ID implements backend.Sandbox.
func (sb *Sandbox) ID() string { return sb.id }

// Receipt implements backend.Sandbox.
func (sb *Sandbox) Receipt() backend.Receipt { return sb.receipt }

// alive is the error that calls on an ended sandbox get.
func (sb *Sandbox) alive(op string) error {
	kind := backend.Kind("")
	switch {
	case sb.closed.Load() && sb.expired():
		kind = backend.ErrExpired
	case sb.closed.Load():
		kind = backend.ErrClosed
	default:
		return nil
	}
	return &backend.Error{Op: op, Kind: kind, Backend: driverName, Sandbox: sb.id}
}

func (sb *Sandbox) expired() bool {
	d := sb.deadline.Load()
	return d != 0 && time.Now().UnixNano() >= d
}

// Start implements backend.Sandbox.
func (sb *Sandbox) Start(ctx context.Context, cmd backend.Command) (backend.Process, error) {
	if err := sb.usable("start"); err != nil {
		return nil, err
	}
	if cmd.User != "" && cmd.User != backend.DefaultUser && !sb.ex.caps.Has(backend.FeatureUsers) {
		return nil, &backend.Error{
			Op: "start", Kind: backend.ErrUnsupported, Backend: driverName, Sandbox: sb.id, Field: "command.user",
			Err: fmt.Errorf("the only account here is %q", backend.DefaultUser), Fix: "leave it empty, or run glovebox as root",
		}
	}
	return sb.client.Start(ctx, cmd)
}

// usable is alive, and ErrConflict for a paused sandbox.
func (sb *Sandbox) usable(op string) error {
	if err := sb.alive(op); err != nil {
		return err
	}
	if sb.isPaused() {
		return &backend.Error{
			Op: op, Kind: backend.ErrConflict, Backend: driverName, Sandbox: sb.id,
			Err: errors.New("the sandbox is paused"), Fix: "resume it",
		}
	}
	return nil
}

// Files implements backend.Sandbox.
func (sb *Sandbox) Files() backend.Filesystem {
	if sb.ex.caps.Has(backend.FeatureUsers) {
		return sb.client.Files()
	}
	return oneUser{sb.client.Files()}
}

// As implements the optional interfaces that this sandbox has.
func (sb *Sandbox) As(target any) bool {
	switch t := target.(type) {
	case *backend.Extender:
		*t = sb.control()
	case *backend.Meter:
		*t = sb.control()
	case *backend.ProcessFinder:
		*t = sb.control()
	case *backend.EnvdTransport:
		*t = sb.control()
	case *backend.Dialer:
		if !sb.ex.caps.Has(backend.FeatureDial) {
			return false
		}
		*t = sb.control()
	case *backend.Pauser:
		if !sb.ex.caps.Has(backend.FeaturePause) || sb.group == nil {
			return false
		}
		*t = sb.control()
	default:
		return false
	}
	return true
}

func (sb *Sandbox) control() *control { return (*control)(sb) }

// control is a Sandbox with its optional interfaces. They are on a type of
// their own so that only As hands them out.
type control Sandbox

// SetLifetime implements backend.Extender.
func (c *control) SetLifetime(ctx context.Context, d time.Duration) error {
	sb := (*Sandbox)(c)
	if err := sb.usable("extend"); err != nil {
		return err
	}
	if d <= 0 || d > backend.MaxLifetime {
		return &backend.Error{
			Op: "extend", Kind: backend.ErrInvalid, Backend: driverName, Sandbox: sb.id, Field: "lifetime",
			Err: fmt.Errorf("%v is not between 0 and %v", d, backend.MaxLifetime),
		}
	}
	return sb.setDeadline(ctx, d)
}

// setDeadline moves the agent's, the host's and the journal's deadline. The
// host's is never the earlier one.
func (sb *Sandbox) setDeadline(ctx context.Context, d time.Duration) error {
	if err := sb.client.SetDeadline(ctx, d); err != nil {
		return err
	}
	at := time.Now().Add(d)
	sb.deadline.Store(at.UnixNano())
	sb.mu.Lock()
	if sb.expiry != nil && !sb.closed.Load() {
		sb.expiry.Reset(d + behind)
	}
	sb.mu.Unlock()
	if !sb.keep {
		return nil
	}
	j, err := sb.ex.store.Journal(ctx)
	if err != nil {
		return err
	}
	return j.SetDeadline(ctx, sb.id, at)
}

// Usage implements backend.Meter.
func (c *control) Usage(ctx context.Context) (backend.Usage, error) {
	sb := (*Sandbox)(c)
	if err := sb.usable("usage"); err != nil {
		return backend.Usage{}, err
	}
	u, err := sb.client.Usage(ctx)
	if err != nil {
		return u, err
	}
	amend(sb.group, &u)
	return u, nil
}

// Processes implements backend.ProcessFinder.
func (c *control) Processes(ctx context.Context) ([]backend.ProcessInfo, error) {
	if err := (*Sandbox)(c).usable("processes"); err != nil {
		return nil, err
	}
	return c.client.Processes(ctx)
}

// Attach implements backend.ProcessFinder.
func (c *control) Attach(ctx context.Context, id string, opts backend.AttachOptions) (backend.Process, error) {
	if err := (*Sandbox)(c).usable("attach"); err != nil {
		return nil, err
	}
	return c.client.Attach(ctx, id, opts)
}

// DialContext implements backend.Dialer.
func (c *control) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := (*Sandbox)(c).usable("dial"); err != nil {
		return nil, err
	}
	return c.client.DialContext(ctx, network, addr)
}

// Envd implements backend.EnvdTransport.
func (c *control) Envd(context.Context) (http.RoundTripper, error) {
	if err := (*Sandbox)(c).alive("envd"); err != nil {
		return nil, err
	}
	return c.transport, nil
}

// lost says what became of a sandbox whose connection broke.
func (sb *Sandbox) lost(err error) error {
	if aerr := sb.alive("sandbox"); aerr != nil || backend.KindOf(err) == backend.ErrClosed {
		return aerr // nil leaves err as it is
	}
	e := &backend.Error{Op: "sandbox", Kind: backend.ErrLost, Backend: driverName, Sandbox: sb.id, Err: err}
	if sb.expired() {
		e.Kind, e.Err = backend.ErrExpired, errors.New("its lifetime has ended")
		return e
	}
	if sb.proc == nil {
		return e
	}
	select {
	case <-sb.proc.done:
	case <-time.After(500 * time.Millisecond):
		return e
	}
	why := fmt.Sprintf("its first process ended (%s)", describe(sb.proc))
	if sb.group != nil && sb.group.Stats().OOMKills > 0 && sb.proc.status.Signaled() {
		why = "its first process was killed at the memory limit"
	}
	e.Err = errors.New(why)
	return e
}

func describe(p *process) string {
	if p.status.Signaled() {
		return "killed by " + p.status.Signal().String()
	}
	s := fmt.Sprintf("exit status %d", p.status.ExitStatus())
	if words := p.errs.words(); words != "" {
		s += ": " + sanitize(words)
	}
	return s
}

// killAll ends every process of the sandbox at once.
func (sb *Sandbox) killAll() {
	if sb.group != nil {
		sb.group.Kill()
	}
	if sb.proc != nil {
		sb.proc.kill()
		return
	}
	killProcess(sb.pid, sb.start)
}

// Destroy implements backend.Sandbox. When ctx ends it goes on without the
// caller.
func (sb *Sandbox) Destroy(ctx context.Context) error {
	if sb.closed.CompareAndSwap(false, true) {
		go sb.finish() //nolint:contextcheck // see above
	}
	select {
	case <-sb.ended:
		return sb.derr
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deafTimeout is how long the end of a sandbox waits for a caller's writer that
// takes nothing.
const deafTimeout = 2 * time.Second

// finish ends the sandbox and removes all that it was made of.
func (sb *Sandbox) finish() {
	defer close(sb.ended)
	ctx, cancel := cleanupContext()
	defer cancel()
	sb.mu.Lock()
	if sb.expiry != nil {
		sb.expiry.Stop()
	}
	sb.mu.Unlock()
	sb.askToEnd()
	sb.killAll()
	disconnected := sb.disconnect()
	err := sb.gone(ctx)
	ended := err == nil
	if sb.group != nil {
		if gerr := sb.group.Remove(ctx); gerr != nil && err == nil {
			err = fmt.Errorf("remove the control groups: %w", gerr)
		}
	}
	if err == nil {
		err = sb.release(ctx)
	}
	select {
	case <-disconnected:
	case <-time.After(deafTimeout):
	}
	if err != nil {
		if sb.marker != nil {
			sb.marker.Close() //nolint:errcheck // left for the sweep
		}
		// Security: uids of processes that may still run stay leased.
		if sb.lease != nil && ended {
			sb.lease.Release() //nolint:errcheck // a lock that ends with us
		}
		sb.derr = &backend.Error{
			Op: "destroy", Kind: backend.ErrUnavailable, Backend: driverName, Sandbox: sb.id, Err: err,
			Fix: "the sweep tries again",
		}
	}
	sb.ex.drop(sb.id)
}

// disconnect ends the connection to the agent, also one that no call has taken
// up yet. The channel is closed when nothing of the caller's is used any more.
func (sb *Sandbox) disconnect() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		sb.client.Close() //nolint:errcheck // the agent is about to go
	}()
	if sb.conn != nil {
		sb.conn.Close() //nolint:errcheck // the same
	}
	return done
}

// askToEnd lets an agent without a pid namespace end what it started, which
// nobody else can find: it does so when its connection ends.
func (sb *Sandbox) askToEnd() {
	if m := sb.ex.host.mode; m != launch.ModeRestricted && m != launch.ModePlain {
		return
	}
	sb.conn.Close() //nolint:errcheck // it tells the agent
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	select {
	case <-sb.proc.done:
	case <-t.C:
	}
}

// gone waits until the agent, and so its pid namespace, has ended.
func (sb *Sandbox) gone(ctx context.Context) error {
	if sb.proc != nil {
		select {
		case <-sb.proc.done:
			return sb.proc.pidfd.Close()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return waitGone(ctx, sb.pid, sb.start)
}

// release gives back what the sandbox held on the host.
func (sb *Sandbox) release(ctx context.Context) error {
	if err := tree.Remove(runDirOf(sb.ex.store, sb.id)); err != nil {
		return err
	}
	if sb.keep {
		j, err := sb.ex.store.Journal(ctx)
		if err != nil {
			return err
		}
		if err := j.Delete(ctx, sb.id); err != nil && !errors.Is(err, backend.ErrNotFound) {
			return err
		}
	}
	if sb.lease != nil {
		sb.lease.Release() //nolint:errcheck // a lock that ends with us
	}
	if sb.marker == nil { // another process made it
		return sb.ex.store.Remove(sb.id)
	}
	return sb.marker.Release()
}

// forget lets go of a kept sandbox without ending it.
func (sb *Sandbox) forget() {
	sb.mu.Lock()
	if sb.expiry != nil {
		sb.expiry.Stop()
		sb.expiry = nil
	}
	sb.mu.Unlock()
	sb.client.Close() //nolint:errcheck // the sandbox lives on
	if sb.marker != nil {
		sb.marker.Close() //nolint:errcheck // the agent holds the lock
	}
	if sb.lease != nil {
		sb.lease.Close() //nolint:errcheck // the agent holds the lock
	}
	sb.ex.drop(sb.id)
}

// killProcess kills the process with a number and a start time.
func killProcess(pid int, start uint64) {
	fd, err := openProcess(pid, start)
	if err != nil {
		return
	}
	defer unix.Close(fd)                           //nolint:errcheck // nothing to do about it
	unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) //nolint:errcheck // gone is what we want
}

// openProcess is a pidfd of the process with a number and a start time; the
// start time is read after the descriptor holds the number.
func openProcess(pid int, start uint64) (int, error) {
	if pid <= 0 || start == 0 {
		return -1, unix.ESRCH
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, err
	}
	if now, err := state.StartTime(pid); err != nil || now != start {
		unix.Close(fd) //nolint:errcheck // another process
		return -1, unix.ESRCH
	}
	return fd, nil
}

// waitGone waits for the end of a process that is not our child.
func waitGone(ctx context.Context, pid int, start uint64) error {
	fd, err := openProcess(pid, start)
	if err != nil {
		return nil //nolint:nilerr // no such process any more
	}
	defer unix.Close(fd) //nolint:errcheck // nothing to do about it
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
		if n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return nil //nolint:nilerr // it has ended, or cannot be watched
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

var (
	_ backend.Sandbox       = (*Sandbox)(nil)
	_ backend.Extender      = (*control)(nil)
	_ backend.Meter         = (*control)(nil)
	_ backend.ProcessFinder = (*control)(nil)
	_ backend.Dialer        = (*control)(nil)
	_ backend.Pauser        = (*control)(nil)
	_ backend.EnvdTransport = (*control)(nil)
)
