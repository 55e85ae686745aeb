//go:build linux

package box

import (
	"context"
	"errors"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// pausedFor is how long a paused sandbox is kept.
const pausedFor = backend.MaxLifetime

// pauseTimeout bounds a pause or resume, however long its caller would wait.
const pauseTimeout = 30 * time.Second

// Pause implements backend.Pauser: everything in the sandbox, its agent
// included, is frozen in memory.
func (c *control) Pause(ctx context.Context, opts backend.PauseOptions) error {
	sb := (*Sandbox)(c)
	fail := func(kind backend.Kind, err error) error { return sb.error("pause", kind, err) }
	body, ok := sb.body.(Freezer)
	if !ok {
		return fail(backend.ErrUnsupported, nil)
	}
	if err := sb.alive("pause"); err != nil {
		return err
	}
	if opts.FilesOnly {
		return fail(backend.ErrUnsupported, errors.New("files cannot be kept without memory"))
	}
	ctx, cancel := context.WithTimeout(ctx, pauseTimeout)
	defer cancel()
	sb.life.Lock()
	defer sb.life.Unlock()
	if sb.isPaused() {
		return fail(backend.ErrConflict, errors.New("the sandbox is paused already"))
	}
	lock, err := sb.lockLife(ctx)
	if err != nil {
		return err
	}
	if lock != nil {
		defer lock.Close() //nolint:errcheck // with it the lock ends
	}
	// A frozen agent cannot keep a deadline, and would find it long past.
	if err := sb.client.SetDeadline(ctx, 0); err != nil {
		return err
	}
	if err := body.Freeze(ctx); err != nil {
		back, cancel := CleanupContext() // the caller's may be over
		defer cancel()
		return errors.Join(fail(backend.ErrUnavailable, err), body.Thaw(back), sb.client.SetDeadline(back, sb.spec.Lifetime)) //nolint:contextcheck // the same
	}
	sb.deadline.Store(time.Now().Add(pausedFor).UnixNano())
	sb.setPaused(true)
	return sb.recordState(ctx, backend.StatePaused, time.Now().Add(pausedFor))
}

// setPaused notes that the sandbox is or is not frozen, and puts off the host's
// own end of a frozen one.
func (sb *Sandbox) setPaused(paused bool) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.paused = paused
	if paused && sb.expiry != nil && !sb.closed.Load() {
		sb.expiry.Reset(pausedFor)
	}
}

func (sb *Sandbox) isPaused() bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.paused
}

// Resume implements backend.Pauser.
func (c *control) Resume(ctx context.Context) error {
	sb := (*Sandbox)(c)
	if err := sb.alive("resume"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pauseTimeout)
	defer cancel()
	sb.life.Lock()
	defer sb.life.Unlock()
	if !sb.isPaused() {
		return sb.error("resume", backend.ErrConflict, errors.New("the sandbox is not paused"))
	}
	body, ok := sb.body.(Freezer)
	if !ok {
		return sb.error("resume", backend.ErrUnsupported, nil)
	}
	if err := body.Thaw(ctx); err != nil {
		return sb.error("resume", backend.ErrUnavailable, err)
	}
	sb.setPaused(false)
	if err := sb.recordState(ctx, backend.StateRunning, time.Now().Add(sb.spec.Lifetime)); err != nil {
		return err
	}
	return sb.setDeadline(ctx, sb.spec.Lifetime)
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
