package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"time"
)

// protocol is what a client speaks, by its first bytes.
type protocol int

const (
	protoOpaque protocol = iota
	protoHTTP
	protoHTTP2 // without TLS
	protoTLS
	protoNone // nothing that could be told
)

const (
	maxMethod    = 32
	maxFirstLine = 4096 // a peeked's buffer
	maxHello     = 64 << 10
)

// sniff looks at what the client says first, without taking it.
func sniff(c *peeked) protocol {
	for n := 1; n <= maxFirstLine; n++ {
		b, err := c.br.Peek(n)
		if err != nil {
			return protoNone
		}
		// What is there already is looked at as a whole.
		if more := c.br.Buffered(); more > n {
			n = more
			b, _ = c.br.Peek(n)
		}
		if p, sure := classify(b); sure {
			return p
		}
	}
	return protoHTTP // a long first line, which the HTTP server will refuse
}

// classify tells what b is the beginning of; sure is false while more of it
// must be seen. Security: what a lenient server takes for HTTP must not pass as
// something else, so blanks before it and odd methods count as HTTP.
func classify(b []byte) (p protocol, sure bool) {
	if b[0] == 0x16 {
		return protoTLS, true
	}
	const blank = " \t\v\f\r"
	b = bytes.TrimLeft(b, blank+"\n")
	line, _, whole := bytes.Cut(b, []byte("\n"))
	for i, ch := range line {
		switch {
		case i > maxMethod:
			return protoHTTP, true // its server will see
		case ch != '\r' && strings.IndexByte(blank, ch) >= 0:
			if !whole {
				return protoOpaque, false
			}
			if bytes.HasPrefix(line, []byte("PRI * HTTP/2")) {
				return protoHTTP2, true
			}
			if bytes.Contains(bytes.ToUpper(line[i:]), []byte("HTTP/")) {
				return protoHTTP, true
			}
			return protoOpaque, true
		case !token(ch):
			return protoOpaque, true
		}
	}
	return protoOpaque, whole && len(line) > 0
}

// token tells the characters of a method.
func token(c byte) bool {
	return c > ' ' && c < 0x7f && !strings.ContainsRune("()<>@,;:\\\"/[]?={}", rune(c)) || c == '\r'
}

var errHello = errors.New("hello read")

// readHello reads a client's hello and returns it with a connection that still
// has all of what was read.
func readHello(ctx context.Context, c *peeked) (*tls.ClientHelloInfo, *replayed, error) {
	ctx, cancel := context.WithTimeout(ctx, greeting)
	defer cancel()
	rec := &recorder{Conn: c, left: maxHello}
	var hello *tls.ClientHelloInfo
	err := tls.Server(rec, &tls.Config{ //nolint:gosec // only the hello is read; the server decides on versions
		MinVersion: tls.VersionTLS10,
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			hello = h
			return nil, errHello
		},
	}).HandshakeContext(ctx)
	_ = c.SetDeadline(time.Time{})
	if hello == nil {
		return nil, nil, err
	}
	return hello, &replayed{Conn: c, r: io.MultiReader(bytes.NewReader(rec.read), c)}, nil
}

// recorder keeps what is read and writes nothing.
type recorder struct {
	net.Conn
	read []byte
	left int
}

func (r *recorder) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, io.ErrShortBuffer
	}
	n, err := r.Conn.Read(p[:min(len(p), r.left)])
	r.left -= n
	r.read = append(r.read, p[:n]...)
	return n, err
}

func (r *recorder) Write(p []byte) (int, error) { return len(p), nil }
func (r *recorder) Close() error                { return nil }

// extensionECH hides the real server name in another hello.
const extensionECH = 0xfe0d

// checkHello tells whether a hello is for t, as the policy sees it.
func (p *policy) checkHello(t target, h *tls.ClientHelloInfo) verdict {
	name := strings.ToLower(h.ServerName)
	switch {
	case slices.Contains(h.Extensions, extensionECH):
		return verdict{reason: "TLS to " + t.String() + " hides its server name (encrypted client hello)"}
	case t.name == name && name != "":
		return verdict{ok: true}
	case t.name == "" && name == "":
		return verdict{ok: true}
	case t.name == "":
		// An address that was looked up elsewhere.
		n, err := parseHost(name, t.port)
		if err == nil && n.name != "" && p.decide(n, nil).ok {
			return verdict{ok: true}
		}
		return verdict{reason: "TLS to " + t.String() + " is for the name " + clip(name) + ", which is not allowed"}
	case name == "":
		return verdict{reason: "TLS to " + t.String() + " names no server"}
	default:
		return verdict{reason: "TLS to " + t.String() + " is for another name, " + clip(name)}
	}
}

// TLS alerts, as records.
const (
	alertAccessDenied     = 49
	alertUnrecognizedName = 112
)

// alert ends a TLS connection that has not begun. It says why, as far as TLS can.
func alert(c net.Conn, code byte) {
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Write([]byte{21, 3, 3, 0, 2, 2, code})
}
