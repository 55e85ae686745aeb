package state

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// Snapshot is a saved sandbox in the journal. It is there before its files are,
// and until they are gone.
type Snapshot struct {
	Name    string
	Backend string
	Sandbox string // that it was taken of
	Created time.Time
	Bytes   int64 // of its files
	// Ready: it can be used. One that is not is being made, or removed, by Maker;
	// without that it is to be removed.
	Ready  bool
	Maker  Proc
	BootID string // Maker's
	// Dir is the name of its directory below Store.SnapshotDir.
	Dir string
	// Spec is what the sandbox was, Detail what else whoever restores it must
	// know. Both are written with Ready.
	Spec, Detail json.RawMessage
}

// Alone tells whether nobody is at work on a snapshot that is not ready.
func (s Snapshot) Alone() bool {
	return !s.Ready && (s.BootID != BootID() || !s.Maker.runs())
}

// maxSnapshotName bounds a snapshot's name.
const maxSnapshotName = 64

// ValidSnapshotName tells whether a snapshot can be called so: lower-case
// letters, digits, dots, underscores and dashes, a letter or digit first.
func ValidSnapshotName(name string) bool {
	return len(name) <= maxSnapshotName && regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`).MatchString(name)
}

// SnapshotDir is the directory that snapshots' own directories lie in. It need
// not exist.
func (s *Store) SnapshotDir() string { return filepath.Join(s.dir, "snapshots") }

const snapshotTable = `CREATE TABLE snapshots (
	name TEXT PRIMARY KEY, backend TEXT NOT NULL, sandbox TEXT NOT NULL, created INTEGER NOT NULL, bytes INTEGER NOT NULL,
	ready INTEGER NOT NULL, maker_pid INTEGER NOT NULL, maker_start INTEGER NOT NULL, boot_id TEXT NOT NULL,
	dir TEXT NOT NULL UNIQUE, spec TEXT NOT NULL, detail TEXT NOT NULL
) STRICT`

const snapshotColumns = `name, backend, sandbox, created, bytes, ready, maker_pid, maker_start, boot_id, dir, spec, detail`

// PutSnapshot records a snapshot before it is made. One of its name that is
// there is ErrConflict.
func (j *Journal) PutSnapshot(ctx context.Context, s Snapshot) error {
	_, err := j.db.ExecContext(ctx, "INSERT INTO snapshots ("+snapshotColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		s.Name, s.Backend, s.Sandbox, unix(s.Created), s.Bytes, s.Ready, s.Maker.PID, int64(s.Maker.Start), s.BootID, s.Dir,
		string(s.Spec), string(s.Detail))
	return j.classify("put", s.Sandbox, err)
}

// ReadySnapshot says that a snapshot is made.
func (j *Journal) ReadySnapshot(ctx context.Context, s Snapshot) error {
	return j.updateSnapshot(ctx, "UPDATE snapshots SET ready = 1, bytes = ?, spec = ?, detail = ? WHERE name = ? AND dir = ?",
		s.Bytes, string(s.Spec), string(s.Detail), s.Name, s.Dir)
}

// ClaimSnapshot gives a snapshot over to a process that removes it: nobody uses
// it any more.
func (j *Journal) ClaimSnapshot(ctx context.Context, s Snapshot, by Proc) error {
	return j.updateSnapshot(ctx, "UPDATE snapshots SET ready = 0, maker_pid = ?, maker_start = ?, boot_id = ? WHERE name = ? AND dir = ?",
		by.PID, int64(by.Start), BootID(), s.Name, s.Dir)
}

func (j *Journal) updateSnapshot(ctx context.Context, query string, args ...any) error {
	res, err := j.db.ExecContext(ctx, query, args...)
	if err != nil {
		return j.classify("update", "", err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return j.classify("update", "", cmp.Or(err, sql.ErrNoRows))
	}
	return nil
}

// DeleteSnapshot forgets a snapshot whose files are gone. One that is not there
// is fine.
func (j *Journal) DeleteSnapshot(ctx context.Context, s Snapshot) error {
	_, err := j.db.ExecContext(ctx, "DELETE FROM snapshots WHERE name = ? AND dir = ?", s.Name, s.Dir)
	return j.classify("delete", "", err)
}

// Snapshot is the record of one.
func (j *Journal) Snapshot(ctx context.Context, name string) (Snapshot, error) {
	s, err := scanSnapshot(j.db.QueryRowContext(ctx, "SELECT "+snapshotColumns+" FROM snapshots WHERE name = ?", name).Scan)
	return s, j.classify("get", "", err)
}

// Snapshots is all of them, the oldest first.
func (j *Journal) Snapshots(ctx context.Context) ([]Snapshot, error) {
	rows, err := j.db.QueryContext(ctx, "SELECT "+snapshotColumns+" FROM snapshots ORDER BY created, name")
	if err != nil {
		return nil, j.classify("list", "", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err says it
	var all []Snapshot
	for rows.Next() {
		s, err := scanSnapshot(rows.Scan)
		if err != nil {
			return nil, j.classify("list", "", err)
		}
		all = append(all, s)
	}
	return all, j.classify("list", "", rows.Err())
}

func scanSnapshot(into func(dest ...any) error) (s Snapshot, err error) {
	var spec, detail string
	var created, start int64
	err = into(&s.Name, &s.Backend, &s.Sandbox, &created, &s.Bytes, &s.Ready, &s.Maker.PID, &start, &s.BootID, &s.Dir, &spec, &detail)
	if err != nil {
		return Snapshot{}, err
	}
	s.Created, s.Maker.Start = fromUnix(created), uint64(start)
	s.Spec, s.Detail = json.RawMessage(spec), json.RawMessage(detail)
	return s, nil
}

// Self is this process.
func Self() (Proc, error) {
	pid := os.Getpid()
	start, err := StartTime(pid)
	return Proc{PID: pid, Start: start}, err
}
