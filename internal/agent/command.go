//go:build linux

package agent

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process"
	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

// command is one started program, from its start until it is forgotten. A
// program that could not be executed is one without a process.
type command struct {
	s       *Server
	id      string
	pid     uint32
	config  *process.ProcessConfig
	tag     *string
	user    string
	dir     string
	tty     bool
	started time.Time
	limits  *gloveboxv1.Limits
	proc    *spawn.Process
	group   Group
	in      *input
	outs    []*output

	ended chan struct{} // closed once end is set

	// pub orders what subscribers see. It is held while they are waited for,
	// so nothing that answers a request may take it.
	pub sync.Mutex

	mu          sync.Mutex
	subs        []*subscriber // replaced, never changed
	ring        ring
	bytes       [2]int64 // written to stdout (or the terminal) and stderr
	truncated   [2]bool
	killed      gloveboxv1.End_Reason
	scope       string
	deadlineHit bool
	hits        []string      // other than of the output
	cpuSeen     time.Duration // of the tree while it ran
	end         *gloveboxv1.End
	endedAt     time.Time
	wall        time.Duration // until the process ended
	timers      []*time.Timer
}

// running tells whether the command's end has not been declared yet.
func (c *command) running() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// subscribe joins the streams that follow the command. With replay the
// subscriber holds what the ring still has, and what happens afterwards
// follows without a gap. The end of an ended command is there at once.
func (c *command) subscribe(starter, replay bool) (*subscriber, error) {
	sub := newSubscriber(starter)
	c.mu.Lock()
	defer c.mu.Unlock()
	if replay {
		sub.replay = c.ring.bytes()
		sub.runs = append([]run(nil), c.ring.runs...)
		sub.lost = c.ring.written - int64(c.ring.n)
	}
	if c.end != nil {
		sub.events <- event{kind: streamEnd}
		return sub, nil
	}
	if len(c.subs) >= maxSubscribers {
		return nil, fail(connect.CodeResourceExhausted, "%d streams follow the command already", maxSubscribers)
	}
	c.subs = append(append([]*subscriber(nil), c.subs...), sub)
	return sub, nil
}

// unsubscribe leaves; a publisher that waits for sub goes on.
func (c *command) unsubscribe(sub *subscriber) {
	close(sub.gone)
	c.remove(sub)
}

func (c *command) remove(sub *subscriber) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var rest []*subscriber
	for _, o := range c.subs {
		if o != sub {
			rest = append(rest, o)
		}
	}
	c.subs = rest
}

// publish takes ch over, counts it, keeps it and hands it to all subscribers.
func (c *command) publish(kind stream, ch *chunk) {
	defer c.s.release(ch)
	c.pub.Lock()
	defer c.pub.Unlock()
	c.mu.Lock()
	over := c.count(kind, ch)
	if len(ch.data) > 0 {
		c.ring.append(kind, ch.data, c.s.table.rings.grow)
	}
	subs := c.subs
	c.mu.Unlock()
	if over && c.limits.GetKillOnOutput() {
		c.kill(gloveboxv1.End_REASON_OUTPUT_LIMIT)
	}
	if len(ch.data) == 0 {
		return
	}
	for _, sub := range subs {
		ch.refs.Add(1)
		if !sub.deliver(c.s.ctx, event{kind, ch}) {
			c.s.release(ch)
			c.remove(sub)
		}
	}
}

// count adds to the stream's bytes and cuts ch to what the limit still allows.
// It tells whether the limit was passed. The caller holds c.mu.
func (c *command) count(kind stream, ch *chunk) bool {
	i := 0
	if kind == streamStderr {
		i = 1
	}
	before := c.bytes[i]
	c.bytes[i] += int64(len(ch.data))
	limit := c.limits.GetOutputBytes()
	if limit <= 0 || c.bytes[i] <= limit {
		return false
	}
	ch.data = ch.data[:max(0, limit-before)]
	c.truncated[i] = true
	return true
}

