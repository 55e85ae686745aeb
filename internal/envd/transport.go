package envd

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// streamWindow is what the peer may send on one stream ahead of its
	// reader. The connection's own window (1 GiB, net/http's default) is
	// no smaller than those of the 2048 streams the agent admits, so commands
	// whose output nobody reads never starve the others.
	streamWindow = 512 << 10
	// frameSize is the largest frame the peer may send: fewer and larger
	// frames than the protocol's default of 16 KiB.
	frameSize = 256 << 10
	// connectTimeout bounds the making of a connection.
	connectTimeout = 10 * time.Second
	// maxResponseHeader bounds the header block of one answer.
	maxResponseHeader = 256 << 10
)

// Transport is an [http.RoundTripper] that speaks HTTP/2 with prior knowledge
// over one connection at a time. It is safe for concurrent use. Requests above
// the server's limit of concurrent streams wait for one that ends.
type Transport struct {
	dial func(ctx context.Context) (net.Conn, error)
	// dialing is held by the one request that makes the connection.
	dialing chan struct{}

	mu     sync.Mutex
	raw    net.Conn // on its way to become conn
	conn   *http.ClientConn
	old    []*http.ClientConn // still carry streams, take no new ones
	closed bool
}

// NewTransport returns a Transport over connections from dial, which is called
// for the first request and again when the connection is found broken, one call
// at a time, with a context that lasts ten seconds and not with the request's. A
// request is never sent twice. The caller closes the transport; it closes the
// connections.
func NewTransport(dial func(ctx context.Context) (net.Conn, error)) *Transport {
	return &Transport{dial: dial, dialing: make(chan struct{}, 1)}
}

// over makes an HTTP/2 connection of a byte stream.
func over(ctx context.Context, conn net.Conn) (*http.ClientConn, error) {
	t := &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxResponseHeader,
		Protocols:              new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true,
			MaxReceiveBufferPerStream:   streamWindow,
			MaxReadFrameSize:            frameSize,
		},
	}
	t.Protocols.SetUnencryptedHTTP2(true)
	return t.NewClientConn(ctx, "http", "sandbox:80")
}

// dialError says that no connection was made, so nothing was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return "dial: " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

var errTransportClosed = errors.New("the connection to the sandbox is closed")

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	cc, err := t.current(req.Context())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	return cc.RoundTrip(req)
}

// current returns a connection that takes requests, a new one if need be.
func (t *Transport) current(ctx context.Context) (*http.ClientConn, error) {
	if cc, err := t.usable(); cc != nil || err != nil {
		return cc, err
	}
	select {
	case t.dialing <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	type made struct {
		cc  *http.ClientConn
		err error
	}
	got := make(chan made, 1)
	// The connection is the next request's when this one has given up: there
	// are byte streams that can be had only once.
	go func() {
		defer func() { <-t.dialing }()
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
		defer cancel()
		cc, err := t.connect(dctx)
		got <- made{cc, err}
	}()
	select {
	case m := <-got:
		return m.cc, m.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// connect makes the current connection unless somebody was faster.
func (t *Transport) connect(ctx context.Context) (*http.ClientConn, error) {
	if cc, err := t.usable(); cc != nil || err != nil {
		return cc, err
	}
	conn, err := t.dial(ctx)
	if err != nil {
		return nil, &dialError{err}
	}
	return t.take(ctx, conn)
}

// take makes conn the current connection. A peer that does not read cannot
// hold it longer than ctx or the transport lives.
func (t *Transport) take(ctx context.Context, conn net.Conn) (*http.ClientConn, error) {
	t.mu.Lock()
	t.raw = conn
	if t.closed {
		_ = conn.Close()
	}
	t.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	cc, err := over(ctx, conn)
	ended := !stop()

	t.mu.Lock()
	defer t.mu.Unlock()
	t.raw = nil
	switch {
	case err == nil && !ended && !t.closed:
		t.conn = cc
		return cc, nil
	case err == nil:
		_ = cc.Close()
	default:
		_ = conn.Close()
	}
	switch {
	case ended:
		return nil, &dialError{ctx.Err()}
	case t.closed:
		return nil, &dialError{errTransportClosed}
	default:
		return nil, &dialError{err}
	}
}

// usable returns the connection if it takes requests, nil if there is none.
func (t *Transport) usable() (*http.ClientConn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, &dialError{errTransportClosed}
	}
	if t.conn == nil || t.conn.Err() == nil {
		return t.conn, nil
	}
	// A connection that was told to go away still carries its streams.
	keep := t.old[:0]
	for _, cc := range append(t.old, t.conn) {
		if cc.InFlight() > 0 {
			keep = append(keep, cc)
			continue
		}
		_ = cc.Close()
	}
	t.old, t.conn = keep, nil
	return nil, nil
}

// Close breaks the connection and all streams on it. Later requests fail
// without being sent. It is idempotent.
func (t *Transport) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, cc := range t.old {
		_ = cc.Close()
	}
	if t.conn != nil {
		_ = t.conn.Close()
	}
	if t.raw != nil {
		_ = t.raw.Close()
	}
	t.old, t.conn = nil, nil
	return nil
}

var _ http.RoundTripper = (*Transport)(nil)
