// Package plain runs commands as ordinary child processes and contains
// nothing: they are this user's, with the user's files and network. It exists
// for systems without a sandbox of their own, for code that is trusted, and is
// only ever used when isolation none was accepted by name.
package plain

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// Options are an Executor's. The zero value is usable.
type Options struct {
	// Name is the backend's in errors and receipts; "plain" when empty.
	Name string
	// Dir is where the sandboxes' directories are made; the system's directory
	// for temporary files when empty.
	Dir string
}

// Executor makes sandboxes that contain nothing. It is safe for concurrent use.
type Executor struct {
	opts Options
	caps backend.Capabilities

	mu     sync.Mutex
	closed bool
	boxes  map[string]*sandbox
	making sync.WaitGroup // Creates under way
}

// New makes an Executor. It does no I/O. The caller closes it.
func New(opts Options) *Executor {
	if opts.Name == "" {
		opts.Name = "plain"
	}
	return &Executor{opts: opts, caps: capabilities(opts.Name), boxes: map[string]*sandbox{}}
}

// Capabilities implements backend.Executor.
func (ex *Executor) Capabilities() backend.Capabilities { return ex.caps }

// Create implements backend.Executor. The sandbox is a private directory, the
// home of its commands.
func (ex *Executor) Create(ctx context.Context, spec backend.Spec) (backend.Sandbox, error) {
	began := time.Now()
	if !ex.enter() {
		return nil, &backend.Error{Op: "create", Kind: backend.ErrClosed, Backend: ex.opts.Name}
	}
	defer ex.making.Done()
	full, warnings, err := ex.caps.Admit(ex.opts.Name, spec)
	if err != nil {
		return nil, err
	}
	if err := ex.admit(full); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sb := &sandbox{
		ex: ex, id: "n" + strings.ToLower(rand.Text()), spec: full,
		procs: map[*process]struct{}{}, ending: make(chan struct{}), ended: make(chan struct{}),
	}
	if err := sb.makeDirs(); err != nil {
		return nil, err
	}
	sb.receipt = sb.makeReceipt(spec, warnings, began)
	ex.mu.Lock()
	ex.boxes[sb.id] = sb
	ex.mu.Unlock()
	sb.arm(time.Until(sb.receipt.Deadline))
	return sb, nil
}

func (ex *Executor) enter() bool {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.closed {
		return false
	}
	ex.making.Add(1)
	return true
}

// admit refuses what Capabilities.Admit lets through and would be ignored here.
func (ex *Executor) admit(spec backend.Spec) error {
	n := spec.Network
	for _, f := range []struct {
		field string
		set   bool
	}{
		{"mounts", len(spec.Mounts) > 0},
		{"secrets", len(spec.Secrets) > 0},
		{"network.allow", len(n.Allow) > 0},
		{"network.deny", len(n.Deny) > 0},
		{"network.inject", len(n.Inject) > 0},
		{"network.upstream", n.Upstream != nil},
		{"network.dns", len(n.DNS) > 0},
	} {
		if f.set {
			return &backend.Error{
				Op: "create", Kind: backend.ErrUnsupported, Backend: ex.opts.Name, Field: f.field,
				Err: errors.New("cannot be given without isolation"), Fix: "leave it unset or choose another backend",
			}
		}
	}
	return nil
}

// Close implements backend.Executor.
func (ex *Executor) Close() error {
	ex.mu.Lock()
	ex.closed = true
	ex.mu.Unlock()
	ex.making.Wait()
	ex.mu.Lock()
	boxes := make([]*sandbox, 0, len(ex.boxes))
	for _, sb := range ex.boxes {
		boxes = append(boxes, sb)
	}
	ex.mu.Unlock()
	errs := make([]error, len(boxes))
	var wg sync.WaitGroup
	for i, sb := range boxes {
		wg.Go(func() { errs[i] = sb.end(nil, backend.ErrClosed) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (ex *Executor) forget(id string) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	delete(ex.boxes, id)
}

var _ backend.Executor = (*Executor)(nil)
