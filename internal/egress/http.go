package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxHeaderBytes = 64 << 10
	headerTimeout  = 10 * time.Second
	idleTimeout    = time.Minute
)

// scope is what the requests of a connection may be for.
type scope struct {
	// fixed connections are for target; others are those of a proxy's client.
	fixed  bool
	target target
	tls    bool
}

// httpFront serves HTTP to the sandbox.
type httpFront struct {
	p      *Proxy
	server *http.Server
	conns  chan net.Conn
	done   chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
}

func newHTTPFront(p *Proxy) *httpFront {
	f := &httpFront{p: p, conns: make(chan net.Conn), done: make(chan struct{})}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	f.server = &http.Server{
		Handler: f, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		DisableGeneralOptionsHandler: true, Protocols: protocols,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, servedKey{}, c)
		},
	}
	return f
}

type servedKey struct{}

// served is a connection on its way through the server.
type served struct {
	net.Conn
	scope scope
	ctx   context.Context //nolint:containedctx // the connection's life
	once  sync.Once
	done  chan struct{}
}

func (c *served) Close() error {
	defer c.once.Do(func() { close(c.done) })
	_ = closeWrite(c.Conn)
	return c.Conn.Close()
}

// CloseWrite ends what is sent, where the connection can.
func (c *served) CloseWrite() error { return closeWrite(c.Conn) }

// serve has c until it is closed.
func (f *httpFront) serve(ctx context.Context, c net.Conn, sc scope) {
	s := &served{Conn: c, scope: sc, ctx: ctx, done: make(chan struct{})}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	f.once.Do(func() { f.wg.Go(func() { _ = f.server.Serve(f) }) }) // it ends when close is called
	select {
	case f.conns <- s:
		<-s.done
	case <-f.done:
	case <-ctx.Done():
	}
}

func (f *httpFront) close() {
	f.once.Do(func() {})
	_ = f.server.Close()
	_ = f.Close()
	f.wg.Wait()
}

// Accept implements [net.Listener].
func (f *httpFront) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (f *httpFront) Close() error {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	select {
	case <-f.done:
	default:
		close(f.done)
	}
	return nil
}

// Addr implements [net.Listener].
func (f *httpFront) Addr() net.Addr { return sandboxAddr{} }

// ServeHTTP decides on one request and passes it on.
func (f *httpFront) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(servedKey{}).(*served)
	if !ok {
		return
	}
	if r.ProtoMajor != 1 {
		plain(w, http.StatusHTTPVersionNotSupported, "use HTTP/1.1")
		return
	}
	if r.Method == http.MethodConnect {
		f.connect(w, r, c)
		return
	}
	t, status, why := requested(r, c.scope)
	if status == 0 && !c.scope.fixed {
		var err error
		if t, err = f.p.real(t); err != nil {
			status, why = http.StatusForbidden, err.Error()
		}
	}
	if status != 0 {
		if t.port == 0 {
			t = c.scope.target
		}
		d := Decision{Kind: KindHTTP, Host: r.Host, Port: t.port, Method: r.Method, Reason: why}
		if t.name != "" || t.addr.IsValid() {
			d.Host = t.host()
		}
		f.p.audit(d)
		plain(w, status, why)
		return
	}
	f.forward(w, r, t, c)
}

