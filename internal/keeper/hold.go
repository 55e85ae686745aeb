//go:build linux

package keeper

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd"
	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// holding is what is held for one sandbox.
type holding struct {
	id        string
	dir       string
	proc      *os.File // readable when the sandbox has ended
	transport *envd.Transport
	stream    *stream         // nil for none
	front     *http.Server    // on the stream
	socket    string          // that front serves on; "" for none
	ctx       context.Context //nolint:containedctx // the holding's life
	end       context.CancelFunc
	ended     chan struct{} // closed when nothing is left of it
	wg        sync.WaitGroup

	mu     sync.Mutex
	held   Held // until it is committed
	egress *Egress
}

// newHolding takes over files, in any case. Nothing is said on the stream yet.
// The holding ends with ctx.
func newHolding(ctx context.Context, store string, h *Held, files []*os.File) (_ *holding, err error) {
	if err := h.check(len(files)); err != nil {
		closeAll(files)
		return nil, err
	}
	ho := &holding{id: h.ID, dir: runDir(store, h.ID), held: *h, ended: make(chan struct{})}
	if ho.proc, err = watchProcess(h.Proc); err != nil {
		closeAll(files)
		return nil, err
	}
	ho.ctx, ho.end = context.WithCancel(ctx)
	if h.Stream == nil {
		ho.transport = envd.NewTransport(unixsock.Dialer(h.socket(store)))
	} else if err := ho.serve(h, store, files); err != nil {
		ho.end()
		ho.proc.Close() //nolint:errcheck // on the way out
		return nil, err
	}
	ho.wg.Go(func() { awaitEnd(ho.proc); ho.end() })
	return ho, nil
}

// serve offers the stream to every process of this user.
func (ho *holding) serve(h *Held, store string, files []*os.File) (err error) {
	if ho.stream, err = newStream(h.Stream, files, ho.end); err != nil {
		return err
	}
	ho.socket = h.socket(store)
	l, err := unixsock.Listen(filepath.Dir(ho.socket), filepath.Base(ho.socket), 0o600)
	if err != nil {
		ho.stream.Close() //nolint:errcheck // on the way out
		return err
	}
	ho.transport = envd.NewTransport(unixsock.Once(ho.stream))
	ho.front = newFront(ho.transport)
	ho.wg.Go(func() { ho.front.Serve(limited(l)) }) //nolint:errcheck // it ends when it is closed
	return nil
}

// commit opens the sandbox's network, if any.
func (ho *holding) commit() error {
	ho.mu.Lock()
	defer ho.mu.Unlock()
	if ho.ctx.Err() != nil {
		return &backend.Error{Op: "keeper", Kind: backend.ErrNotFound, Err: errors.New("the sandbox has ended")}
	}
	if m := ho.held.Network.Mode; m == backend.NetworkAllowlist || m == backend.NetworkFull {
		e, err := StartEgress(ho.ctx, EgressOptions{
			Sandbox: ho.id, Token: ho.held.Token, Network: ho.held.Network, Secrets: ho.held.Secrets,
			Audit: ho.dir, Transport: ho.transport,
		})
		if err != nil {
			return err
		}
		ho.egress = e
	}
	ho.held = Held{}
	return nil
}

// setNetwork replaces the rules.
func (ho *holding) setNetwork(h *Held) error {
	ho.mu.Lock()
	defer ho.mu.Unlock()
	if ho.egress == nil || ho.ctx.Err() != nil {
		return &backend.Error{Op: "network", Kind: backend.ErrNotFound, Err: errors.New("nothing decides on its network")}
	}
	return ho.egress.Update(h.Network, h.Secrets)
}

// close gives everything back, once its context has ended.
func (ho *holding) close() {
	ho.transport.Close() //nolint:errcheck // it has none
	if ho.stream != nil {
		ho.stream.Close() //nolint:errcheck // the agent ends with it
	}
	ho.mu.Lock()
	if ho.egress != nil {
		ho.egress.Close()
	}
	ho.mu.Unlock()
	if ho.front != nil {
		ho.front.Close()     //nolint:errcheck // callers notice
		os.Remove(ho.socket) //nolint:errcheck // its directory goes with the sandbox
	}
	ho.proc.Close() //nolint:errcheck // read side
	ho.wg.Wait()
	close(ho.ended)
}
