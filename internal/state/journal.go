package state

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/glovebox-dev/glovebox/backend"
)

// Record is a kept sandbox in the journal: what another process needs to take
// it up again or to end it.
type Record struct {
	ID       string
	Backend  string
	Spec     json.RawMessage
	Labels   map[string]string
	Created  time.Time
	Deadline time.Time // zero: none, as while it is paused
	State    backend.State
	Ready    bool // false: its creator has not finished, and it ends with that

	Socket     string // the agent's, on the host
	AgentPID   int
	AgentStart uint64 // see StartTime
	BootID     string
	Token      string // the agent's access token, a secret
	Cgroups    []string
	Receipt    json.RawMessage
}

// Journal is the store's database. It is safe for concurrent use, by any
// number of processes. Errors are *backend.Error: ErrNotFound, ErrConflict,
// ErrCapacity for a full disk, ErrUnavailable when another process holds it
// too long, ErrInternal when it is damaged, with the fix.
type Journal struct {
	db   *sql.DB
	path string
}

// migrations bring a database from one version to the next. They only add, so
// that an older program can use a newer database.
func migrations() []string {
	return []string{
		`CREATE TABLE sandboxes (
			id TEXT PRIMARY KEY, backend TEXT NOT NULL, spec TEXT NOT NULL, labels TEXT NOT NULL,
			created INTEGER NOT NULL, deadline INTEGER NOT NULL, state TEXT NOT NULL, ready INTEGER NOT NULL,
			socket TEXT NOT NULL, agent_pid INTEGER NOT NULL, agent_start INTEGER NOT NULL, boot_id TEXT NOT NULL,
			token TEXT NOT NULL, cgroups TEXT NOT NULL, receipt TEXT NOT NULL
		) STRICT`,
		snapshotTable,
	}
}

// Journal opens the database at first use; later calls return the same one,
// which Store.Close closes.
func (s *Store) Journal(ctx context.Context) (*Journal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, &backend.Error{Op: "journal", Kind: backend.ErrClosed}
	}
	if s.journal != nil {
		return s.journal, nil
	}
	j, err := openJournal(ctx, filepath.Join(s.dir, journalFile))
	if err != nil {
		return nil, err
	}
	s.journal = j
	return j, nil
}

func openJournal(ctx context.Context, path string) (*Journal, error) {
	// SQLite gives its other files the mode of this one.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|noFollow, 0o600)
	if err != nil {
		return nil, diskError("open the journal", path, err)
	}
	err = secureFile(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	dsn := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: url.Values{
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(NORMAL)"},
		"_txlock": {"immediate"},
	}.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // more would only wait for one another
	j := &Journal{db: db, path: path}
	if err := j.migrate(ctx); err != nil {
		db.Close() //nolint:errcheck // the other error says more
		return nil, j.classify("open", "", err)
	}
	return j, nil
}

func (j *Journal) migrate(ctx context.Context) error {
	steps := migrations()
	var version int
	if err := j.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil || version >= len(steps) {
		return err
	}
	tx, err := j.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	// Another process may have been faster.
	if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	for ; version < len(steps); version++ {
		if _, err := tx.ExecContext(ctx, steps[version]); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version)); err != nil {
		return err
	}
	return tx.Commit()
}

