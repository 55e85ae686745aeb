//go:build linux

package egress_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/egress"
)

func TestHTTP_allowedAndRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, allowlist())
	up := newUpstream(t, nil)
	r.names.set("api.test", "127.0.0.1")
	r.names.set("other.test", "127.0.0.1")
	if err := r.Update(allowlist(backend.Rule{Host: "api.test"}, backend.Rule{Host: "*.wild.test"}, loopback(up.port))); err != nil {
		t.Fatal(err)
	}
	r.names.set("a.wild.test", "127.0.0.1")
	r.names.set("wild.test", "127.0.0.1")
	c := r.client(t)
	for _, host := range []string{"api.test", "API.TEST", "api.test.", "a.wild.test"} {
		status, body := get(t, c, fmt.Sprintf("http://%s:%d/x?y=1", host, up.port))
		if status != 200 || !strings.HasPrefix(body, "GET /x?y=1 host="+strings.ToLower(strings.TrimSuffix(host, "."))) {
			t.Errorf("%s: %d %s", host, status, body)
		}
	}
	for _, host := range []string{"other.test", "wild.test", "xapi.test", "api.test.evil.test", "metadata.google.internal"} {
		status, body := get(t, c, fmt.Sprintf("http://%s:%d/", host, up.port))
		if status != 403 || !strings.Contains(body, "no rule of network.allow names") {
			t.Errorf("%s: %d %s", host, status, body)
		}
	}
	for _, q := range r.names.questions() {
		if q != "api.test." && q != "a.wild.test." {
			t.Errorf("%s was resolved", q)
		}
	}
	if n := len(up.requests()); n != 4 {
		t.Errorf("the server saw %d requests", n)
	}
	ok := r.decisions(func(d egress.Decision) bool { return d.Kind == egress.KindHTTP && d.Allowed && d.Done })
	if len(ok) != 4 || ok[0].Rule != "network.allow[0] api.test" || ok[0].Path != "/x" || ok[0].Received == 0 || ok[0].Sandbox != "sbx1" {
		t.Errorf("audited %+v", ok)
	}
	if no := r.decisions(func(d egress.Decision) bool { return d.Kind == egress.KindHTTP && !d.Allowed }); len(no) != 5 {
		t.Errorf("audited %+v", no)
	}
	_ = http.MethodGet
}
