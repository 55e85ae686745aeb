package egress

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func testPolicy(n backend.Network) *policy {
	return &policy{
		mode: n.Mode, allow: compile("network.allow", n.Allow), deny: compile("network.deny", n.Deny),
		specials: specials(), own: func(netip.Addr) bool { return false },
	}
}

// TestPolicy_full: everything public, but for what is denied and not allowed.
func TestPolicy_full(t *testing.T) {
	t.Parallel()
	p := testPolicy(backend.Network{
		Mode:  backend.NetworkFull,
		Allow: []backend.Rule{{Host: "good.bad.test"}, {CIDR: "10.0.0.0/8"}, {CIDR: "8.8.4.4"}},
		Deny: []backend.Rule{
			{Host: "*.bad.test"}, {CIDR: "8.8.0.0/16"}, {Host: "p.test", Path: "/x"}, {Host: "q.test", Ports: []uint16{25}},
		},
	})
	for _, c := range []struct {
		host string
		port uint16
		q    *query
		ok   bool
	}{
		{"any.test", 443, nil, true},
		{"a.bad.test", 443, nil, false},
		{"good.bad.test", 443, nil, true}, // allow over deny
		{"8.8.8.8", 53, nil, false},
		{"8.8.4.4", 53, nil, true},
		{"1.1.1.1", 53, nil, true},
		{"10.1.2.3", 80, nil, true},
		{"192.168.0.1", 80, nil, false},
		{"169.254.169.254", 80, nil, false},
		{"metadata.google.internal", 80, nil, false},
		{"q.test", 25, nil, false},
		{"q.test", 26, nil, true},
		{"p.test", 443, nil, false}, // what cannot be looked into may be what is denied
		{"p.test", 80, &query{method: "GET", path: "/x/y"}, false},
		{"p.test", 80, &query{method: "GET", path: "/y"}, true},
		{"p.test", 80, &query{method: "GET", path: "/y", ambiguous: true}, false},
		{"p.test", 80, &query{any: true}, true},
		{"a.bad.test", 80, &query{any: true}, false},
	} {
		tg, err := parseHost(c.host, c.port)
		if err != nil {
			t.Fatal(err)
		}
		if v := p.decide(tg, c.q); v.ok != c.ok {
			t.Errorf("%s:%d %+v: %+v", c.host, c.port, c.q, v)
		}
	}
	// An allowed name at a denied address is allowed, a name that nobody lists is not.
	addr := netip.MustParseAddr("8.8.8.8")
	if v := p.address(target{name: "good.bad.test", port: 1}, addr, nil); !v.ok {
		t.Error(v)
	}
	if v := p.address(target{name: "any.test", port: 1}, addr, nil); v.ok {
		t.Error(v)
	}
}

