package subprocess

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

// record journals a kept sandbox before it is made. Until ready it ends with
// its creator, as a bound one.
func (m *maker) record(ctx context.Context) error {
	j, err := m.ex.store.Journal(ctx)
	if err != nil {
		return err
	}
	spec, err := json.Marshal(m.spec)
	if err != nil {
		return err
	}
	m.undo = append(m.undo, func() { //nolint:contextcheck // an undo outlives the caller's context
		ctx, cancel := cleanupContext()
		defer cancel()
		j.Delete(ctx, m.id) //nolint:errcheck // the sweep tries again
	})
	return j.Put(ctx, state.Record{
		ID: m.id, Backend: driverName, Spec: spec, Labels: m.spec.Labels, Created: m.began,
		Deadline: m.began.Add(m.spec.Lifetime), Socket: filepath.Join(m.runDir(), "agent.sock"),
		BootID: state.BootID(), Token: m.token, Cgroups: m.mark.Cgroups,
	})
}

// ready writes down which process a sweep has to end, where one that outlives
// its creator can be left, and says that a kept sandbox is made.
func (m *maker) ready(ctx context.Context, sb *Sandbox) error {
	spaces := m.ex.host.mode == launch.ModeMapped || m.ex.host.mode == launch.ModeSingle
	if !m.spec.Keep && spaces {
		return nil // dies with its creator
	}
	start, err := state.StartTime(sb.pid)
	if err != nil {
		return fmt.Errorf("the agent has gone: %w", err)
	}
	sb.start = start
	m.mark.Procs = []state.Proc{{PID: sb.pid, Start: start}}
	if err := m.marker.Update(m.mark); err != nil || !m.spec.Keep {
		return err
	}
	j, err := m.ex.store.Journal(ctx)
	if err != nil {
		return err
	}
	receipt, err := json.Marshal(sb.receipt)
	if err != nil {
		return err
	}
	if err := j.Ready(ctx, m.id, sb.pid, start, receipt); err != nil {
		return err
	}
	if _, err := m.hold.Write([]byte{1}); err != nil {
		return fmt.Errorf("the agent has gone: %w", err)
	}
	return m.hold.Close()
}

// newToken is what callers of a kept sandbox's agent must show.
func newToken() string { return rand.Text() + rand.Text() }

// listenIn binds a Unix socket in dir. It goes through a descriptor of the
// directory, since a socket's path may have 107 bytes only.
func listenIn(dir, name string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close() //nolint:errcheck // read side
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name)})
	if err != nil {
		return nil, err
	}
	defer l.Close() //nolint:errcheck // duplicated
	l.SetUnlinkOnClose(false)
	return l.File()
}

// dialer connects to the socket at path.
func dialer(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		defer dir.Close() //nolint:errcheck // read side
		var d net.Dialer
		return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
	}
}

// runDirOf is a sandbox's own directory.
func runDirOf(s *state.Store, id string) string { return filepath.Join(s.Dir(), "run", id) }

// As implements the optional interfaces of the executor.
func (ex *Executor) As(target any) bool {
	switch t := target.(type) {
	case *backend.Prober:
		*t = (*prober)(ex)
	case *backend.Finder:
		if !ex.caps.Has(backend.FeatureFind) {
			return false
		}
		*t = (*finder)(ex)
	default:
		return false
	}
	return true
}

// finder is an Executor's kept sandboxes.
type finder Executor

// Find implements backend.Finder.
func (f *finder) Find(ctx context.Context, id string) (backend.Sandbox, error) {
	ex := (*Executor)(f)
	fail := func(kind backend.Kind, err error) error {
		return &backend.Error{Op: "find", Kind: kind, Backend: driverName, Sandbox: id, Err: err}
	}
	if !backend.ValidID(id) {
		return nil, fail(backend.ErrNotFound, nil)
	}
	ex.mu.Lock()
	sb, ok := ex.boxes[id]
	closed := ex.closed
	ex.mu.Unlock()
	switch {
	case closed:
		return nil, fail(backend.ErrClosed, nil)
	case ok && !sb.keep:
		return nil, fail(backend.ErrNotFound, errors.New("it is not a kept one"))
	case ex.serr != nil:
		return nil, fail(backend.ErrUnavailable, ex.serr)
	}
	j, err := ex.store.Journal(ctx)
	if err != nil {
		return nil, err
	}
	rec, err := j.Get(ctx, id)
	if err == nil && (!rec.Ready || rec.Backend != driverName) {
		err = fail(backend.ErrNotFound, nil)
	}
	if err == nil && ok {
		err = sb.refresh(rec)
	}
	if ok && backend.KindOf(err) == backend.ErrNotFound {
		sb.forget() // another process, or its deadline, has ended it
	}
	if err != nil || ok {
		return sb, err
	}
	sb, err = ex.takeUp(ctx, rec)
	if err != nil {
		return nil, err
	}
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if other, ok := ex.boxes[id]; ok {
		sb.client.Close() //nolint:errcheck // somebody was faster
		return other, nil
	}
	ex.boxes[id] = sb
	return sb, nil
}

