package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

const (
	// enough is the signal that no longer waits for the command to act.
	enough = 3
	// startGrace is how long a command may take to start once we are told to
	// stop, before it is given up.
	startGrace = time.Second
	// hangupGrace is how long a command may go on when our terminal is gone.
	hangupGrace = 2 * time.Second
)

// forwarder passes the signals we are sent on to a command.
type forwarder struct {
	c    chan os.Signal
	wg   sync.WaitGroup
	quit chan struct{}
}

// newForwarder takes signals from now on. The caller calls stop.
func newForwarder() *forwarder {
	fw := &forwarder{c: make(chan os.Signal, 8), quit: make(chan struct{})}
	signal.Notify(fw.c, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	return fw
}

func (fw *forwarder) stop() {
	signal.Stop(fw.c)
	close(fw.quit)
	fw.wg.Wait()
}

// pass sends p what we get. The third signal, and a hangup that p survives for
// long, cancel with the signal as the cause, which ends the command.
func (fw *forwarder) pass(ctx context.Context, p backend.Process, cancel context.CancelCauseFunc) {
	fw.wg.Go(func() {
		var late <-chan time.Time
		hangup := error(&signalError{syscall.SIGHUP})
		for n := 1; ; n++ {
			select {
			case s := <-fw.c:
				sig, _ := s.(syscall.Signal)
				if n >= enough {
					cancel(&signalError{sig})
					return
				}
				if sig == syscall.SIGHUP && late == nil {
					late = time.After(hangupGrace)
				}
				_ = p.Signal(ctx, backend.Signal(sig)) // one that has ended is about to be told
			case <-late:
				cancel(hangup)
				return
			case <-fw.quit:
				return
			}
		}
	})
}

// silence tells when writers have been silent for a while.
type silence struct {
	wait time.Duration
	over chan struct{}

	mu    sync.Mutex
	timer *time.Timer
}

// begin starts to listen.
func (s *silence) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(s.wait, func() { close(s.over) })
}

// before is w, what is written to it being heard.
func (s *silence) before(w io.Writer) io.Writer { return heard{s, w} }

type heard struct {
	s *silence
	w io.Writer
}

func (h heard) Write(p []byte) (int, error) {
	n, err := h.w.Write(p)
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	// One that has fired closed the channel; it must not fire again.
	if t := h.s.timer; t != nil && t.Stop() {
		t.Reset(h.s.wait)
	}
	return n, err
}
