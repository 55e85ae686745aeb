//go:build linux

package box

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd"
	"github.com/glovebox-dev/glovebox/internal/keeper"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// Executor makes sandboxes of one driver. It is safe for concurrent use.
type Executor struct {
	driver Driver
	name   string
	caps   backend.Capabilities
	config any // hashed into receipts
	store  *state.Store
	serr   error          // why there is no store
	keeper *keeper.Keeper // nil without a store

	done chan struct{}      // closed by Close
	stop context.CancelFunc // ends a sweep
	wg   sync.WaitGroup

	mu     sync.Mutex
	boxes  map[string]*Sandbox
	making sync.WaitGroup // Creates under way
	closed bool
}

// Options is what an Executor is made from.
type Options struct {
	// Store holds markers and journal; StoreErr is why there is none, which
	// refuses Create and nothing else.
	Store    *state.Store
	StoreErr error
	// Config is the driver's configuration, for Receipt.PolicyHash.
	Config any
}

// New makes an Executor over d, which it owns as it owns the store. The caller
// closes it.
func New(ctx context.Context, d Driver, o Options) *Executor {
	ex := &Executor{
		driver: d, name: d.Name(), caps: d.Capabilities(), config: o.Config,
		store: o.Store, serr: o.StoreErr, boxes: map[string]*Sandbox{}, done: make(chan struct{}),
	}
	sctx, stop := context.WithCancel(context.WithoutCancel(ctx)) //nolint:gosec // Close calls it
	ex.stop = stop
	ex.wg.Go(envd.Warm)
	if ex.store != nil {
		ex.keeper = keeper.New(ex.store.Dir(), func() (string, error) { return FindKeeper(ex.name) }, keeperIdle())
		ex.wg.Go(func() { ex.sweepLoop(sctx) })
	}
	return ex
}

// Capabilities implements backend.Executor.
func (ex *Executor) Capabilities() backend.Capabilities { return ex.caps }

// Close implements backend.Executor.
func (ex *Executor) Close() error {
	ex.mu.Lock()
	if ex.closed {
		ex.mu.Unlock()
		return nil
	}
	ex.closed = true
	ex.mu.Unlock()
	ex.making.Wait()
	close(ex.done)
	// A sweep that is under way may finish: those of a program that does one
	// thing and ends would never get to.
	defer time.AfterFunc(sweepGrace, ex.stop).Stop()
	ex.mu.Lock()
	boxes := make([]*Sandbox, 0, len(ex.boxes))
	for _, sb := range ex.boxes {
		boxes = append(boxes, sb)
	}
	ex.mu.Unlock()
	ctx, cancel := CleanupContext()
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(boxes))
	for i, sb := range boxes {
		wg.Go(func() {
			if sb.keep && !sb.closed.Load() {
				sb.forget()
				return
			}
			errs[i] = sb.Destroy(ctx)
		})
	}
	wg.Wait()
	ex.wg.Wait()
	errs = append(errs, ex.driver.Close())
	if ex.store != nil {
		errs = append(errs, ex.store.Close())
	}
	return errors.Join(errs...)
}

// Create implements backend.Executor.
func (ex *Executor) Create(ctx context.Context, spec backend.Spec) (backend.Sandbox, error) {
	began := time.Now()
	ex.mu.Lock()
	if ex.closed {
		ex.mu.Unlock()
		return nil, &backend.Error{Op: "create", Kind: backend.ErrClosed, Backend: ex.name}
	}
	ex.making.Add(1)
	ex.mu.Unlock()
	defer ex.making.Done()

	asked, from, err := ex.from(ctx, spec)
	defer from.close()
	if err != nil {
		return nil, err
	}
	full, warnings, err := ex.admit(asked)
	if err == nil {
		err = ex.lookAtNetwork(full)
	}
	if err == nil {
		err = ex.fitsHere(ctx, full, from)
	}
	if err == nil && from != nil {
		err = ex.whole(from)
	}
	if err != nil {
		return nil, err
	}
	b := &Birth{ex: ex, Asked: asked, Spec: full, From: from, Warnings: warnings, Began: began, Store: ex.store}
	sb, err := b.make(ctx)
	if err != nil {
		return nil, err
	}
	ex.mu.Lock()
	ex.boxes[sb.id] = sb
	ex.mu.Unlock()
	return sb, nil
}

