//go:build linux

package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/egress"
)

func TestHTTP_methodsAndPaths(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	r := newRig(t, allowlist(
		backend.Rule{CIDR: "127.0.0.1/32", Methods: []string{"GET"}, Path: "/pub"},
		backend.Rule{CIDR: "127.0.0.1/32", Methods: []string{"POST"}, Path: "/in/"},
	))
	for _, c := range []struct {
		method, path string
		ok           bool
	}{
		{"GET", "/pub", true},
		{"GET", "/pub/", true},
		{"GET", "/pub/a?x=/../..", true},
		{"GET", "/pub/a%20b", true},
		{"GET", "/public", false},
		{"GET", "/", false},
		{"HEAD", "/pub", false},
		{"POST", "/pub", false},
		{"POST", "/in/x", true},
		{"POST", "/in", false},
		{"GET", "/pub/../in", false},
		{"GET", "/pub/%2e%2e/in", false},
		{"GET", "/pub/..%2fin", false},
		{"GET", "/pub/%252e%252e/in", false},
		{"GET", "/pub/..;/in", false},
		{"GET", "/pub/..\\in", false},
		{"GET", "//pub", false},
		{"GET", "/PUB", false},
		{"GET", "/pub//x", false},
		{"GET", "/%70ub", true},
		{"get", "/pub", false},
	} {
		status, body := r.raw(t, fmt.Sprintf("%s http://127.0.0.1:%d%s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", c.method, up.port, c.path))
		if c.ok != (status == 200) || !c.ok && status != 403 {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, body)
		}
	}
}

// TestInject: the server sees the secret, the sandbox and the log do not.
func TestInject(t *testing.T) {
	const secret = "s3cr3t-value"
	t.Setenv("EGRESS_TEST_SECRET", "Bearer "+secret)
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "got %d", len(r.Header.Values("Authorization")))
	})
	r := newRig(t, allowlist())
	r.names.set("api.test", "127.0.0.1")
	r.names.set("plain.test", "127.0.0.1")
	n := allowlist(backend.Rule{Host: "api.test"}, backend.Rule{Host: "plain.test"}, loopback(up.port))
	n.Inject = []backend.HeaderRule{{Rule: backend.Rule{Host: "api.test", Path: "/v1"}, Header: "authorization", Secret: "env:EGRESS_TEST_SECRET"}}
	if err := r.Update(n); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ host, path, want string }{
		{"api.test", "/v1/x", "Bearer " + secret},
		{"api.test", "/v2", "Basic mine"},
		{"plain.test", "/v1/x", "Basic mine"},
		{"api.test", "/v1/../v1", "Basic mine"},
	} {
		// The sandbox's own is replaced, and it cannot have the header removed.
		status, body := r.raw(t, fmt.Sprintf("GET http://%s:%d%s HTTP/1.1\r\nHost: x\r\nAuthorization: Basic mine\r\nConnection: close\r\n\r\n", c.host, up.port, c.path))
		got := up.requests()
		if h := got[len(got)-1].Header["Authorization"]; status != 200 || len(h) != 1 || h[0] != c.want || strings.Contains(body, secret) {
			t.Errorf("%s%s: %d %s, the server saw %q", c.host, c.path, status, body, h)
		}
	}
	if status, _ := r.raw(t, fmt.Sprintf("GET http://api.test:%d/v1 HTTP/1.1\r\nHost: x\r\nConnection: Authorization, close\r\n\r\n", up.port)); status != 200 {
		t.Error(status)
	}
	if got := up.requests(); got[len(got)-1].Header.Get("Authorization") != "Bearer "+secret {
		t.Error("a Connection header removed it")
	}
	if status, body := r.raw(t, fmt.Sprintf("TRACE http://api.test:%d/v1 HTTP/1.1\r\nHost: x\r\n\r\n", up.port)); status != 403 {
		t.Errorf("TRACE: %d %s", status, body)
	}
	// HTTPS to it would go without.
	if _, body := get(t, r.client(t), fmt.Sprintf("https://api.test:%d/v1", up.port)); !strings.Contains(body, "access denied") {
		t.Errorf("HTTPS: %s", body)
	}
	if d := r.decisions(func(d egress.Decision) bool { return strings.Contains(d.Reason, "network.intercept") }); len(d) != 1 {
		t.Errorf("%+v", d)
	}
	if all := fmt.Sprintf("%+v", r.decisions(func(egress.Decision) bool { return true })); strings.Contains(all, secret) || strings.Contains(all, "mine") {
		t.Error("the log has the secret")
	}
}

