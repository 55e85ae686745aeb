package backend_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
)

func TestRule_validate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		rule backend.Rule
		ok   bool
	}{
		{"a name", backend.Rule{Host: "a.example"}, true},
		{"capitals and a dot", backend.Rule{Host: "A.Example."}, true},
		{"below a name", backend.Rule{Host: "*.a.example", Ports: []uint16{443}}, true},
		{"punycode", backend.Rule{Host: "xn--bcher-kva.example"}, true},
		{"an address", backend.Rule{CIDR: "192.0.2.1"}, true},
		{"a range", backend.Rule{CIDR: "2001:db8::/32"}, true},
		{"a path", backend.Rule{Host: "a.example", Methods: []string{"GET", "M-SEARCH"}, Path: "/v1/"}, true},
		{"a preset", backend.Rule{Preset: "pip"}, true},
		{"everything", backend.Rule{Host: "*"}, false},
		{"a star within", backend.Rule{Host: "a.*.example"}, false},
		{"a star before", backend.Rule{Host: "*a.example"}, false},
		{"an address as a name", backend.Rule{Host: "192.0.2.1"}, false},
		{"a number as a name", backend.Rule{Host: "127.1"}, false},
		{"hexadecimal", backend.Rule{Host: "0x7f000001"}, false},
		{"other letters", backend.Rule{Host: "bücher.example"}, false},
		{"credentials", backend.Rule{Host: "a@b.example"}, false},
		{"empty labels", backend.Rule{Host: "a..example"}, false},
		{"a dot", backend.Rule{Host: "."}, false},
		{"a range with bits behind it", backend.Rule{CIDR: "192.0.2.1/24"}, false},
		{"a zone", backend.Rule{CIDR: "fe80::1%eth0"}, false},
		{"an odd notation", backend.Rule{CIDR: "127.1/32"}, false},
		{"port 0", backend.Rule{Host: "a.example", Ports: []uint16{0}}, false},
		{"a small method", backend.Rule{Host: "a.example", Methods: []string{"get"}}, false},
		{"CONNECT", backend.Rule{Host: "a.example", Methods: []string{"CONNECT"}}, false},
		{"a path that is none", backend.Rule{Host: "a.example", Path: "v1"}, false},
		{"a path that leaves", backend.Rule{Host: "a.example", Path: "/v1/../v2"}, false},
		{"an encoded path", backend.Rule{Host: "a.example", Path: "/v1%2f"}, false},
		{"an unknown preset", backend.Rule{Preset: "cargo"}, false},
		{"a preset with ports", backend.Rule{Preset: "pip", Ports: []uint16{80}}, false},
		{"a preset and a name", backend.Rule{Preset: "pip", Host: "a.example"}, false},
	} {
		err := c.rule.Validate("network.allow[0]")
		if (err == nil) != c.ok || err != nil && !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestPresets_areValid(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(backend.Presets()) {
		t.Error("not sorted")
	}
	for _, name := range backend.Presets() {
		rules, ok := backend.PresetRules(name)
		if !ok || len(rules) == 0 {
			t.Errorf("%s is empty", name)
		}
		for _, r := range rules {
			if err := r.Validate(name); err != nil || r.Preset != "" || len(r.Ports) == 0 {
				t.Errorf("%s: %+v: %v", name, r, err)
			}
		}
	}
}

func TestNetwork_validateRest(t *testing.T) {
	t.Parallel()
	with := func(f func(*backend.Network)) backend.Network {
		n := backend.Network{Mode: backend.NetworkAllowlist}
		f(&n)
		return n
	}
	header := func(h string) func(*backend.Network) {
		return func(n *backend.Network) {
			n.Inject = []backend.HeaderRule{{Rule: backend.Rule{Host: "a.example"}, Header: h, Secret: "env:A"}}
		}
	}
	upstream := func(u string) func(*backend.Network) {
		return func(n *backend.Network) { n.Upstream = &backend.Proxy{URL: u} }
	}
	for _, c := range []struct {
		name  string
		n     backend.Network
		field string
	}{
		{"interception without a network", backend.Network{Intercept: true}, "network"},
		{"interception", with(func(n *backend.Network) { n.Intercept = true }), ""},
		{"too many rules", with(func(n *backend.Network) { n.Allow = make([]backend.Rule, 1001) }), "network.allow"},
		{"the Host header", with(header("Host")), "network.inject[0].header"},
		{"a header of the connection", with(header("Transfer-Encoding")), "network.inject[0].header"},
		{"a header in other letters", with(header("X-Ä")), "network.inject[0].header"},
		{"a proxy", with(upstream("socks5://proxy.example:1080")), ""},
		{"a proxy with a password", with(upstream("http://me:hunter2@proxy.example:3128")), "network.upstream.url"},
		{"a proxy without a port", with(upstream("http://proxy.example")), "network.upstream.url"},
		{"a proxy of another kind", with(upstream("ftp://proxy.example:1")), "network.upstream.url"},
		{"name servers", with(func(n *backend.Network) { n.DNS = []string{"192.0.2.1", "[2001:db8::1]:5353"} }), ""},
		{"a name server by name", with(func(n *backend.Network) { n.DNS = []string{"dns.example"} }), "network.dns"},
	} {
		err := c.n.Validate()
		var e *backend.Error
		switch {
		case c.field == "" && err != nil, c.field != "" && (!errors.As(err, &e) || e.Field != c.field):
			t.Errorf("%s: %v", c.name, err)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s: the error has the password", c.name)
		}
	}
}
