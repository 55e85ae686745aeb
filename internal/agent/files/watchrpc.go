//go:build linux

package files

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/fsnotify/fsnotify"
	"google.golang.org/protobuf/proto"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
)

// WatchDir streams events until the client or the service ends it.
func (r *rpc) WatchDir(ctx context.Context, req *connect.Request[filesystem.WatchDirRequest], stream *connect.ServerStream[filesystem.WatchDirResponse]) error {
	path := req.Msg.GetPath()
	acct, err := r.user(req.Header(), &path)
	if err != nil {
		return err
	}
	w, err := r.s.newWatch(acct, path, req.Msg)
	if err != nil {
		return err
	}
	defer r.s.giveBack()
	defer w.close()
	every := keepalive(req.Header())
	alive := time.NewTicker(every)
	defer alive.Stop()
	w.emit = func(ev *filesystem.FilesystemEvent) error {
		alive.Reset(every)
		return stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Filesystem{Filesystem: ev}})
	}
	err = stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Start{Start: &filesystem.WatchDirResponse_StartEvent{}}})
	if err != nil {
		return err
	}
	return w.run(ctx, alive.C, func() error {
		return stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Keepalive{Keepalive: &filesystem.WatchDirResponse_KeepAlive{}}})
	})
}

// run handles events until ctx or the service ends or something fails; tick is
// called for each value of ticks.
func (w *watch) run(ctx context.Context, ticks <-chan time.Time, tick func() error) error {
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.s.ctx.Done():
			return rpcError(connect.CodeUnavailable, errClosed)
		case <-ticks:
			err = tick()
		case e, ok := <-w.notify.Events:
			if !ok {
				return rpcError(connect.CodeInternal, fsnotify.ErrClosed)
			}
			err = w.handle(e)
		case e, ok := <-w.notify.Errors:
			if !ok {
				e = fsnotify.ErrClosed
			}
			return rpcError(connect.CodeInternal, fmt.Errorf("watcher error: %w", e))
		}
		if err != nil {
			return err
		}
	}
}

// keepalive is how long a stream may be silent: what the client asks for in
// whole seconds, else E2B's 90.
func keepalive(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get(wire.HeaderKeepalive))
	if err != nil || n < 1 || n > 3600 {
		n = 90
	}
	return time.Duration(n) * time.Second
}

// pollWatcher keeps events for a client that asks for them now and then.
type pollWatcher struct {
	stop context.CancelFunc
	done chan struct{} // closed when its goroutine has ended

	mu     sync.Mutex // guards the rest
	events []*filesystem.FilesystemEvent
	bytes  int
	err    error // why no more events come
	said   bool  // and the client was told
}

// told tells whether the watcher has ended and its client knows.
func (p *pollWatcher) told() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said
}

// maxEventBytes bounds the events that one watcher keeps.
const maxEventBytes = 4 << 20

// CreateWatcher starts a watcher that lives until RemoveWatcher or Close. One
// that ended before keeps its events, and its place among those there may be.
func (r *rpc) CreateWatcher(_ context.Context, req *connect.Request[filesystem.CreateWatcherRequest]) (*connect.Response[filesystem.CreateWatcherResponse], error) { //nolint:contextcheck // a watcher outlives the request
	path := req.Msg.GetPath()
	acct, err := r.user(req.Header(), &path)
	if err != nil {
		return nil, err
	}
	w, err := r.s.newWatch(acct, path, req.Msg)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(r.s.ctx)
	p := &pollWatcher{stop: stop, done: make(chan struct{})}
	w.emit = func(ev *filesystem.FilesystemEvent) error { return p.keep(ev, r.s.opts.MaxEvents) }
	id := "w" + rand.Text()
	r.s.mu.Lock()
	r.s.watchers[id] = p
	r.s.mu.Unlock()
	go func() {
		defer close(p.done)
		defer w.close()
		err := w.run(ctx, nil, nil)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.err = err
	}()
	return connect.NewResponse(&filesystem.CreateWatcherResponse{WatcherId: id}), nil
}

// keep stores ev. The same happening to the same file once more is stored
// once, as the kernel does; when the store is full the watcher ends.
func (p *pollWatcher) keep(ev *filesystem.FilesystemEvent, limit int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.events); n > 0 && p.events[n-1].GetName() == ev.GetName() && p.events[n-1].GetType() == ev.GetType() {
		p.bytes += proto.Size(ev) - proto.Size(p.events[n-1])
		p.events[n-1] = ev
		return nil
	}
	p.bytes += proto.Size(ev)
	if len(p.events) >= limit || p.bytes > maxEventBytes {
		return rpcError(connect.CodeResourceExhausted,
			fmt.Errorf("watcher error: more than %d events were not fetched; create a new watcher and fetch them more often", len(p.events)))
	}
	p.events = append(p.events, ev)
	return nil
}

// GetWatcherEvents takes the events kept since the last call. Once all are
// taken it reports why the watcher ended, if it did.
func (r *rpc) GetWatcherEvents(_ context.Context, req *connect.Request[filesystem.GetWatcherEventsRequest]) (*connect.Response[filesystem.GetWatcherEventsResponse], error) {
	r.s.mu.Lock()
	p := r.s.watchers[req.Msg.GetWatcherId()]
	r.s.mu.Unlock()
	if p == nil {
		return nil, noWatcher(req.Msg.GetWatcherId())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.events) == 0 && p.err != nil {
		p.said = true
		return nil, p.err
	}
	res := &filesystem.GetWatcherEventsResponse{Events: p.events}
	p.events, p.bytes = nil, 0
	return connect.NewResponse(res), nil
}

// RemoveWatcher ends a watcher and returns when it has ended.
func (r *rpc) RemoveWatcher(_ context.Context, req *connect.Request[filesystem.RemoveWatcherRequest]) (*connect.Response[filesystem.RemoveWatcherResponse], error) {
	r.s.mu.Lock()
	p := r.s.watchers[req.Msg.GetWatcherId()]
	delete(r.s.watchers, req.Msg.GetWatcherId())
	r.s.mu.Unlock()
	if p == nil {
		return nil, noWatcher(req.Msg.GetWatcherId())
	}
	p.stop()
	<-p.done
	r.s.giveBack()
	return connect.NewResponse(&filesystem.RemoveWatcherResponse{}), nil
}

func noWatcher(id string) error {
	if len(id) > 64 {
		id = id[:64]
	}
	return rpcError(connect.CodeNotFound, fmt.Errorf("watcher with id %s not found", id))
}