func TestPolicy_presets(t *testing.T) {
	t.Parallel()
	for _, name := range backend.Presets() {
		p := testPolicy(backend.Network{Mode: backend.NetworkAllowlist, Allow: []backend.Rule{{Preset: name}}})
		want := map[string]string{"pip": "files.pythonhosted.org", "npm": "registry.npmjs.org", "go": "sum.golang.org", "debian": "deb.debian.org"}[name]
		if v := p.decide(target{name: want, port: 443}, nil); !v.ok || !strings.Contains(v.rule, name+": "+want) {
			t.Errorf("%s: %+v", name, v)
		}
		if v := p.decide(target{name: want, port: 22}, nil); v.ok {
			t.Errorf("%s: %+v", name, v)
		}
		if v := p.decide(target{name: "storage.googleapis.com", port: 443}, nil); v.ok {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestNameTable_isBoundedAndDoesNotReuse(t *testing.T) {
	t.Parallel()
	n := newNameTable()
	seen := map[netip.Addr]string{}
	for i := range 3 * maxNames {
		name := fmt.Sprint("n", i)
		a := n.of(name)
		if seen[a] != "" {
			t.Fatalf("%s and %s are both %s", seen[a], name, a)
		}
		seen[a] = name
		if got, inside := n.name(a); got != name || !inside {
			t.Fatalf("%s is %q", a, got)
		}
		n.of("kept")
	}
	if len(n.byName) > maxNames || len(n.byAddr) > maxNames {
		t.Errorf("%d names, %d addresses", len(n.byName), len(n.byAddr))
	}
	if a := n.of("kept"); n.byName["kept"].addr != a {
		t.Error("what is used was forgotten")
	}
	if _, inside := n.name(netip.MustParseAddr("127.0.0.1")); inside {
		t.Error("127.0.0.1 stands for a name")
	}
}

func TestCache_isBounded(t *testing.T) {
	t.Parallel()
	c := newCache(Options{Resolver: fixed{}, Now: time.Now}, nil)
	for i := range 3 * maxCached {
		if _, err := c.lookup(t.Context(), fmt.Sprint("n", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.names) > maxCached {
		t.Errorf("%d names", len(c.names))
	}
}

type fixed struct{}

func (fixed) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
}

func TestCheck_secrets(t *testing.T) {
	t.Setenv("EGRESS_CHECK", "value")
	t.Setenv("EGRESS_CHECK_BAD", "a\r\nb")
	spec := func(ref backend.SecretRef) backend.Spec {
		return backend.Spec{Network: backend.Network{
			Mode: backend.NetworkAllowlist, Inject: []backend.HeaderRule{{Rule: backend.Rule{Host: "a.test"}, Header: "X", Secret: ref}},
		}}
	}
	if err := Check(spec("env:EGRESS_CHECK")); err != nil {
		t.Error(err)
	}
	for _, ref := range []backend.SecretRef{
		"env:EGRESS_NOT_SET", "env:", "file:relative", "file:/does/not/exist", "file:/dev/zero", "file:/", "hunter2", "exec:x", "env:EGRESS_CHECK_BAD",
	} {
		err := Check(spec(ref))
		if backend.KindOf(err) != backend.ErrInvalid || strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("%s: %v", ref, err)
		}
		s := backend.Spec{Network: backend.Network{Mode: backend.NetworkAllowlist}, Secrets: []backend.SecretRef{ref}}
		if err := Check(s); ref != "env:EGRESS_CHECK_BAD" && backend.KindOf(err) != backend.ErrInvalid {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

// FuzzParseHost: what is taken is read in one way, and names are never what
// something else might take for an address.
func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"a.test", "127.1", "0x7f.1", "[::1]", "::ffff:1.2.3.4", "a@b", "1.2.3.4.", "xn--a.b", "[fe80::1%25eth0]", "a:80", "١.٢", "..", "1e2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, parse := range []func(string, uint16) (target, error){parseHost, parseHostPort} {
			tg, err := parse(s, 80)
			if err != nil {
				continue
			}
			if (tg.name == "") == !tg.addr.IsValid() || tg.port == 0 {
				t.Fatalf("%q: %+v", s, tg)
			}
			if tg.addr.IsValid() && (tg.addr.Is4In6() || tg.addr.Zone() != "") {
				t.Fatalf("%q: %+v", s, tg)
			}
			if tg.name != "" {
				if !validName(tg.name) || numeric(tg.name) || net.ParseIP(tg.name) != nil || strings.ToLower(tg.name) != tg.name {
					t.Fatalf("%q: %+v", s, tg)
				}
			}
			again, err := parseHost(tg.host(), tg.port)
			if tg.addr.Is6() {
				again, err = parseHost("["+tg.host()+"]", tg.port)
			}
			if err != nil || again != tg {
				t.Fatalf("%q: %+v is %+v (%v) the second time", s, tg, again, err)
			}
		}
	})
}

// FuzzClassify: what net/http reads as a request is never taken for another
// protocol.
func FuzzClassify(f *testing.F) {
	for _, s := range []string{"GET / HTTP/1.1\r\n", "\r\nPOST\t/ HTTP/1.0\r\n", "PRI * HTTP/2.0\r\n", "\x16\x03\x01", "SSH-2.0-x\r\n", "*1\r\n", "get / http/1.1\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		p, sure := classify(b)
		line, _, whole := bytes.Cut(bytes.TrimLeft(b, "\r\n"), []byte("\n"))
		method, rest, ok := strings.Cut(strings.TrimRight(string(line), "\r"), " ")
		_, proto, ok2 := strings.Cut(rest, " ")
		if !whole || !ok || !ok2 || b[0] == 0x16 || len(method) > maxMethod || method == "" {
			return
		}
		if _, err := http.NewRequest(method, "/", nil); err != nil {
			return
		}
		if _, _, valid := http.ParseHTTPVersion(proto); valid && (!sure || p == protoOpaque || p == protoTLS) {
			t.Errorf("%q: %v %t", b, p, sure)
		}
	})
}

// FuzzSOCKS: whatever a client says, nothing but a target comes of it.
func FuzzSOCKS(f *testing.F) {
	f.Add([]byte{5, 1, 0, 5, 1, 0, 1, 1, 2, 3, 4, 0, 80})
	f.Add([]byte{5, 1, 0, 5, 1, 0, 3, 4, 'a', '.', 'b', 'c', 0, 80})
	f.Add([]byte{5, 2, 1, 0, 5, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 80})
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		tg, code := readSOCKS(bytes.NewReader(b), &out)
		if code == socksOK && (tg.port == 0 || (tg.name == "") == !tg.addr.IsValid()) {
			t.Errorf("%v: %+v", b, tg)
		}
		if out.Len() > 2 {
			t.Errorf("%v: answered %v", b, out.Bytes())
		}
	})
}

// FuzzPaths: a path that a rule allows is below it however often it is cleaned
// or decoded.
func FuzzPaths(f *testing.F) {
	for _, s := range []string{"/pub/a", "/pub/../x", "/pub/%2e%2e/x", "/pub/..%2fx", "/pub;/x", "/pub/%252e%252e/x", "/pub//x"} {
		f.Add(s)
	}
	r := rule{path: "/pub"}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.ParseRequestURI(s)
		if err != nil || u.Host != "" || u.Scheme != "" {
			return
		}
		q := queryOf(&http.Request{Method: "GET", URL: u})
		if !r.request(q, false) {
			return
		}
		p := u.EscapedPath()
		for range 3 {
			for seg := range strings.SplitSeq(p, "/") {
				if seg == ".." || seg == "." {
					t.Fatalf("%q is allowed and holds %q", s, p)
				}
			}
			if d, err := url.PathUnescape(p); err == nil {
				p = d
			}
			if p != "/pub" && !strings.HasPrefix(p, "/pub/") {
				t.Fatalf("%q is allowed as %q", s, p)
			}
		}
	})
}
