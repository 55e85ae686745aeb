//go:build linux

package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	dnsTTL     = 60 // seconds
	dnsMaxUDP  = 4096
	dnsMaxTCP  = 16
	dnsTCPWait = 10 * time.Second
)

// dnsServer answers the sandbox's programs.
type dnsServer struct {
	s     *Service
	udp   net.PacketConn
	tcp   net.Listener
	slots chan struct{} // questions that are being answered
	conns chan struct{} // TCP connections
}

func newDNS(s *Service, addr string) (*dnsServer, error) {
	var lc net.ListenConfig
	tcp, err := lc.Listen(s.ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	udp, err := lc.ListenPacket(s.ctx, "udp", tcp.Addr().String())
	if err != nil {
		_ = tcp.Close()
		return nil, err
	}
	d := &dnsServer{s: s, udp: udp, tcp: tcp, slots: make(chan struct{}, maxLookups), conns: make(chan struct{}, dnsMaxTCP)}
	s.wg.Go(d.serveUDP)
	s.wg.Go(d.serveTCP)
	return d, nil
}

func (d *dnsServer) close() {
	_ = d.udp.Close()
	_ = d.tcp.Close()
}

func (d *dnsServer) serveUDP() {
	buf := make([]byte, dnsMaxUDP)
	for {
		n, from, err := d.udp.ReadFrom(buf)
		if err != nil {
			if d.s.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		select {
		case d.slots <- struct{}{}:
		default:
			continue // asked too much at once; programs ask again
		}
		q := append([]byte(nil), buf[:n]...)
		d.s.wg.Go(func() {
			defer func() { <-d.slots }()
			if a := d.answer(q); a != nil {
				_, _ = d.udp.WriteTo(a, from)
			}
		})
	}
}

func (d *dnsServer) serveTCP() {
	for {
		c, err := d.tcp.Accept()
		if err != nil {
			if d.s.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select {
			case <-time.After(retryAccept):
			case <-d.s.ctx.Done():
			}
			continue
		}
		select {
		case d.conns <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		d.s.wg.Go(func() {
			defer func() { <-d.conns }()
			defer c.Close() //nolint:errcheck // nobody is left to tell
			defer context.AfterFunc(d.s.ctx, func() { _ = c.Close() })()
			d.serveConn(c)
		})
	}
}

// serveConn answers the questions of one connection.
func (d *dnsServer) serveConn(c net.Conn) {
	for {
		_ = c.SetDeadline(time.Now().Add(dnsTCPWait))
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		q := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		a := d.answer(q)
		if a == nil {
			return
		}
		a = append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...)
		if _, err := c.Write(a); err != nil {
			return
		}
	}
}

// answer makes the answer to q; nil for what is no question.
func (d *dnsServer) answer(q []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(q)
	if err != nil || h.Response {
		return nil
	}
	out := dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}
	question, err := p.Question()
	if err == nil {
		_, err = p.Question()
		if err == nil || !errors.Is(err, dnsmessage.ErrSectionDone) {
			err = errors.New("more than one question")
		} else {
			err = nil
		}
	}
	if err != nil {
		out.RCode = dnsmessage.RCodeFormatError
		return pack(out, nil, netip.Addr{})
	}
	var addr netip.Addr
	switch {
	case h.OpCode != 0:
		out.RCode = dnsmessage.RCodeNotImplemented
	case question.Class != dnsmessage.ClassINET:
		out.RCode = dnsmessage.RCodeRefused
	default:
		addr, out.RCode = d.lookup(question.Name.String())
	}
	if question.Type != dnsmessage.TypeA && question.Type != dnsmessage.TypeALL {
		addr = netip.Addr{} // the name is there, and has no such record
	}
	return pack(out, &question, addr)
}

// lookup finds the address that stands for a name. What is not allowed does not
// exist: other codes make programs ask again, and wait.
func (d *dnsServer) lookup(text string) (netip.Addr, dnsmessage.RCode) {
	text = strings.ToLower(strings.TrimSuffix(text, "."))
	if text == "localhost" || strings.HasSuffix(text, ".localhost") {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), dnsmessage.RCodeSuccess
	}
	for i := range len(text) {
		if c := text[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return netip.Addr{}, dnsmessage.RCodeNameError
		}
	}
	if text == "" {
		return netip.Addr{}, dnsmessage.RCodeRefused
	}
	addr, err := d.s.names.resolve(text)
	switch {
	case err != nil:
		return addr, dnsmessage.RCodeServerFailure
	case !addr.IsValid():
		return addr, dnsmessage.RCodeNameError
	default:
		return addr, dnsmessage.RCodeSuccess
	}
}

func pack(h dnsmessage.Header, q *dnsmessage.Question, addr netip.Addr) []byte {
	h.Authoritative = false
	m := dnsmessage.Message{Header: h}
	if q != nil {
		m.Questions = []dnsmessage.Question{*q}
		if addr.IsValid() && h.RCode == dnsmessage.RCodeSuccess {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: dnsTTL},
				Body:   &dnsmessage.AResource{A: addr.As4()},
			}}
		}
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}
