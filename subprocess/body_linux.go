package subprocess

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// body is a child process and all that runs below it.
type body struct {
	d     *driver
	child *process      // nil when another process started it
	proc  state.Proc    // the agent, where child is nil
	group *cgroup.Group // nil for none
}

// Kill implements box.Body.
func (b *body) Kill() {
	if b.group != nil {
		b.group.Kill()
	}
	if b.child != nil {
		b.child.kill()
		return
	}
	box.KillProcess(b.proc)
}

// AskToEnd lets an agent without a pid namespace end what it started, which
// nobody else can find: it does so when its connection ends.
func (b *body) AskToEnd() {
	if m := b.d.host.mode; b.child == nil || m != launch.ModeRestricted && m != launch.ModePlain {
		return
	}
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	select {
	case <-b.child.done:
	case <-t.C:
	}
}

// Gone implements box.Body: with the agent its pid namespace has ended.
func (b *body) Gone(ctx context.Context) error {
	if b.child == nil {
		return box.WaitGone(ctx, b.proc)
	}
	select {
	case <-b.child.done:
		return b.child.pidfd.Close()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Remove implements box.Body.
func (b *body) Remove(ctx context.Context) error {
	if b.group == nil {
		return nil
	}
	if err := b.group.Remove(ctx); err != nil {
		return fmt.Errorf("control groups: %w", err)
	}
	return nil
}

// Stats implements box.Body.
func (b *body) Stats() (cgroup.Stats, bool) {
	if b.group == nil {
		return cgroup.Stats{}, false
	}
	return b.group.Stats(), true
}

// Why implements box.Body.
func (b *body) Why() box.Outcome {
	if b.child == nil {
		return box.Outcome{}
	}
	select {
	case <-b.child.done:
	case <-time.After(500 * time.Millisecond):
		return box.Outcome{}
	}
	o := box.Outcome{Words: fmt.Sprintf("its first process ended (%s)", describe(b.child))}
	if b.group != nil && b.group.Stats().OOMKills > 0 && b.child.status.Signaled() {
		o.OutOfMemory = true
	}
	return o
}

func describe(p *process) string {
	if p.status.Signaled() {
		return "killed by " + p.status.Signal().String()
	}
	s := fmt.Sprintf("exit status %d", p.status.ExitStatus())
	if words := p.errs.words(); words != "" {
		s += ": " + box.Sanitize(words)
	}
	return s
}

// Leave implements box.Body.
func (b *body) Leave() {}

// frozen is a body that can be paused.
type frozen struct{ *body }

// Freeze implements box.Freezer.
func (b frozen) Freeze(ctx context.Context) error { return b.group.Freeze(ctx) }

// Thaw implements box.Freezer.
func (b frozen) Thaw(ctx context.Context) error { return b.group.Thaw(ctx) }

// TakeUp implements box.Driver.
func (d *driver) TakeUp(_ context.Context, rec state.Record) (*box.Made, error) {
	b := &body{d: d, proc: state.Proc{PID: rec.AgentPID, Start: rec.AgentStart}}
	if len(rec.Cgroups) == 1 {
		b.group = d.host.groups.Find(rec.Cgroups[0])
	}
	return &box.Made{Body: b.freezable(), Dial: unixsock.Dialer(rec.Socket)}, nil
}

// freezable is b with what its group lets it do.
func (b *body) freezable() box.Body {
	if b.group != nil && b.d.host.groups.CanFreeze() {
		return frozen{b}
	}
	return b
}

// Orphans implements box.Driver.
func (d *driver) Orphans(context.Context) ([]string, error) {
	prefix := box.Name(d.store, "")
	var ids []string
	for _, name := range d.host.groups.List(prefix) {
		ids = append(ids, strings.TrimPrefix(name, prefix))
	}
	return ids, nil
}

// Clean implements box.Driver.
func (d *driver) Clean(ctx context.Context, id string, _ state.Mark) error {
	if !d.host.groups.Usable() {
		return nil
	}
	return d.host.groups.Find(box.Name(d.store, id)).Remove(ctx)
}