// Put records a sandbox before it is made. One that is there is ErrConflict.
// A Record without a State is StateCreating.
func (j *Journal) Put(ctx context.Context, r Record) error {
	if !backend.ValidID(r.ID) {
		return invalidID(r.ID)
	}
	labels, err := json.Marshal(r.Labels)
	if err != nil {
		return j.classify("put", r.ID, err)
	}
	cgroups, err := json.Marshal(r.Cgroups)
	if err != nil {
		return j.classify("put", r.ID, err)
	}
	_, err = j.db.ExecContext(ctx, `INSERT INTO sandboxes (id, backend, spec, labels, created, deadline, state, ready,
		socket, agent_pid, agent_start, boot_id, token, cgroups, receipt)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.ID, r.Backend, string(r.Spec), string(labels), unix(r.Created), unix(r.Deadline),
		string(cmp.Or(r.State, backend.StateCreating)), r.Ready, r.Socket, r.AgentPID, int64(r.AgentStart),
		r.BootID, r.Token, string(cgroups), string(r.Receipt))
	return j.classify("put", r.ID, err)
}

// Ready says that a sandbox is made: from now on it outlives its creator. The
// agent's process and the receipt, known only now, are recorded with it.
func (j *Journal) Ready(ctx context.Context, id string, agentPID int, agentStart uint64, receipt json.RawMessage) error {
	return j.update(ctx, id, "ready = 1, state = ?, agent_pid = ?, agent_start = ?, receipt = ?",
		string(backend.StateRunning), agentPID, int64(agentStart), string(receipt))
}

// SetDeadline moves a sandbox's end; the zero time is none.
func (j *Journal) SetDeadline(ctx context.Context, id string, deadline time.Time) error {
	return j.update(ctx, id, "deadline = ?", unix(deadline))
}

// SetSpec replaces what a sandbox was asked for.
func (j *Journal) SetSpec(ctx context.Context, id string, spec json.RawMessage) error {
	return j.update(ctx, id, "spec = ?", string(spec))
}

// SetState records a sandbox's state.
func (j *Journal) SetState(ctx context.Context, id string, state backend.State) error {
	return j.update(ctx, id, "state = ?", string(state))
}

func (j *Journal) update(ctx context.Context, id, set string, args ...any) error {
	if !backend.ValidID(id) {
		return invalidID(id)
	}
	res, err := j.db.ExecContext(ctx, "UPDATE sandboxes SET "+set+" WHERE id = ?", append(args, id)...) //nolint:gosec // set is ours
	if err != nil {
		return j.classify("update", id, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return j.classify("update", id, cmp.Or(err, sql.ErrNoRows))
	}
	return nil
}

// Delete forgets a sandbox. One that is not there is fine.
func (j *Journal) Delete(ctx context.Context, id string) error {
	_, err := j.db.ExecContext(ctx, "DELETE FROM sandboxes WHERE id = ?", id)
	return j.classify("delete", id, err)
}

const columns = `id, backend, spec, labels, created, deadline, state, ready, socket, agent_pid, agent_start,
	boot_id, token, cgroups, receipt`

// Get is the record of a sandbox.
func (j *Journal) Get(ctx context.Context, id string) (Record, error) {
	r, err := scan(j.db.QueryRowContext(ctx, "SELECT "+columns+" FROM sandboxes WHERE id = ?", id).Scan)
	return r, j.classify("get", id, err)
}

// List is all records, the oldest first.
func (j *Journal) List(ctx context.Context) ([]Record, error) {
	rows, err := j.db.QueryContext(ctx, "SELECT "+columns+" FROM sandboxes ORDER BY created, id")
	if err != nil {
		return nil, j.classify("list", "", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err says it
	var records []Record
	for rows.Next() {
		r, err := scan(rows.Scan)
		if err != nil {
			return nil, j.classify("list", "", err)
		}
		records = append(records, r)
	}
	return records, j.classify("list", "", rows.Err())
}

func scan(into func(dest ...any) error) (r Record, err error) {
	var spec, labels, cgroups, receipt string
	var created, deadline, start int64
	err = into(&r.ID, &r.Backend, &spec, &labels, &created, &deadline, &r.State, &r.Ready, &r.Socket, &r.AgentPID,
		&start, &r.BootID, &r.Token, &cgroups, &receipt)
	if err != nil {
		return Record{}, err
	}
	r.Created, r.Deadline, r.AgentStart = fromUnix(created), fromUnix(deadline), uint64(start)
	r.Spec, r.Receipt = json.RawMessage(spec), json.RawMessage(receipt)
	if err := json.Unmarshal([]byte(labels), &r.Labels); err != nil {
		return Record{}, err
	}
	return r, json.Unmarshal([]byte(cgroups), &r.Cgroups)
}

// unix is t in nanoseconds; 0 is the zero time.
func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromUnix(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// classify gives what SQLite said its Kind and its fix.
func (j *Journal) classify(op, id string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	e := &backend.Error{Op: "journal " + op, Kind: backend.ErrInternal, Sandbox: id, Err: fmt.Errorf("%s: %w", j.path, err)}
	if errors.Is(err, sql.ErrNoRows) {
		e.Kind, e.Err = backend.ErrNotFound, nil
		return e
	}
	se, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return e
	}
	switch se.Code() & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		e.Fix = "move " + j.path + " and its -wal and -shm files away; kept sandboxes are then ended by the next sweep"
	case sqlite3.SQLITE_FULL:
		e.Kind, e.Fix = backend.ErrCapacity, "free some space there, or set "+EnvDir+" to another disk"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM:
		e.Kind, e.Fix = backend.ErrInvalid, "make it writable, or set "+EnvDir+" to a directory that is"
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		e.Kind = backend.ErrUnavailable
	case sqlite3.SQLITE_CONSTRAINT:
		e.Kind = backend.ErrConflict
	}
	return e
}
