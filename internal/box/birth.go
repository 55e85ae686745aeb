//go:build linux

package box

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/keeper"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

// HandshakeTimeout bounds how long an agent may take to answer.
const HandshakeTimeout = 20 * time.Second

// Socket is the name, in a sandbox's directory, of the socket its agent serves
// on.
const Socket = "agent.sock"

// Birth is a sandbox that is being made. What was made so far is undone in
// reverse order when a step fails.
type Birth struct {
	Asked    backend.Spec // as the caller gave it
	Spec     backend.Spec // with defaults
	Warnings []string     // for the receipt
	Began    time.Time
	Store    *state.Store
	From     *Saved // a snapshot that it is made from; nil for none

	ID    string
	Name  string // of everything on the host that has one: glovebox-<store>-<id>
	Dir   string // the sandbox's own directory; "" unless Needs.Dir
	Token string // the agent's access token
	// Marker and Lease carry locks that a kept sandbox's own process may hold.
	// Lease is nil unless Needs.UIDs.
	Marker *state.Marker
	Lease  *state.UIDLease

	ex      *Executor
	mark    state.Mark
	socket  string          // the agent's, in Dir
	holding *keeper.Holding // what the keeper is about to hold; nil for nothing
	undo    []func()
}

// Undo has f called when the sandbox cannot be made.
func (b *Birth) Undo(f func()) { b.undo = append(b.undo, f) }

func (b *Birth) make(ctx context.Context) (_ *Sandbox, err error) {
	b.ID = newID()
	b.Name = Name(b.Store, b.ID)
	if b.Spec.Keep {
		b.Token = newToken()
	}
	defer func() {
		if err != nil {
			for _, f := range slices.Backward(b.undo) {
				f()
			}
			err = b.classify(ctx, err)
		}
	}()
	if err := b.journal(ctx); err != nil {
		return nil, err
	}
	made, err := b.ex.driver.Make(ctx, b)
	if err != nil {
		return nil, err
	}
	if err := b.hand(ctx, made); err != nil {
		return nil, err
	}
	sb := &Sandbox{
		ex: b.ex, id: b.ID, keep: b.Spec.Keep, spec: b.Spec, ended: make(chan struct{}),
		marker: b.Marker, lease: b.Lease, token: b.Token,
		body: made.Body, conn: made.Conn, dir: b.Dir,
	}
	sb.deadline.Store(time.Now().Add(b.Spec.Lifetime).UnixNano())
	sb.connect(made.Dial)
	b.Undo(func() { <-sb.disconnect() })
	if err := b.openNetwork(ctx, sb); err != nil {
		return nil, err
	}
	if err := b.settle(ctx, sb, made); err != nil {
		return nil, err
	}
	if err := b.startup(ctx, sb); err != nil {
		return nil, err
	}
	sb.receipt = b.receipt(sb, made)
	if err := b.ready(ctx, sb, made); err != nil {
		return nil, err
	}
	sb.watch()
	return sb, nil
}

// newID is a fresh sandbox ID: a letter, then 16 of base 32.
func newID() string { return "s" + strings.ToLower(rand.Text())[:16] }

// newToken is what callers of a kept sandbox's agent must show.
func newToken() string { return rand.Text() + rand.Text() }

// Name is what everything of a sandbox is called that has a name on the host.
func Name(s *state.Store, id string) string { return "glovebox-" + s.ID() + "-" + id }

// Dir is a sandbox's own directory.
func Dir(s *state.Store, id string) string { return filepath.Join(s.Dir(), "run", id) }

// journal writes down what is about to be made, before it is.
func (b *Birth) journal(ctx context.Context) (err error) {
	needs := b.ex.driver.Needs(b.Spec)
	b.mark = state.Mark{
		Backend: b.ex.name, PID: os.Getpid(), BootID: state.BootID(), Started: b.Began, Keep: b.Spec.Keep,
	}
	if needs.Group {
		b.mark.Cgroups = []string{b.Name}
	}
	if b.Marker, err = b.Store.Mark(b.ID, b.mark); err != nil {
		return err
	}
	b.Undo(func() { b.Marker.Release() }) //nolint:errcheck // the sweep tries again
	if needs.UIDs {
		if b.Lease, err = state.LeaseUIDs(""); err != nil {
			return err
		}
		b.Undo(func() { b.Lease.Release() }) //nolint:errcheck // a lock that ends with us
	}
	if needs.Dir {
		b.Dir = Dir(b.Store, b.ID)
		if err := os.MkdirAll(b.Dir, 0o700); err != nil {
			return err
		}
		b.Undo(func() { tree.Remove(b.Dir) }) //nolint:errcheck // the sweep tries again
	}
	b.socket = cmp.Or(needs.Socket, Socket)
	if b.Spec.Keep {
		return b.record(ctx)
	}
	return nil
}

