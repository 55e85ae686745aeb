package backend

import (
	"context"
	"io"
	"io/fs"
)

// Executor makes sandboxes on one backend. It is safe for concurrent use.
type Executor interface {
	// Capabilities says what the executor enforces and can do. It does no I/O
	// and returns the same value for the executor's whole life.
	Capabilities() Capabilities

	// Create makes one sandbox as spec asks. On error nothing is left running
	// and nothing is left on the host. Errors: ErrInvalid, ErrUnsupported,
	// ErrDenied, ErrCapacity, ErrQuota, ErrUnavailable, ErrLost, ErrNotFound
	// (an unknown template), ErrClosed.
	Create(ctx context.Context, spec Spec) (Sandbox, error)

	// Close destroys the bound sandboxes the executor made and releases what
	// it holds. Kept sandboxes live on. It is idempotent.
	Close() error
}

// Sandbox is one isolated place to run commands. It is safe for concurrent
// use. Whoever created it calls Destroy.
type Sandbox interface {
	// ID is the sandbox's name, unique on its backend:
	// ^[a-z][a-z0-9]{1,40}$.
	ID() string

	// Start runs a command. A program that is missing or cannot be executed
	// is no error: its Exit is exited(127) or exited(126). Cancelling ctx
	// after Start returned does nothing; see RunIn.
	Start(ctx context.Context, cmd Command) (Process, error)

	// Files is the sandbox's file system as the default user sees it.
	Files() Filesystem

	// Receipt says what was granted and by which mechanism. It does no I/O.
	Receipt() Receipt

	// Destroy kills everything in the sandbox and removes it from the host.
	// It is idempotent; afterwards every other call is ErrClosed. Call it with
	// a context that is still alive.
	Destroy(ctx context.Context) error
}

// Process is one started command. It is safe for concurrent use.
type Process interface {
	// ID names the command within its sandbox, for ProcessFinder.Attach.
	ID() string

	// Signal sends sig to the command itself, not to its descendants. A
	// command that has ended is ErrNotFound.
	Signal(ctx context.Context, sig Signal) error

	// Wait returns when the command has ended and its output is delivered, or
	// a second after it ended when descendants still hold its output. Any
	// number of callers may wait, also after the end. Cancelling ctx stops the
	// waiting, not the command.
	Wait(ctx context.Context) (Exit, error)
}

// Filesystem is a sandbox's files as one user sees them. Names are slash
// separated; relative ones start at the user's home, absolute ones are
// accepted where FeaturePrivateRoot is claimed. Errors satisfy errors.Is with
// fs.ErrNotExist, fs.ErrExist and fs.ErrPermission where those apply, and a
// full disk has Kind ErrTooLarge. Everything read through it comes from
// untrusted code.
type Filesystem interface {
	// Open reads a regular file; anything else (FIFO, device, socket,
	// directory) is ErrInvalid. ctx bounds the reading as well, since a silent
	// sandbox could otherwise hold a reader for ever. The caller closes the
	// reader.
	Open(ctx context.Context, name string) (io.ReadCloser, error)

	// Write creates or replaces a regular file, and missing parents, with
	// everything r gives. perm 0 means 0o644.
	Write(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error

	// Stat describes a file, a symbolic link's target where there is one.
	// Sys() is a *FileAttr.
	Stat(ctx context.Context, name string) (fs.FileInfo, error)

	// List describes a directory's entries, sorted by name.
	List(ctx context.Context, name string) ([]fs.FileInfo, error)

	// Mkdir makes a directory and missing parents. One that exists is fine.
	// perm 0 means 0o755.
	Mkdir(ctx context.Context, name string, perm fs.FileMode) error

	// Rename moves a file or directory, replacing a file at the target.
	Rename(ctx context.Context, from, to string) error

	// Remove deletes name and all below it. What is absent is fine.
	Remove(ctx context.Context, name string) error
}

// FileAttr is what FileInfo.Sys returns for files of a sandbox.
type FileAttr struct {
	Owner, Group string            // account names inside the sandbox, or numbers as text
	UID, GID     uint32            // inside the sandbox; 0 where the backend does not tell
	Path         string            // absolute, inside the sandbox
	LinkTarget   string            // where a symbolic link leads, resolved as far as it leads somewhere; "" otherwise
	Symlink      bool              // the name itself is a symbolic link
	Metadata     map[string]string // user metadata given at upload
}
