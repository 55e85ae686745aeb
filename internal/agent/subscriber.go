//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
)

// chunk is output on its way to several streams; the last one to be done with
// it gives the buffer back.
type chunk struct {
	data []byte // of buf
	buf  [chunkSize]byte
	refs atomic.Int32
}

func (s *Server) newChunk() *chunk {
	ch, ok := s.chunks.Get().(*chunk)
	if !ok {
		ch = new(chunk)
	}
	ch.refs.Store(1)
	return ch
}

func (s *Server) release(ch *chunk) {
	if ch != nil && ch.refs.Add(-1) == 0 {
		ch.data = nil
		s.chunks.Put(ch)
	}
}

// event is output of one stream, or the end.
type event struct {
	kind  stream
	chunk *chunk
}

// subscriber is one stream that follows a command. Events arrive in the order
// in which they happened, the end last.
type subscriber struct {
	events  chan event
	gone    chan struct{} // closed when the reader leaves
	dropped chan struct{} // closed when the command gives it up
	starter bool

	dropOnce sync.Once
	replay   []byte
	runs     []run
	lost     int64
}

func newSubscriber(starter bool) *subscriber {
	return &subscriber{
		events:  make(chan event, queued),
		gone:    make(chan struct{}),
		dropped: make(chan struct{}),
		starter: starter,
	}
}

// deliver hands ev over and tells whether the subscriber stays. A starter is
// waited for, anybody else for the stall time only: a stranger's slow stream
// must neither stop the command nor make output pile up.
func (sub *subscriber) deliver(ctx context.Context, ev event) bool {
	select {
	case <-sub.gone:
		return false
	case <-sub.dropped:
		return false
	case sub.events <- ev:
		return true
	default:
	}
	var late <-chan time.Time
	if !sub.starter {
		t := time.NewTimer(stall)
		defer t.Stop()
		late = t.C
	}
	select {
	case sub.events <- ev:
		return true
	case <-sub.gone:
	case <-late:
	case <-ctx.Done():
	}
	sub.dropOnce.Do(func() { close(sub.dropped) })
	return false
}

// follow sends a subscriber's events until the end, an error of send, or ctx.
// ping is sent after each span of silence.
func (s *Server) follow(ctx context.Context, sub *subscriber, silence time.Duration, send func(event) error, ping func() error) error {
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		select {
		case ev := <-sub.events:
			err := send(ev)
			s.release(ev.chunk)
			if err != nil || ev.kind == streamEnd {
				return err
			}
		case <-sub.dropped:
			return fail(connect.CodeResourceExhausted, "the stream took no output for %s", stall)
		case <-timer.C:
			if err := ping(); err != nil {
				return err
			}
		case <-ctx.Done():
			return contextError(ctx)
		}
		timer.Reset(silence)
	}
}

// contextError is the Connect error of an ended context.
func contextError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded)
	}
	return connect.NewError(connect.CodeCanceled, fmt.Errorf("%w", context.Canceled))
}
