package cli_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
)

func TestRun_network(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want backend.Network
	}{
		{[]string{"--allow", "example.com"}, backend.Network{
			Mode: backend.NetworkAllowlist, Allow: []backend.Rule{{Host: "example.com"}},
		}},
		{
			[]string{
				"--allow", "*.example.com:8443", "--allow", "192.0.2.0/24", "--allow", "192.0.2.7:80", "--allow", "2001:db8::1",
				"--allow", "[2001:db8::1]:443", "--allow", "pip",
			},
			backend.Network{Mode: backend.NetworkAllowlist, Allow: []backend.Rule{
				{Host: "*.example.com", Ports: []uint16{8443}},
				{CIDR: "192.0.2.0/24"},
				{CIDR: "192.0.2.7", Ports: []uint16{80}},
				{CIDR: "2001:db8::1"},
				{CIDR: "2001:db8::1", Ports: []uint16{443}},
				{Preset: "pip"},
			}},
		},
		{[]string{"--network", "full", "--deny", "example.com:25"}, backend.Network{
			Mode: backend.NetworkFull, Deny: []backend.Rule{{Host: "example.com", Ports: []uint16{25}}},
		}},
		{
			[]string{"--allow", "api.example.com", "--intercept", "--secret", "Authorization=file:/run/a@b@api.example.com:443"},
			backend.Network{
				Mode: backend.NetworkAllowlist, Intercept: true, Allow: []backend.Rule{{Host: "api.example.com"}},
				Inject: []backend.HeaderRule{{
					Rule: backend.Rule{Host: "api.example.com", Ports: []uint16{443}}, Header: "Authorization", Secret: "file:/run/a@b",
				}},
			},
		},
	} {
		w := newWorld(t)
		if r := w.run(append(append([]string{"run", "-q"}, tc.args...), "--", "true")...); r.code != 0 {
			t.Errorf("%q: code %d, errors %q", tc.args, r.code, r.err)
			continue
		}
		if d := cmp.Diff(tc.want, w.spec().Network); d != "" {
			t.Errorf("%q: %s", tc.args, d)
		}
	}
}

func TestRun_networkUsage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--allow", "example.com:http"}, "not a port"},
		{[]string{"--allow", "example.com:0"}, "not a port"},
		{[]string{"--allow", "*"}, "every name"},
		{[]string{"--allow", "https://example.com"}, "HOST[:PORT]"},
		{[]string{"--allow", ""}, "exactly one of"},
		{[]string{"--network", "none", "--allow", "example.com"}, "rules without a network"},
		{[]string{"--deny", "example.com"}, "add --allow or --network"},
		{[]string{"--allow", "example.com", "--secret", "hunter2"}, "NAME=REF@HOST"},
		{[]string{"--allow", "example.com", "--secret", "X-Key=hunter2@example.com"}, "never written down"},
		{[]string{"--allow", "example.com", "--secret", "Host=env:SECRET@example.com"}, "belongs to the connection"},
	} {
		w := newWorld(t)
		r := w.run(append(append([]string{"run", "-q"}, tc.args...), "--", "true")...)
		if r.code != 125 || !strings.Contains(r.err, tc.want) || strings.Contains(r.err, "hunter2") {
			t.Errorf("%q: code %d, errors %q", tc.args, r.code, r.err)
		}
	}
}
