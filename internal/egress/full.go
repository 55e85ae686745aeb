package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/netstack"
)

const (
	// maxTCP and maxUDP bound what a sandbox in mode full has open.
	maxTCP = 256
	maxUDP = 256
)

// carry has the sandbox's packets until that fails: they end in a stack here,
// and each connection of theirs is decided on like any other.
func (s *session) carry() error {
	gateway := netip.MustParseAddr(wire.NetGateway)
	st, err := netstack.New(netstack.Options{
		Address: netip.MustParseAddr(wire.NetAddress), Gateway: gateway, MTU: wire.NetMTU,
		TCP: s.connect, UDP: s.datagrams, MaxTCP: maxTCP, MaxUDP: maxUDP,
	})
	if err != nil {
		return err
	}
	defer st.Close() //nolint:errcheck // it has none
	if err := s.answerNames(st); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	pr, pw := io.Pipe()
	defer pr.CloseWithError(net.ErrClosed)
	req, err := s.request(ctx, wire.NetPacketsPath, pr)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	s.wg.Go(func() { failed <- st.Send(ctx, pw); _ = pw.Close() })
	res, err := s.rt.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("egress: packets: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("egress: packets: the agent answered %d", res.StatusCode)
	}
	s.wg.Go(func() { failed <- st.Receive(res.Body) })
	err = <-failed
	return err
}

// connect decides on a connection that a program wants to an address.
func (s *session) connect(ctx context.Context, a *netstack.Attempt) {
	if s.rate.take(ctx, s.p.opts.Now) != nil {
		return
	}
	ctx = context.WithValue(ctx, breakKey{}, a.Break)
	st := s.p.state.Load()
	to := reached(a.To)
	names := s.p.answers.of(to.Addr())
	asked := target{addr: to.Addr(), port: to.Port()}
	t, raw := st.policy.flow(asked, names, nil)
	tn := &tunneling{p: s.p, st: st, t: t, raw: raw}
	if raw.ok {
		up, err := st.dialAddr(ctx, t, to.Addr())
		if err != nil {
			s.p.audit(t.decision(KindConnect, failed(t, err)))
			return
		}
		tn.up = up
		defer up.Close() //nolint:errcheck // nobody is left to tell
	} else if _, some := st.policy.flow(asked, names, &query{any: true}); !some.ok {
		s.p.audit(t.decision(KindConnect, raw))
		return
	}
	c, err := a.Accept()
	if err != nil {
		return
	}
	tn.c = newPeeked(c)
	if !st.policy.looks {
		tn.told = closedChan()
		tn.relay(ctx, c)
		return
	}
	tn.look(ctx, to)
}

// reached is what an address leads to: the gateway stands for the host's
// loopback, for which a rule has to name that, since the sandbox has one of its
// own.
func reached(to netip.AddrPort) netip.AddrPort {
	if to.Addr() == netip.MustParseAddr(wire.NetGateway) {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port())
	}
	return to
}

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// look serves a connection whose name a rule may be about.
func (tn *tunneling) look(ctx context.Context, to netip.AddrPort) {
	switch tn.first(ctx) {
	case protoTLS:
		<-tn.told
		tn.lookTLS(ctx, to)
	case protoHTTP:
		<-tn.told
		t, err := hostOf(tn.c, to)
		if err != nil {
			tn.refuse(err.Error())
			return
		}
		if tn.up != nil {
			_ = tn.up.Close()
		}
		tn.p.http.serve(ctx, tn.c, scope{fixed: true, target: t})
	case protoHTTP2:
		tn.refuse("HTTP/2 without TLS, whose requests rules of the policy are about")
	case protoNone:
		tn.refuse("nothing was said that tells what it is")
	case protoOpaque:
		if !tn.raw.ok || tn.up == nil {
			tn.refuse(tn.raw.reason)
			return
		}
		tn.relay(ctx, tn.c)
	}
}

// lookTLS decides by the server's name. Where a rule is about that name it
// leads where we resolve it, as in mode allowlist; else where it was going.
func (tn *tunneling) lookTLS(ctx context.Context, to netip.AddrPort) {
	hello, c, err := readHello(ctx, tn.c)
	if err != nil {
		tn.refuse("its TLS cannot be read")
		return
	}
	tn.c = newPeeked(c)
	t := target{addr: to.Addr(), port: to.Port()}
	if hello.ServerName != "" {
		if t, err = parseHost(hello.ServerName, to.Port()); err != nil || t.name == "" {
			tn.refuse("TLS is for " + clip(hello.ServerName) + ", which is no host's name")
			alert(tn.c, alertUnrecognizedName)
			return
		}
	}
	pol := tn.st.policy
	if t.name != "" && pol.concerns(t.name) {
		if tn.up != nil {
			_ = tn.up.Close()
		}
		tn.t, tn.up, tn.upbr, tn.heard = t, nil, nil, nil
		tn.raw = pol.decide(t, nil)
		tn.tls(ctx)
		return
	}
	v := pol.hidden(t, hello)
	if v.ok {
		v = pol.address(t, to.Addr(), nil)
	}
	if !v.ok || tn.up == nil {
		tn.t = t
		tn.refuse(v.reason)
		alert(tn.c, alertAccessDenied)
		return
	}
	tn.relay(ctx, tn.c)
}

