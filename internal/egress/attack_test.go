//go:build linux

package egress_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/egress"
)

// TestAddresses_specialOnesAreRefused: by number in any notation, by names that
// lead there, over HTTP, CONNECT and SOCKS. Nothing is dialled.
func TestAddresses_specialOnesAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, allowlist(
		backend.Rule{Host: "*.evil.test"}, backend.Rule{CIDR: "0.0.0.0/0"}, backend.Rule{CIDR: "::/0"}, backend.Rule{CIDR: "10.1.0.0/16"},
	))
	hosts := []string{
		"127.0.0.1", "127.1", "127.0.1", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "017700000001", "127.0.0.1.",
		"127.000.000.001", "0", "0.0.0.0", "127.0.0.0x1", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
		"[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2001:0:7f00:1::]", "[fe80::1]", "[fe80::1%25lo]", "[fc00::1]",
		"[ff02::1]", "[fd00:ec2::254]", "[0:0:0:0:0:0:0:1]", "[::ffff:0:127.0.0.1]", "169.254.169.254", "0xa9fea9fe", "2852039166",
		"0251.0376.0251.0376", "169.254.43518", "[::ffff:169.254.169.254]", "100.100.100.200", "100.64.0.1", "192.168.0.1", "172.16.0.1",
		"172.31.255.255", "10.0.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "198.51.100.7", "metadata.google.internal",
		"metadata.google.internal.", "localhost", "LOCALHOST.", "１２７.0.0.1", "127。0。0。1", "xn--/..", "a..b", "-a.evil.test", "a_\x00.test",
	}
	for i, a := range []string{
		"127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fd00:ec2::254", "64:ff9b::a00:1", "0.0.0.0", "198.51.100.7",
	} {
		name := fmt.Sprintf("n%d.evil.test", i)
		r.names.set(name, a)
		hosts = append(hosts, name)
	}
	for _, host := range hosts {
		for _, form := range []string{"GET http://%s:8080/ HTTP/1.1\r\nHost: %[1]s:8080\r\n\r\n", "CONNECT %s:8080 HTTP/1.1\r\nHost: x\r\n\r\n"} {
			if status, body := r.raw(t, fmt.Sprintf(form, host)); status != 403 && status != 400 {
				t.Errorf("%s: %d %s", host, status, body)
			}
		}
		if code := r.socks(t, strings.Trim(host, "[]"), 8080); code != 2 {
			t.Errorf("SOCKS to %s: %d", host, code)
		}
	}
	if d := r.dials(); len(d) > 0 {
		t.Errorf("dialled %q", d)
	}
	for _, q := range r.names.questions() {
		if !strings.HasSuffix(q, ".evil.test.") && q != "localhost." {
			t.Errorf("%q was resolved", q)
		}
	}
	// The control: the same ways lead to what is named.
	up := newUpstream(t, nil)
	if err := r.Update(allowlist(loopback(up.port))); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "[::ffff:127.0.0.1]", "127.0.0.1."} {
		if status, body := r.raw(t, fmt.Sprintf("GET http://%s:%d/ HTTP/1.1\r\nHost: x\r\n\r\n", host, up.port)); status != 200 {
			t.Errorf("%s: %d %s", host, status, body)
		}
		if code := r.socks(t, strings.Trim(host, "[]"), up.port); code != 0 {
			t.Errorf("SOCKS to %s: %d", host, code)
		}
	}
}

// socks asks for host by name and returns the reply's code.
func (r *rig) socks(t *testing.T, host string, port int) byte {
	t.Helper()
	_, code := r.socksConn(t, host, port)
	return code
}

func (r *rig) socksConn(t *testing.T, host string, port int) (net.Conn, byte) {
	t.Helper()
	c := r.dial(t)
	req := append([]byte{5, 1, 0, 5, 1, 0, 3, byte(len(host))}, host...)
	_, _ = c.Write(binary.BigEndian.AppendUint16(req, uint16(port)))
	var b [12]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		t.Fatalf("%s: %v", host, err)
	}
	if b[0] != 5 || b[1] != 0 || b[2] != 5 {
		t.Fatalf("%s: %v", host, b)
	}
	return c, b[3]
}

