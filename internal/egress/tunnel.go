package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// stall is how long a side may take nothing of what is sent to it, or send
// nothing when it is the last that may.
const stall = 5 * time.Minute

// tunnel serves a connection that a program wants to have to t: what it speaks
// is looked at, and decided on. reply tells the program, once, whether it has
// its connection; nil for one that has it already.
func (p *Proxy) tunnel(ctx context.Context, c *peeked, t target, reply func(error)) {
	t, err := p.real(t)
	if err != nil {
		p.audit(t.decision(KindConnect, verdict{reason: err.Error()}))
		if reply != nil {
			reply(&refusal{verdict{reason: err.Error()}})
		}
		return
	}
	st := p.state.Load()
	tn := &tunneling{p: p, st: st, c: c, t: t, raw: st.policy.decide(t, nil)}
	if !tn.raw.ok && !st.policy.http(t) && reply != nil {
		p.audit(t.decision(KindConnect, tn.raw))
		reply(&refusal{tn.raw})
		return
	}
	if tn.raw.ok && t.port != 80 && !st.policy.injects(t) {
		if tn.up, err = st.dial(ctx, t, nil); err != nil {
			p.audit(t.decision(KindConnect, failed(t, err)))
			if reply != nil {
				reply(err)
				return
			}
			// A program that has its connection can be told as its protocol does.
			tn.down = true
		} else {
			defer tn.up.Close() //nolint:errcheck // nobody is left to tell
		}
	}
	if reply != nil {
		reply(nil)
	}
	tn.serve(ctx, tn.first(ctx))
}

// serve goes on with what the client speaks.
func (tn *tunneling) serve(ctx context.Context, spoken protocol) {
	p, c, t := tn.p, tn.c, tn.t
	switch spoken {
	case protoHTTP:
		if tn.up != nil {
			_ = tn.up.Close()
		}
		p.http.serve(ctx, c, scope{fixed: true, target: t})
	case protoTLS:
		if tn.down {
			alert(c, alertAccessDenied)
			return
		}
		tn.tls(ctx)
	case protoHTTP2:
		tn.refuse("HTTP/2 without TLS cannot be looked into; use HTTP/1.1")
	case protoNone:
		if tn.raw.ok {
			tn.refuse("nothing was said that tells what it is")
		} else {
			tn.refuse(tn.raw.reason)
		}
	case protoOpaque:
		switch {
		case !tn.raw.ok:
			tn.refuse(tn.raw.reason)
		case t.port == 80 || t.port == 443 || tn.up == nil:
			tn.refuse(fmt.Sprintf("port %d is for HTTP and TLS", t.port))
		default:
			tn.relay(ctx, c)
		}
	}
}

// real is what t stands for: addresses that stand for names are those names.
func (p *Proxy) real(t target) (target, error) {
	if t.name == "localhost" {
		return t, errors.New("localhost is the sandbox itself, which its programs reach without a proxy")
	}
	if t.name != "" {
		return t, nil
	}
	name, inside := p.names.name(t.addr)
	switch {
	case !inside:
		return t, nil
	case name == "":
		return t, errors.New("the address stands for a name that was forgotten: resolve it again")
	default:
		return target{name: name, port: t.port}, nil
	}
}

func failed(t target, err error) verdict {
	if ref, ok := errors.AsType[*refusal](err); ok {
		return ref.verdict
	}
	return verdict{reason: describe(t, err)}
}

// tunneling is the state of one tunnel.
type tunneling struct {
	p    *Proxy
	st   *state
	c    *peeked
	t    target
	raw  verdict // may it carry anything?
	up   *pinned // nil while it is not known whether it is needed
	down bool    // it is needed and cannot be had
	upbr *peeked
	told chan struct{} // closed when the client has said something, or left
	half atomic.Bool   // one side sends no more
	// heard is closed when the server has; nil where nobody waits for that.
	heard chan struct{}
}

// first waits for what the client says first, or the server: then it is
// neither HTTP nor TLS.
func (tn *tunneling) first(ctx context.Context) protocol {
	tn.told = make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = tn.c.Close() })
	defer stop()
	web := tn.up == nil || tn.t.port == 443
	if web {
		_ = tn.c.SetReadDeadline(time.Now().Add(greeting))
	}
	sniffed := make(chan protocol, 1)
	var spoken atomic.Bool
	look := func() {
		defer close(tn.told)
		if _, err := tn.c.br.Peek(1); err != nil {
			sniffed <- protoNone
			return
		}
		if spoken.Load() {
			return
		}
		_ = tn.c.SetReadDeadline(time.Now().Add(greeting))
		sniffed <- sniff(tn.c)
		_ = tn.c.SetReadDeadline(time.Time{})
	}
	if web {
		look()
		return <-sniffed
	}
	tn.upbr = newPeeked(tn.up)
	spoke := make(chan struct{})
	tn.heard = spoke
	go func() {
		defer close(spoke)
		if _, err := tn.upbr.br.Peek(1); err == nil { // the relay finds the error again
			spoken.Store(true)
		}
	}()
	go look()
	select {
	case p := <-sniffed:
		if p != protoOpaque {
			_ = tn.up.Conn.SetReadDeadline(time.Unix(1, 0)) // wakes the peek
			<-spoke
			_ = tn.up.Conn.SetReadDeadline(time.Time{})
			return p
		}
		<-tn.told
		return protoOpaque
	case <-spoke:
		return protoOpaque
	}
}

