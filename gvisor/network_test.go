//go:build linux

package gvisor_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
)

// TestNetwork: a sandbox reaches what its list allows, through the host's proxy,
// and nothing else; without a list nothing at all.
func TestNetwork(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "welcome") }))
		t.Cleanup(srv.Close)
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "welcome") }))
		t.Cleanup(other.Close)
		port := func(s *httptest.Server) uint16 { return uint16(s.Listener.Addr().(*net.TCPAddr).Port) }
		ask := func(sb backend.Sandbox, s *httptest.Server) string {
			return sh(t, sb, fmt.Sprintf("curl -s -m 10 --noproxy '' http://127.0.0.1:%d/ || curl -s -m 10 --noproxy '*' http://127.0.0.1:%d/", port(s), port(s))).out
		}
		sb := h.create(t, backend.Spec{Network: backend.Network{
			Mode: backend.NetworkAllowlist, Allow: []backend.Rule{{CIDR: "127.0.0.1/32", Ports: []uint16{port(srv)}}},
		}})
		if got := ask(sb, srv); got != "welcome" {
			t.Errorf("what is allowed: %q", got)
		}
		if got := ask(sb, other); strings.Contains(got, "welcome") {
			t.Errorf("what is not allowed: %q", got)
		}
		none := h.create(t, backend.Spec{})
		if got := ask(none, srv); strings.Contains(got, "welcome") {
			t.Errorf("without a network: %q", got)
		}
	})
}