func TestAddresses_hostOwnAndMetadataNeedTheirOwnRule(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule, addr string
		ok         bool
	}{
		{"198.51.100.0/24", "198.51.100.7", false}, // the host's own, in a range that is named
		{"198.51.100.7/32", "198.51.100.7", true},
		{"198.51.100.0/24", "198.51.100.8", true},
		{"169.254.0.0/16", "169.254.169.254", false},
		{"169.254.0.0/16", "169.254.1.1", true},
		{"169.254.169.254", "169.254.169.254", true},
		{"0.0.0.0/0", "10.0.0.1", false},
		{"10.0.0.0/7", "10.0.0.1", false},
		{"10.0.0.0/8", "10.0.0.1", true},
		{"::ffff:10.0.0.0/104", "10.0.0.1", true},
		{"0.0.0.0/0", "8.8.8.8", true},
		{"0.0.0.0/0", "[2606:4700::1111]", false},
		{"::/0", "[2606:4700::1111]", true},
		{"0.0.0.0/8", "0.0.0.0", false},
	} {
		r := newRig(t, allowlist(backend.Rule{CIDR: c.rule}), func(o *egress.Options) { o.Dial = nothing })
		status, body := r.raw(t, "CONNECT "+c.addr+":22 HTTP/1.1\r\nHost: x\r\n\r\n")
		if want := map[bool]int{true: 502, false: 403}[c.ok]; status != want {
			t.Errorf("%s with %s: %d %s", c.addr, c.rule, status, body)
		}
	}
}

// TestDNS_rebinding: the address that was checked is the one that is dialled,
// and a name that changes is checked again.
func TestDNS_rebinding(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	r := newRig(t, allowlist(backend.Rule{Host: "*.rebind.test"}, loopback(up.port)))
	r.names.set("mixed.rebind.test", "10.0.0.1", "127.0.0.1", "169.254.169.254")
	if status, body := get(t, r.client(t), fmt.Sprintf("http://mixed.rebind.test:%d/", up.port)); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if got := r.dials(); !slices.Equal(got, []string{fmt.Sprintf("127.0.0.1:%d", up.port)}) {
		t.Errorf("dialled %q", got)
	}
	r.names.set("only.rebind.test", "10.0.0.1", "169.254.169.254")
	if status, body := get(t, r.client(t), fmt.Sprintf("http://only.rebind.test:%d/", up.port)); status != 403 || !strings.Contains(body, "10.0.0.1, a private address") {
		t.Errorf("%d %s", status, body)
	}
	if got := r.dials(); len(got) != 1 {
		t.Errorf("dialled %q", got)
	}
}

// TestHTTP_redirectIsANewRequest: what a server says is passed on, and going
// there is decided on like anything else.
func TestHTTP_redirectIsANewRequest(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusFound)
	})
	r := newRig(t, allowlist(backend.Rule{Host: "a.test"}, loopback(up.port)))
	r.names.set("a.test", "127.0.0.1")
	c := r.client(t)
	if status, _ := get(t, c, fmt.Sprintf("http://a.test:%d/", up.port)); status != http.StatusFound {
		t.Fatalf("%d", status)
	}
	c.CheckRedirect = nil
	if status, body := get(t, c, fmt.Sprintf("http://a.test:%d/", up.port)); status != 403 || !strings.Contains(body, "169.254.169.254") {
		t.Errorf("%d %s", status, body)
	}
}

