package backendtest

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

type sandbox struct {
	fake    *Fake
	host    *host
	id      string
	spec    backend.Spec
	started time.Time
	receipt backend.Receipt
	files   *files

	mu        sync.Mutex
	ended     backend.Kind // why it ended; "" while it lives
	paused    bool
	deadline  time.Time
	disarm    func() // stops the deadline's timer
	seq       int
	processes []*process
	listeners map[uint16]*listener
}

func newSandbox(f *Fake, asked, spec backend.Spec, warnings []string) *sandbox {
	h := f.host
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	sb := &sandbox{
		fake: f, host: h, spec: spec, id: fmt.Sprintf("fake%d", h.seq), started: h.clock.Now(),
		listeners: map[uint16]*listener{},
	}
	sb.files = newFiles(sb)
	sb.arm(spec.Lifetime)
	sb.receipt = receipt(f, sb, asked, warnings)
	h.sandboxes[sb.id] = sb
	return sb
}

func receipt(f *Fake, sb *sandbox, asked backend.Spec, warnings []string) backend.Receipt {
	r := f.caps.Receipt(asked, sb.spec)
	r.Sandbox, r.Backend, r.Deadline, r.Warnings = sb.id, f.name, sb.deadline, warnings
	return r
}

// arm sets a deadline d from now. The caller holds mu or is alone.
func (sb *sandbox) arm(d time.Duration) {
	if sb.disarm != nil {
		sb.disarm()
	}
	sb.deadline = sb.host.clock.Now().Add(d)
	sb.disarm = sb.host.clock.AfterFunc(d, func() { sb.end(backend.ErrExpired) })
}

// end ends the sandbox with all its commands, once.
func (sb *sandbox) end(why backend.Kind) {
	sb.mu.Lock()
	if sb.ended != "" {
		sb.mu.Unlock()
		return
	}
	sb.ended = why
	sb.disarm()
	processes := slices.Clone(sb.processes)
	listeners := slices.Collect(maps.Values(sb.listeners))
	sb.mu.Unlock()

	reason := backend.ReasonSignaled
	if why == backend.ErrExpired {
		reason = backend.ReasonExpired
	}
	for _, p := range processes {
		p.kill(reason, backend.SIGKILL)
	}
	for _, l := range listeners {
		_ = l.Close()
	}
}

func (sb *sandbox) leaked(grace <-chan time.Time) []string {
	sb.mu.Lock()
	processes := slices.Clone(sb.processes)
	var left []string
	if sb.ended == "" {
		left = append(left, "sandbox "+sb.id)
	}
	sb.mu.Unlock()
	for _, p := range processes {
		if !p.settled(p.done, grace) {
			left = append(left, fmt.Sprintf("sandbox %s: command %s %q", sb.id, p.id, p.cmd.Args))
		}
		if !p.settled(p.returned, grace) {
			left = append(left, fmt.Sprintf("sandbox %s: program of %s %q", sb.id, p.id, p.cmd.Args))
		}
	}
	return left
}

// settled tells whether c is closed; a command whose end is decided gets some
// time for it.
func (p *process) settled(c <-chan struct{}, grace <-chan time.Time) bool {
	select {
	case <-c:
		return true
	default:
	}
	select {
	case <-p.decided:
	default:
		return false
	}
	select {
	case <-c:
		return true
	case <-grace:
		return false
	}
}

// alive is nil while the sandbox lives.
func (sb *sandbox) alive(op string) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.aliveLocked(op)
}

func (sb *sandbox) aliveLocked(op string) error {
	if sb.ended == "" {
		return nil
	}
	return &backend.Error{Op: op, Kind: sb.ended, Backend: sb.fake.name, Sandbox: sb.id}
}

// do carries out a call on the living sandbox.
func (sb *sandbox) do(ctx context.Context, op Op, arg any, operation func() error) error {
	return sb.host.do(ctx, Call{Op: op, Sandbox: sb.id, Arg: arg}, func() error {
		if err := sb.alive(string(op)); err != nil {
			return err
		}
		return operation()
	})
}

// ID implements backend.Sandbox.
func (sb *sandbox) ID() string { return sb.id }

// Files implements backend.Sandbox.
func (sb *sandbox) Files() backend.Filesystem { return sb.files }

// Receipt implements backend.Sandbox.
func (sb *sandbox) Receipt() backend.Receipt { return sb.receipt }

// Start implements backend.Sandbox.
func (sb *sandbox) Start(ctx context.Context, cmd backend.Command) (backend.Process, error) {
	var p *process
	err := sb.do(ctx, OpStart, cmd, func() (err error) {
		p, err = sb.start(ctx, cmd)
		return err
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (sb *sandbox) start(ctx context.Context, cmd backend.Command) (*process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if cmd.User != "" && cmd.User != backend.DefaultUser {
		return nil, &backend.Error{Op: "start", Kind: backend.ErrUnsupported, Field: "command.user", Sandbox: sb.id}
	}
	sb.host.mu.Lock()
	program, ok := sb.host.programs[cmd.Args[0]]
	if !ok {
		program, ok = sb.host.programs[path.Base(cmd.Args[0])]
	}
	sb.host.mu.Unlock()
	if !ok {
		program = func(context.Context, *Proc) backend.Exit { return Exited(127) }
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if err := sb.aliveLocked("start"); err != nil {
		return nil, err
	}
	if sb.paused {
		return nil, &backend.Error{Op: "start", Kind: backend.ErrConflict, Sandbox: sb.id, Fix: "resume the sandbox first"}
	}
	sb.seq++
	p := newProcess(sb, sb.seq, cmd)
	sb.processes = append(sb.processes, p)
	p.run(context.WithoutCancel(ctx), program)
	return p, nil
}

// Destroy implements backend.Sandbox.
func (sb *sandbox) Destroy(ctx context.Context) error {
	return sb.host.do(ctx, Call{Op: OpDestroy, Sandbox: sb.id}, func() error {
		sb.end(backend.ErrClosed)
		sb.mu.Lock()
		processes := slices.Clone(sb.processes)
		sb.mu.Unlock()
		for _, p := range processes {
			select {
			case <-p.done:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		sb.fake.forget(sb.id)
		return nil
	})
}

// forget drops an ended sandbox from those that Close ends.
func (f *Fake) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.owned, id)
}

var _ backend.Sandbox = (*sandbox)(nil)