// refuse ends the connection with an entry in the audit log.
func (tn *tunneling) refuse(reason string) {
	if tn.down {
		return // there is one already
	}
	tn.p.audit(tn.t.decision(KindConnect, verdict{reason: reason}))
}

// tls serves a client that speaks TLS.
func (tn *tunneling) tls(ctx context.Context) {
	hello, c, err := readHello(ctx, tn.c)
	if err != nil {
		tn.refuse("its TLS cannot be read")
		return
	}
	pol := tn.st.policy
	if v := pol.checkHello(tn.t, hello); !v.ok {
		tn.refuse(v.reason)
		alert(tn.c, alertUnrecognizedName)
		return
	}
	look := pol.injects(tn.t) || !tn.raw.ok && pol.http(tn.t)
	switch {
	case look && tn.st.authority != nil:
		tn.open(ctx, c)
	case pol.injects(tn.t):
		tn.refuse("a header is injected for " + tn.t.String() + ", which HTTPS needs network.intercept for")
		alert(tn.c, alertAccessDenied)
	case look:
		tn.refuse(tn.raw.reason + ", which HTTPS needs network.intercept for")
		alert(tn.c, alertAccessDenied)
	case !tn.raw.ok:
		tn.refuse(tn.raw.reason)
		alert(tn.c, alertAccessDenied)
	default:
		if tn.up == nil {
			if tn.up, err = tn.st.dial(ctx, tn.t, nil); err != nil {
				tn.p.audit(tn.t.decision(KindConnect, failed(tn.t, err)))
				alert(tn.c, alertAccessDenied)
				return
			}
			defer tn.up.Close() //nolint:errcheck // nobody is left to tell
		}
		tn.relay(ctx, c)
	}
}

// open ends the client's TLS here, with a certificate of the sandbox's own
// authority, and serves its requests.
func (tn *tunneling) open(ctx context.Context, c net.Conn) {
	if tn.up != nil {
		_ = tn.up.Close()
	}
	cert, err := tn.st.authority.certificate(tn.t, tn.p.opts.Now())
	if err != nil {
		tn.refuse("no certificate could be made")
		return
	}
	server := tls.Server(c, &tls.Config{
		Certificates: []tls.Certificate{*cert}, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12,
	})
	hctx, cancel := context.WithTimeout(ctx, greeting)
	err = server.HandshakeContext(hctx)
	cancel()
	if err != nil {
		tn.refuse("the program does not trust the sandbox's authority, or ended the handshake")
		return
	}
	tn.p.http.serve(ctx, server, scope{fixed: true, target: tn.t, tls: true})
}

// relay joins the client, of which nothing is lost, and the server.
func (tn *tunneling) relay(ctx context.Context, client net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t, addr := tn.t, tn.up.addr
	f := &flow{cut: cancel, still: func(st *state) bool {
		return st.policy.decide(t, nil).ok && st.policy.address(t, addr, nil).ok && !st.policy.injects(t)
	}}
	if !tn.p.enter(f) {
		tn.refuse("the policy has changed")
		return
	}
	defer tn.p.leave(f)
	d := t.decision(KindConnect, tn.raw)
	d.Address = addr
	d = tn.p.audit(d)
	var server net.Conn = tn.up
	if tn.upbr != nil {
		server = tn.upbr
	}
	stop := context.AfterFunc(ctx, func() {
		breakOff(ctx)
		_ = client.Close()
		_ = server.Close()
	})
	defer stop()
	var sent, received atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		<-tn.told // the bytes that were peeked at are complete
		tn.copy(server, client, &sent, cancel)
	})
	wg.Go(func() {
		if tn.heard != nil {
			<-tn.heard
		}
		tn.copy(client, server, &received, cancel)
	})
	wg.Wait()
	tn.p.ended(d, sent.Load(), received.Load())
}

// copy copies one direction. An end is passed on, a failure ends the other too.
func (tn *tunneling) copy(to, from net.Conn, count *atomic.Int64, fail func()) {
	buf := make([]byte, 32<<10)
	for {
		if tn.half.Load() {
			_ = from.SetReadDeadline(time.Now().Add(stall))
		}
		n, err := from.Read(buf)
		if n > 0 {
			_ = to.SetWriteDeadline(time.Now().Add(stall))
			m, werr := to.Write(buf[:n])
			count.Add(int64(m))
			if werr != nil {
				fail()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			// The other side is not waited for without an end.
			tn.half.Store(true)
			_ = to.SetReadDeadline(time.Now().Add(stall))
			if closeWrite(to) != nil {
				fail()
			}
			return
		}
		if err != nil {
			fail()
			return
		}
	}
}

// plain answers a request for which there is no server.
func plain(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "glovebox: "+clip(text)+"\n")
}