// TestHTTP_hostMustMatch: on a connection that is for one host, requests for
// another are refused, the second one too.
func TestHTTP_hostMustMatch(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	r := newRig(t, allowlist(backend.Rule{Host: "a.test"}, loopback(up.port)))
	r.names.set("a.test", "127.0.0.1")
	at := fmt.Sprintf("a.test:%d", up.port)
	for _, c := range []struct {
		name, requests string
		want           []int
	}{
		{"the control", "GET / HTTP/1.1\r\nHost: " + at + "\r\n\r\n", []int{200}},
		{"another host", "GET / HTTP/1.1\r\nHost: b.test\r\n\r\n", []int{421}},
		{"another port", "GET / HTTP/1.1\r\nHost: a.test:1\r\n\r\n", []int{421}},
		{"another host in the URL", "GET http://b.test/ HTTP/1.1\r\nHost: " + at + "\r\n\r\n", []int{421}},
		{"the second request", "GET / HTTP/1.1\r\nHost: " + at + "\r\n\r\nGET / HTTP/1.1\r\nHost: b.test\r\n\r\n", []int{200, 421}},
		{"two hosts", "GET / HTTP/1.1\r\nHost: " + at + "\r\nHost: b.test\r\n\r\n", []int{400}},
		{"a line end before it", "\r\n\r\nGET / HTTP/1.1\r\nHost: b.test\r\n\r\n", []int{400}},
		{"a small method", "get / HTTP/1.1\r\nHost: b.test\r\n\r\n", []int{421}},
		{"HTTP/1.0 without a host", "GET / HTTP/1.0\r\n\r\n", []int{403}},
		{"two lengths", "POST / HTTP/1.1\r\nHost: " + at + "\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", []int{400}},
		{"a header that folds", "GET / HTTP/1.1\r\nHost: " + at + "\r\nX: a\r\n Host: b.test\r\n\r\n", []int{200}},
		{"a space before the colon", "GET / HTTP/1.1\r\nHost : b.test\r\n\r\n", []int{400}},
		{"credentials", "GET http://a.test@b.test/ HTTP/1.1\r\nHost: " + at + "\r\n\r\n", []int{403}},
		{"CONNECT within", "CONNECT b.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n", []int{405}},
	} {
		conn, status := r.connectTo(t, at)
		if status != 200 {
			t.Fatalf("CONNECT: %d", status)
		}
		_, _ = io.WriteString(conn, c.requests)
		br := newReader(conn)
		for i, want := range c.want {
			res, err := http.ReadResponse(br, nil) //nolint:bodyclose // the connection is closed
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				break
			}
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != want {
				t.Errorf("%s, %d: %d %s", c.name, i, res.StatusCode, body)
			}
		}
		_ = conn.Close()
	}
	for _, req := range up.requests() {
		if req.Host != at {
			t.Errorf("the server saw %s", req.Host)
		}
	}
}

// TestHTTP_smuggling: a body of two lengths is sent on with one.
func TestHTTP_smuggling(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	r := newRig(t, allowlist(loopback(up.port)))
	conn := r.dial(t)
	fmt.Fprintf(conn, "POST http://127.0.0.1:%d/a HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://b.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n", up.port)
	br := newReader(conn)
	for i, want := range []int{200, 403} {
		res, err := http.ReadResponse(br, nil) //nolint:bodyclose // the connection is closed
		if err != nil {
			if i == 1 {
				break // net/http ends a connection after such a request
			}
			t.Fatal(err)
		}
		_, _ = io.ReadAll(res.Body)
		if res.StatusCode != want {
			t.Errorf("%d: %d", i, res.StatusCode)
		}
	}
	got := up.requests()
	if len(got) != 1 || got[0].ContentLength > 0 || got[0].URL.Path != "/a" {
		t.Errorf("the server saw %+v", got)
	}
}

func TestTLS_serverNameMustMatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, allowlist())
	up := r.newTLS(t, nil, "a.test", "b.test")
	r.names.set("a.test", "127.0.0.1")
	if err := r.Update(allowlist(backend.Rule{Host: "a.test"}, loopback(up.port))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host, sni string
		ok        bool
	}{
		{"a.test", "a.test", true},
		{"a.test", "A.test", true},
		{"a.test", "b.test", false},
		{"a.test", "", false},
		{"127.0.0.1", "", true},
		{"127.0.0.1", "a.test", true}, // allowed by name as well
		{"127.0.0.1", "b.test", false},
	} {
		conn, status := r.connectTo(t, fmt.Sprintf("%s:%d", c.host, up.port))
		if status != 200 {
			t.Fatalf("%s: %d", c.host, status)
		}
		tc := tls.Client(conn, &tls.Config{ServerName: c.sni, InsecureSkipVerify: true})
		if err := tc.HandshakeContext(t.Context()); (err == nil) != c.ok {
			t.Errorf("%s with SNI %q: %v", c.host, c.sni, err)
		}
		_ = conn.Close()
	}
	if status, body := get(t, r.client(t), fmt.Sprintf("https://a.test:%d/x", up.port)); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

// TestTLS_hiddenServerName: an encrypted client hello could be for anybody.
func TestTLS_hiddenServerName(t *testing.T) {
	t.Parallel()
	r := newRig(t, allowlist())
	up := r.newTLS(t, nil, "a.test")
	r.names.set("a.test", "127.0.0.1")
	if err := r.Update(allowlist(backend.Rule{Host: "a.test"}, loopback(up.port))); err != nil {
		t.Fatal(err)
	}
	hello := recordHello(t, "a.test")
	for _, hidden := range []bool{false, true} {
		conn, _ := r.connectTo(t, fmt.Sprintf("a.test:%d", up.port))
		h := hello
		if hidden {
			h = withExtension(h, 0xfe0d, []byte{0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0})
		}
		_, _ = conn.Write(h)
		var b [7]byte
		_, err := io.ReadFull(conn, b[:])
		if refused := err != nil || bytes.Equal(b[:], []byte{21, 3, 3, 0, 2, 2, 112}); refused != hidden {
			t.Errorf("hidden %t: %v %v", hidden, b, err)
		}
	}
}

