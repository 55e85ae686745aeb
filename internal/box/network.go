//go:build linux

package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/keeper"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// proxied tells whether a network is had through our proxy.
func proxied(n backend.Network) bool { return n.Mode == backend.NetworkAllowlist }

// lookAtNetwork refuses a network that could not be given: secrets that are not
// there, for one.
func (ex *Executor) lookAtNetwork(spec backend.Spec) error {
	if !proxied(spec.Network) {
		return nil
	}
	return ex.networkError(egress.Check(spec))
}

func (ex *Executor) networkError(err error) error {
	if be, ok := errors.AsType[*backend.Error](err); ok {
		e := *be
		e.Backend = ex.name
		return &e
	}
	return err
}

// hand gives the keeper what a kept sandbox needs of its host. It counts once
// the sandbox is ready.
func (b *Birth) hand(ctx context.Context, made *Made) error {
	if !b.Spec.Keep || made.Stream == nil && !proxied(b.Spec.Network) {
		return nil
	}
	held := keeper.Held{ID: b.ID, Proc: made.Proc, Stream: made.Stream, Token: b.Token, Socket: b.socket}
	if proxied(b.Spec.Network) {
		var err error
		if held.Secrets, err = egress.Secrets(b.Spec); err != nil {
			return err
		}
		held.Network = b.Spec.Network
	}
	h, err := b.ex.keeper.Hold(ctx, held)
	if made.Stream != nil {
		for _, f := range made.Stream.Files {
			f.Close() //nolint:errcheck // the keeper has its own
		}
	}
	if err != nil {
		return err
	}
	b.holding = h
	b.Undo(func() { //nolint:contextcheck // an undo outlives the caller's context
		ctx, cancel := CleanupContext()
		defer cancel()
		h.Close()                      //nolint:errcheck // it lets go in any case
		b.ex.keeper.Release(ctx, b.ID) //nolint:errcheck // it notices the sandbox's end too
	})
	if made.Stream != nil {
		made.Dial = Dialer(filepath.Join(b.Dir, b.socket))
	}
	return nil
}

// openNetwork runs the proxy of a bound sandbox in this process.
func (b *Birth) openNetwork(ctx context.Context, sb *Sandbox) error {
	if b.Spec.Keep || !proxied(b.Spec.Network) {
		return nil
	}
	secrets, err := egress.Secrets(b.Spec)
	if err != nil {
		return err
	}
	sb.egress, err = keeper.StartEgress(ctx, keeper.EgressOptions{
		Sandbox: b.ID, Token: b.Token, Network: b.Spec.Network, Secrets: secrets, Audit: b.Dir, Transport: sb.transport,
	})
	if err == nil {
		b.Undo(sb.egress.Close)
	}
	return err
}

// reopenNetwork has a kept sandbox's network held again after the keeper that
// did has gone. Its secrets are resolved here and now: env: references are this
// process's.
func (ex *Executor) reopenNetwork(ctx context.Context, rec state.Record) error {
	var spec backend.Spec
	if err := json.Unmarshal(rec.Spec, &spec); err != nil || !proxied(spec.Network) || rec.State != backend.StateRunning {
		return err
	}
	if held, err := ex.keeper.Holds(ctx, rec.ID); held || err != nil {
		return err
	}
	if err := ex.agentLives(rec); err != nil {
		return nil //nolint:nilerr // somebody else cleans up
	}
	socket, err := filepath.Rel(Dir(ex.store, rec.ID), rec.Socket)
	if err != nil {
		return err
	}
	secrets, err := egress.Secrets(spec)
	if err != nil {
		return ex.networkError(err)
	}
	h, err := ex.keeper.Hold(ctx, keeper.Held{
		ID: rec.ID, Proc: procOf(rec), Token: rec.Token, Socket: socket, Network: spec.Network, Secrets: secrets,
	})
	switch backend.KindOf(err) {
	case "":
		return h.Commit(ctx)
	case backend.ErrConflict, backend.ErrNotFound: // somebody was faster; it has ended
		return nil
	default:
		return err
	}
}

// network makes sure of the network of a sandbox that was found. Without it
// the sandbox is still of use, so its receipt says what is wrong.
func (sb *Sandbox) network(ctx context.Context, rec state.Record) {
	if err := sb.ex.reopenNetwork(ctx, rec); err != nil {
		w := fmt.Sprintf("the network is closed: %v", err)
		sb.mu.Lock()
		defer sb.mu.Unlock()
		if !slices.Contains(sb.receipt.Warnings, w) {
			sb.receipt.Warnings = append(slices.Clip(sb.receipt.Warnings), w)
		}
	}
}

// SetNetwork implements backend.NetworkUpdater.
func (c *control) SetNetwork(ctx context.Context, n backend.Network) error {
	sb := (*Sandbox)(c)
	if err := sb.usable("network"); err != nil {
		return err
	}
	sb.networking.Lock()
	defer sb.networking.Unlock()
	now := sb.spec.Network.Mode
	if n.Mode == "" {
		n.Mode = backend.NetworkNone
	}
	if n.Mode != backend.NetworkNone && n.Mode != now {
		e := sb.error("network", backend.ErrDenied, fmt.Errorf("the mode cannot go from %s to %s", now, n.Mode))
		e.Field, e.Fix = "network.mode", "make another sandbox"
		return e
	}
	spec := sb.spec
	spec.Network = n
	if err := egress.Check(spec); err != nil {
		return sb.ex.networkError(err)
	}
	secrets, err := egress.Secrets(spec)
	if err != nil {
		return sb.ex.networkError(err)
	}
	if sb.keep {
		err = sb.ex.setKept(ctx, sb.id, spec, secrets)
	} else {
		err = sb.egress.Update(n, secrets) //nolint:contextcheck // a change once begun is made
	}
	if err == nil {
		sb.spec.Network = n
	}
	return err
}

// setKept replaces the rules of a kept sandbox: first for whoever takes it up
// later, so that old rules never come back.
func (ex *Executor) setKept(ctx context.Context, id string, spec backend.Spec, secrets map[backend.SecretRef]string) error {
	j, err := ex.store.Journal(ctx)
	if err != nil {
		return err
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := j.SetSpec(ctx, id, data); err != nil {
		return err
	}
	err = ex.keeper.SetNetwork(ctx, id, spec.Network, secrets)
	if backend.KindOf(err) != backend.ErrNotFound {
		return ex.networkError(err)
	}
	rec, err := j.Get(ctx, id)
	if err != nil {
		return err
	}
	return ex.reopenNetwork(ctx, rec)
}

var _ backend.NetworkUpdater = (*control)(nil)
