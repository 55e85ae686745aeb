//go:build linux

package egress_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	agentegress "github.com/glovebox-dev/glovebox/internal/agent/egress"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/envd"
)

// rig is both sides over an HTTP/2 connection, in one process.
type rig struct {
	*egress.Proxy
	svc   *agentegress.Service
	names *resolver
	roots *x509.CertPool
	ended chan error

	mu      sync.Mutex
	audited []egress.Decision
	dialled []string
}

// loopback names the one address of the test's servers, which is refused
// otherwise.
func loopback(ports ...int) backend.Rule {
	r := backend.Rule{CIDR: "127.0.0.1/32"}
	for _, p := range ports {
		r.Ports = append(r.Ports, uint16(p))
	}
	return r
}

func allowlist(rules ...backend.Rule) backend.Network {
	return backend.Network{Mode: backend.NetworkAllowlist, Allow: rules}
}

func newRig(t *testing.T, n backend.Network, change ...func(*egress.Options)) *rig {
	t.Helper()
	r := newHost(t, n, change...)
	var err error
	if r.svc, err = agentegress.New(agentegress.Options{ProxyAddr: "127.0.0.1:0", DNSAddr: "127.0.0.1:0", Dir: t.TempDir(), Bundles: []string{}}); err != nil {
		t.Fatal(err)
	}
	rt := connect(t, r.svc.Handler())
	go func() { r.ended <- r.Serve(t.Context(), rt) }()
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			if err := r.svc.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

// newHost is the host's side alone.
func newHost(t *testing.T, n backend.Network, change ...func(*egress.Options)) *rig {
	t.Helper()
	r := &rig{names: newResolver(), roots: x509.NewCertPool(), ended: make(chan error, 1)}
	o := egress.Options{
		Sandbox: "sbx1", Network: n, Resolver: r.names, Roots: r.roots,
		OwnAddrs: func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("198.51.100.7")} },
		Audit: func(d egress.Decision) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.audited = append(r.audited, d)
		},
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			r.mu.Lock()
			r.dialled = append(r.dialled, addr)
			r.mu.Unlock()
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		},
	}
	for _, f := range change {
		f(&o)
	}
	var err error
	if r.Proxy, err = egress.New(o); err != nil {
		t.Fatal(err)
	}
	return r
}

// connect serves h over one HTTP/2 connection, as an agent does.
func connect(t *testing.T, h http.Handler) *envd.Transport {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{
		MaxConcurrentStreams: 2048, MaxReadFrameSize: 256 << 10,
		MaxReceiveBufferPerConnection: 4<<20 - 1, MaxReceiveBufferPerStream: 2 << 20,
	}}
	srv.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	rt := envd.NewTransport(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", l.Addr().String())
	})
	t.Cleanup(func() {
		_ = rt.Close()
		_ = srv.Close()
		<-done
	})
	return rt
}

// resolver is the names of a test.
type resolver struct {
	mu    sync.Mutex
	names map[string][]string
	asked []string
}

func newResolver() *resolver { return &resolver{names: map[string][]string{}} }

func (r *resolver) set(name string, addrs ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names[name+"."] = addrs
}

func (r *resolver) LookupNetIP(_ context.Context, _, host string) (out []netip.Addr, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, host)
	for _, a := range r.names[host] {
		out = append(out, netip.MustParseAddr(a))
	}
	if out == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return out, nil
}

// questions are the names that were resolved.
func (r *resolver) questions() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

func (r *rig) decisions(f func(egress.Decision) bool) (out []egress.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.audited {
		if f(d) {
			out = append(out, d)
		}
	}
	return out
}

func (r *rig) dials() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.dialled)
}

// client is a program that uses the proxy.
func (r *rig) client(t *testing.T) *http.Client {
	t.Helper()
	u := &url.URL{Scheme: "http", Host: r.svc.ProxyAddr()}
	tr := &http.Transport{Proxy: http.ProxyURL(u), TLSClientConfig: &tls.Config{RootCAs: r.roots}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{
		Transport: tr, Timeout: 20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// dial connects to the proxy's port.
func (r *rig) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.svc.ProxyAddr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// raw sends text to the proxy and returns the status and the body of the answer.
func (r *rig) raw(t *testing.T, text string) (int, string) {
	t.Helper()
	c := r.dial(t)
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(text, " ")
	res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK && strings.HasPrefix(text, "CONNECT") {
		return res.StatusCode, ""
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// connectTo asks for a tunnel; the status is not 200 when it is refused.
func (r *rig) connectTo(t *testing.T, hostport string) (net.Conn, int) {
	t.Helper()
	c := r.dial(t)
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", hostport, hostport)
	res, err := http.ReadResponse(bufio.NewReader(oneByte{c}), &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // it is the connection
	if err != nil {
		t.Fatal(err)
	}
	return c, res.StatusCode
}

// oneByte keeps a buffer from taking what comes after.
type oneByte struct{ r io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.r.Read(p[:1]) }

func get(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// answered is get once there is an answer: a request that was under way when the
// host's side changed is cut off, and the agent may notice a moment later.
func answered(t *testing.T, c *http.Client, url string) (status int, body string) {
	t.Helper()
	for range 1000 {
		if status, body = get(t, c, url); status != 0 {
			break
		}
	}
	return status, body
}

// upstream is a server that says what it was asked.
type upstream struct {
	*httptest.Server
	port int
	mu   sync.Mutex
	got  []*http.Request
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s host=%s body=%s", r.Method, r.URL.RequestURI(), r.Host, body)
}

func newUpstream(t *testing.T, h http.HandlerFunc) *upstream {
	t.Helper()
	u := &upstream{}
	if h == nil {
		h = echo
	}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		u.got = append(u.got, r.Clone(t.Context()))
		u.mu.Unlock()
		h(w, r)
	}))
	t.Cleanup(u.Close)
	u.port = portOf(u.Listener.Addr())
	return u
}

func (u *upstream) requests() []*http.Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.got)
}

func portOf(a net.Addr) int {
	_, p, _ := net.SplitHostPort(a.String())
	n, _ := strconv.Atoi(p)
	return n
}

// newTLS is an upstream with certificates for names, which the rig trusts.
func (r *rig) newTLS(t *testing.T, h http.HandlerFunc, names ...string) *upstream {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	r.roots.AddCert(cert)
	u := &upstream{}
	if h == nil {
		h = echo
	}
	u.Server = httptest.NewUnstartedServer(h)
	u.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	u.StartTLS()
	t.Cleanup(u.Close)
	u.port = portOf(u.Listener.Addr())
	return u
}