// record journals a kept sandbox before it is made. Until ready it ends with
// its creator, as a bound one.
func (b *Birth) record(ctx context.Context) error {
	j, err := b.Store.Journal(ctx)
	if err != nil {
		return err
	}
	spec, err := json.Marshal(b.Spec)
	if err != nil {
		return err
	}
	b.Undo(func() { //nolint:contextcheck // an undo outlives the caller's context
		ctx, cancel := CleanupContext()
		defer cancel()
		j.Delete(ctx, b.ID) //nolint:errcheck // the sweep tries again
	})
	return j.Put(ctx, state.Record{
		ID: b.ID, Backend: b.ex.name, Spec: spec, Labels: b.Spec.Labels, Created: b.Began,
		Deadline: b.Began.Add(b.Spec.Lifetime), Socket: filepath.Join(b.Dir, b.socket),
		BootID: state.BootID(), Token: b.Token, Cgroups: b.mark.Cgroups,
	})
}

// ready writes down which process a sweep has to end, where one that outlives
// its creator can be left, and says that a kept sandbox is made.
func (b *Birth) ready(ctx context.Context, sb *Sandbox, made *Made) error {
	if made.Proc.PID != 0 {
		b.mark.Procs, b.mark.Detached = []state.Proc{made.Proc}, made.Detached
		if made.Detached && b.Lease != nil {
			if err := b.Lease.Hand(made.Proc); err != nil {
				return err
			}
		}
		if err := b.Marker.Update(b.mark); err != nil {
			return err
		}
	}
	if !b.Spec.Keep {
		return nil
	}
	j, err := b.Store.Journal(ctx)
	if err != nil {
		return err
	}
	receipt, err := json.Marshal(sb.receipt)
	if err != nil {
		return err
	}
	if err := j.Ready(ctx, b.ID, made.Proc.PID, made.Proc.Start, receipt); err != nil {
		return err
	}
	if made.Commit != nil {
		if err := made.Commit(); err != nil {
			return err
		}
	}
	if b.holding != nil {
		return b.holding.Commit(ctx)
	}
	return nil
}

// receipt is what the sandbox really got.
func (b *Birth) receipt(sb *Sandbox, made *Made) backend.Receipt {
	r := b.ex.caps.Receipt(b.Asked, b.Spec)
	r.Sandbox, r.Backend, r.Measured = b.ID, b.ex.name, true
	r.Deadline = time.Unix(0, sb.deadline.Load())
	r.Kernel, r.Warnings = made.Kernel, b.Warnings
	if made.Achieved != 0 {
		r.Achieved = made.Achieved
	}
	r.User, r.Dir = sb.user, sb.workdir
	r.Timings = map[string]time.Duration{"create": time.Since(b.Began)}
	if sb.readyAfter > 0 {
		r.Timings["ready"] = sb.readyAfter
	}
	r.PolicyHash = backend.PolicyHash(b.Spec, b.ex.config)
	if made.Amend != nil {
		made.Amend(&r)
	}
	return r
}

// classify turns a failed step into the error Create returns.
func (b *Birth) classify(ctx context.Context, err error) error {
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	var be *backend.Error
	if errors.As(err, &be) && be.Kind != backend.ErrLost {
		return err
	}
	e := &backend.Error{Op: "create", Kind: backend.ErrUnavailable, Backend: b.ex.name, Err: err}
	if be != nil {
		e.Fix = be.Fix
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.EAGAIN) {
		e.Kind, e.Fix = backend.ErrCapacity, "end some sandboxes, or raise the host's limits"
	}
	return e
}

// Sanitize bounds what a dying agent, or a runtime, said and makes one line of
// it: it ran where user code runs.
func Sanitize(s string) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s))
	if s == "" {
		return "it said nothing"
	}
	return s[:min(len(s), 600)]
}

// fileSize is RLIMIT_FSIZE of a sandbox's commands. By default it lies above
// the disk, so that a file which fills it meets ENOSPC and not a signal.
func fileSize(asked, spec backend.Spec) uint64 {
	if asked.Limits.FileSize == 0 {
		return uint64(spec.Limits.Disk) + 1<<20
	}
	return uint64(spec.Limits.FileSize)
}

// Unavailable is the error of a sandbox that could not be made.
func Unavailable(name, fix, format string, args ...any) error {
	return &backend.Error{Op: "create", Kind: backend.ErrUnavailable, Backend: name, Err: fmt.Errorf(format, args...), Fix: fix}
}
