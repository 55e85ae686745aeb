//go:build linux

package keeper

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// maxConns bounds the processes that use a sandbox at once.
	maxConns = 128
	// maxStreams is as many calls as an agent answers at once.
	maxStreams = 2048
	maxHeader  = 256 << 10
	copyBuffer = 64 << 10
)

// newFront serves on l what is behind rt: every request passes as it is, both
// ways at once.
func newFront(rt http.RoundTripper) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	discard := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	return &http.Server{
		Handler: &httputil.ReverseProxy{
			Transport: rt, Rewrite: rewrite, FlushInterval: -1, BufferPool: new(buffers), ErrorLog: discard,
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
				// The caller must not take it for an answer of the agent's.
				panic(http.ErrAbortHandler) //nolint:forbidigo // how net/http breaks off an answer
			},
		},
		Protocols: protocols, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: 10 * time.Second, ErrorLog: discard,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReadFrameSize: 256 << 10,
			MaxReceiveBufferPerConnection: 4<<20 - 1, MaxReceiveBufferPerStream: 2 << 20,
		},
	}
}

// rewrite undoes what a proxy between strangers would do.
func rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme, r.Out.URL.Host = "http", "sandbox"
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := r.In.Header[h]; ok {
			r.Out.Header[h] = v
		}
	}
	// What comes at the request's end is put there.
	r.Out.Trailer = r.In.Trailer
}

// buffers are what bodies are copied through.
type buffers struct{ pool sync.Pool }

// Get implements [httputil.BufferPool].
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, copyBuffer)
}

// Put implements [httputil.BufferPool].
func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// owners is a listener whose connections come from processes of this user.
type owners struct{ net.Listener }

// Accept implements [net.Listener].
func (o owners) Accept() (net.Conn, error) {
	for {
		c, err := o.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if u, ok := c.(*net.UnixConn); ok && sameUser(u) == nil {
			return c, nil
		}
		c.Close() //nolint:errcheck // a stranger's
	}
}

func limited(l net.Listener) net.Listener { return netutil.LimitListener(owners{l}, maxConns) }