// hidden refuses a hello whose real name is in another.
func (p *policy) hidden(t target, h *tls.ClientHelloInfo) verdict {
	if t.name == "" {
		return verdict{ok: true}
	}
	return p.checkHello(t, h)
}

// hostOf is what a first request is for, as far as it was read.
func hostOf(c *peeked, to netip.AddrPort) (target, error) {
	b, _ := c.br.Peek(c.br.Buffered())
	head, _, _ := strings.Cut(string(b), "\r\n\r\n")
	for line := range strings.SplitSeq(head, "\n") {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.EqualFold(strings.TrimSpace(name), "host") {
			return parseHostPort(strings.TrimSpace(value), to.Port())
		}
	}
	return target{}, errors.New("the request's first packet names no host")
}

// dialAddr connects to a, which is where t is.
func (st *state) dialAddr(ctx context.Context, t target, a netip.Addr) (*pinned, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	c, err := st.dialer.dial(ctx, netip.AddrPortFrom(a, t.port))
	if err != nil {
		return nil, err
	}
	return &pinned{Conn: c, addr: a}, nil
}

// flow decides on what is sent to the address t: by itself, or as one of the
// names that the sandbox was told it for. It returns the target that decided.
func (p *policy) flow(t target, names []string, q *query) (target, verdict) {
	v := p.address(t, t.addr, q)
	if v.ok || t.name != "" {
		return t, v
	}
	for _, n := range names {
		named := target{name: n, port: t.port}
		if !p.decide(named, q).ok {
			continue
		}
		if nv := p.address(named, t.addr, q); nv.ok {
			return named, nv
		}
	}
	return t, v
}

// concerns tells whether some rule is about a name.
func (p *policy) concerns(name string) bool {
	for _, list := range [][]rule{p.allow, p.deny} {
		for i := range list {
			if list[i].names(name) {
				return true
			}
		}
	}
	for i := range p.inject {
		if p.inject[i].rule.names(name) {
			return true
		}
	}
	return false
}

// watchful tells whether the policy looks at more than addresses and ports.
func (p *policy) watchful() bool {
	for _, list := range [][]rule{p.allow, p.deny} {
		for i := range list {
			if list[i].name != "" || list[i].httpOnly() {
				return true
			}
		}
	}
	return len(p.inject) > 0
}

// datagrams has a flow of datagrams until nobody has used it for a while.
func (s *session) datagrams(ctx context.Context, d *netstack.Datagrams) {
	if s.rate.take(ctx, s.p.opts.Now) != nil {
		return
	}
	st := s.p.state.Load()
	to := reached(d.To)
	t, v := st.policy.flow(target{addr: to.Addr(), port: to.Port()}, s.p.answers.of(to.Addr()), nil)
	switch {
	case v.ok && st.policy.looks && t.port == 443:
		// Security: QUIC hides the name that rules are about; programs go on
		// with TLS.
		v = verdict{reason: "QUIC hides the name of its server, which rules of the policy are about"}
	case v.ok && st.dialer.proxy != nil:
		v = verdict{reason: "network.upstream carries no datagrams"}
	}
	if !v.ok {
		s.p.audit(t.decision(KindDatagram, v))
		return
	}
	c, err := s.p.opts.Dial(ctx, "udp", to.String())
	if err != nil {
		s.p.audit(t.decision(KindDatagram, failed(t, err)))
		return
	}
	defer c.Close() //nolint:errcheck // nobody is left to tell
	s.p.exchange(ctx, t, v, d, pinned{Conn: c, addr: to.Addr()})
}

// modeFull tells whether the sandbox has packets of its own.
func (p *Proxy) modeFull() bool { return p.state.Load().policy.mode == backend.NetworkFull }

// idleDatagrams is how long a flow of datagrams may be silent, idleNames one of
// a name server, which is asked once.
const (
	idleDatagrams = time.Minute
	idleNames     = 10 * time.Second
)
