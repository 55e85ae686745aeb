package state

import "context"

// Exec runs SQL, for tests of what another program may have done.
func (j *Journal) Exec(ctx context.Context, query string) error {
	_, err := j.db.ExecContext(ctx, query)
	return err
}

// LeaseSlot takes one range of dir, nil when it is taken.
func LeaseSlot(dir string, slot int) (*UIDLease, error) { return lease(dir, slot) }