// Admit implements backend.Admitter.
func (ex *Executor) Admit(spec backend.Spec) (backend.Spec, []string, error) {
	ctx := context.Background() //nolint:forbidigo // what is asked is on this host, and Admit has no context
	asked, from, err := ex.from(ctx, spec)
	defer from.close()
	if err != nil {
		return spec, nil, err
	}
	full, warnings, err := ex.admit(asked)
	if err == nil {
		err = ex.lookAtNetwork(full)
	}
	if err == nil {
		err = ex.fitsHere(ctx, full, from)
	}
	if err == nil {
		err = ex.driver.LookAt(full)
	}
	if err != nil {
		return spec, nil, err
	}
	return full, warnings, nil
}

// admit is spec as it would be granted, with what to warn of, unless it can be
// refused without looking at what it names.
func (ex *Executor) admit(spec backend.Spec) (backend.Spec, []string, error) {
	full, warnings, err := ex.caps.Admit(ex.name, spec)
	err = ex.adviseNetwork(spec.Network.Mode, err)
	if err == nil {
		err = ex.refusal(spec, full)
	}
	if err == nil {
		err = ex.driver.Refuse(spec, full)
	}
	if err == nil && ex.serr != nil {
		err = &backend.Error{Op: "create", Kind: backend.ErrUnavailable, Backend: ex.name, Field: "state_dir", Err: ex.serr}
	}
	return full, warnings, err
}

// refusal refuses what no local backend does.
func (ex *Executor) refusal(asked, spec backend.Spec) error {
	refuse := func(kind backend.Kind, field, why, fix string) error {
		return &backend.Error{Op: "create", Kind: kind, Backend: ex.name, Field: field, Err: errors.New(why), Fix: fix}
	}
	switch {
	case spec.OnExpiry == backend.ExpiryPause:
		return refuse(backend.ErrUnsupported, "on_expiry", "nobody would pause a sandbox whose creator has gone", "use destroy, and pause it before its deadline")
	case len(spec.Secrets) > 0 && !ex.proxied(spec.Network):
		return refuse(backend.ErrUnsupported, "secrets", "secrets are for the network proxy, which there is none of", "set network.mode to allowlist, or pass what the code may know in env")
	case spec.IdempotencyKey != "":
		return refuse(backend.ErrUnsupported, "idempotency_key", "repeated creates are not recognised", "leave it out")
	}
	if _, err := Account(ex.name, "user", spec.User); err != nil {
		return err
	}
	if far, ok := ex.driver.(Elsewhere); ok && far.Elsewhere() {
		return nil
	}
	if total := memoryNow(); total > 0 && asked.Limits.Memory > total {
		return refuse(backend.ErrCapacity, "limits.memory",
			fmt.Sprintf("%d bytes are asked for, this host has %d", asked.Limits.Memory, total), "ask for less")
	}
	return nil
}

// memoryNow is the host's memory in bytes, for limits above which nothing can
// be admitted.
func memoryNow() int64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 0
	}
	return int64(si.Totalram) * int64(si.Unit)
}

// As implements the optional interfaces of the executor.
func (ex *Executor) As(target any) bool {
	switch t := target.(type) {
	case *backend.Prober:
		*t = (*prober)(ex)
	case *backend.Finder:
		if !ex.caps.Has(backend.FeatureFind) {
			return false
		}
		*t = (*finder)(ex)
	case *backend.SnapshotStore:
		if !ex.caps.Has(backend.FeatureSnapshot) {
			return false
		}
		*t = (*snapshots)(ex)
	default:
		return false
	}
	return true
}

// prober is an Executor's Prober.
type prober Executor

// Probe implements backend.Prober.
func (p *prober) Probe(ctx context.Context) (backend.Health, error) {
	return p.driver.Probe(ctx), nil
}

// closing tells whether Close has been called.
func (ex *Executor) closing() bool {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	return ex.closed
}

func (ex *Executor) drop(id string) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	delete(ex.boxes, id)
}

var (
	_ backend.Executor = (*Executor)(nil)
	_ backend.Admitter = (*Executor)(nil)
	_ backend.Prober   = (*prober)(nil)
)
