// Package egress is the host's side of a sandbox's way out: it takes what the
// agent hands over, decides by the sandbox's policy, resolves names itself and
// dials what it has checked. Everything the sandbox sends is hostile to it.
package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// Resolver looks up the addresses of an absolute name. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options is what a Proxy is made from. The zero value of everything but
// Network is fine.
type Options struct {
	// Sandbox is the ID that decisions carry.
	Sandbox string
	Network backend.Network
	// Token is the access token that the agent asks for, if any.
	Token string
	// Audit is told of every decision, from many goroutines at once. It must
	// return soon: connections wait for it.
	Audit func(Decision)
	// Resolver resolves allowed names when Network.DNS is empty; nil is the
	// host's own.
	Resolver Resolver
	// Dial connects to an address, or to the upstream proxy; nil is the host's.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Secrets resolves references to secrets that Secrets, the function, has
	// resolved elsewhere; nil looks at this process's environment and files.
	Secrets func(backend.SecretRef) (string, bool)
	// Roots verify the servers of opened HTTPS; nil are the system's.
	Roots *x509.CertPool
	// OwnAddrs are the host's addresses; nil asks the host.
	OwnAddrs func() []netip.Addr
	// MaxConns bounds what is open at once; 0 is 128.
	MaxConns int
	// Now is the clock of decisions.
	Now func() time.Time
}

// Proxy is one sandbox's way out. Its methods are safe for concurrent use.
type Proxy struct {
	opts  Options
	names *nameTable
	http  *httpFront
	// answers are the names whose addresses the sandbox was told.
	answers *answers
	own     func(netip.Addr) bool
	ids     atomic.Uint64
	state   atomic.Pointer[state]

	updating sync.Mutex // held by Update
	mu       sync.Mutex
	closed   bool
	flows    map[*flow]struct{}
	serving  *session
	ready    chan struct{} // closed when the agent behind a session was told
	idle     *sync.Cond    // serving became nil
}

// state is what a network policy becomes. An update makes a new one.
type state struct {
	policy    *policy
	resolver  *cache
	dialer    *dialer
	transport *http.Transport
	authority *authority // nil without interception
}

var errClosed = errors.New("the sandbox's network is closed")

// New makes a Proxy for o.Network, whose secrets it resolves. It uses nothing
// until Serve. The caller closes it.
func New(o Options) (*Proxy, error) {
	if o.MaxConns <= 0 {
		o.MaxConns = 128
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	p := &Proxy{opts: o, names: newNameTable(), answers: newAnswers(), flows: map[*flow]struct{}{}, ready: make(chan struct{})}
	if p.own = isLocal(ownAddrs(o.Now)); o.OwnAddrs != nil {
		p.own = func(a netip.Addr) bool { return slices.Contains(o.OwnAddrs(), a) }
	}
	p.idle = sync.NewCond(&p.mu)
	st, err := p.compile(o.Network, nil)
	if err != nil {
		return nil, err
	}
	p.state.Store(st)
	p.http = newHTTPFront(p)
	return p, nil
}

// compile makes a state of n. The authority stays the same once there is one.
func (p *Proxy) compile(n backend.Network, old *authority) (*state, error) {
	if err := n.Validate(); err != nil {
		return nil, err
	}
	inject, err := injections(n, p.opts)
	if err != nil {
		return nil, err
	}
	st := &state{policy: &policy{
		mode: n.Mode, allow: compile("network.allow", n.Allow), deny: compile("network.deny", n.Deny),
		inject: inject, intercept: n.Intercept, specials: specials(), own: p.own,
	}}
	st.policy.looks = st.policy.watchful()
	st.resolver = newCache(p.opts, n.DNS)
	if st.dialer, err = newDialer(p.opts, n.Upstream); err != nil {
		return nil, err
	}
	if n.Intercept {
		if st.authority = old; old == nil {
			if st.authority, err = newAuthority(p.opts.Now()); err != nil {
				return nil, err
			}
		}
	}
	st.transport = st.newTransport(p.opts.Roots)
	return st, nil
}

// Update replaces the policy. New connections and requests are decided on by
// the new one at once; connections that it does not allow are cut. On error the
// old one stays. It returns when commands that start from now on can use it.
func (p *Proxy) Update(n backend.Network) error {
	p.updating.Lock()
	defer p.updating.Unlock()
	old := p.state.Load()
	authority := old.authority
	st, err := p.compile(n, authority)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return errClosed
	}
	p.state.Store(st)
	var cut []*flow
	for f := range p.flows {
		if !f.still(st) {
			cut = append(cut, f)
		}
	}
	s := p.serving
	p.mu.Unlock()
	for _, f := range cut {
		f.cut()
	}
	old.transport.CloseIdleConnections()
	if s != nil && st.authority != authority {
		return s.open()
	}
	return nil
}

// Ready waits until an agent takes connections for this proxy and hands out
// what commands need: commands that start before do without.
func (p *Proxy) Ready(ctx context.Context) error {
	p.mu.Lock()
	ready, closed := p.ready, p.closed
	p.mu.Unlock()
	if closed {
		return errClosed
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends Serve and every connection, and waits for them. It is idempotent.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	if p.serving != nil {
		p.serving.cancel()
	}
	for p.serving != nil {
		p.idle.Wait()
	}
	p.mu.Unlock()
	p.http.close()
	p.state.Load().transport.CloseIdleConnections()
	return nil
}

// flow is something that a change of policy may end.
type flow struct {
	still func(*state) bool // is it allowed?
	cut   func()
}

// enter registers a flow; leave ends that. A flow that the policy of the moment
// no longer allows is refused: the policy may have changed since the decision.
func (p *Proxy) enter(f *flow) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !f.still(p.state.Load()) {
		return false
	}
	p.flows[f] = struct{}{}
	return true
}

func (p *Proxy) leave(f *flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.flows, f)
}

// ownAddrs asks the host for its addresses, at most every ten seconds.
func ownAddrs(now func() time.Time) func() []netip.Addr {
	var mu sync.Mutex
	var known []netip.Addr
	var asked time.Time
	return func() []netip.Addr {
		mu.Lock()
		defer mu.Unlock()
		if t := now(); known == nil || t.Sub(asked) > 10*time.Second {
			if list, err := net.InterfaceAddrs(); err == nil {
				asked, known = t, make([]netip.Addr, 0, len(list))
				for _, a := range list {
					if n, ok := a.(*net.IPNet); ok {
						known = append(known, ownOf(n)...)
					}
				}
			}
		}
		return known
	}
}
