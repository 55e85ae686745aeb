package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/netstack"
)

// The name server of mode full.
const (
	dnsTTL     = 30 // seconds, as long as we remember ourselves
	dnsMaxUDP  = 4096
	dnsMaxTCP  = 16
	dnsTCPWait = 10 * time.Second
	maxLookups = 64
	dnsPort    = 53
)

// answerNames serves the name server at the gateway.
func (s *session) answerNames(st *netstack.Stack) error {
	udp, err := st.ListenPacket(dnsPort)
	if err != nil {
		return err
	}
	tcp, err := st.Listen(dnsPort)
	if err != nil {
		_ = udp.Close()
		return err
	}
	st.Go(func(ctx context.Context) {
		defer context.AfterFunc(ctx, func() { _ = udp.Close(); _ = tcp.Close() })()
		s.namesUDP(ctx, st, udp)
	})
	st.Go(func(ctx context.Context) { s.namesTCP(ctx, st, tcp) })
	return nil
}

func (s *session) namesUDP(ctx context.Context, st *netstack.Stack, c net.PacketConn) {
	slots := make(chan struct{}, maxLookups)
	buf := make([]byte, dnsMaxUDP)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		select {
		case slots <- struct{}{}:
		default:
			continue // asked too much at once; programs ask again
		}
		q := slices.Clone(buf[:n])
		if !st.Go(func(ctx context.Context) {
			defer func() { <-slots }()
			if a := s.answer(ctx, q); a != nil {
				_, _ = c.WriteTo(a, from)
			}
		}) {
			return
		}
		if s.rate.take(ctx, s.p.opts.Now) != nil {
			return
		}
	}
}

func (s *session) namesTCP(ctx context.Context, st *netstack.Stack, l net.Listener) {
	slots := make(chan struct{}, dnsMaxTCP)
	for {
		c, err := l.Accept()
		if err != nil || s.rate.take(ctx, s.p.opts.Now) != nil {
			return
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		if !st.Go(func(ctx context.Context) {
			defer func() { <-slots }()
			defer c.Close() //nolint:errcheck // nobody is left to tell
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			s.namesConn(ctx, c)
		}) {
			_ = c.Close()
			return
		}
	}
}

// namesConn answers the questions of one connection.
func (s *session) namesConn(ctx context.Context, c net.Conn) {
	for range 100 {
		_ = c.SetDeadline(time.Now().Add(dnsTCPWait))
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		q := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		a := s.answer(ctx, q)
		if a == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...)); err != nil {
			return
		}
	}
}

// answer makes the answer to q; nil for what is no question.
func (s *session) answer(ctx context.Context, q []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(q)
	if err != nil || h.Response {
		return nil
	}
	out := dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}
	question, err := p.Question()
	if err == nil {
		if _, more := p.Question(); !errors.Is(more, dnsmessage.ErrSectionDone) {
			err = errors.New("more than one question")
		}
	}
	if err != nil {
		out.RCode = dnsmessage.RCodeFormatError
		return packAnswer(out, nil, nil)
	}
	var addrs []netip.Addr
	switch {
	case h.OpCode != 0:
		out.RCode = dnsmessage.RCodeNotImplemented
	case question.Class != dnsmessage.ClassINET:
		out.RCode = dnsmessage.RCodeRefused
	default:
		addrs, out.RCode = s.p.addresses(ctx, question.Name.String())
	}
	if question.Type != dnsmessage.TypeA && question.Type != dnsmessage.TypeALL {
		addrs = nil // the name is there, and has no such record
	}
	return packAnswer(out, &question, addrs)
}

// addresses are those of a name that the sandbox may be told.
func (p *Proxy) addresses(ctx context.Context, name string) ([]netip.Addr, dnsmessage.RCode) {
	t, err := parseHost(name, dnsPort)
	if err != nil || t.name == "" {
		return nil, dnsmessage.RCodeNameError
	}
	st := p.state.Load()
	v := st.policy.resolvable(t.name)
	var addrs []netip.Addr
	code := dnsmessage.RCodeNameError
	if v.ok {
		addrs, err = st.resolver.lookup(ctx, t.name)
		var dns *net.DNSError
		switch {
		case errors.As(err, &dns) && dns.IsNotFound:
			v = verdict{reason: "there is no such name"}
		case err != nil:
			v, code = verdict{reason: "its name could not be resolved"}, dnsmessage.RCodeServerFailure
		default:
			code = dnsmessage.RCodeSuccess
		}
	}
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
		// Security: what may not be reached is not told either: names of the
		// host's own networks would tell what is there.
		return !a.Is4() || !st.policy.reachable(a)
	})
	for _, a := range addrs {
		p.answers.add(t.name, a)
	}
	d := Decision{Kind: KindResolve, Host: t.name, Allowed: v.ok, Rule: v.rule, Reason: v.reason, Done: true}
	if len(addrs) > 0 {
		d.Address = addrs[0]
	}
	p.audit(d)
	return addrs, code
}

// resolvable tells whether a name may be resolved in mode full.
func (p *policy) resolvable(name string) verdict {
	if p.mode != backend.NetworkFull {
		return p.named(name)
	}
	for i := range p.allow {
		if r := &p.allow[i]; r.names(name) && (!metadataName(name) || !r.wild) {
			return verdict{ok: true, rule: r.text}
		}
	}
	if metadataName(name) {
		return verdict{reason: name + " is the name of a metadata service, and no rule of network.allow names it"}
	}
	for i := range p.deny {
		if r := &p.deny[i]; r.names(name) && len(r.ports) == 0 && !r.httpOnly() {
			return verdict{rule: r.text, reason: r.text + " denies " + name}
		}
	}
	return verdict{ok: true, rule: "network.mode full"}
}

// reachable tells whether an address is public, or named by a rule.
func (p *policy) reachable(a netip.Addr) bool {
	for i := range p.allow {
		r := &p.allow[i]
		port := uint16(443)
		if len(r.ports) > 0 {
			port = r.ports[0]
		}
		if r.prefix.IsValid() && p.special(target{addr: a, port: port}, a, &query{any: true}).ok {
			return true
		}
	}
	return p.special(target{addr: a, port: 443}, a, &query{any: true}).ok
}

func packAnswer(h dnsmessage.Header, q *dnsmessage.Question, addrs []netip.Addr) []byte {
	m := dnsmessage.Message{Header: h}
	if q != nil {
		m.Questions = []dnsmessage.Question{*q}
		for _, a := range addrs {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: dnsTTL},
				Body:   &dnsmessage.AResource{A: a.As4()},
			})
		}
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}