// connect makes a tunnel of a proxy's connection.
func (f *httpFront) connect(w http.ResponseWriter, r *http.Request, c *served) {
	if c.scope.fixed {
		plain(w, http.StatusMethodNotAllowed, "this is no proxy")
		return
	}
	t, err := parseHostPort(r.RequestURI, 0)
	if err != nil {
		f.p.audit(Decision{Kind: KindConnect, Host: r.RequestURI, Reason: err.Error()})
		plain(w, http.StatusForbidden, "CONNECT: "+err.Error())
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close() //nolint:errcheck // nobody is left to tell
	_ = conn.SetDeadline(time.Time{})
	f.p.tunnel(c.ctx, &peeked{Conn: conn, br: rw.Reader}, t, func(err error) {
		var ref *refusal
		line, text := "HTTP/1.1 200 Connection established\r\n\r\n", ""
		switch {
		case errors.As(err, &ref):
			line, text = "HTTP/1.1 403 Forbidden\r\n", ref.reason
		case err != nil:
			line, text = "HTTP/1.1 502 Bad Gateway\r\n", describe(t, err)
		}
		if text != "" {
			line += "Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\nglovebox: " + clip(text) + "\n"
		}
		_, _ = io.WriteString(conn, line) // a broken connection shows at the next use
	})
}

// requested is what a request is for. A status other than 0 refuses it.
func requested(r *http.Request, sc scope) (t target, status int, why string) {
	port, scheme := uint16(80), "http"
	if sc.tls {
		port, scheme = 443, "https"
	}
	host := r.Host
	switch {
	case r.URL.User != nil:
		// Security: clients and servers disagree on what such an address is.
		return t, http.StatusForbidden, "credentials in the URL: send an Authorization header"
	case r.URL.IsAbs() && r.URL.Scheme != scheme:
		return t, http.StatusBadRequest, "this connection is for " + scheme + ": use CONNECT for others"
	case r.URL.IsAbs() && r.URL.Host == "":
		return t, http.StatusBadRequest, "the URL names no host"
	case r.URL.IsAbs():
		host = r.URL.Host
	case !sc.fixed:
		return t, http.StatusBadRequest, "this is the sandbox's proxy: ask it for whole URLs"
	case r.URL.Path == "" || r.URL.Path[0] != '/':
		return t, http.StatusBadRequest, "the request names no path"
	}
	if sc.fixed {
		port = sc.target.port
	}
	t, err := parseHostPort(host, port)
	if err != nil {
		return target{}, http.StatusForbidden, "the host that is asked for: " + err.Error()
	}
	if sc.fixed && t != sc.target {
		return t, http.StatusMisdirectedRequest, "the connection is to " + sc.target.String() + ", the request for " + t.String()
	}
	return t, 0, ""
}

// queryOf is what rules look at. Security: a path that servers may read in two
// ways must not pass as the one that a rule allows.
func queryOf(r *http.Request) *query {
	q := &query{method: r.Method, path: r.URL.Path}
	if q.path == "" {
		q.path = "/"
	}
	raw := strings.ToLower(r.URL.EscapedPath())
	for _, s := range []string{"%2e", "%2f", "%5c", "%25", "%00", "\\", ";", "//"} {
		q.ambiguous = q.ambiguous || strings.Contains(raw, s)
	}
	clean := path.Clean(q.path)
	q.ambiguous = q.ambiguous || clean != q.path && clean+"/" != q.path ||
		strings.ContainsFunc(q.path, func(c rune) bool { return c < ' ' || c == 0x7f })
	return q
}

// forward sends one request on and its answer back.
func (f *httpFront) forward(w http.ResponseWriter, r *http.Request, t target, c *served) {
	st := f.p.state.Load()
	q := queryOf(r)
	v := st.policy.decide(t, q)
	d := t.decision(KindHTTP, v)
	d.Method, d.Path = r.Method, r.URL.EscapedPath()
	var headers []injection
	for _, in := range st.policy.inject {
		if v.ok && in.matches(t) && in.rule.request(q, false) {
			headers = append(headers, in)
		}
	}
	if len(headers) > 0 && r.Method == http.MethodTrace {
		// Security: the answer to it is the request, secrets and all.
		v = verdict{reason: "TRACE where a header is injected"}
		d.Allowed, d.Rule, d.Reason = false, "", v.reason
	}
	if !v.ok {
		f.p.audit(d)
		plain(w, http.StatusForbidden, v.reason)
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	ex := &exchange{p: f.p, st: st, t: t, q: q, d: d, cancel: cancel, headers: headers, tls: c.scope.tls}
	fl := &flow{cut: func() { cancel(errCut()) }, still: ex.still}
	if !f.p.enter(fl) {
		d.Allowed, d.Reason = false, errCut().reason
		f.p.audit(d)
		plain(w, http.StatusForbidden, errCut().reason)
		return
	}
	defer f.p.leave(fl)
	ex.serve(w, r.WithContext(context.WithValue(ctx, exchangeKey{}, ex)))
}

// errCut ends what a new policy does not allow.
func errCut() *refusal { return &refusal{verdict{reason: "the policy has changed"}} }

type exchangeKey struct{}

// exchange is one request with its answer.
type exchange struct {
	p       *Proxy
	st      *state
	t       target
	q       *query
	tls     bool
	headers []injection
	cancel  context.CancelCauseFunc

	mu   sync.Mutex
	addr netip.Addr // what it is sent to
	d    Decision
	told bool

	sent, received atomic.Int64
}

// still tells whether st allows the exchange, as far as it has come.
func (e *exchange) still(st *state) bool {
	e.mu.Lock()
	addr := e.addr
	e.mu.Unlock()
	return st.policy.decide(e.t, e.q).ok && (!addr.IsValid() || st.policy.address(e.t, addr, e.q).ok)
}

func (e *exchange) serve(w http.ResponseWriter, r *http.Request) {
	r.Body = &counted{ReadCloser: r.Body, n: &e.sent}
	rp := &httputil.ReverseProxy{
		Transport: e.st.transport, FlushInterval: -1, Rewrite: e.rewrite, ErrorHandler: e.fail,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	defer func() {
		e.mu.Lock()
		d, told := e.d, e.told
		e.mu.Unlock()
		if told {
			e.p.ended(d, e.sent.Load(), e.received.Load())
		}
	}()
	trace := &httptrace.ClientTrace{GotConn: e.connected}
	rp.ServeHTTP(&counting{ResponseWriter: w, n: &e.received}, r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
}

// rewrite makes the request that is sent.
func (e *exchange) rewrite(pr *httputil.ProxyRequest) {
	out := pr.Out
	scheme, port := "http", uint16(80)
	if e.tls {
		scheme, port = "https", 443
	}
	// Security: the host is what was decided on, whatever the client wrote.
	out.Host = e.t.header(port)
	out.URL = &url.URL{
		Scheme: scheme, Host: e.t.String(), Path: out.URL.Path, RawPath: out.URL.RawPath,
		RawQuery: out.URL.RawQuery, ForceQuery: out.URL.ForceQuery,
	}
	// Security: another protocol on the connection would go unlooked at.
	if up := out.Header.Get("Upgrade"); up != "" && !strings.EqualFold(up, "websocket") {
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	out.Header.Del("Http2-Settings")
	// It is the client's business whom it speaks for.
	for _, k := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v := pr.In.Header[k]; v != nil {
			out.Header[k] = v
		}
	}
	for _, in := range e.headers {
		out.Header.Del(in.header)
	}
	for _, in := range e.headers {
		out.Header.Add(in.header, in.value)
	}
}

// connected is told which connection the request goes over. One that an earlier
// request made may be to an address that this one may not be sent to.
func (e *exchange) connected(info httptrace.GotConnInfo) {
	c := info.Conn
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	pc, ok := c.(*pinned)
	if !ok {
		e.cancel(&refusal{verdict{reason: "a connection that was not checked"}})
		return
	}
	v := e.st.policy.address(e.t, pc.addr, e.q)
	if !v.ok {
		e.cancel(&refusal{v})
		return
	}
	e.mu.Lock()
	e.addr, e.d.Address = pc.addr, pc.addr
	d, first := e.d, !e.told
	e.told = true
	e.mu.Unlock()
	if first {
		d = e.p.audit(d)
		e.mu.Lock()
		e.d = d
		e.mu.Unlock()
	}
	// The policy may have changed since it was decided by name alone.
	if !e.still(e.p.state.Load()) {
		e.cancel(errCut())
	}
}

// fail answers a request that no server has answered.
func (e *exchange) fail(w http.ResponseWriter, r *http.Request, err error) {
	if cause := context.Cause(r.Context()); cause != nil {
		err = cause
	}
	status := http.StatusBadGateway
	if _, ok := errors.AsType[*refusal](err); ok {
		status = http.StatusForbidden
	}
	why := describe(e.t, err)
	e.mu.Lock()
	d, told := e.d, e.told
	if told {
		e.d.Reason = why
	}
	e.mu.Unlock()
	if !told {
		d.Allowed, d.Reason = false, why
		e.p.audit(d)
	}
	plain(w, status, why)
}

// newTransport makes what sends st's requests.
func (st *state) newTransport(roots *x509.CertPool) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			e, ok := ctx.Value(exchangeKey{}).(*exchange)
			if !ok {
				return nil, errors.New("a request that was not decided on")
			}
			return st.dial(ctx, e.t, e.q)
		},
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: greeting, DisableCompression: true, ForceAttemptHTTP2: true,
		MaxIdleConns: 32, MaxIdleConnsPerHost: 8, IdleConnTimeout: 30 * time.Second,
		ExpectContinueTimeout: time.Second, MaxResponseHeaderBytes: 256 << 10,
	}
}

// counted and counting count a body's bytes.
type counted struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

type counting struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n.Add(int64(n))
	return n, err
}

// Unwrap lets the connection's own abilities be found.
func (c *counting) Unwrap() http.ResponseWriter { return c.ResponseWriter }
