//go:build linux

package box

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd"
	"github.com/glovebox-dev/glovebox/internal/keeper"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// destroyTimeout bounds how long the end of a sandbox may take.
const destroyTimeout = 30 * time.Second

// CleanupContext bounds an ending that no caller's context governs: it must go on
// when theirs is over.
func CleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), destroyTimeout) //nolint:forbidigo // see above
}

// Sandbox is one sandbox behind its agent.
type Sandbox struct {
	ex      *Executor
	id      string
	keep    bool
	spec    backend.Spec
	receipt backend.Receipt

	body   Body
	dir    string          // its own on the host, "" for none
	marker *state.Marker   // nil when another process made it
	lease  *state.UIDLease // likewise
	token  string

	user, workdir string        // what commands begin with; "" is user's home
	readyAfter    time.Duration // how long what it started with took; 0 for nothing

	egress *keeper.Egress // of a bound sandbox; nil for none

	client    *envd.Client
	transport *envd.Transport
	conn      net.Conn // to the agent of a bound sandbox
	evidence  evidence
	deadline  atomic.Int64 // Unix nanoseconds

	networking sync.Mutex // guards spec.Network

	life   sync.Mutex // serialises pause and resume; destroy waits for neither
	mu     sync.Mutex // guards paused and expiry, held for moments only
	paused bool
	expiry *time.Timer
	closed atomic.Bool
	ended  chan struct{} // closed when it was destroyed
	derr   error         // valid once ended is closed
}

// connect makes the client over dial.
func (sb *Sandbox) connect(dial func(context.Context) (net.Conn, error)) {
	sb.transport = envd.NewTransport(dial)
	sb.client = envd.New(sb.transport, envd.Options{
		Sandbox: sb.id, Backend: sb.ex.name, AccessToken: sb.token, Extended: true,
		Output: sb.spec.Limits.Output, KillOnOutput: sb.spec.Limits.KillOnOutput, CPUTime: sb.spec.Limits.CPUTime,
		Judge: sb.judge, Lost: sb.lost, Died: sb.died,
		Overdue: func(context.Context, string) error { sb.body.Kill(); return nil },
	})
}

// behind is how long the host's own end of a sandbox comes after the agent's.
const behind = 2 * time.Second

// watch arms the host's own end of the sandbox, behind the agent's.
func (sb *Sandbox) watch() {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.expiry = time.AfterFunc(time.Until(time.Unix(0, sb.deadline.Load()))+behind, sb.atDeadline)
}

// atDeadline ends the sandbox unless its deadline has been moved.
func (sb *Sandbox) atDeadline() {
	ctx, cancel := CleanupContext()
	defer cancel()
	if sb.keep && sb.postponed(ctx) {
		return
	}
	sb.Destroy(ctx) //nolint:errcheck // the sweep tries again
}

// postponed tells whether another process has moved the deadline of a kept
// sandbox, and then waits for the new one. Where the journal cannot be read,
// the agent's own deadline is left to it for a while.
func (sb *Sandbox) postponed(ctx context.Context) bool {
	wait := 10 * time.Second
	if j, err := sb.ex.store.Journal(ctx); err == nil {
		rec, err := j.Get(ctx, sb.id)
		switch {
		case errors.Is(err, backend.ErrNotFound):
			return false
		case err == nil && time.Until(rec.Deadline) <= 0:
			return false
		case err == nil:
			sb.deadline.Store(rec.Deadline.UnixNano())
			wait = time.Until(rec.Deadline)
		}
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.expiry != nil {
		sb.expiry.Reset(wait + behind)
	}
	return true
}

// ID implements backend.Sandbox.
func (sb *Sandbox) ID() string { return sb.id }

// Receipt implements backend.Sandbox.
func (sb *Sandbox) Receipt() backend.Receipt {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.receipt
}

// error is an error of this sandbox.
func (sb *Sandbox) error(op string, kind backend.Kind, err error) *backend.Error {
	return &backend.Error{Op: op, Kind: kind, Backend: sb.ex.name, Sandbox: sb.id, Err: err}
}

// alive is the error that calls on an ended sandbox get.
func (sb *Sandbox) alive(op string) error {
	switch {
	case sb.closed.Load() && sb.expired():
		return sb.error(op, backend.ErrExpired, nil)
	case sb.closed.Load():
		return sb.error(op, backend.ErrClosed, nil)
	default:
		return nil
	}
}

func (sb *Sandbox) expired() bool {
	d := sb.deadline.Load()
	return d != 0 && time.Now().UnixNano() >= d
}

// usable is alive, and ErrConflict for a paused sandbox.
func (sb *Sandbox) usable(op string) error {
	if err := sb.alive(op); err != nil {
		return err
	}
	if sb.isPaused() {
		err := sb.error(op, backend.ErrConflict, errors.New("the sandbox is paused"))
		err.Fix = "resume it"
		return err
	}
	return nil
}

// Start implements backend.Sandbox.
func (sb *Sandbox) Start(ctx context.Context, cmd backend.Command) (backend.Process, error) {
	if err := sb.usable("start"); err != nil {
		return nil, err
	}
	sb.begin(&cmd)
	if cmd.User != "" && cmd.User != backend.DefaultUser && !sb.ex.caps.Has(backend.FeatureUsers) {
		err := sb.error("start", backend.ErrUnsupported, fmt.Errorf("the only account here is %q", backend.DefaultUser))
		err.Field, err.Fix = "command.user", "leave it empty, or run glovebox as root"
		return nil, err
	}
	return sb.client.Start(ctx, cmd)
}

// Files implements backend.Sandbox.
func (sb *Sandbox) Files() backend.Filesystem {
	if sb.ex.caps.Has(backend.FeatureUsers) && sb.ex.caps.Has(backend.FeatureMetadata) {
		return sb.client.Files()
	}
	return someFiles{sb.client.Files(), sb.ex.caps}
}

// died is the end of a command whose sandbox was killed under it by the kernel:
// at the memory limit, where agent and programs are counted together.
func (sb *Sandbox) died() (backend.Exit, bool) {
	if sb.closed.Load() || !sb.body.Why().OutOfMemory {
		return backend.Exit{}, false
	}
	return backend.Exit{
		Reason: backend.ReasonMemoryLimit, Signal: backend.SIGKILL, Code: 128 + int(backend.SIGKILL),
		Hits: []backend.Hit{backend.HitMemory},
	}, true
}

// lost says what became of a sandbox whose connection broke.
func (sb *Sandbox) lost(err error) error {
	if aerr := sb.alive("sandbox"); aerr != nil || backend.KindOf(err) == backend.ErrClosed {
		return aerr // nil leaves err as it is
	}
	if sb.expired() {
		return sb.error("sandbox", backend.ErrExpired, errors.New("its lifetime has ended"))
	}
	switch why := sb.body.Why(); {
	case why.OutOfMemory:
		err = errors.New("it was killed at the memory limit")
	case why.Words != "":
		err = errors.New(why.Words)
	}
	return sb.error("sandbox", backend.ErrLost, err)
}

var _ backend.Sandbox = (*Sandbox)(nil)
