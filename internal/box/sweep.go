//go:build linux

package box

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

// sweepEvery is how often what died without cleaning up is looked for.
const sweepEvery = 30 * time.Second

// sweepGrace is how long Close waits for a sweep.
const sweepGrace = 10 * time.Second

func (ex *Executor) sweepLoop(ctx context.Context) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		ex.Sweep(ctx) //nolint:errcheck // tried again; Create and doctor report what is wrong with the state
		select {
		case <-ex.done:
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
	// What there is first: what is made meanwhile has its marker before itself.
	found, err := ex.driver.Orphans(ctx)
	errs = append(errs, err)
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
	if os.Geteuid() == 0 {
		errs = append(errs, state.TidyUIDs(""))
	}
	for _, id := range found {
		if _, ok := live[id]; !ok {
			errs = append(errs, ex.driver.Clean(ctx, id, state.Mark{Backend: ex.name}))
		}
	}
	return errors.Join(append(errs, ex.overdue(ctx, live), ex.sweepSnapshots(ctx))...)
}

// clean removes what a dead sandbox's marker names.
func (ex *Executor) clean(ctx context.Context, mk *state.Marker) error {
	mark, err := mk.Content()
	if err == nil && mark.Backend != ex.name {
		return mk.Close()
	}
	for _, p := range mark.Procs {
		if mark.BootID == state.BootID() && Alive(p) {
			// Not the process alone: one that is frozen would not die.
			ex.kill(ctx, state.Record{ID: mk.ID(), Backend: ex.name, AgentPID: p.PID, AgentStart: p.Start, BootID: mark.BootID, Cgroups: mark.Cgroups})
			if err := WaitGone(ctx, p); err != nil {
				return errors.Join(err, mk.Close())
			}
		}
	}
	if err := ex.driver.Clean(ctx, mk.ID(), mark); err != nil {
		return errors.Join(err, mk.Close())
	}
	if err := tree.Remove(Dir(ex.store, mk.ID())); err != nil {
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
		kept = kept || m.Keep && m.Backend == ex.name
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
		if !m.Keep || m.Backend != ex.name || m.BootID != state.BootID() || len(m.Procs) == 0 || known[id] {
			continue
		}
		ex.kill(ctx, state.Record{ID: id, Backend: ex.name, AgentPID: m.Procs[0].PID, AgentStart: m.Procs[0].Start, BootID: m.BootID, Cgroups: m.Cgroups})
	}
	const behind = 5 * time.Second
	for _, r := range records {
		if r.Backend != ex.name || !r.Ready || r.Deadline.IsZero() || time.Since(r.Deadline) < behind || r.BootID != state.BootID() {
			continue
		}
		ex.kill(ctx, r)
	}
	for _, r := range records {
		if _, alive := live[r.ID]; alive && r.Backend == ex.name && r.Ready && r.BootID == state.BootID() {
			ex.reopenNetwork(ctx, r) //nolint:errcheck // Find says what is wrong
		}
	}
	return nil
}

// kill ends what a record describes.
func (ex *Executor) kill(ctx context.Context, rec state.Record) {
	if made, err := ex.driver.TakeUp(ctx, rec); err == nil {
		made.Body.Kill()
		made.Body.Leave()
	}
	KillProcess(procOf(rec))
}
