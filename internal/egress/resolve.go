package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	dialTimeout    = 5 * time.Second  // one address
	connectTimeout = 15 * time.Second // a name with all its addresses
	resolveTimeout = 10 * time.Second
	cacheTime      = 30 * time.Second
	cacheFailure   = 3 * time.Second
	maxCached      = 1024
	maxAddresses   = 16
)

// cache resolves names, and remembers for a while.
type cache struct {
	resolver Resolver
	now      func() time.Time

	mu    sync.Mutex
	names map[string]*lookup
}

type lookup struct {
	done  chan struct{}
	until time.Time // valid once done
	addrs []netip.Addr
	err   error
}

func newCache(o Options, servers []string) *cache {
	c := &cache{resolver: o.Resolver, now: o.Now, names: map[string]*lookup{}}
	switch {
	case len(servers) > 0:
		c.resolver = serversResolver(o, servers)
	case c.resolver == nil:
		c.resolver = &net.Resolver{PreferGo: true}
	}
	return c
}

// serversResolver asks the servers given, in turn.
func serversResolver(o Options, servers []string) Resolver {
	var addrs []string
	for _, s := range servers {
		if a, err := netip.ParseAddr(s); err == nil {
			s = netip.AddrPortFrom(a, 53).String()
		}
		addrs = append(addrs, s)
	}
	var mu sync.Mutex
	next := 0
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		mu.Lock()
		addr := addrs[next%len(addrs)]
		next++
		mu.Unlock()
		return o.Dial(ctx, network, addr)
	}}
}

// lookup resolves a name that a rule allows. Many may wait for one answer.
func (c *cache) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	c.mu.Lock()
	l := c.names[name]
	if l != nil {
		select {
		case <-l.done:
			if c.now().After(l.until) {
				l = nil
			}
		default:
		}
	}
	if l == nil {
		l = &lookup{done: make(chan struct{})}
		c.makeRoom()
		c.names[name] = l
		go c.ask(context.WithoutCancel(ctx), name, l)
	}
	c.mu.Unlock()
	select {
	case <-l.done:
		return l.addrs, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// makeRoom forgets what is old, or anything. c.mu is held.
func (c *cache) makeRoom() {
	if len(c.names) < maxCached {
		return
	}
	now := c.now()
	for n, l := range c.names {
		select {
		case <-l.done:
			if now.After(l.until) || len(c.names) >= maxCached {
				delete(c.names, n)
			}
		default:
		}
	}
}

func (c *cache) ask(ctx context.Context, name string, l *lookup) {
	defer close(l.done)
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	// The dot at the end keeps the host's search list out of it; /etc/hosts has
	// names of one label without it.
	if strings.Contains(name, ".") {
		name += "."
	}
	found, err := c.resolver.LookupNetIP(ctx, "ip", name)
	l.until = c.now().Add(cacheTime)
	if err != nil {
		l.err, l.until = err, c.now().Add(cacheFailure)
		return
	}
	for _, a := range found {
		if a = a.Unmap(); !slices.Contains(l.addrs, a) && len(l.addrs) < maxAddresses {
			l.addrs = append(l.addrs, a)
		}
	}
	if len(l.addrs) == 0 {
		l.err = errors.New("no address")
	}
}

// refusal is a verdict as an error.
type refusal struct{ verdict }

func (r *refusal) Error() string { return r.reason }

// pinned is a connection to an address that was checked.
type pinned struct {
	net.Conn
	addr netip.Addr
}

// CloseWrite ends what is sent, where the connection can.
func (c *pinned) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.Close()
}

// dial connects to t for q. Only addresses that the policy allows are dialled,
// by number; a *refusal says that there was none.
func (st *state) dial(ctx context.Context, t target, q *query) (*pinned, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	addrs := []netip.Addr{t.addr}
	if t.name != "" {
		var err error
		if addrs, err = st.resolver.lookup(ctx, t.name); err != nil {
			return nil, err
		}
	}
	var last error
	for _, a := range addrs {
		// Security: what is checked here is what is dialled; nobody resolves
		// the name again.
		v := st.policy.address(t, a, q)
		if !v.ok {
			if last == nil {
				last = &refusal{v}
			}
			continue
		}
		c, err := st.dialer.dial(ctx, netip.AddrPortFrom(a, t.port))
		if err == nil {
			return &pinned{Conn: c, addr: a}, nil
		}
		last = err
		if ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// describe says in a few words why t could not be reached. Security: errors may
// name what is the host's own.
func describe(t target, err error) string {
	var ref *refusal
	var dns *net.DNSError
	var up *upstreamError
	var op *net.OpError
	why := "it could not be connected to"
	switch {
	case errors.As(err, &ref):
		return ref.reason
	case errors.As(err, &up):
		why = "the upstream proxy did not connect"
	case errors.As(err, &dns) && dns.IsNotFound:
		why = "there is no such name"
	case errors.As(err, &dns):
		why = "its name could not be resolved"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &op) && op.Timeout():
		why = "it did not answer in time"
	case isRefused(err):
		why = "it refused the connection"
	case isCertificate(err):
		why = "its certificate is not valid for the name"
	case strings.Contains(err.Error(), "tls: "):
		why = "TLS failed"
	}
	return t.String() + " cannot be reached: " + why
}

var _ Resolver = (*net.Resolver)(nil)