// TestIntercept: HTTPS is opened where a rule looks at requests, and nowhere
// else; the server's certificate is still verified.
func TestIntercept(t *testing.T) {
	t.Setenv("EGRESS_TEST_SECRET2", "top")
	r := newRig(t, allowlist())
	up := r.newTLS(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s key=%s", r.Method, r.URL.Path, r.Header.Get("X-Key"))
	}, "api.test", "whole.test")
	for _, n := range []string{"api.test", "whole.test", "wrong.test"} {
		r.names.set(n, "127.0.0.1")
	}
	n := allowlist(
		backend.Rule{Host: "api.test", Methods: []string{"GET"}, Path: "/ok"}, backend.Rule{Host: "whole.test"},
		backend.Rule{Host: "wrong.test", Methods: []string{"GET"}}, loopback(up.port),
	)
	n.Inject = []backend.HeaderRule{{Rule: backend.Rule{Host: "api.test"}, Header: "X-Key", Secret: "env:EGRESS_TEST_SECRET2"}}
	n.Intercept = true
	if err := r.Update(n); err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(r.svc.Env()["SSL_CERT_FILE"])
	if err != nil {
		t.Fatal(err)
	}
	own := x509.NewCertPool()
	own.AppendCertsFromPEM(pem)
	inside := r.client(t)
	inside.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: own}
	at := func(host, path string) string { return fmt.Sprintf("https://%s:%d%s", host, up.port, path) }
	if status, body := get(t, inside, at("api.test", "/ok/a")); status != 200 || body != "GET /ok/a key=top" {
		t.Errorf("%d %s", status, body)
	}
	if status, body := get(t, inside, at("api.test", "/no")); status != 403 {
		t.Errorf("%d %s", status, body)
	}
	if status, body := get(t, inside, at("wrong.test", "/")); status != 502 || !strings.Contains(body, "certificate") {
		t.Errorf("%d %s", status, body)
	}
	// What is allowed as a whole has the server's own certificate.
	if _, body := get(t, inside, at("whole.test", "/")); !strings.Contains(body, "certificate") {
		t.Errorf("the sandbox's authority vouched for it: %s", body)
	}
	if status, body := get(t, r.client(t), at("whole.test", "/")); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	n.Intercept, n.Inject = false, nil
	if err := r.Update(n); err != nil {
		t.Fatal(err)
	}
	if env := r.svc.Env(); env["SSL_CERT_FILE"] != "" {
		t.Errorf("%v", env)
	}
	if _, body := get(t, r.client(t), at("api.test", "/ok/a")); !strings.Contains(body, "access denied") {
		t.Error(body)
	}
}

// TestUpdate_cutsWhatIsNoLongerAllowed, and leaves what is.
func TestUpdate_cutsWhatIsNoLongerAllowed(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "begun")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	port := portOf(l.Addr())
	r := newRig(t, allowlist(loopback(up.port, port)))
	tunnel := func() net.Conn {
		c, code := r.socksConn(t, "127.0.0.1", port)
		if code != 0 {
			t.Fatal(code)
		}
		exchange(t, c)
		return c
	}
	c := tunnel()
	res, err := r.client(t).Get(fmt.Sprintf("http://127.0.0.1:%d/", up.port))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := r.Update(allowlist(loopback(port))); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("the request ended well: %s", b)
	}
	exchange(t, c)
	if err := r.Update(allowlist()); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil || n > 0 {
		t.Errorf("%d %v", n, err)
	}
	if code := r.socks(t, "127.0.0.1", port); code != 2 {
		t.Error(code)
	}
	if err := r.Update(backend.Network{Mode: "some"}); err == nil {
		t.Error("a policy that is none was taken")
	}
	if err := r.Update(allowlist(loopback(port))); err != nil {
		t.Fatal(err)
	}
	c = tunnel()
	_ = r.Close()
	if n, err := c.Read(make([]byte, 1)); err == nil || n > 0 {
		t.Errorf("after Close: %d %v", n, err)
	}
	if err := <-r.ended; err == nil {
		t.Error("Serve returned nil")
	}
	if err := r.Update(allowlist()); err == nil {
		t.Error("a closed proxy was updated")
	}
}

func exchange(t *testing.T, c net.Conn) {
	t.Helper()
	_, _ = io.WriteString(c, "\x01ping")
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "\x01ping" {
		t.Fatalf("%q %v", b, err)
	}
}

