//go:build linux

package box

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

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
	ctx, cancel := CleanupContext()
	defer cancel()
	sb.disarm()
	if a, ok := sb.body.(Asker); ok {
		if sb.conn != nil {
			sb.conn.Close() //nolint:errcheck // it tells the agent
		}
		a.AskToEnd()
	}
	sb.body.Kill()
	disconnected := sb.disconnect()
	err := sb.body.Gone(ctx)
	ended := err == nil
	if rerr := sb.body.Remove(ctx); rerr != nil && err == nil {
		err = fmt.Errorf("remove what it was made of: %w", rerr)
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
		e := sb.error("destroy", backend.ErrUnavailable, err)
		e.Fix = "the sweep tries again"
		sb.derr = e
	}
	sb.ex.drop(sb.id)
}

// disarm stops the host's own end of the sandbox.
func (sb *Sandbox) disarm() {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.expiry != nil {
		sb.expiry.Stop()
		sb.expiry = nil
	}
}

// disconnect ends the connection to the agent, also one that no call has taken
// up yet. The channel is closed when nothing of the caller's is used any more.
func (sb *Sandbox) disconnect() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if sb.egress != nil {
			sb.egress.Close()
		}
		sb.client.Close() //nolint:errcheck // the agent is about to go
	}()
	if sb.conn != nil {
		sb.conn.Close() //nolint:errcheck // the same
	}
	return done
}

// release gives back what the sandbox held on the host.
func (sb *Sandbox) release(ctx context.Context) error {
	if err := tree.Remove(Dir(sb.ex.store, sb.id)); err != nil {
		return err
	}
	if sb.keep {
		sb.ex.keeper.Release(ctx, sb.id) //nolint:errcheck // it notices the sandbox's end too
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
	sb.disarm()
	sb.client.Close() //nolint:errcheck // the sandbox lives on
	sb.body.Leave()
	if sb.marker != nil {
		sb.marker.Close() //nolint:errcheck // whoever must be alive for it holds the lock
	}
	if sb.lease != nil {
		sb.lease.Close() //nolint:errcheck // the same
	}
	sb.ex.drop(sb.id)
}
