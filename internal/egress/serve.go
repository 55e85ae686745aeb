package egress

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

const (
	// parked is how many requests wait at the agent for connections.
	parked = 2
	// ratePerSecond and rateBurst bound what a sandbox can have us take.
	ratePerSecond = 500
	rateBurst     = 1000
	// openTimeout bounds the agent's answer to NetOpen.
	openTimeout = 10 * time.Second
	// lastWords is how long what was written may take to arrive.
	lastWords = 5 * time.Second
	// greeting is how long a client may take to say what it wants.
	greeting = 10 * time.Second
)

// session is one Serve.
type session struct {
	p      *Proxy
	id     string
	rt     http.RoundTripper
	ctx    context.Context //nolint:containedctx // the session's life
	cancel context.CancelFunc
	slots  chan struct{}
	rate   *bucket
	wg     sync.WaitGroup

	opening sync.Mutex // held by open, so that the latest state is the last one told
}

// Serve takes what the agent behind rt hands over until ctx ends, the proxy is
// closed, or rt fails, which it tells. Every connection has ended then. Only
// one Serve runs at a time; another may follow.
func (p *Proxy) Serve(ctx context.Context, rt http.RoundTripper) error {
	s := &session{p: p, id: rand.Text(), rt: rt, slots: make(chan struct{}, p.opts.MaxConns+parked), rate: newBucket(p.opts.Now())}
	s.ctx, s.cancel = context.WithCancel(ctx)
	defer s.cancel()
	p.mu.Lock()
	if p.closed || p.serving != nil {
		defer p.mu.Unlock()
		if p.closed {
			return errClosed
		}
		return errors.New("egress: is being served already")
	}
	p.serving = s
	p.mu.Unlock()
	defer func() {
		s.cancel()
		s.wg.Wait()
		p.mu.Lock()
		p.serving = nil
		p.idle.Broadcast()
		p.mu.Unlock()
	}()
	if err := s.open(); err != nil { //nolint:contextcheck // the session has it
		return err
	}
	p.mu.Lock()
	ready := p.ready
	p.mu.Unlock()
	close(ready)
	defer func() {
		p.mu.Lock()
		p.ready = make(chan struct{})
		p.mu.Unlock()
	}()
	failed := make(chan error, parked+1)
	if p.modeFull() {
		s.wg.Go(func() { failed <- s.carry() }) //nolint:contextcheck // the session has it
	}
	for range parked {
		s.wg.Go(func() { failed <- s.park() }) //nolint:contextcheck // the session has it
	}
	err := <-failed
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if p.isClosed() {
		return errClosed
	}
	return err
}

func (p *Proxy) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// open tells the agent of the state of the moment.
func (s *session) open() error {
	s.opening.Lock()
	defer s.opening.Unlock()
	st := s.p.state.Load()
	o := wire.NetOpen{Session: s.id}
	if st.authority != nil {
		o.Authority = st.authority.pem
	}
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, openTimeout)
	defer cancel()
	req, err := s.request(ctx, wire.NetOpenPath, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := s.rt.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("egress: open: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		return fmt.Errorf("egress: open: the agent answered %d", res.StatusCode)
	}
	return nil
}

func (s *session) request(ctx context.Context, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sandbox"+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set(wire.HeaderNetSession, s.id)
	if s.p.opts.Token != "" {
		req.Header.Set(wire.HeaderAccessToken, s.p.opts.Token)
	}
	return req, nil
}

// park keeps one request at the agent until that fails.
func (s *session) park() error {
	for {
		select {
		case s.slots <- struct{}{}:
		case <-s.ctx.Done():
			return errClosed
		}
		if err := s.rate.take(s.ctx, s.p.opts.Now); err != nil {
			return errClosed
		}
		if err := s.accept(); err != nil {
			return err
		}
	}
}

