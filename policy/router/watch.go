package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// Times of the watch over candidates.
const (
	probeEvery   = 30 * time.Second
	probeTimeout = 5 * time.Second  // after which a silent backend counts as down
	patience     = 5 * time.Second  // that a Create has before its backend is asked whether it works
	closeTimeout = 10 * time.Second // for probes that do not heed the end of their context
)

// watch keeps what is known of the candidates' health. Nothing is probed and
// nothing runs until there has been a choice to make twice, or a candidate has
// failed: a program that makes one sandbox pays for none of it.
type watch struct {
	pulses []*pulse
	stop   chan struct{}
	wg     sync.WaitGroup // the loop

	mu      sync.Mutex
	used    bool // there was a choice to make once
	looping bool
	closed  bool
}

func newWatch(candidates []Candidate) *watch {
	w := &watch{stop: make(chan struct{})}
	for _, c := range candidates {
		p := &pulse{name: c.Name, isolation: c.Executor.Capabilities().Isolation}
		p.prober, _ = backend.As[backend.Prober](c.Executor)
		w.pulses = append(w.pulses, p)
	}
	return w
}

// choice notes that a choice is made, which from the second time on is made
// with what the loop has found out.
func (w *watch) choice(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.used {
		w.beginLocked(ctx)
	}
	w.used = true
}

// begin starts the loop unless it runs.
func (w *watch) begin(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beginLocked(ctx)
}

func (w *watch) beginLocked(ctx context.Context) {
	if w.looping || w.closed {
		return
	}
	w.looping = true
	ctx = context.WithoutCancel(ctx) // it outlives the Create that it begins with
	w.wg.Go(func() {
		tick := time.NewTicker(probeEvery)
		defer tick.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-tick.C:
			}
			for _, p := range w.pulses {
				p.refresh(ctx)
			}
		}
	})
}

// close ends the loop and cancels the probes under way.
func (w *watch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		close(w.stop)
	}
	for _, p := range w.pulses {
		p.close()
	}
}

// wait returns when nothing of the watch runs any more. Call close first.
func (w *watch) wait() error {
	w.wg.Wait()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	var errs []error
	for _, p := range w.pulses {
		p.mu.Lock()
		f := p.flight
		p.mu.Unlock()
		if f == nil {
			continue
		}
		select {
		case <-f.ended:
			continue
		case <-timer.C:
			timer.Reset(0) // nor is another waited for
			errs = append(errs, fmt.Errorf("%s: a probe does not end", p.name))
		}
	}
	return errors.Join(errs...)
}
