//go:build linux

package egress_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/netstack/netstacktest"
)

// full is a network of mode full.
func full(allow, deny []backend.Rule) backend.Network {
	return backend.Network{Mode: backend.NetworkFull, Allow: allow, Deny: deny}
}

// fullRig has a stack in the place of a sandbox's kernel, and public addresses
// that lead to servers of the test.
type fullRig struct {
	*rig
	guest *netstacktest.Guest
	up    chan struct{}
}

// agentOf answers as an agent whose device is the guest.
func (r *fullRig) agentOf(t *testing.T) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.NetOpenPath, func(w http.ResponseWriter, q *http.Request) {
		var o wire.NetOpen
		if err := json.NewDecoder(q.Body).Decode(&o); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST "+wire.NetAcceptPath, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })
	mux.HandleFunc("POST "+wire.NetPacketsPath, func(w http.ResponseWriter, q *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		var err error
		if r.guest, err = netstacktest.New(netip.MustParseAddr(wire.NetAddress), wire.NetMTU, flushed{w, rc}); err != nil {
			t.Error(err)
			return
		}
		close(r.up)
		r.guest.Run(q.Context(), q.Body)
		r.guest.Close()
	})
	return mux
}

type flushed struct {
	io.Writer
	rc *http.ResponseController
}

func (f flushed) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	if err == nil {
		err = f.rc.Flush()
	}
	return n, err
}