// accept waits for one connection and has it served.
func (s *session) accept() error {
	ctx, cancel := context.WithCancel(s.ctx)
	pr, pw := io.Pipe()
	req, err := s.request(ctx, wire.NetAcceptPath, pr)
	if err != nil {
		cancel()
		return err
	}
	res, err := s.rt.RoundTrip(req)
	if err != nil {
		cancel()
		return fmt.Errorf("egress: accept: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		cancel()
		_ = res.Body.Close()
		return fmt.Errorf("egress: accept: the agent answered %d", res.StatusCode)
	}
	s.wg.Go(func() {
		defer func() { <-s.slots }()
		defer res.Body.Close()
		defer cancel()
		stream := wire.NewNetStream(res.Body, pw, sandboxAddr{}, func() {
			_ = pw.Close()
			// What was written arrives before the end; an agent that does not
			// end in turn is not waited for.
			time.AfterFunc(lastWords, cancel)
		})
		stop := context.AfterFunc(ctx, func() {
			_ = pw.CloseWithError(net.ErrClosed)
			_ = stream.Close()
		})
		s.serve(context.WithValue(ctx, breakKey{}, func() { _ = stream.Close() }), res.Header, stream)
		_ = stream.CloseWrite()
		_ = stream.Close()
		stream.Wait()
		stop()
	})
	return nil
}

// breakKey is what breaks the sandbox's connection so that it does not look
// complete: a func().
type breakKey struct{}

func breakOff(ctx context.Context) {
	if f, ok := ctx.Value(breakKey{}).(func()); ok {
		f()
	}
}

// serve has a connection until it ends. What h says is the agent's word, which
// is worth no more than the sandbox's.
func (s *session) serve(ctx context.Context, h http.Header, c *wire.NetStream) {
	switch h.Get(wire.HeaderNetKind) {
	case wire.NetProxy:
		s.p.serveProxy(ctx, c)
	case wire.NetNamed:
		if t, err := namedTarget(h); err == nil {
			s.p.tunnel(ctx, newPeeked(c), t, nil)
		}
	case wire.NetResolve:
		s.p.resolve(c, h.Get(wire.HeaderNetName))
	}
}

// namedTarget is what a connection to an address that stands for a name is for.
func namedTarget(h http.Header) (target, error) {
	ap, err := netip.ParseAddrPort(h.Get(wire.HeaderNetAddr))
	if err != nil {
		return target{}, err
	}
	t, err := parseHost(h.Get(wire.HeaderNetName), ap.Port())
	if err == nil && t.name == "" {
		err = errName
	}
	return t, err
}

// resolve answers a question for a name. Security: no resolver is asked, so
// that no name, in which programs could hide what they know, leaves us for that.
func (p *Proxy) resolve(c net.Conn, name string) {
	_ = c.SetDeadline(time.Now().Add(greeting))
	var a wire.NetAnswer
	t, err := parseHost(name, 53)
	v := verdict{reason: "not a host's name"}
	if err == nil && t.name != "" {
		pol := p.state.Load().policy
		if v = pol.named(t.name); v.ok {
			a.Addr = p.names.of(t.name).String()
			a.Ports = pol.ports(t.name, wire.NetMaxPorts)
		}
	}
	a.Why = v.reason
	p.audit(Decision{Kind: KindResolve, Host: name, Allowed: v.ok, Rule: v.rule, Reason: v.reason, Done: true})
	data, err := json.Marshal(a)
	if err != nil {
		return
	}
	if _, err := c.Write(data); err == nil {
		_ = closeWrite(c)
	}
}

// bucket is how much may be taken at once.
type bucket struct {
	mu   sync.Mutex
	left float64
	at   time.Time
}

func newBucket(now time.Time) *bucket { return &bucket{left: rateBurst, at: now} }

// take waits for its turn.
func (b *bucket) take(ctx context.Context, now func() time.Time) error {
	b.mu.Lock()
	t := now()
	b.left = min(rateBurst, b.left+t.Sub(b.at).Seconds()*ratePerSecond) - 1
	b.at = t
	wait := time.Duration(-b.left / ratePerSecond * float64(time.Second))
	b.mu.Unlock()
	if wait <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sandboxAddr is the address of every connection from a sandbox.
type sandboxAddr struct{}

func (sandboxAddr) Network() string { return "sandbox" }
func (sandboxAddr) String() string  { return "sandbox" }
