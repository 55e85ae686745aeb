package subprocess

import (
	"context"
	"errors"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// pausedFor is how long a paused sandbox is kept.
const pausedFor = backend.MaxLifetime

// Pause implements backend.Pauser: everything in the sandbox, its agent
// included, is frozen in memory.
func (c *control) Pause(ctx context.Context, opts backend.PauseOptions) error {
	sb := (*Sandbox)(c)
	fail := func(kind backend.Kind, err error) error {
		return &backend.Error{Op: "pause", Kind: kind, Backend: driverName, Sandbox: sb.id, Err: err}
	}
	if err := sb.alive("pause"); err != nil {
		return err
	}
	if opts.FilesOnly {
		return fail(backend.ErrUnsupported, errors.New("files cannot be kept without memory"))
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.paused {
		return fail(backend.ErrConflict, errors.New("the sandbox is paused already"))
	}
	// A frozen agent cannot keep a deadline, and would find it long past.
	if err := sb.client.SetDeadline(ctx, 0); err != nil {
		return err
	}
	if err := sb.group.Freeze(ctx); err != nil {
		return errors.Join(fail(backend.ErrUnavailable, err), sb.group.Thaw(context.WithoutCancel(ctx)), sb.client.SetDeadline(context.WithoutCancel(ctx), sb.lifetime))
	}
	sb.paused = true
	sb.deadline.Store(time.Now().Add(pausedFor).UnixNano())
	if sb.expiry != nil {
		sb.expiry.Reset(pausedFor)
	}
	return sb.recordState(ctx, backend.StatePaused, time.Now().Add(pausedFor))
}

// Resume implements backend.Pauser.
func (c *control) Resume(ctx context.Context) error {
	sb := (*Sandbox)(c)
	if err := sb.alive("resume"); err != nil {
		return err
	}
	sb.mu.Lock()
	if !sb.paused {
		sb.mu.Unlock()
		return &backend.Error{
			Op: "resume", Kind: backend.ErrConflict, Backend: driverName, Sandbox: sb.id,
			Err: errors.New("the sandbox is not paused"),
		}
	}
	if err := sb.group.Thaw(ctx); err != nil {
		sb.mu.Unlock()
		return &backend.Error{Op: "resume", Kind: backend.ErrUnavailable, Backend: driverName, Sandbox: sb.id, Err: err}
	}
	sb.paused = false
	sb.mu.Unlock()
	if err := sb.recordState(ctx, backend.StateRunning, time.Now().Add(sb.lifetime)); err != nil {
		return err
	}
	return sb.setDeadline(ctx, sb.lifetime)
}

// recordState journals where a kept sandbox is in its life.
func (sb *Sandbox) recordState(ctx context.Context, s backend.State, deadline time.Time) error {
	if !sb.keep {
		return nil
	}
	j, err := sb.ex.store.Journal(ctx)
	if err != nil {
		return err
	}
	if err := j.SetState(ctx, sb.id, s); err != nil {
		return err
	}
	return j.SetDeadline(ctx, sb.id, deadline)
}
