package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/proxy"

	"github.com/glovebox-dev/glovebox/backend"
)

// dialer connects to addresses, through the upstream proxy where there is one.
type dialer struct {
	direct func(ctx context.Context, network, addr string) (net.Conn, error)
	roots  *x509.CertPool
	proxy  *url.URL
	user   string
	pass   string
}

// upstreamError says that the upstream proxy failed.
type upstreamError struct{ err error }

func (e *upstreamError) Error() string { return "upstream proxy: " + e.err.Error() }
func (e *upstreamError) Unwrap() error { return e.err }

func newDialer(o Options, up *backend.Proxy) (*dialer, error) {
	d := &dialer{direct: o.Dial, roots: o.Roots}
	if up == nil {
		return d, nil
	}
	var err error
	if d.proxy, err = url.Parse(up.URL); err != nil {
		return nil, secretError("network.upstream.url", errors.New("not an URL"))
	}
	if up.Secret != "" {
		s, err := o.reveal("network.upstream.secret", up.Secret)
		if err != nil {
			return nil, err
		}
		user, pass, ok := strings.Cut(s, ":")
		if !ok || len(user) > 255 || len(pass) > 255 || user == "" {
			return nil, secretError("network.upstream.secret", errors.New("the secret is not user:password"))
		}
		d.user, d.pass = user, pass
	}
	return d, nil
}

// dial connects to addr.
func (d *dialer) dial(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	if d.proxy == nil {
		return d.direct(ctx, "tcp", addr.String())
	}
	c, err := d.through(ctx, addr.String())
	if err != nil {
		return nil, &upstreamError{err}
	}
	return c, nil
}

func (d *dialer) through(ctx context.Context, addr string) (net.Conn, error) {
	if d.proxy.Scheme == "socks5" {
		var auth *proxy.Auth
		if d.user != "" {
			auth = &proxy.Auth{User: d.user, Password: d.pass}
		}
		s, err := proxy.SOCKS5("tcp", d.proxy.Host, auth, forward{d.direct})
		if err != nil {
			return nil, err
		}
		cd, ok := s.(proxy.ContextDialer)
		if !ok {
			return nil, errors.New("no context")
		}
		return cd.DialContext(ctx, "tcp", addr)
	}
	c, err := d.direct(ctx, "tcp", d.proxy.Host)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	out, err := d.connect(ctx, c, addr)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return out, nil
}

// connect asks an HTTP proxy for a tunnel over c.
func (d *dialer) connect(ctx context.Context, c net.Conn, addr string) (net.Conn, error) {
	if d.proxy.Scheme == "https" {
		t := tls.Client(c, &tls.Config{ServerName: d.proxy.Hostname(), RootCAs: d.roots, MinVersion: tls.VersionTLS12})
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		c = t
	}
	req := "CONNECT " + addr + " HTTP/1.1\r\nHost: " + addr + "\r\n"
	if d.user != "" {
		req += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(d.user+":"+d.pass)) + "\r\n"
	}
	if _, err := io.WriteString(c, req+"\r\n"); err != nil {
		return nil, err
	}
	limited := &io.LimitedReader{R: c, N: maxHeaderBytes}
	br := bufio.NewReader(limited)
	res, err := http.ReadResponse(br, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // it is the connection
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", res.StatusCode)
	}
	// What it sent after its answer is the server's.
	early, err := br.Peek(br.Buffered())
	if err != nil {
		return nil, err
	}
	return &replayed{Conn: c, r: io.MultiReader(strings.NewReader(string(early)), c)}, nil
}

// replayed is a connection of which some bytes were read before.
type replayed struct {
	net.Conn
	r io.Reader
}

func (c *replayed) Read(p []byte) (int, error) { return c.r.Read(p) }

// CloseWrite ends what is sent, where the connection can.
func (c *replayed) CloseWrite() error { return closeWrite(c.Conn) }

// forward is a dial function as proxy wants it.
type forward struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Dial implements [proxy.Dialer].
func (f forward) Dial(string, string) (net.Conn, error) { return nil, errors.ErrUnsupported }

// DialContext implements [proxy.ContextDialer].
func (f forward) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return f.dial(ctx, network, addr)
}

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

func isCertificate(err error) bool {
	var v *tls.CertificateVerificationError
	return errors.As(err, &v)
}
