package engine

import (
	"context"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/glovebox-dev/glovebox/backend"
)

const (
	// asksAgain is how often a wait that hears nothing asks for the state: a
	// daemon that hangs keeps the connection, and ends no wait.
	asksAgain = 30 * time.Second
	// retryMin and retryMax bound the pauses while the daemon is away.
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
)

// Ending is how a Watch ended.
type Ending struct {
	// State is the container's when it had ended; its zero value when it was
	// removed.
	State State
	// Err is not_found when the container was removed, and the context's error
	// when that ended first.
	Err error
}

// Watch waits for a container's end in the background, however often the
// daemon goes away meanwhile: it sends one Ending and closes the channel. It
// ends with ctx. A container that was never started has not ended.
func (e *Engine) Watch(ctx context.Context, id string) <-chan Ending {
	out := make(chan Ending, 1)
	go func() {
		defer close(out)
		state, err := e.Wait(ctx, id)
		out <- Ending{State: state, Err: err}
	}()
	return out
}

// Wait is Watch for those who have nothing else to do.
func (e *Engine) Wait(ctx context.Context, id string) (State, error) {
	pause := retryMin
	for {
		asked := time.Now()
		e.waitOnce(ctx, id)
		if ctx.Err() != nil {
			return State{}, ctx.Err()
		}
		// The state decides, not the wait's own answer: that can be cut off.
		state, err := e.Inspect(ctx, id)
		switch {
		case err == nil && state.Ended(), backend.KindOf(err) == backend.ErrNotFound, backend.KindOf(err) == backend.ErrInvalid:
			return state, err
		case ctx.Err() != nil:
			return State{}, ctx.Err()
		case time.Since(asked) > retryMax:
			pause = retryMin
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, retryMax)
		case <-ctx.Done():
			return State{}, ctx.Err()
		}
	}
}

// waitOnce returns when the container may have ended, or after a while.
func (e *Engine) waitOnce(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, asksAgain)
	defer cancel()
	if e.alive(ctx, false) != nil || !nameForm.MatchString(id) {
		return
	}
	// Next exit would miss one that has ended already, and not running counts
	// one that was not started; the state tells them apart.
	ended, failed := e.api.ContainerWait(ctx, id, container.WaitConditionNotRunning)
	select {
	case <-ended:
	case <-failed: //nolint:errcheck // the state decides
	case <-ctx.Done():
		// The SDK's goroutine hands over one or the other, also now.
		select {
		case <-ended:
		case <-failed: //nolint:errcheck // as above
		}
	}
}
