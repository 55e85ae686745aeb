package backend

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/http"
	"time"
)

// The interfaces below are optional. Find them with As, never by assertion,
// so that layers around an executor stay in place.

// Prober is on executors that can say whether they work right now.
type Prober interface {
	// Probe measures the backend on this host. An unusable backend is a
	// Health that says so, not an error.
	Probe(ctx context.Context) (Health, error)
}

// Admitter is on executors that refuse more than Capabilities.Admit does. It
// has no feature, since it promises nothing.
type Admitter interface {
	// Admit is what Create does before it makes anything: it gives spec as it
	// would be granted and what to warn of, or the error that Create would end
	// with. It looks at this host, cheaply, and changes nothing.
	Admit(spec Spec) (Spec, []string, error)
}

// Health is what a probe found.
type Health struct {
	Available bool          `json:"available"`
	Isolation Isolation     `json:"isolation"`          // the level that would be achieved
	Measured  bool          `json:"measured"`           // false: declared by the backend's documents only
	Reason    string        `json:"reason,omitempty"`   // why it is not available
	Fix       string        `json:"fix,omitempty"`      // what to do to get it, or more of it
	Warnings  []string      `json:"warnings,omitempty"` // usable, but less than it could be
	Took      time.Duration `json:"took_ns"`
}

// Finder is on executors whose kept sandboxes outlive the process.
type Finder interface {
	// Find takes up a kept sandbox again, ErrNotFound when there is none.
	Find(ctx context.Context, id string) (Sandbox, error)
	// Sandboxes yields what runs under this executor's store, bound and kept.
	Sandboxes(ctx context.Context) iter.Seq2[Info, error]
}

// State is where a sandbox is in its life.
type State string

// The states of a sandbox.
const (
	StateCreating State = "creating"
	StateRunning  State = "running"
	StatePaused   State = "paused"
	StateLost     State = "lost" // its record is there, its processes are not
)

// Info describes a sandbox from outside, without reaching into it.
type Info struct {
	ID        string            `json:"id"`
	Backend   string            `json:"backend"`
	State     State             `json:"state"`
	Started   time.Time         `json:"started"`
	Deadline  time.Time         `json:"deadline,omitzero"`
	Template  string            `json:"template,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Limits    Limits            `json:"limits"`
	Isolation Isolation         `json:"isolation"`
	Network   NetworkMode       `json:"network"`
	Keep      bool              `json:"keep"`
}

// Pauser is on sandboxes that can be frozen in place.
type Pauser interface {
	// Pause stops everything inside, disarming the deadline first. Pausing a
	// paused sandbox is ErrConflict.
	Pause(ctx context.Context, opts PauseOptions) error
	// Resume continues it with a new lifetime of the length it was created
	// with. Resuming a running sandbox is ErrConflict.
	Resume(ctx context.Context) error
}

// PauseOptions says what a pause must keep.
type PauseOptions struct {
	FilesOnly bool // memory may be dropped; ErrUnsupported where it cannot be
}

// Snapshotter is on sandboxes whose state can be saved.
type Snapshotter interface {
	// Snapshot saves the sandbox, which goes on, and returns a name for
	// Spec.From. A name that is taken is ErrConflict, and so is a paused sandbox.
	Snapshot(ctx context.Context, opts SnapshotOptions) (string, error)
}

// SnapshotOptions says what a snapshot holds.
type SnapshotOptions struct {
	Name      string // "" lets the backend choose
	FilesOnly bool   // no memory
}

// SnapshotStore is on executors that keep snapshots.
type SnapshotStore interface {
	// Snapshots yields what is stored, the oldest first.
	Snapshots(ctx context.Context) iter.Seq2[SnapshotInfo, error]
	// DeleteSnapshot removes one, ErrNotFound when there is none. Sandboxes
	// that were made from it go on.
	DeleteSnapshot(ctx context.Context, name string) error
}

// SnapshotInfo describes a stored snapshot.
type SnapshotInfo struct {
	Name    string    `json:"name"`
	Sandbox string    `json:"sandbox"`
	Created time.Time `json:"created"`
	Bytes   int64     `json:"bytes"`
	// FilesOnly says that no processes are part of it.
	FilesOnly bool `json:"files_only,omitempty"`
}

// Extender is on sandboxes whose end can be moved.
type Extender interface {
	// SetLifetime makes the sandbox end d from now. d must be positive.
	SetLifetime(ctx context.Context, d time.Duration) error
}

// Dialer is on sandboxes whose ports the host can reach.
type Dialer interface {
	// DialContext connects to a port inside. network is "tcp", addr a port or
	// a loopback host and port. A port that nobody listens on is
	// ErrUnavailable. The caller closes the connection.
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
}

// Meter is on sandboxes that can be measured while they run.
type Meter interface {
	Usage(ctx context.Context) (Usage, error)
}

// ProcessFinder is on sandboxes whose commands can be found by others than
// their starter.
type ProcessFinder interface {
	// Processes lists the commands started here, ended ones the sandbox still
	// remembers included.
	Processes(ctx context.Context) ([]ProcessInfo, error)
	// Attach takes up a command by its ID, ErrNotFound when it is unknown.
	Attach(ctx context.Context, id string, opts AttachOptions) (Process, error)
}

// AttachOptions says where an attached command's output goes.
type AttachOptions struct {
	Output Output
	Replay bool // deliver first what the bounded ring still holds
}

// ProcessInfo describes a command. Its strings come from its starter.
type ProcessInfo struct {
	ID      string            `json:"id"`
	PID     int               `json:"pid"` // inside the sandbox
	Tag     string            `json:"tag,omitempty"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env,omitempty"`
	Dir     string            `json:"dir,omitempty"`
	User    string            `json:"user,omitempty"`
	Started time.Time         `json:"started"`
	Exit    *Exit             `json:"exit,omitempty"` // nil while it runs
}

