//go:build linux

package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/keeper"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// proxied tells whether a network is decided on by our process. Where nothing is
// contained mode full is the host's own network.
func (ex *Executor) proxied(n backend.Network) bool {
	return n.Mode == backend.NetworkAllowlist || n.Mode == backend.NetworkFull && ex.caps.Isolation > backend.IsolationNone
}

// lookAtNetwork refuses a network that could not be given: secrets that are not
// there, for one.
func (ex *Executor) lookAtNetwork(spec backend.Spec) error {
	if !ex.proxied(spec.Network) {
		return nil
	}
	return ex.networkError(egress.Check(spec))
}

// adviseNetwork says, with a refusal of a network's mode, what the driver knows
// of why this host has no such one.
func (ex *Executor) adviseNetwork(mode backend.NetworkMode, err error) error {
	d, ok := ex.driver.(NetworkAdviser)
	be, is := errors.AsType[*backend.Error](err)
	if !ok || !is || be.Field != "network.mode" {
		return err
	}
	why, fix := d.AdviseNetwork(mode)
	if why == "" {
		return err
	}
	e := *be
	e.Err, e.Fix = fmt.Errorf("mode %s cannot be given: %s", mode, why), fix
	return &e
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
	if !b.Spec.Keep || made.Stream == nil && !b.ex.proxied(b.Spec.Network) {
		return nil
	}
	held := keeper.Held{ID: b.ID, Proc: made.Proc, Stream: made.Stream, Token: b.Token, Socket: b.socket}
	if b.ex.proxied(b.Spec.Network) {
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
		made.Dial = unixsock.Dialer(filepath.Join(b.Dir, b.socket))
	}
	return nil
}

// openNetwork runs the proxy of a bound sandbox in this process.
func (b *Birth) openNetwork(ctx context.Context, sb *Sandbox) error {
	if b.Spec.Keep || !b.ex.proxied(b.Spec.Network) {
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
	if err := json.Unmarshal(rec.Spec, &spec); err != nil || !ex.proxied(spec.Network) || rec.State != backend.StateRunning {
		return err
	}
	if held, err := ex.keeper.Holds(ctx, rec.ID); held || err != nil {
		return err
	}
	return ex.syncNetwork(ctx, rec.ID)
}

// syncNetwork has the keeper decide by the rules of the journal, holding the
// sandbox anew if need be.
//
// Security: whoever does so, in whatever process, reads the rules and gives them
// while nobody else can: otherwise the slower of two could bring rules back that
// were replaced meanwhile.
func (ex *Executor) syncNetwork(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	j, err := ex.store.Journal(ctx)
	if err != nil {
		return err
	}
	lock, err := ex.lockNetwork(ctx, id)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // with it the lock ends
	rec, err := j.Get(ctx, id)
	if err == nil {
		err = ex.agentLives(rec)
	}
	if err != nil {
		return err
	}
	return ex.networkError(ex.giveNetwork(ctx, rec))
}

// lockNetwork waits until nobody else gives a sandbox its rules.
func (ex *Executor) lockNetwork(ctx context.Context, id string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(Dir(ex.store, id), "network.lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &backend.Error{Op: "network", Kind: backend.ErrNotFound, Backend: ex.name, Sandbox: id, Err: errors.New("it has ended")}
	}
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		}
	}
}

// giveNetwork has the keeper decide by rec.
func (ex *Executor) giveNetwork(ctx context.Context, rec state.Record) error {
	var spec backend.Spec
	if err := json.Unmarshal(rec.Spec, &spec); err != nil {
		return err
	}
	socket, err := filepath.Rel(Dir(ex.store, rec.ID), rec.Socket)
	if err != nil {
		return err
	}
	secrets, err := egress.Secrets(spec)
	if err != nil {
		return err
	}
	for {
		err := ex.keeper.SetNetwork(ctx, rec.ID, spec.Network, secrets)
		if backend.KindOf(err) != backend.ErrNotFound || !ex.proxied(spec.Network) {
			return ignore(err, backend.ErrNotFound)
		}
		h, err := ex.keeper.Hold(ctx, keeper.Held{
			ID: rec.ID, Proc: procOf(rec), Token: rec.Token, Socket: socket, Network: spec.Network, Secrets: secrets,
		})
		if err == nil {
			return h.Commit(ctx)
		}
		if backend.KindOf(err) != backend.ErrConflict {
			return err
		}
		// Somebody is about to hold it, by rules that may be older.
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ignore is err unless it is of a kind.
func ignore(err error, kind backend.Kind) error {
	if backend.KindOf(err) == kind {
		return nil
	}
	return err
}

// network makes sure of the network of a sandbox that was found. Without it
// the sandbox is still of use, so its receipt says what is wrong.
func (sb *Sandbox) network(ctx context.Context, rec state.Record) {
	if err := ignore(sb.ex.reopenNetwork(ctx, rec), backend.ErrNotFound); err != nil {
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
	if err := sb.refreshNetwork(ctx); err != nil {
		return err
	}
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
		err = sb.ex.setKept(ctx, sb.id, spec)
	} else {
		err = sb.egress.Update(n, secrets) //nolint:contextcheck // a change once begun is made
	}
	if err == nil {
		sb.spec.Network = n
	}
	return err
}

// refreshNetwork takes over the rules that another process gave a kept sandbox.
func (sb *Sandbox) refreshNetwork(ctx context.Context) error {
	if !sb.keep {
		return nil
	}
	j, err := sb.ex.store.Journal(ctx)
	if err != nil {
		return err
	}
	rec, err := j.Get(ctx, sb.id)
	if err != nil {
		return err
	}
	var spec backend.Spec
	if err := json.Unmarshal(rec.Spec, &spec); err != nil {
		return err
	}
	sb.spec.Network = spec.Network
	return nil
}

// setKept replaces the rules of a kept sandbox: first for whoever takes it up
// later, so that old rules never come back.
func (ex *Executor) setKept(ctx context.Context, id string, spec backend.Spec) error {
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
	return ex.syncNetwork(ctx, id)
}

var _ backend.NetworkUpdater = (*control)(nil)
