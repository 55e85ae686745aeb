package egress

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/internal/netstack"
)

// exchange carries datagrams both ways.
func (p *Proxy) exchange(ctx context.Context, t target, v verdict, d *netstack.Datagrams, c pinned) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addr := c.addr
	f := &flow{cut: cancel, still: func(st *state) bool { return still(st, t, addr) }}
	if !p.enter(f) {
		p.audit(t.decision(KindDatagram, verdict{reason: "the policy has changed"}))
		return
	}
	defer p.leave(f)
	entry := t.decision(KindDatagram, v)
	entry.Address = addr
	entry = p.audit(entry)
	defer context.AfterFunc(ctx, func() {
		_ = d.Close()
		_ = c.Close()
	})()
	idle := idleDatagrams
	if t.port == 53 {
		idle = idleNames
	}
	var sent, received atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		copyDatagrams(d, c, d, idle, &sent)
	})
	wg.Go(func() {
		defer cancel()
		copyDatagrams(d, d, c, idle, &received)
	})
	wg.Wait()
	p.ended(entry, sent.Load(), received.Load())
}

// still tells whether a policy allows what goes to addr as t.
func still(st *state, t target, addr netip.Addr) bool {
	return (t.name == "" || st.policy.decide(t, nil).ok) && st.policy.address(t, addr, nil).ok
}

// copyDatagrams copies one direction until d is idle. An error that one datagram
// met, such as a port where nobody listens, is not the flow's end.
func copyDatagrams(d *netstack.Datagrams, to, from net.Conn, idle time.Duration, count *atomic.Int64) {
	buf := make([]byte, 1<<16)
	failures := 0
	for failures < 16 {
		_ = from.SetReadDeadline(time.Now().Add(idle))
		n, err := from.Read(buf)
		if err != nil {
			if isRefused(err) {
				failures++
				continue
			}
			if timeout, ok := err.(net.Error); ok && timeout.Timeout() && d.Idle() < idle { //nolint:errorlint // net's own
				continue
			}
			return
		}
		failures = 0
		d.Used()
		if m, err := to.Write(buf[:n]); err == nil {
			count.Add(int64(m))
		}
	}
}