// Resizer is on processes that have a terminal.
type Resizer interface {
	Resize(ctx context.Context, size TerminalSize) error
}

// Inputter is on processes whose standard input was kept open.
type Inputter interface {
	// WriteInput writes all of p to the command's standard input or terminal.
	WriteInput(ctx context.Context, p []byte) error
	// CloseInput ends standard input; a terminal's is ErrUnsupported.
	CloseInput(ctx context.Context) error
}

// UserFiles is on file systems that know several accounts.
type UserFiles interface {
	// FilesAs is the same files as user sees them; ErrNotFound surfaces at the
	// first call for an account that does not exist.
	FilesAs(user string) Filesystem
}

// RangeOpener is on file systems that can read a part of a file.
type RangeOpener interface {
	// OpenRange reads n bytes from off, to the end when n is negative.
	OpenRange(ctx context.Context, name string, off, n int64) (io.ReadCloser, error)
}

// MetadataWriter is on file systems that keep metadata beside a file.
type MetadataWriter interface {
	// WriteMeta is Filesystem.Write with metadata: keys of at most 246 bytes,
	// 4096 bytes in all, printable ASCII.
	WriteMeta(ctx context.Context, name string, r io.Reader, perm fs.FileMode, meta map[string]string) error
}

// Watcher is on file systems that report changes.
type Watcher interface {
	// Watch yields changes below name until ctx or the sandbox ends. The watch
	// is armed when the first pair, an event of op WatchReady, is yielded; a
	// last pair carries the error unless ctx ended it.
	Watch(ctx context.Context, name string, opts WatchOptions) iter.Seq2[WatchEvent, error]
}

// WatchOptions says what to watch.
type WatchOptions struct {
	Recursive bool
}

// WatchOp is what happened to a file.
type WatchOp string

// What a watch reports.
const (
	WatchReady  WatchOp = "ready" // the watch is armed; no file
	WatchCreate WatchOp = "create"
	WatchWrite  WatchOp = "write"
	WatchRemove WatchOp = "remove"
	WatchRename WatchOp = "rename" // the old name; the new one is a create
	WatchChmod  WatchOp = "chmod"
)

// WatchEvent is one change.
type WatchEvent struct {
	Name string  `json:"name"` // relative to the watched directory
	Op   WatchOp `json:"op"`
}

// EnvdTransport is on sandboxes whose agent speaks E2B's envd protocol.
type EnvdTransport interface {
	// Envd is a transport that reaches the agent whatever the request's host.
	// It is usable until the sandbox is destroyed.
	Envd(ctx context.Context) (http.RoundTripper, error)
}

// NetworkUpdater is on sandboxes whose network rules can be replaced.
type NetworkUpdater interface {
	// SetNetwork replaces all rules; the mode may only stay or tighten.
	SetNetwork(ctx context.Context, network Network) error
}
