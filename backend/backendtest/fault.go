package backendtest

import (
	"context"
	"slices"
	"sync"
)

// Op names an operation of the contract, in faults and in the record of calls.
type Op string

// The operations.
const (
	OpCreate     Op = "create"
	OpClose      Op = "close"
	OpProbe      Op = "probe"
	OpFind       Op = "find"
	OpList       Op = "sandboxes"
	OpStart      Op = "start"
	OpDestroy    Op = "destroy"
	OpPause      Op = "pause"
	OpResume     Op = "resume"
	OpLifetime   Op = "set_lifetime"
	OpDial       Op = "dial"
	OpUsage      Op = "usage"
	OpProcesses  Op = "processes"
	OpAttach     Op = "attach"
	OpSignal     Op = "signal"
	OpKillTree   Op = "kill_tree"
	OpWait       Op = "wait"
	OpResize     Op = "resize"
	OpWriteInput Op = "write_input"
	OpCloseInput Op = "close_input"
	OpOpen       Op = "files.open"
	OpRead       Op = "files.read" // of an opened file
	OpWrite      Op = "files.write"
	OpStat       Op = "files.stat"
	OpReadDir    Op = "files.list"
	OpMkdir      Op = "files.mkdir"
	OpRename     Op = "files.rename"
	OpRemove     Op = "files.remove"
)

// Fault is something that goes wrong, or slowly, in one operation.
type Fault struct {
	Op Op
	// Nth is the call that is struck, the first being 1, counted from the
	// injection; 0 strikes every call.
	Nth int
	// Hold keeps a struck call until Release or until its context ends, whose
	// error it then returns without doing anything.
	Hold bool
	// Err is what a struck call returns, instead of doing anything unless
	// After is set. With nil a struck call goes on as if nothing were.
	Err error
	// After returns Err once the operation was carried out: an answer lost on
	// its way.
	After bool
}

// Injected is a Fault in place.
type Injected struct {
	fault    Fault
	mu       sync.Mutex
	calls    int
	struck   chan struct{}
	released chan struct{}
}

// Struck is closed when the first call was struck.
func (i *Injected) Struck() <-chan struct{} { return i.struck }

// Release lets held calls go, now and later. It may be called repeatedly.
func (i *Injected) Release() {
	i.mu.Lock()
	defer i.mu.Unlock()
	closeOnce(i.released)
}

// strike counts a call and tells whether it is struck.
func (i *Injected) strike() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls++
	if i.fault.Nth != 0 && i.fault.Nth != i.calls {
		return false
	}
	closeOnce(i.struck)
	return true
}

// closeOnce closes c unless it is closed; the caller serialises.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// Call is one recorded call, in the order in which calls ended.
type Call struct {
	Op      Op
	Sandbox string
	// Arg is what the call was about: the Spec of a create, the Command of a
	// start, the name of a file, the Signal.
	Arg any
	Err error
}

// Inject puts a fault in place. Several for one operation all apply, in the
// order they were injected.
func (f *Fake) Inject(fault Fault) *Injected {
	in := &Injected{fault: fault, struck: make(chan struct{}), released: make(chan struct{})}
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	f.host.faults = append(f.host.faults, in)
	return in
}

// Calls lists the calls so far; with ops only those of these operations.
func (f *Fake) Calls(ops ...Op) []Call {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	calls := slices.Clone(f.host.calls)
	if len(ops) == 0 {
		return calls
	}
	return slices.DeleteFunc(calls, func(c Call) bool { return !slices.Contains(ops, c.Op) })
}

// do carries out one call: its faults, the operation, the record.
func (h *host) do(ctx context.Context, c Call, operation func() error) error {
	c.Err = h.strike(ctx, c.Op, operation)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, c)
	return c.Err
}

func (h *host) strike(ctx context.Context, op Op, operation func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	faults := slices.Clone(h.faults)
	h.mu.Unlock()
	var late error
	for _, in := range faults {
		if in.fault.Op != op || !in.strike() {
			continue
		}
		if in.fault.Hold {
			select {
			case <-in.released:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if in.fault.Err != nil && !in.fault.After {
			return in.fault.Err
		}
		if late == nil {
			late = in.fault.Err
		}
	}
	if err := operation(); err != nil {
		return err
	}
	return late
}
