//go:build linux

package box

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// finder is an Executor's kept sandboxes.
type finder Executor

// Find implements backend.Finder.
func (f *finder) Find(ctx context.Context, id string) (backend.Sandbox, error) {
	ex := (*Executor)(f)
	fail := func(kind backend.Kind, err error) error {
		return &backend.Error{Op: "find", Kind: kind, Backend: ex.name, Sandbox: id, Err: err}
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
	if err == nil && (!rec.Ready || rec.Backend != ex.name) {
		err = fail(backend.ErrNotFound, nil)
	}
	if err == nil && ok {
		err = sb.refresh(rec)
	}
	if ok && backend.KindOf(err) == backend.ErrNotFound {
		sb.forget() // another process, or its deadline, has ended it
	}
	if err != nil {
		return nil, err
	}
	if ok {
		sb.network(ctx, rec)
		return sb, nil
	}
	return ex.adopt(ctx, rec)
}

// adopt takes up a sandbox that this Executor does not know yet.
func (ex *Executor) adopt(ctx context.Context, rec state.Record) (backend.Sandbox, error) {
	sb, err := ex.takeUp(ctx, rec)
	if err != nil {
		return nil, err
	}
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if other, ok := ex.boxes[rec.ID]; ok {
		sb.client.Close() //nolint:errcheck // somebody was faster
		sb.body.Leave()
		return other, nil
	}
	ex.boxes[rec.ID] = sb
	return sb, nil
}

// refresh takes over what other processes did to a kept sandbox.
func (sb *Sandbox) refresh(rec state.Record) error {
	if err := sb.ex.agentLives(rec); err != nil {
		return err
	}
	sb.deadline.Store(rec.Deadline.UnixNano())
	sb.setPaused(rec.State == backend.StatePaused)
	return nil
}

// agentLives is ErrNotFound when the agent of a record has ended.
func (ex *Executor) agentLives(rec state.Record) error {
	if rec.BootID == state.BootID() && Alive(procOf(rec)) {
		return nil
	}
	return &backend.Error{Op: "find", Kind: backend.ErrNotFound, Backend: ex.name, Sandbox: rec.ID, Err: errors.New("it has ended")}
}

func procOf(rec state.Record) state.Proc { return state.Proc{PID: rec.AgentPID, Start: rec.AgentStart} }

// takeUp connects to a kept sandbox that the journal describes.
func (ex *Executor) takeUp(ctx context.Context, rec state.Record) (*Sandbox, error) {
	fail := func(kind backend.Kind, err error) error {
		return &backend.Error{Op: "find", Kind: kind, Backend: ex.name, Sandbox: rec.ID, Err: err}
	}
	if err := ex.agentLives(rec); err != nil {
		return nil, err
	}
	sb := &Sandbox{ex: ex, id: rec.ID, keep: true, token: rec.Token, ended: make(chan struct{})}
	if err := json.Unmarshal(rec.Spec, &sb.spec); err != nil {
		return nil, fail(backend.ErrInternal, err)
	}
	if err := json.Unmarshal(rec.Receipt, &sb.receipt); err != nil {
		return nil, fail(backend.ErrInternal, err)
	}
	sb.user, sb.workdir = sb.receipt.User, sb.receipt.Dir
	sb.paused = rec.State == backend.StatePaused
	sb.deadline.Store(rec.Deadline.UnixNano())
	made, err := ex.driver.TakeUp(ctx, rec)
	if err != nil {
		return nil, err
	}
	sb.body = made.Body
	sb.connect(made.Dial)
	if sb.paused {
		return sb, nil
	}
	hctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	if _, err := sb.client.Hello(hctx); err != nil {
		sb.client.Close() //nolint:errcheck // on the way out
		sb.body.Leave()
		// One that was being destroyed just now.
		gctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if WaitGone(gctx, procOf(rec)) == nil {
			return nil, fail(backend.ErrNotFound, errors.New("it has ended"))
		}
		return nil, err
	}
	sb.network(ctx, rec)
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
			if mark.Backend != ex.name {
				continue
			}
			info := backend.Info{ID: id, Backend: ex.name, State: backend.StateRunning, Started: mark.Started, Isolation: ex.caps.Isolation, Network: backend.NetworkNone}
			if r, ok := records[id]; ok {
				describe(&info, r)
			}
			if !yield(info, nil) {
				return
			}
		}
	}
}

// describe puts what the journal says of a kept sandbox into info.
func describe(info *backend.Info, r state.Record) {
	var spec backend.Spec
	if json.Unmarshal(r.Spec, &spec) == nil {
		info.Template, info.Limits, info.Network = spec.Template, spec.Limits, spec.Network.Mode
	}
	var receipt backend.Receipt
	if json.Unmarshal(r.Receipt, &receipt) == nil && receipt.Sandbox != "" {
		info.Isolation = receipt.Achieved
	}
	info.State, info.Deadline, info.Labels, info.Keep = r.State, r.Deadline, r.Labels, true
}

var _ backend.Finder = (*finder)(nil)
