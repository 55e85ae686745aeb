package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/gvisor/internal/runsc"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// body is a gVisor kernel and what it was made of.
type body struct {
	d      *driver
	binary runsc.Binary
	cfg    runsc.Config
	name   string     // of its control groups
	dir    string     // the sandbox's own
	sentry state.Proc // where another process started it

	mu    sync.Mutex
	proc  *runsc.Process // nil until it was started
	group *cgroup.Group  // nil for none
	image *os.File       // keeps its image from being removed
	end   *box.Outcome   // known once it has ended
}

func (b *body) process() *runsc.Process {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.proc
}

// Kill implements box.Body: all programs end with gVisor's kernel. Its parent,
// runsc, is left to wait for it, or its remains would be for the host's first
// process to wait for, and some never do.
func (b *body) Kill() {
	b.why(0) // before the groups that know are gone
	if b.process() == nil {
		box.KillProcess(b.sentry)
	}
	if b.cfg.Kill() != nil {
		b.killAll()
	}
}

// killAll kills runsc too.
func (b *body) killAll() {
	if b.group != nil {
		b.group.Kill()
	}
	if p := b.process(); p != nil {
		p.Kill()
	}
}

// waitTimeout is how long runsc may take to see that gVisor's kernel has ended.
const waitTimeout = 3 * time.Second

// Gone implements box.Body. What the kernel has not ended yet, Remove does.
func (b *body) Gone(ctx context.Context) error {
	p := b.process()
	if p == nil {
		return box.WaitGone(ctx, b.sentry)
	}
	t := time.NewTimer(waitTimeout)
	defer t.Stop()
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
	}
	b.killAll()
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Remove implements box.Body.
func (b *body) Remove(ctx context.Context) error {
	err := b.d.remove(ctx, &b.cfg, b.group, b.name, b.dir)
	if err == nil && b.image != nil {
		b.image.Close() //nolint:errcheck // a lock that ends with it
	}
	return err
}

// remove takes away what a sandbox was made of, whatever there is of it.
func (d *driver) remove(ctx context.Context, cfg *runsc.Config, group *cgroup.Group, name, dir string) error {
	if err := cfg.Remove(ctx, group); err != nil {
		return err
	}
	errs := []error{box.RemoveScratch(dir)}
	if d.host.joins() {
		errs = append(errs, runsc.RemoveGroups(ctx, d.host.groupPath(name)))
	}
	return errors.Join(errs...)
}

// Stats implements box.Body.
func (b *body) Stats() (cgroup.Stats, bool) {
	if b.group == nil {
		return cgroup.Stats{}, false
	}
	s := b.d.host.foreign(b.name).Stats()
	// The host's tasks are gVisor's threads, which say nothing of programs.
	s.Tasks, s.TasksPeak, s.PidsDenied = 0, 0, 0
	return s, true
}

// Why implements box.Body.
func (b *body) Why() box.Outcome { return b.why(500 * time.Millisecond) }

// why waits at most so long for the end.
func (b *body) why(wait time.Duration) box.Outcome {
	p := b.process()
	if p == nil {
		return b.foundWhy()
	}
	select {
	case <-p.Done():
	default:
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-p.Done():
		case <-t.C:
			return box.Outcome{}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end == nil {
		o := box.Outcome{Words: fmt.Sprintf("gVisor's kernel ended: %s", box.Sanitize(p.Words()))}
		if b.group != nil && b.d.host.foreign(b.name).Stats().OOMKills > 0 {
			o.OutOfMemory = true
		}
		b.end = &o
	}
	return *b.end
}

// foundWhy is why, where another process started the sandbox.
func (b *body) foundWhy() box.Outcome {
	if b.group == nil || b.d.host.foreign(b.name).Stats().OOMKills == 0 {
		return box.Outcome{}
	}
	return box.Outcome{OutOfMemory: true}
}

// Leave implements box.Body.
func (b *body) Leave() {}

// Freeze implements box.Freezer.
func (b *body) Freeze(ctx context.Context) error { return b.cfg.Pause(ctx, b.binary) }

// Thaw implements box.Freezer.
func (b *body) Thaw(ctx context.Context) error { return b.cfg.Resume(ctx, b.binary) }

var (
	_ box.Body    = (*body)(nil)
	_ box.Freezer = (*body)(nil)
)