// TestConnect_otherProtocols: what is neither HTTP nor TLS passes by host and
// port alone, and not where a rule looks at requests.
func TestConnect_otherProtocols(t *testing.T) {
	t.Parallel()
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
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	port := portOf(l.Addr())
	r := newRig(t, allowlist(loopback(port)))
	at := fmt.Sprintf("127.0.0.1:%d", port)
	send := func(text string) string {
		c, status := r.connectTo(t, at)
		if status != 200 {
			return fmt.Sprint(status)
		}
		_, _ = io.WriteString(c, text)
		_ = c.(*net.TCPConn).CloseWrite()
		got, err := io.ReadAll(c)
		if err != nil {
			return "broken"
		}
		return string(got)
	}
	for _, text := range []string{"\x00\x01binary", "*1\r\n$4\r\nPING\r\n", "SSH-2.0-x\r\nabc", strings.Repeat("\x80", 300<<10)} {
		if got := send(text); got != text {
			t.Errorf("%.20q came back as %.20q (%d bytes)", text, got, len(got))
		}
	}
	for _, text := range []string{
		" GET / HTTP/1.1\r\nHost: b.test\r\n\r\n", "GET\v/\vHTTP/1.1\r\nHost: b.test\r\n\r\n", "\t\nget\t/ http/1.1\nhost:b.test\n\n",
		strings.Repeat("A", 200) + " / HTTP/1.1\r\nHost: b.test\r\n\r\n",
	} {
		if got := send(text); strings.Contains(got, text) {
			t.Errorf("%.40q passed", text)
		}
	}
	if got := send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); got != "" && got != "broken" {
		t.Errorf("HTTP/2 got %q", got)
	}
	if err := r.Update(allowlist(backend.Rule{CIDR: "127.0.0.1/32", Methods: []string{"GET"}})); err != nil {
		t.Fatal(err)
	}
	if got := send("\x00\x01binary"); got != "" && got != "broken" {
		t.Errorf("got %q", got)
	}
}

// TestConnect_serverSpeaksFirst: as SMTP and SSH do.
func TestConnect_serverSpeaksFirst(t *testing.T) {
	t.Parallel()
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
			_, _ = io.WriteString(c, "220 hello\r\n")
			b := make([]byte, 4)
			_, _ = io.ReadFull(c, b)
			_, _ = io.WriteString(c, "you said "+string(b))
			_ = c.Close()
		}
	}()
	r := newRig(t, allowlist(loopback(portOf(l.Addr()))))
	c, code := r.socksConn(t, "127.0.0.1", portOf(l.Addr()))
	if code != 0 {
		t.Fatal(code)
	}
	br := newReader(c)
	if line, err := br.ReadString('\n'); line != "220 hello\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	_, _ = io.WriteString(c, "EHLO")
	if got, err := io.ReadAll(br); string(got) != "you said EHLO" {
		t.Errorf("%q %v", got, err)
	}
}

func TestSOCKS_whatIsNotSupported(t *testing.T) {
	t.Parallel()
	r := newRig(t, allowlist())
	for _, c := range []struct {
		name string
		send []byte
		want []byte
	}{
		{"UDP ASSOCIATE", []byte{5, 1, 0, 5, 3, 0, 1, 127, 0, 0, 1, 0, 53}, []byte{5, 0, 5, 7}},
		{"BIND", []byte{5, 1, 0, 5, 2, 0, 1, 127, 0, 0, 1, 0, 53}, []byte{5, 0, 5, 7}},
		{"an unknown address", []byte{5, 1, 0, 5, 1, 0, 9, 1, 2, 3}, []byte{5, 0, 5, 8}},
		{"a password", []byte{5, 1, 2}, []byte{5, 0xff}},
		{"a private address", []byte{5, 1, 0, 5, 1, 0, 1, 10, 0, 0, 1, 0, 80}, []byte{5, 0, 5, 2}},
		{"an address of 16 bytes", append([]byte{5, 1, 0, 5, 1, 0, 4}, append(net.IPv6loopback, 0, 80)...), []byte{5, 0, 5, 2}},
	} {
		conn := r.dial(t)
		_, _ = conn.Write(c.send)
		got := make([]byte, len(c.want))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %v %v", c.name, got, err)
		}
	}
}
