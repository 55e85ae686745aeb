package egress

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"
)

// SOCKS5's replies (RFC 1928).
const (
	socksOK          = 0
	socksFailed      = 1
	socksDenied      = 2
	socksUnreachable = 4
	socksRefused     = 5
	socksCommand     = 7
	socksAddress     = 8
)

// peeked is a connection whose first bytes can be looked at.
type peeked struct {
	net.Conn
	br *bufio.Reader
}

func newPeeked(c net.Conn) *peeked { return &peeked{Conn: c, br: bufio.NewReaderSize(c, 4096)} }

func (c *peeked) Read(p []byte) (int, error) { return c.br.Read(p) }

// CloseWrite ends what is sent, where the connection can.
func (c *peeked) CloseWrite() error { return closeWrite(c.Conn) }

// serveProxy serves a connection to the proxy's port, SOCKS5 or HTTP.
func (p *Proxy) serveProxy(ctx context.Context, conn net.Conn) {
	c := newPeeked(conn)
	_ = c.SetReadDeadline(time.Now().Add(greeting))
	first, err := c.br.Peek(1)
	if err != nil {
		return
	}
	if first[0] != 5 {
		_ = c.SetReadDeadline(time.Time{})
		p.http.serve(ctx, c, scope{})
		return
	}
	t, code := readSOCKS(c.br, c)
	if code != socksOK {
		_, _ = c.Write(socksReply(code))
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	p.tunnel(ctx, c, t, func(err error) {
		_, _ = c.Write(socksReply(socksCode(err))) // a broken connection shows at the next use
	})
}

// readSOCKS reads a SOCKS5 greeting and request, answering the former.
func readSOCKS(r io.Reader, w io.Writer) (target, byte) {
	var b [257]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil || b[0] != 5 {
		return target{}, socksFailed
	}
	methods := b[2 : 2+int(b[1])]
	if _, err := io.ReadFull(r, methods); err != nil {
		return target{}, socksFailed
	}
	if !slices.Contains(methods, 0) {
		_, _ = w.Write([]byte{5, 0xff}) // nobody is asked for a password
		return target{}, socksFailed
	}
	if _, err := w.Write([]byte{5, 0}); err != nil {
		return target{}, socksFailed
	}
	if _, err := io.ReadFull(r, b[:4]); err != nil || b[0] != 5 {
		return target{}, socksFailed
	}
	if b[1] != 1 { // BIND and UDP ASSOCIATE
		return target{}, socksCommand
	}
	host, code := readSOCKSHost(r, b[3])
	if code != socksOK {
		return target{}, code
	}
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return target{}, socksFailed
	}
	t, err := parseHost(host, binary.BigEndian.Uint16(b[:2]))
	if err != nil {
		return target{}, socksDenied
	}
	return t, socksOK
}

func readSOCKSHost(r io.Reader, kind byte) (string, byte) {
	var b [256]byte
	size := 0
	switch kind {
	case 1:
		size = 4
	case 3:
		if _, err := io.ReadFull(r, b[:1]); err != nil {
			return "", socksFailed
		}
		size = int(b[0])
	case 4:
		size = 16
	default:
		return "", socksAddress
	}
	if _, err := io.ReadFull(r, b[:size]); err != nil {
		return "", socksFailed
	}
	if kind == 3 {
		return string(b[:size]), socksOK
	}
	a, _ := netip.AddrFromSlice(b[:size])
	return a.Unmap().String(), socksOK
}

func socksReply(code byte) []byte { return []byte{5, code, 0, 1, 0, 0, 0, 0, 0, 0} }

func socksCode(err error) byte {
	var ref *refusal
	switch {
	case err == nil:
		return socksOK
	case errors.As(err, &ref):
		return socksDenied
	case isRefused(err):
		return socksRefused
	default:
		return socksUnreachable
	}
}