// refresh takes over what other processes did to a kept sandbox.
func (sb *Sandbox) refresh(rec state.Record) error {
	if err := agentLives(rec); err != nil {
		return err
	}
	sb.deadline.Store(rec.Deadline.UnixNano())
	sb.setPaused(rec.State == backend.StatePaused)
	return nil
}

// agentLives is ErrNotFound when the agent of a record has ended.
func agentLives(rec state.Record) error {
	if rec.BootID == state.BootID() {
		if fd, err := openProcess(rec.AgentPID, rec.AgentStart); err == nil {
			unix.Close(fd) //nolint:errcheck // nothing to do about it
			return nil
		}
	}
	return &backend.Error{Op: "find", Kind: backend.ErrNotFound, Backend: driverName, Sandbox: rec.ID, Err: errors.New("it has ended")}
}

// takeUp connects to a kept sandbox that the journal describes.
func (ex *Executor) takeUp(ctx context.Context, rec state.Record) (*Sandbox, error) {
	fail := func(kind backend.Kind, err error) error {
		return &backend.Error{Op: "find", Kind: kind, Backend: driverName, Sandbox: rec.ID, Err: err}
	}
	if err := agentLives(rec); err != nil {
		return nil, err
	}
	sb := &Sandbox{ex: ex, id: rec.ID, keep: true, pid: rec.AgentPID, start: rec.AgentStart, token: rec.Token, ended: make(chan struct{})}
	if err := json.Unmarshal(rec.Spec, &sb.spec); err != nil {
		return nil, fail(backend.ErrInternal, err)
	}
	if err := json.Unmarshal(rec.Receipt, &sb.receipt); err != nil {
		return nil, fail(backend.ErrInternal, err)
	}
	sb.kernel, sb.paused = sb.receipt.Kernel, rec.State == backend.StatePaused
	sb.deadline.Store(rec.Deadline.UnixNano())
	if len(rec.Cgroups) == 1 {
		sb.group = ex.host.groups.Find(rec.Cgroups[0])
	}
	sb.connect(dialer(rec.Socket))
	if sb.paused {
		return sb, nil
	}
	hctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if _, err := sb.client.Hello(hctx); err != nil {
		sb.client.Close() //nolint:errcheck // on the way out
		// One that was being destroyed just now.
		gctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if waitGone(gctx, sb.pid, sb.start) == nil {
			return nil, fail(backend.ErrNotFound, errors.New("it has ended"))
		}
		return nil, err
	}
	return sb, nil
}

// Sandboxes implements backend.Finder.
func (f *finder) Sandboxes(ctx context.Context) iter.Seq2[backend.Info, error] {
	ex := (*Executor)(f)
	return func(yield func(backend.Info, error) bool) {
		if ex.serr != nil {
			yield(backend.Info{}, ex.serr)
			return
		}
		live, err := ex.store.Live()
		if err != nil {
			yield(backend.Info{}, err)
			return
		}
		records := map[string]state.Record{}
		if j, err := ex.store.Journal(ctx); err == nil {
			list, err := j.List(ctx)
			if err != nil {
				yield(backend.Info{}, err)
				return
			}
			for _, r := range list {
				records[r.ID] = r
			}
		}
		for id, mark := range live {
			if mark.Backend != driverName {
				continue
			}
			info := backend.Info{ID: id, Backend: driverName, State: backend.StateRunning, Started: mark.Started, Isolation: ex.caps.Isolation, Network: backend.NetworkNone}
			if r, ok := records[id]; ok {
				var spec backend.Spec
				if json.Unmarshal(r.Spec, &spec) == nil {
					info.Template, info.Limits, info.Network = spec.Template, spec.Limits, spec.Network.Mode
				}
				info.State, info.Deadline, info.Labels, info.Keep = r.State, r.Deadline, r.Labels, true
			}
			if !yield(info, nil) {
				return
			}
		}
	}
}

