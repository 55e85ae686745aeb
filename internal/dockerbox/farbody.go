//go:build linux

package dockerbox

import (
	"context"
	"net"
	"os"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
)

// farBody is a container of an engine elsewhere: all that is known of it the
// engine says.
type farBody struct {
	body
	conn net.Conn // the attach stream; nil before there is one
	slot *os.File // holds the uids; nil when they are shared
	wg   sync.WaitGroup
}

// Kill implements box.Body. Without its stream the agent ends, though the engine
// should not answer.
func (b *farBody) Kill() {
	b.drop()
	b.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), daemonTimeout) //nolint:forbidigo // nobody's call
		defer cancel()
		b.kill(ctx) //nolint:errcheck // Gone tells
	})
}

func (b *farBody) drop() {
	if b.conn != nil {
		b.conn.Close() //nolint:errcheck // nothing to do about it
	}
}

// kill has the engine kill the container, also a paused one.
func (b *farBody) kill(ctx context.Context) error {
	err := b.d.engine.Kill(ctx, b.name, "KILL")
	if backend.KindOf(err) != backend.ErrConflict {
		return err
	}
	if b.d.engine.Unpause(ctx, b.name) != nil {
		return nil // it does not run
	}
	return b.d.engine.Kill(ctx, b.name, "KILL")
}

// Gone implements box.Body, by the engine's word.
func (b *farBody) Gone(ctx context.Context) error {
	b.wg.Wait()
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	switch err := b.kill(ctx); backend.KindOf(err) {
	case backend.ErrNotFound:
		return nil
	case backend.ErrUnavailable, backend.ErrLost, backend.ErrDenied:
		return err
	default:
	}
	_, err := b.d.engine.Wait(ctx, b.name)
	if backend.KindOf(err) == backend.ErrNotFound {
		return nil
	}
	return err
}

// Remove implements box.Body.
func (b *farBody) Remove(ctx context.Context) error {
	err := b.body.Remove(ctx)
	if err == nil {
		b.d.memory.forget(b.id)
		if b.slot != nil {
			b.slot.Close() //nolint:errcheck // with it the lock ends
		}
	}
	return err
}

// Stats implements box.Body.
func (b *farBody) Stats() (cgroup.Stats, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout) //nolint:forbidigo // it has no context
	defer cancel()
	s, err := b.d.engine.Stats(ctx, b.id)
	if err != nil {
		return cgroup.Stats{}, false
	}
	return cgroup.Stats{
		OOMKills: b.d.memory.count(b.id), Tasks: int64(s.PIDs), CPU: s.CPU,
		Memory: int64(min(s.Memory, 1<<62)), MemoryPeak: int64(min(s.MemoryPeak, 1<<62)),
	}, true
}

// recently is how long a kill for memory explains the end of a command.
const recently = 3 * time.Second

// Witness implements box.Witness. What a command used stays the agent's word:
// to ask the engine would cost more than many commands take.
func (b *farBody) Witness(ctx context.Context, exit backend.Exit) (cgroup.Stats, bool) {
	wait := time.Duration(0)
	if exit.Reason == backend.ReasonSignaled && exit.Signal == backend.SIGKILL {
		wait = afterthought // word of it takes its way
	}
	n, last := b.d.memory.news(ctx, b.id, wait)
	s := cgroup.Stats{OOMKills: n, Tasks: 1}
	if time.Since(last) > recently {
		s.Tasks = 0 // what happened before explains nothing that comes
	}
	return s, true
}

// memoryWatch counts how often containers met their memory limit, as the
// engine's events tell. Its zero value is ready.
type memoryWatch struct {
	once sync.Once
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	met     map[string]*metLimit
	changed chan struct{} // closed at the next event
}

// metLimit is what is known of one container.
type metLimit struct {
	count int64
	asked int64 // what somebody was told
	last  time.Time
}

func (w *memoryWatch) start(e *engine.Engine, store string) {
	w.once.Do(func() {
		ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // the driver's own life; close calls it
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stop, w.met, w.changed = cancel, map[string]*metLimit{}, make(chan struct{})
		w.wg.Go(func() { e.WatchMemory(ctx, labelStore, store, w.event) })
	})
}

func (w *memoryWatch) close() {
	w.mu.Lock()
	stop := w.stop
	w.mu.Unlock()
	if stop != nil {
		stop()
		w.wg.Wait()
	}
}

// maxWatched bounds how many containers are remembered: the events are another
// machine's.
const maxWatched = 1 << 14

func (w *memoryWatch) event(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.met[id]
	if m == nil {
		if len(w.met) >= maxWatched {
			return
		}
		m = &metLimit{}
		w.met[id] = m
	}
	m.count++
	m.last = time.Now()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *memoryWatch) count(id string) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m := w.met[id]; m != nil {
		return m.count
	}
	return 0
}

// news is how often a container has met its limit and when it last did, after
// waiting for more than the last call told.
func (w *memoryWatch) news(ctx context.Context, id string, wait time.Duration) (int64, time.Time) {
	over := time.After(wait)
	for {
		w.mu.Lock()
		var now metLimit
		m := w.met[id]
		if m != nil {
			now = *m
			m.asked = m.count
		}
		changed := w.changed
		w.mu.Unlock()
		if now.count > now.asked || wait == 0 {
			return now.count, now.last
		}
		select {
		case <-changed:
		case <-over:
			wait = 0
		case <-ctx.Done():
			return now.count, now.last
		}
	}
}

func (w *memoryWatch) forget(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.met, id)
}

var (
	_ box.Body    = (*farBody)(nil)
	_ box.Freezer = (*farBody)(nil)
	_ box.Witness = (*farBody)(nil)
)
