//go:build linux

// Package box is what the local backends have in common: sandboxes whose first
// process is our agent, from admission through their journalled birth, their
// life behind one client, to an end that leaves nothing. What a sandbox is made
// of (a child process, a container) is its driver's.
package box

import (
	"context"
	"net"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/keeper"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// Driver makes what sandboxes are made of. Its methods are called concurrently.
type Driver interface {
	// Name is the driver's, as in Capabilities.
	Name() string
	// Capabilities does no I/O and always says the same.
	Capabilities() backend.Capabilities
	// Refuse refuses what Capabilities.Admit cannot know about, without
	// looking at what spec names. asked is the caller's, spec has the defaults.
	Refuse(asked, spec backend.Spec) error
	// LookAt refuses what Make would refuse once it looks at what spec names:
	// the same looks, without making anything.
	LookAt(spec backend.Spec) error
	// Needs says what a sandbox of spec must have before Make.
	Needs(spec backend.Spec) Needs
	// Make makes the sandbox and starts its agent. What it made is undone by
	// the functions given to Birth.Undo when it, or a later step, fails.
	// Errors without a backend.Kind become ErrUnavailable.
	Make(ctx context.Context, b *Birth) (*Made, error)
	// TakeUp is the Body of a kept sandbox as the journal describes it. It
	// only looks: the error is ErrNotFound when it has ended.
	TakeUp(ctx context.Context, rec state.Record) (*Made, error)
	// Clean removes what a sandbox without an owner was made of, whatever was
	// made of it. Its recorded processes have ended.
	Clean(ctx context.Context, id string, mark state.Mark) error
	// Orphans lists the sandboxes that something of this store is left of, by
	// what is there and not by a record. It is called before the markers are
	// looked at; those without one are given to Clean.
	Orphans(ctx context.Context) ([]string, error)
	// Probe makes a sandbox, or finds out why none can be made.
	Probe(ctx context.Context) backend.Health
	// Close releases what the driver holds; every bound sandbox has ended.
	Close() error
}

// Elsewhere is on drivers whose sandboxes do not run on this host.
type Elsewhere interface{ Elsewhere() bool }

// Witness is on bodies whose counters are far away: what they know of how a
// command ended comes from here in the place of Stats.
type Witness interface {
	Witness(ctx context.Context, exit backend.Exit) (cgroup.Stats, bool)
}

// NetworkAdviser is on drivers that know why this host, or this configuration,
// gives no network of a mode that they have elsewhere, and what to do about it.
type NetworkAdviser interface {
	AdviseNetwork(mode backend.NetworkMode) (why, fix string)
}

// Needs is what a sandbox must have before it is made.
type Needs struct {
	UIDs  bool // a range of host uids of its own
	Dir   bool // a directory of its own in the state directory
	Group bool // a control group of its name, which is written down
	// Socket is where the agent of a kept sandbox serves, below its directory;
	// "" is Socket.
	Socket string
}

// Body is what a running sandbox is made of. Its methods are called concurrently.
type Body interface {
	// Kill ends every process of the sandbox, at once and without waiting.
	Kill()
	// Gone waits until none of them is left.
	Gone(ctx context.Context) error
	// Remove gives back what the sandbox was made of, after Gone. It is called
	// again when it failed.
	Remove(ctx context.Context) error
	// Stats are the kernel's counters of the sandbox; ok is false where
	// nothing outside the sandbox counts.
	Stats() (s cgroup.Stats, ok bool)
	// Why says why the sandbox ended by itself, after a moment if need be; ""
	// when that is not known. Outcome.OutOfMemory says that it was killed at
	// its memory limit.
	Why() Outcome
	// Leave lets go of a kept sandbox without ending it.
	Leave()
}

// Outcome is why a sandbox ended by itself.
type Outcome struct {
	Words       string
	OutOfMemory bool
}

// Freezer is on bodies that can be paused.
type Freezer interface {
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error
}

// Asker is on bodies whose agent has to be asked to end what only it can find,
// before they are killed.
type Asker interface{ AskToEnd() }

// Made is a sandbox whose agent serves.
type Made struct {
	Body Body
	// Dial connects to the agent. Conn is set when there is just the one
	// connection, which Dial then hands out.
	Dial func(ctx context.Context) (net.Conn, error)
	Conn net.Conn
	// Proc is the process that a sweep ends the sandbox with; zero when it
	// cannot outlive its creator.
	Proc state.Proc
	// Detached says that the sandbox lives as long as Proc does, though no
	// process of its own holds the marker's lock.
	Detached bool
	// Stream is how the agent of a kept sandbox is reached where it has no
	// socket of its own, in the place of Dial and Conn: the keeper gets it, and
	// its files are closed here. The sandbox must end when the stream does.
	Stream *keeper.Stream
	// Commit, if not nil, lets a kept sandbox outlive its creator.
	Commit func() error
	// Kernel is the kernel that programs see; Achieved the measured level, the
	// driver's own when zero.
	Kernel   string
	Achieved backend.Isolation
	// User and Dir are what an image of the engine's says of commands where the
	// spec does not; User is one that Account gave.
	User, Dir string
	// Amend, if not nil, puts into the receipt what the driver alone knows.
	Amend func(r *backend.Receipt)
}