// await declares the command's end once the process has ended and its output
// was read, or once descendants have held the output for the grace time.
func (c *command) await() {
	done := c.proc.Done()
	select {
	case <-done:
	case <-c.s.ctx.Done():
		t := time.NewTimer(unkillable)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
		}
	}
	c.mu.Lock()
	c.wall = time.Since(c.started)
	c.mu.Unlock()
	c.stopTimers()
	held := c.drain()
	c.finish(c.report(held))
}

// drain waits until everything written before the end was delivered, and tells
// whether descendants still hold the output.
func (c *command) drain() bool {
	grace := time.NewTimer(heldGrace)
	defer grace.Stop()
	for _, o := range c.outs {
		select {
		case <-o.drained:
			continue
		case <-grace.C:
		case <-c.s.ctx.Done():
		}
		for _, o := range c.outs {
			o.wrapUp()
		}
		break
	}
	held := false
	for _, o := range c.outs {
		<-o.drained
		held = held || o.held
	}
	return held
}

// finish sets the end and tells everybody.
func (c *command) finish(end *gloveboxv1.End) {
	c.pub.Lock()
	defer c.pub.Unlock()
	c.mu.Lock()
	c.end, c.endedAt = end, time.Now()
	subs := c.subs
	c.subs = nil
	freed := c.ring.shrink()
	c.config = trimmed(c.config)
	c.mu.Unlock()
	c.s.table.rings.free(freed)
	close(c.ended)
	c.in.close()
	if c.group != nil {
		_ = c.group.Close() // it goes on in the background
	}
	c.s.table.retire(c)
	for _, sub := range subs {
		sub.deliver(c.s.ctx, event{kind: streamEnd})
	}
}

// clearRing drops an ended command's output and says how many bytes that was.
func (c *command) clearRing() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ring.clear()
}

// after runs f after d unless the process has ended by then.
func (c *command) after(d time.Duration, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers = append(c.timers, time.AfterFunc(max(d, 0), f))
}

func (c *command) stopTimers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.timers {
		t.Stop()
	}
	c.timers = nil
}

// expireDeadline is the end of the time that its starter's request gave it.
func (c *command) expireDeadline() {
	c.mu.Lock()
	if c.end == nil {
		c.deadlineHit = true
	}
	c.mu.Unlock()
	c.kill(gloveboxv1.End_REASON_TIMEOUT)
}

// pastDeadline tells whether that has happened.
func (c *command) pastDeadline() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadlineHit
}

// shut ends the command with the server: its process and group, its input and
// its pipes. Sessions are ended for all commands at once.
func (c *command) shut() {
	if c.group != nil {
		_ = c.group.Kill()
	}
	if c.proc != nil {
		_ = c.proc.Signal(unix.SIGKILL)
	}
	c.in.close()
	for _, o := range c.outs {
		o.wrapUp()
		_ = o.file.Close()
	}
}

// waitEnded waits until the end was declared or ctx is over.
func (c *command) waitEnded(ctx context.Context) {
	select {
	case <-c.ended:
	case <-ctx.Done():
	}
}

// trimmed is cfg without what would be too much to remember.
func trimmed(cfg *process.ProcessConfig) *process.ProcessConfig {
	room := maxRemembered - min(len(cfg.GetCmd()), maxRemembered)
	out := &process.ProcessConfig{Cmd: cfg.GetCmd()[:min(len(cfg.GetCmd()), maxRemembered)], Cwd: cfg.Cwd}
	for _, a := range cfg.GetArgs() {
		if room -= len(a); room < 0 {
			return out
		}
		out.Args = append(out.Args, a)
	}
	for k, v := range cfg.GetEnvs() {
		room -= len(k) + len(v)
	}
	if room >= 0 {
		out.Envs = cfg.GetEnvs()
	}
	return out
}
