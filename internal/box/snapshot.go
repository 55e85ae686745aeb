//go:build linux

package box

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// snapshotTimeout bounds a snapshot, during which the sandbox stands still.
const snapshotTimeout = 2 * time.Minute

// Snapshot implements backend.Snapshotter. The sandbox stands still for it, and
// goes on as if nothing had been.
func (c *control) Snapshot(ctx context.Context, opts backend.SnapshotOptions) (string, error) {
	sb := (*Sandbox)(c)
	body, ok := sb.body.(Saver)
	if !ok {
		return "", sb.error("snapshot", backend.ErrUnsupported, nil)
	}
	if err := sb.usable("snapshot"); err != nil {
		return "", err
	}
	if err := sb.savable(opts); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	sb.life.Lock()
	defer sb.life.Unlock()
	if err := sb.usable("snapshot"); err != nil { // it may have been paused meanwhile
		return "", err
	}
	name, err := sb.ex.snapshot(ctx, sb, body, opts)
	if err != nil {
		return "", sb.snapshotError(ctx, err)
	}
	return name, nil
}

// savable refuses what can never be saved.
func (sb *Sandbox) savable(opts backend.SnapshotOptions) error {
	refuse := func(kind backend.Kind, field, why, fix string) error {
		e := sb.error("snapshot", kind, errors.New(why))
		e.Field, e.Fix = field, fix
		return e
	}
	switch {
	case opts.Name != "" && !state.ValidSnapshotName(opts.Name):
		return refuse(backend.ErrInvalid, "name", fmt.Sprintf("%.80q is no name for a snapshot", opts.Name),
			"use up to 64 lower-case letters, digits, dots, underscores and dashes, beginning with a letter or digit")
	case opts.FilesOnly:
		return nil
	case len(sb.spec.Mounts) > 0:
		return refuse(backend.ErrUnsupported, "mounts", "processes that use the host's files cannot be saved", "save the files only")
	case sb.spec.Network.Mode != backend.NetworkNone && sb.spec.Network.Mode != backend.NetworkAllowlist:
		return refuse(backend.ErrUnsupported, "network.mode", "processes with connections of their own cannot be saved", "save the files only, or use mode allowlist or none")
	}
	return nil
}

// snapshotError gives what went wrong its Kind.
func (sb *Sandbox) snapshotError(ctx context.Context, err error) error {
	if cerr := ctx.Err(); cerr != nil && !errors.Is(cerr, context.DeadlineExceeded) {
		return cerr
	}
	if _, ok := errors.AsType[*backend.Error](err); ok {
		return err
	}
	e := sb.error("snapshot", backend.ErrUnavailable, err)
	// A runtime tells in words.
	if errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), unix.ENOSPC.Error()) {
		e.Kind, e.Fix = backend.ErrCapacity, "free some space below "+sb.ex.store.Dir()+", or delete snapshots"
	}
	return e
}

func newSeam() wire.Seam {
	secret := func() string {
		b := make([]byte, 32)
		rand.Read(b)
		return hex.EncodeToString(b)
	}
	return wire.Seam{Take: secret(), Answer: secret()}
}

// snapshot saves sb. What was written is removed when that fails.
func (ex *Executor) snapshot(ctx context.Context, sb *Sandbox, body Saver, opts backend.SnapshotOptions) (_ string, err error) {
	j, err := ex.store.Journal(ctx)
	if err != nil {
		return "", err
	}
	self, err := state.Self()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(ex.store.SnapshotDir(), 0o700); err != nil {
		return "", err
	}
	rec := state.Snapshot{
		Name: opts.Name, Backend: ex.name, Sandbox: sb.id, Created: time.Now(), Maker: self, BootID: state.BootID(),
		Dir: strings.ToLower(rand.Text()),
	}
	if rec.Name == "" {
		rec.Name = "snap-" + strings.ToLower(rand.Text())[:12]
	}
	if err := j.PutSnapshot(ctx, rec); err != nil {
		if backend.KindOf(err) == backend.ErrConflict {
			e := sb.error("snapshot", backend.ErrConflict, fmt.Errorf("there is a snapshot %q already", rec.Name))
			e.Field, e.Fix = "name", "delete it, or choose another name"
			return "", e
		}
		return "", err
	}
	dir := filepath.Join(ex.store.SnapshotDir(), rec.Dir)
	defer func() { //nolint:contextcheck // the caller's may be over
		if err != nil {
			back, cancel := CleanupContext()
			defer cancel()
			if os.RemoveAll(dir) == nil { // else the sweep tries again
				j.DeleteSnapshot(back, rec) //nolint:errcheck // the same
			}
		}
	}()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	s := Saved{Dir: dir, Memory: !opts.FilesOnly}
	if err := sb.save(ctx, body, &s); err != nil {
		return "", err
	}
	if rec.Bytes, err = s.seal(); err != nil {
		return "", err
	}
	if rec.Detail, err = json.Marshal(&s); err != nil {
		return "", err
	}
	if rec.Spec, err = json.Marshal(sb.spec); err != nil {
		return "", err
	}
	return rec.Name, j.ReadySnapshot(ctx, rec)
}

// save has the body write itself into s. The agent's deadline is put off: a copy
// must not wake up at its end.
func (sb *Sandbox) save(ctx context.Context, body Saver, s *Saved) (err error) {
	lock, err := sb.lockLife(ctx)
	if err != nil {
		return err
	}
	if lock != nil {
		defer lock.Close() //nolint:errcheck // with it the lock ends
	}
	if s.Memory {
		s.Seam = newSeam()
		if err := sb.client.Seam(ctx, s.Seam); err != nil {
			return err
		}
	}
	if err := sb.client.SetDeadline(ctx, 0); err != nil {
		return err
	}
	s.Detail, err = body.Save(ctx, s.Dir, s.Memory, sb.spec)
	back, cancel := CleanupContext() // the caller's may be over
	defer cancel()
	return errors.Join(err, sb.client.SetDeadline(back, max(time.Until(time.Unix(0, sb.deadline.Load())), time.Millisecond))) //nolint:contextcheck // the same
}

// lockLife waits until no other process pauses or saves a kept sandbox; nil for
// a bound one, which others do not find.
func (sb *Sandbox) lockLife(ctx context.Context) (*os.File, error) {
	if !sb.keep {
		return nil, nil //nolint:nilnil // documented
	}
	f, err := os.OpenFile(filepath.Join(Dir(sb.ex.store, sb.id), "life.lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, sb.error("snapshot", backend.ErrNotFound, err)
	}
	if err := waitLock(ctx, f, unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// waitLock locks f, waiting for others until ctx ends.
func waitLock(ctx context.Context, f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var _ backend.Snapshotter = (*control)(nil)
