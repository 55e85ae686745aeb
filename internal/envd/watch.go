package envd

import (
	"context"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/backend"
	wirefs "github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
)

// Watch implements [backend.Watcher].
func (f *files) Watch(
	ctx context.Context, name string, opts backend.WatchOptions,
) iter.Seq2[backend.WatchEvent, error] {
	return func(yield func(backend.WatchEvent, error) bool) {
		w := where{op: "watch", field: name, files: true}
		remote, err := f.remote(w, name)
		if err != nil {
			yield(backend.WatchEvent{}, err)
			return
		}
		bctx, done, err := f.c.begin(ctx)
		if err != nil {
			yield(backend.WatchEvent{}, f.c.fail(ctx, w, err))
			return
		}
		defer done()
		req := connect.NewRequest(&wirefs.WatchDirRequest{Path: remote, Recursive: opts.Recursive})
		f.c.account(req.Header(), f.user)
		stream, err := f.c.watches.WatchDir(bctx, req)
		if err == nil {
			defer stream.Close() //nolint:errcheck // read side
			defer done()         // first: closing a stream may read what is left of it
			var more bool
			if more, err = relay(stream, yield); !more {
				return
			}
		}
		if ctx.Err() == nil {
			yield(backend.WatchEvent{}, f.c.fail(bctx, w, err))
		}
	}
}

// relay yields what stream carries, until it ends. It reports false when the
// consumer wants no more.
func relay(
	stream *connect.ServerStreamForClient[wirefs.WatchDirResponse],
	yield func(backend.WatchEvent, error) bool,
) (bool, error) {
	opened := time.Now()
	var seq sequence
	for stream.Receive() {
		ev, order, err := watchEvent(stream.Msg())
		if err == nil {
			err = seq.check(order, time.Since(opened))
		}
		if err != nil {
			return true, err
		}
		if ev.Op != "" && !yield(ev, nil) {
			return false, nil
		}
	}
	if err := stream.Err(); err != nil {
		return true, err
	}
	return true, protocolf("the watch ended")
}

// watchEvent converts a message, and says what it is in the order of a
// command's events, which watches share.
func watchEvent(m *wirefs.WatchDirResponse) (backend.WatchEvent, event, error) {
	switch e := m.GetEvent().(type) {
	case *wirefs.WatchDirResponse_Start:
		return backend.WatchEvent{Op: backend.WatchReady}, event{kind: evStart, pid: 1}, nil
	case *wirefs.WatchDirResponse_Filesystem:
		name := e.Filesystem.GetName()
		if name == "" || len(name) > maxPath || strings.ContainsRune(name, 0) || path.IsAbs(name) ||
			slices.Contains(strings.Split(name, "/"), "..") {
			return backend.WatchEvent{}, event{}, protocolf("the name %q", name)
		}
		op := opOf(e.Filesystem.GetType())
		if op == "" {
			return backend.WatchEvent{}, event{}, nil
		}
		return backend.WatchEvent{Name: name, Op: op}, event{kind: evStdout, data: []byte{0}}, nil
	}
	return backend.WatchEvent{}, event{}, nil
}

func opOf(t wirefs.EventType) backend.WatchOp {
	switch t {
	case wirefs.EventType_EVENT_TYPE_CREATE:
		return backend.WatchCreate
	case wirefs.EventType_EVENT_TYPE_WRITE:
		return backend.WatchWrite
	case wirefs.EventType_EVENT_TYPE_REMOVE:
		return backend.WatchRemove
	case wirefs.EventType_EVENT_TYPE_RENAME:
		return backend.WatchRename
	case wirefs.EventType_EVENT_TYPE_CHMOD:
		return backend.WatchChmod
	case wirefs.EventType_EVENT_TYPE_UNSPECIFIED:
	}
	return ""
}
