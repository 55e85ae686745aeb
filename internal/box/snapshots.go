//go:build linux

package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// snapshots is an Executor's backend.SnapshotStore.
type snapshots Executor

// Snapshots implements backend.SnapshotStore.
func (s *snapshots) Snapshots(ctx context.Context) iter.Seq2[backend.SnapshotInfo, error] {
	ex := (*Executor)(s)
	return func(yield func(backend.SnapshotInfo, error) bool) {
		all, err := ex.snapshotRecords(ctx)
		if err != nil {
			yield(backend.SnapshotInfo{}, err)
			return
		}
		for _, r := range all {
			if r.Backend != ex.name || !r.Ready {
				continue
			}
			var saved Saved
			info := backend.SnapshotInfo{Name: r.Name, Sandbox: r.Sandbox, Created: r.Created, Bytes: r.Bytes}
			if json.Unmarshal(r.Detail, &saved) == nil {
				info.FilesOnly = !saved.Memory
			}
			if !yield(info, nil) {
				return
			}
		}
	}
}

// snapshotRecords are all that the journal knows. None is opened for none.
func (ex *Executor) snapshotRecords(ctx context.Context) ([]state.Snapshot, error) {
	if ex.serr != nil {
		return nil, ex.serr
	}
	if _, err := os.Lstat(ex.store.SnapshotDir()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	j, err := ex.store.Journal(ctx)
	if err != nil {
		return nil, err
	}
	return j.Snapshots(ctx)
}

// DeleteSnapshot implements backend.SnapshotStore. It waits for sandboxes that
// are being made of it; those that were made go on.
func (s *snapshots) DeleteSnapshot(ctx context.Context, name string) error {
	ex := (*Executor)(s)
	fail := func(kind backend.Kind, err error) error {
		return &backend.Error{Op: "delete snapshot", Kind: kind, Backend: ex.name, Err: err}
	}
	if ex.serr != nil {
		return ex.serr
	}
	if !state.ValidSnapshotName(name) {
		return fail(backend.ErrNotFound, fmt.Errorf("there is no snapshot %.80q", name))
	}
	j, err := ex.store.Journal(ctx)
	if err != nil {
		return err
	}
	rec, err := j.Snapshot(ctx, name)
	if backend.KindOf(err) == backend.ErrNotFound || err == nil && (rec.Backend != ex.name || !rec.Ready) {
		return fail(backend.ErrNotFound, fmt.Errorf("there is no snapshot %q", name))
	}
	if err != nil {
		return err
	}
	self, err := state.Self()
	if err == nil {
		err = j.ClaimSnapshot(ctx, rec, self)
	}
	if err != nil {
		return err
	}
	if err := ex.removeSnapshot(ctx, j, rec); err != nil {
		back, cancel := CleanupContext() // the caller's may be over
		defer cancel()
		// The sweep goes on with it, this process's too.
		return errors.Join(fail(backend.ErrUnavailable, err), j.ClaimSnapshot(back, rec, state.Proc{})) //nolint:contextcheck // the same
	}
	return nil
}

// removeSnapshot removes one that nobody takes up any more.
func (ex *Executor) removeSnapshot(ctx context.Context, j *state.Journal, rec state.Snapshot) error {
	dir := filepath.Join(ex.store.SnapshotDir(), rec.Dir)
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err == nil {
		defer f.Close() //nolint:errcheck // with it the lock ends
		err = waitLock(ctx, f, unix.LOCK_EX)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return j.DeleteSnapshot(ctx, rec)
}

// sweepWait is how long a sweep waits for those who use what it removes.
const sweepWait = 5 * time.Second

// sweepSnapshots removes what was left of snapshots whose making or removal was
// cut off, and lets the sandboxes go on that stood still for it.
func (ex *Executor) sweepSnapshots(ctx context.Context) error {
	// What there is first: what is made meanwhile has its record before itself.
	dirs, err := os.ReadDir(ex.store.SnapshotDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	j, err := ex.store.Journal(ctx)
	if err != nil {
		return err
	}
	all, err := j.Snapshots(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sweepWait)
	defer cancel()
	var errs []error
	known := map[string]bool{}
	for _, r := range all {
		known[r.Dir] = true
		if r.Backend != ex.name || !r.Alone() {
			continue
		}
		ex.wake(ctx, j, r.Sandbox)
		errs = append(errs, ex.removeSnapshot(ctx, j, r))
	}
	for _, d := range dirs {
		if !known[d.Name()] {
			errs = append(errs, os.RemoveAll(filepath.Join(ex.store.SnapshotDir(), d.Name())))
		}
	}
	return errors.Join(errs...)
}

// wake lets a kept sandbox go on whose saver was killed. That one needs it not,
// or has ended, is fine.
func (ex *Executor) wake(ctx context.Context, j *state.Journal, id string) {
	rec, err := j.Get(ctx, id)
	if err != nil || !rec.Ready || rec.State != backend.StateRunning || ex.agentLives(rec) != nil {
		return
	}
	made, err := ex.driver.TakeUp(ctx, rec)
	if err != nil {
		return
	}
	if f, ok := made.Body.(Freezer); ok {
		f.Thaw(ctx) //nolint:errcheck // one that runs
	}
	made.Body.Leave()
	sb, err := ex.takeUp(ctx, rec)
	if err != nil {
		return
	}
	sb.client.SetDeadline(ctx, max(time.Until(rec.Deadline), time.Millisecond)) //nolint:errcheck // the host's own end is behind it
	sb.client.Close()                                                           //nolint:errcheck // the sandbox lives on
	sb.body.Leave()
}

var _ backend.SnapshotStore = (*snapshots)(nil)