func TestUpstream(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("me:pa55\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var asked []string
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	go func() {
		for {
			c, err := proxy.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				req, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				mu.Lock()
				asked = append(asked, req.Method+" "+req.RequestURI+" "+req.Header.Get("Proxy-Authorization"))
				mu.Unlock()
				s, err := net.Dial("tcp", req.RequestURI)
				if err != nil {
					return
				}
				defer s.Close()
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
				go func() { _, _ = io.Copy(s, br) }()
				_, _ = io.Copy(c, s)
			}()
		}
	}()
	up := newUpstream(t, nil)
	n := allowlist(backend.Rule{Host: "a.test"}, loopback(up.port))
	n.Upstream = &backend.Proxy{URL: "http://" + proxy.Addr().String(), Secret: backend.SecretRef("file:" + secret)}
	r := newRig(t, n)
	r.names.set("a.test", "127.0.0.1")
	if status, body := get(t, r.client(t), fmt.Sprintf("http://a.test:%d/x", up.port)); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	want := fmt.Sprintf("CONNECT 127.0.0.1:%d Basic %s", up.port, base64.StdEncoding.EncodeToString([]byte("me:pa55")))
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 1 || asked[0] != want {
		t.Errorf("asked %q", asked)
	}
}

// TestDNS_ownServers: names are resolved by the servers that the policy names,
// and an answer that changes is checked anew.
func TestDNS_ownServers(t *testing.T) {
	t.Parallel()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	var mu sync.Mutex
	answers := 0
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true}, Questions: m.Questions}
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				mu.Lock()
				addr := [4]byte{127, 0, 0, 1}
				if answers++; answers > 1 {
					addr = [4]byte{169, 254, 169, 254} // the rebinding
				}
				mu.Unlock()
				out.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 0}, Body: &dnsmessage.AResource{A: addr},
				}}
			}
			if b, err := out.Pack(); err == nil {
				_, _ = pc.WriteTo(b, from)
			}
		}
	}()
	up := newUpstream(t, nil)
	n := allowlist(backend.Rule{Host: "a.test"}, loopback(up.port))
	n.DNS = []string{pc.LocalAddr().String()}
	var clock sync.Mutex
	now := time.Now()
	r := newRig(t, n, func(o *egress.Options) {
		o.Now = func() time.Time { clock.Lock(); defer clock.Unlock(); return now }
	})
	url := fmt.Sprintf("http://a.test:%d/", up.port)
	fresh := func() (int, string) { return get(t, r.client(t), url) }
	if status, body := fresh(); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := fresh(); status != 200 { // the pinned address
		t.Fatalf("%d %s", status, body)
	}
	if err := r.Update(n); err != nil { // forgets connections and answers
		t.Fatal(err)
	}
	if status, body := fresh(); status != 403 || !strings.Contains(body, "169.254.169.254, a metadata service") {
		t.Errorf("%d %s", status, body)
	}
	for _, d := range r.dials() {
		if strings.HasPrefix(d, "169") {
			t.Errorf("dialled %s", d)
		}
	}
}

// TestNamed: programs that resolve a name and connect to what they get.
func TestNamed(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	r := newRig(t, allowlist(backend.Rule{Host: "a.test", Ports: []uint16{uint16(up.port)}}, loopback(up.port)))
	r.names.set("a.test", "127.0.0.1")
	for _, network := range []string{"udp", "tcp"} {
		res := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, r.svc.DNSAddr())
		}}
		got, err := res.LookupNetIP(t.Context(), "ip", "a.test.")
		if err != nil || len(got) != 1 || !strings.HasPrefix(got[0].String(), "127.") || got[0].String() == "127.0.0.1" {
			t.Fatalf("%s: %v %v", network, got, err)
		}
		for _, name := range []string{"b.test.", "a.test.evil.", "*.a.test.", "metadata.google.internal.", strings.Repeat("a", 60) + ".exfil.test."} {
			if got, err := res.LookupNetIP(t.Context(), "ip", name); err == nil {
				t.Errorf("%s: %s is %v", network, name, got)
			}
		}
		if txt, err := res.LookupTXT(t.Context(), "a.test."); err == nil && len(txt) > 0 {
			t.Errorf("%v", txt)
		}
		if network == "tcp" {
			continue
		}
		addr := got[0].String()
		tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", fmt.Sprintf("%s:%d", addr, up.port))
		}}
		c := &http.Client{Transport: tr}
		if status, body := get(t, c, fmt.Sprintf("http://a.test:%d/x", up.port)); status != 200 {
			t.Errorf("%d %s", status, body)
		}
		if status, body := get(t, c, fmt.Sprintf("http://b.test:%d/x", up.port)); status != 421 {
			t.Errorf("%d %s", status, body)
		}
		tr.CloseIdleConnections()
		// The address is as good as the name over SOCKS, and on other ports as bad.
		if code := r.socks(t, addr, up.port); code != 0 {
			t.Error(code)
		}
		if code := r.socks(t, addr, up.port+1); code != 2 {
			t.Error(code)
		}
		if code := r.socks(t, "127.99.0.1", up.port); code != 2 {
			t.Error(code)
		}
	}
	if n := len(r.names.questions()); n != 1 {
		t.Errorf("resolved %q", r.names.questions())
	}
}
