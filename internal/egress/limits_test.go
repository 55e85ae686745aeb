//go:build linux

package egress_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// TestStalledPrograms: programs that do not read what comes hold up neither
// others nor the host's other calls to the agent.
func TestStalledPrograms(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var flood atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 64<<10)
				for {
					n, err := c.Write(b)
					flood.Add(int64(n))
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	up := newUpstream(t, nil)
	r := newRig(t, allowlist(loopback(up.port, portOf(l.Addr()))))
	const stalled = 60
	for range stalled {
		if _, code := r.socksConn(t, "127.0.0.1", portOf(l.Addr())); code != 0 {
			t.Fatal(code)
		}
	}
	for range 20 {
		if status, body := get(t, r.client(t), fmt.Sprintf("http://127.0.0.1:%d/", up.port)); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
	if flood.Load() == 0 {
		t.Error("nothing was sent")
	}
}

// TestTooMany: what is above the limit waits or is refused, and goes on once
// there is room.
func TestTooMany(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	r := newRig(t, allowlist(loopback(up.port)), func(o *egress.Options) { o.MaxConns = 4 })
	var open []net.Conn
	for range 4 {
		c, status := r.connectTo(t, fmt.Sprintf("127.0.0.1:%d", up.port))
		if status != 200 {
			t.Fatal(status)
		}
		open = append(open, c)
	}
	// The requests that wait at the agent are taken too.
	var busy []net.Conn
	for range 2 {
		c := r.dial(t)
		_, _ = io.WriteString(c, "GET http://127.0.0.1/")
		busy = append(busy, c)
	}
	done := make(chan int, 1)
	go func() {
		status, _ := get(t, r.client(t), fmt.Sprintf("http://127.0.0.1:%d/", up.port))
		done <- status
	}()
	select {
	case status := <-done:
		t.Errorf("more than is allowed: %d", status)
	case <-time.After(300 * time.Millisecond):
	}
	for _, c := range append(open, busy...) {
		_ = c.Close()
	}
	if status := <-done; status != 200 {
		t.Errorf("once there was room: %d", status)
	}
}

// TestAnotherHost: when the host's side has ended the network is closed, and
// another one opens it again.
func TestAnotherHost(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	r := newRig(t, allowlist(loopback(up.port)))
	url := fmt.Sprintf("http://127.0.0.1:%d/", up.port)
	if status, body := get(t, r.client(t), url); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	_ = r.Close()
	if err := <-r.ended; err == nil {
		t.Error("Serve returned nil")
	}
	if status, body := answered(t, r.client(t), url); status != 503 || !strings.Contains(body, "network is closed") {
		t.Errorf("%d %s", status, body)
	}
	next := newHost(t, allowlist(loopback(up.port)))
	rt := connect(t, r.svc.Handler())
	go func() { next.ended <- next.Serve(t.Context(), rt) }()
	defer next.Close()
	if err := next.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, body := get(t, r.client(t), url); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if err := next.Serve(t.Context(), rt); err == nil {
		t.Error("two Serves at once")
	}
	// A third takes over: what the second has open is cut, and it decides no more.
	c, status := r.connectTo(t, fmt.Sprintf("127.0.0.1:%d", up.port))
	if status != 200 {
		t.Fatal(status)
	}
	third := newHost(t, allowlist())
	rt3 := connect(t, r.svc.Handler())
	go func() { third.ended <- third.Serve(t.Context(), rt3) }()
	defer third.Close()
	if err := third.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil || n > 0 {
		t.Errorf("%d %v", n, err)
	}
	if err := <-next.ended; err == nil {
		t.Error("the second one goes on")
	}
	if status, body := answered(t, r.client(t), url); status != 403 {
		t.Errorf("%d %s", status, body)
	}
}

// TestServe_hostileAgent: whatever an agent says, Serve goes on or ends; it
// never reaches what is not allowed.
func TestServe_hostileAgent(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	var at atomic.Int64
	said := []func(w http.ResponseWriter){
		func(w http.ResponseWriter) { w.Header().Set(wire.HeaderNetKind, "what") },
		func(w http.ResponseWriter) { w.Header().Set(wire.HeaderNetKind, wire.NetNamed) },
		func(w http.ResponseWriter) {
			w.Header().Set(wire.HeaderNetKind, wire.NetNamed)
			w.Header().Set(wire.HeaderNetName, "127.0.0.1")
			w.Header().Set(wire.HeaderNetAddr, fmt.Sprintf("127.64.0.1:%d", up.port))
		},
		func(w http.ResponseWriter) {
			w.Header().Set(wire.HeaderNetKind, wire.NetNamed)
			w.Header().Set(wire.HeaderNetName, "not.allowed.test")
			w.Header().Set(wire.HeaderNetAddr, fmt.Sprintf("127.64.0.1:%d", up.port))
			w.WriteHeader(200)
			_, _ = w.Write([]byte("\x00\x00\x00\x05GET /"))
		},
		func(w http.ResponseWriter) {
			w.Header().Set(wire.HeaderNetKind, wire.NetResolve)
			w.Header().Set(wire.HeaderNetName, strings.Repeat("a", 10_000))
		},
		func(w http.ResponseWriter) {
			w.Header().Set(wire.HeaderNetKind, wire.NetProxy)
			w.WriteHeader(200)
			_, _ = w.Write([]byte("\xff\xff\xff\xff\x7f\xff\xff\xff"))
		},
		func(w http.ResponseWriter) {
			w.Header().Set(wire.HeaderNetKind, wire.NetProxy)
			w.WriteHeader(200)
			_, _ = w.Write([]byte("\x00\x00\x00\x03\x05\x01\x00"))
		},
		func(w http.ResponseWriter) { w.WriteHeader(http.StatusTeapot) },
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == wire.NetOpenPath {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		n := int(at.Add(1)) - 1
		said[min(n, len(said)-1)](w)
	})
	r := newHost(t, allowlist(backend.Rule{Host: "a.test"}))
	defer r.Close()
	err := r.Serve(t.Context(), connect(t, h))
	if err == nil || !strings.Contains(err.Error(), "418") {
		t.Errorf("%v", err)
	}
	if d := r.dials(); len(d) > 0 {
		t.Errorf("dialled %q", d)
	}
	for _, d := range r.decisions(func(egress.Decision) bool { return true }) {
		if d.Allowed || len(d.Host) > 512 {
			t.Errorf("%+v", d)
		}
	}
}

// TestProxy_closedBeforeItIsUsed leaves nothing, and serves nobody.
func TestProxy_closedBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	p, err := egress.New(egress.Options{Network: allowlist()})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := p.Serve(t.Context(), nil); err == nil {
		t.Error("a closed proxy was served")
	}
	if err := p.Ready(t.Context()); err == nil {
		t.Error("a closed proxy is ready")
	}
	if _, err := egress.New(egress.Options{Network: backend.Network{Mode: "some"}}); !errors.Is(err, backend.ErrInvalid) {
		t.Error(err)
	}
}