// sweepEvery is how often what died without cleaning up is looked for.
const sweepEvery = 30 * time.Second

func (ex *Executor) sweepLoop(ctx context.Context) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		ex.Sweep(ctx) //nolint:errcheck // tried again; Create and doctor report what is wrong with the state
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Sweep removes what is left of this store's sandboxes whose owners are gone,
// and ends kept ones that are past their deadline. It is safe beside other
// processes' sweeps.
func (ex *Executor) Sweep(ctx context.Context) error {
	if ex.store == nil {
		return ex.serr
	}
	var errs []error
	// Groups first: one that is made meanwhile has its marker before itself.
	prefix := groupName(ex.store.ID(), "")
	groups := ex.host.groups.List(prefix)
	for mk, err := range ex.store.Dead() {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, ex.clean(ctx, mk))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	live, err := ex.store.Live()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, name := range groups {
		if _, ok := live[name[len(prefix):]]; !ok {
			errs = append(errs, ex.host.groups.Find(name).Remove(ctx))
		}
	}
	return errors.Join(append(errs, ex.overdue(ctx, live))...)
}

// clean removes what a dead sandbox's marker names.
func (ex *Executor) clean(ctx context.Context, mk *state.Marker) error {
	mark, err := mk.Content()
	if err == nil && mark.Backend != driverName {
		return mk.Close()
	}
	for _, p := range mark.Procs {
		if mark.BootID == state.BootID() {
			killProcess(p.PID, p.Start)
			if err := waitGone(ctx, p.PID, p.Start); err != nil {
				return errors.Join(err, mk.Close())
			}
		}
	}
	if ex.host.groups.Usable() {
		if err := ex.host.groups.Find(groupName(ex.store.ID(), mk.ID())).Remove(ctx); err != nil {
			return errors.Join(err, mk.Close())
		}
	}
	if err := tree.Remove(runDirOf(ex.store, mk.ID())); err != nil {
		return errors.Join(err, mk.Close())
	}
	if mark.Keep || err != nil {
		j, jerr := ex.store.Journal(ctx)
		if jerr != nil {
			return errors.Join(jerr, mk.Close())
		}
		if derr := j.Delete(ctx, mk.ID()); derr != nil && !errors.Is(derr, backend.ErrNotFound) {
			return errors.Join(derr, mk.Close())
		}
	}
	return mk.Release()
}

// overdue ends kept sandboxes whose agents have not ended them.
func (ex *Executor) overdue(ctx context.Context, live map[string]state.Mark) error {
	kept := false
	for _, m := range live {
		kept = kept || m.Keep && m.Backend == driverName
	}
	if !kept {
		return nil
	}
	j, err := ex.store.Journal(ctx)
	if err != nil {
		return err
	}
	records, err := j.List(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, r := range records {
		known[r.ID] = true
	}
	for id, m := range live {
		// One whose record was lost: nobody can find it, and while it is paused
		// it has no deadline of its own. Its processes are written down after
		// its record, so it is not one that is being made.
		if !m.Keep || m.Backend != driverName || m.BootID != state.BootID() || len(m.Procs) == 0 || known[id] {
			continue
		}
		ex.host.groups.Find(groupName(ex.store.ID(), id)).Kill()
		for _, p := range m.Procs {
			killProcess(p.PID, p.Start)
		}
	}
	const behind = 5 * time.Second
	for _, r := range records {
		if r.Backend != driverName || !r.Ready || r.Deadline.IsZero() || time.Since(r.Deadline) < behind || r.BootID != state.BootID() {
			continue
		}
		if len(r.Cgroups) == 1 {
			ex.host.groups.Find(r.Cgroups[0]).Kill()
		}
		killProcess(r.AgentPID, r.AgentStart)
	}
	return nil
}

var _ backend.Finder = (*finder)(nil)
