//go:build linux

package agent

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

// table holds the commands, running ones and those remembered. No command's
// lock is taken while it is locked.
type table struct {
	rings rings

	mu        sync.Mutex
	closed    bool
	expired   bool
	last      uint64
	synthetic uint32
	used      int // reserved and running
	running   []*command
	ended     []*command // in the order of their ends
}

// reserve takes a place for a command and its ID.
func (t *table) reserve() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return "", fail(connect.CodeUnavailable, "the sandbox is ending")
	case t.expired:
		return "", fail(connect.CodeUnavailable, "the sandbox's deadline has passed")
	case t.used >= maxRunning:
		return "", fail(connect.CodeResourceExhausted, "%d commands are running already", maxRunning)
	}
	t.used++
	t.last++
	return "c" + strconv.FormatUint(t.last, 10), nil
}

// giveBack returns a place that was not used.
func (t *table) giveBack() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used--
}

// add lists a command. It is false when the table was closed meanwhile: the
// command must be shut down.
func (t *table) add(c *command) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.proc == nil {
		c.pid = syntheticPID + t.synthetic
		t.synthetic = (t.synthetic + 1) % syntheticPID
	}
	t.running = append(t.running, c)
	return !t.closed && !t.expired
}

// retire moves an ended command to those remembered.
func (t *table) retire(c *command) {
	t.rings.retire(c)
	t.mu.Lock()
	t.used--
	t.running = slices.DeleteFunc(t.running, func(o *command) bool { return o == c })
	t.ended = append(t.ended, c)
	var old *command
	if len(t.ended) > maxEnded {
		old = t.ended[0]
		t.ended = append([]*command(nil), t.ended[1:]...)
	}
	t.mu.Unlock()
	if old != nil {
		t.rings.free(old.clearRing())
	}
}

// close refuses further commands and returns all there are.
func (t *table) close() []*command {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	return t.list()
}

// expire refuses further commands and returns the running ones.
func (t *table) expire() []*command {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expired = true
	return slices.Clone(t.running)
}

// list is all commands, the ended ones first.
func (t *table) list() []*command {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append(slices.Clone(t.ended), t.running...)
}

// live is the running commands in the order of their starts.
func (t *table) live() []*command {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.running)
}

// byID finds a command, nil if it is unknown.
func (t *table) byID(id string) *command {
	for _, c := range t.list() {
		if c.id == id {
			return c
		}
	}
	return nil
}

// find selects a command by pid or tag, the newest of several. Ended ones are
// found for a while where ended is set.
func (t *table) find(sel *process.ProcessSelector, ended bool) (*command, error) {
	var match func(*command) bool
	var missing error
	switch by := sel.GetSelector().(type) {
	case *process.ProcessSelector_Pid:
		match = func(c *command) bool { return c.pid == by.Pid }
		missing = fail(connect.CodeNotFound, "process with pid %d not found", by.Pid)
	case *process.ProcessSelector_Tag:
		match = func(c *command) bool { return c.tag != nil && *c.tag == by.Tag }
		missing = fail(connect.CodeNotFound, "process with tag %s not found", clip(by.Tag))
	default:
		return nil, fail(connect.CodeUnimplemented, "invalid input type %T", by)
	}
	for _, c := range slices.Backward(t.list()) {
		if match(c) && (c.running() || ended && c.recent()) {
			return c, nil
		}
	}
	return nil, missing
}

// recent tells whether an ended command can still be connected to.
func (c *command) recent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end == nil || time.Since(c.endedAt) < connectable
}