func newFullRig(t *testing.T, n backend.Network, servers map[string]string) *fullRig {
	t.Helper()
	r := &fullRig{}
	r.rig = newHost(t, n, func(o *egress.Options) {
		dial := o.Dial
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if to, ok := servers[network+" "+addr]; ok {
				addr = to
			}
			return dial(ctx, network, addr)
		}
	})
	r.up = make(chan struct{})
	rt := connect(t, r.agentOf(t))
	go func() { r.ended <- r.Serve(t.Context(), rt) }()
	select {
	case <-r.up:
	case err := <-r.ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

// get is what a program reads from an address.
func (r *fullRig) get(t *testing.T, to string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := r.guest.Dial(ctx, netip.MustParseAddrPort(to))
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	b, err := io.ReadAll(c)
	return string(b), err
}

// resolve asks the sandbox's name server.
func (r *fullRig) resolve(t *testing.T, name string) []string {
	t.Helper()
	c, err := r.guest.DialUDP(netip.MustParseAddrPort(wire.NetGateway + ":53"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: 7}, Questions: []dnsmessage.Question{
		{Name: dnsmessage.MustNewName(name + "."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
	}}
	b, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	var a dnsmessage.Message
	if err := a.Unpack(buf[:n]); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, rr := range a.Answers {
		if rec, ok := rr.Body.(*dnsmessage.AResource); ok {
			out = append(out, netip.AddrFrom4(rec.A).String())
		}
	}
	return out
}

// greets is a server that says who it is and reads to the end.
func greets(t *testing.T, words string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, words)
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

// TestFull_decides on addresses by number as the policy says, and tells of it.
func TestFull_decides(t *testing.T) {
	t.Parallel()
	server := greets(t, "public")
	host := greets(t, "host")
	_, port, _ := net.SplitHostPort(host)
	r := newFullRig(t, full(
		[]backend.Rule{{CIDR: "9.9.9.9/32"}, {CIDR: "10.1.2.0/24"}, {CIDR: "127.0.0.1/32"}},
		[]backend.Rule{{CIDR: "9.0.0.0/8"}, {CIDR: "8.8.4.4/32", Ports: []uint16{25}}},
	), map[string]string{
		"tcp 8.8.8.8:80": server, "tcp 9.9.9.9:22": server, "tcp 10.1.2.3:1": server, "tcp 8.8.4.4:24": server,
		// What is refused would be reached if it were not.
		"tcp 9.1.1.1:22": server, "tcp 8.8.4.4:25": server, "tcp 10.1.3.3:1": server, "tcp 169.254.169.254:80": server,
		"tcp 198.51.100.7:80": server, "tcp 100.64.0.1:80": server, "tcp 192.168.0.1:80": server, "tcp 172.17.0.1:80": server,
	})
	for _, to := range []string{"8.8.8.8:80", "9.9.9.9:22", "10.1.2.3:1", "8.8.4.4:24"} {
		if got, err := r.get(t, to); got != "public" || err != nil {
			t.Errorf("%s: %q, %v", to, got, err)
		}
	}
	if got, err := r.get(t, wire.NetGateway+":"+port); got != "host" || err != nil {
		t.Errorf("the host's loopback: %q, %v", got, err)
	}
	for _, to := range []string{
		"9.1.1.1:22", "8.8.4.4:25", "10.1.3.3:1", "169.254.169.254:80", "198.51.100.7:80", "100.64.0.1:80", "192.168.0.1:80", "172.17.0.1:80",
	} {
		if got, err := r.get(t, to); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %q, %v", to, got, err)
		}
		r.wait(t, func(d egress.Decision) bool {
			return d.Kind == egress.KindConnect && !d.Allowed && fmt.Sprintf("%s:%d", d.Host, d.Port) == to && d.Reason != ""
		})
	}
	r.wait(t, func(d egress.Decision) bool {
		return d.Done && d.Allowed && d.Host == "8.8.8.8" && d.Received == int64(len("public"))
	})
}

// TestFull_datagrams: to what may be reached, back and forth.
func TestFull_datagrams(t *testing.T) {
	t.Parallel()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	heard := make(chan string, 10)
	go func() {
		buf := make([]byte, 100)
		for {
			n, from, err := l.ReadFrom(buf)
			if err != nil {
				return
			}
			heard <- string(buf[:n])
			_, _ = l.WriteTo(buf[:n], from)
		}
	}()
	r := newFullRig(t, full(nil, nil), map[string]string{"udp 8.8.8.8:123": l.LocalAddr().String(), "udp 10.0.0.1:123": l.LocalAddr().String()})
	bad, err := r.guest.DialUDP(netip.MustParseAddrPort("10.0.0.1:123"))
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	if _, err := bad.Write([]byte("bad")); err != nil {
		t.Fatal(err)
	}
	r.wait(t, func(d egress.Decision) bool {
		return d.Kind == egress.KindDatagram && !d.Allowed && d.Host == "10.0.0.1"
	})
	c, err := r.guest.DialUDP(netip.MustParseAddrPort("8.8.8.8:123"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	buf := make([]byte, 100)
	if _, err := c.Write([]byte("good")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != "good" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if got := <-heard; got != "good" {
		t.Errorf("the server heard %q", got)
	}
}

// TestFull_names: what they are told for is real, public, and not denied.
func TestFull_names(t *testing.T) {
	t.Parallel()
	r := newFullRig(t, full([]backend.Rule{{CIDR: "10.9.9.9/32"}}, []backend.Rule{{Host: "*.bad.test"}}), nil)
	r.names.set("good.test", "8.8.8.8", "10.0.0.1", "2001:4860::1")
	r.names.set("inner.test", "10.0.0.1")
	r.names.set("named.test", "10.9.9.9")
	r.names.set("a.bad.test", "8.8.8.8")
	r.names.set("metadata.google.internal", "8.8.8.8")
	for name, want := range map[string][]string{
		"good.test": {"8.8.8.8"}, "inner.test": nil, "named.test": {"10.9.9.9"}, "a.bad.test": nil,
		"metadata.google.internal": nil, "absent.test": nil,
	} {
		if got := r.resolve(t, name); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestFull_hosts: rules that name hosts hold for addresses that were told for
// them, and for TLS.
func TestFull_hosts(t *testing.T) {
	t.Parallel()
	server := greets(t, "here")
	n := full([]backend.Rule{{Host: "good.test"}}, []backend.Rule{{CIDR: "0.0.0.0/0"}})
	r := newFullRig(t, n, map[string]string{"tcp 8.8.8.8:22": server, "tcp 8.8.8.8:443": server, "tcp 8.8.4.4:22": server})
	r.names.set("good.test", "8.8.8.8")
	if got, err := r.get(t, "8.8.8.8:22"); err == nil {
		t.Errorf("before it was asked for: %q", got)
	}
	if got := r.resolve(t, "good.test"); len(got) != 1 {
		t.Fatal(got)
	}
	if got, err := r.get(t, "8.8.8.8:22"); got != "here" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := r.get(t, "8.8.4.4:22"); err == nil {
		t.Errorf("another address: %q", got)
	}
	hello := func(name string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		c, err := r.guest.Dial(ctx, netip.MustParseAddrPort("8.8.8.8:443"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return tls.Client(c, &tls.Config{ServerName: name, MinVersion: tls.VersionTLS12}).HandshakeContext(ctx)
	}
	// The server is none of TLS: who gets to it fails otherwise than who is refused.
	if err := hello("other.test"); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("another name at a good address: %v", err)
	}
	if err := hello("good.test"); err == nil || strings.Contains(err.Error(), "access denied") {
		t.Errorf("the control: %v", err)
	}
}

// TestFull_update cuts what is no longer allowed, and none closes the network.
func TestFull_update(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	r := newFullRig(t, full(nil, nil), map[string]string{"tcp 8.8.8.8:1": l.Addr().String()})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := r.guest.Dial(ctx, netip.MustParseAddrPort("8.8.8.8:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.wait(t, func(d egress.Decision) bool { return d.Allowed && !d.Done })
	if err := r.Update(full(nil, []backend.Rule{{CIDR: "8.8.8.8/32"}})); err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("it was not cut: %v", err)
	}
	if err := r.Update(backend.Network{Mode: backend.NetworkNone}); err != nil {
		t.Fatal(err)
	}
	if got, err := r.get(t, "8.8.8.8:1"); err == nil {
		t.Errorf("without a network: %q", got)
	}
}

// wait waits for a decision.
func (r *fullRig) wait(t *testing.T, f func(egress.Decision) bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for len(r.decisions(f)) == 0 {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no such decision among %+v", r.decisions(func(egress.Decision) bool { return true }))
		}
	}
}

// TestLocal_asksTheKernel: what the host delivers to itself is its own, on
// whatever interface it is.
func TestLocal_asksTheKernel(t *testing.T) {
	t.Parallel()
	p, err := egress.New(egress.Options{Network: full(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.IsLinkLocalUnicast() {
			continue
		}
		ip, _ := netip.AddrFromSlice(n.IP)
		if !p.Own(ip.Unmap()) {
			t.Errorf("%s is not the host's", ip)
		}
	}
	if p.Own(netip.MustParseAddr("8.8.8.8")) {
		t.Error("the control is the host's")
	}
}
