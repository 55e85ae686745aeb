package netstack

import (
	"context"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// lingering is how long a connection that was closed may take to say so.
const lingering = 5 * time.Second

// Attempt is a program's wish for a connection. It is accepted or refused by the
// goroutine that was given it.
type Attempt struct {
	To      netip.AddrPort
	s       *Stack
	req     *tcp.ForwarderRequest
	settled bool
	ep      tcpip.Endpoint
}

// attempt has a connection until it is over. Security: what it holds of one that
// was closed counts until the program has taken it, or for lingering.
func (s *Stack) attempt(req *tcp.ForwarderRequest) {
	select {
	case s.tcp <- struct{}{}:
	default:
		req.Complete(true)
		return
	}
	ran := s.Go(func(ctx context.Context) {
		defer func() { <-s.tcp }()
		a := &Attempt{To: addrPort(req.ID().LocalAddress, req.ID().LocalPort), s: s, req: req}
		s.o.TCP(ctx, a)
		a.Refuse()
		a.end()
	})
	if !ran {
		<-s.tcp
		req.Complete(true)
	}
}

// Accept makes the connection. Its Close breaks it off; CloseWrite ends it.
func (a *Attempt) Accept() (net.Conn, error) {
	if a.settled {
		return nil, errRefused
	}
	a.settled = true
	var wq waiter.Queue
	ep, err := a.req.CreateEndpoint(&wq)
	a.req.Complete(err != nil)
	if err != nil {
		return nil, errRefused
	}
	ep.SocketOptions().SetDelayOption(false)
	a.ep = ep
	return gonet.NewTCPConn(&wq, ep), nil
}

// Refuse answers that there is nobody. After Accept it does nothing.
func (a *Attempt) Refuse() {
	if !a.settled {
		a.settled = true
		a.req.Complete(true)
	}
}

// Break ends an accepted connection so that it does not look complete.
func (a *Attempt) Break() {
	if a.ep != nil {
		a.ep.Abort()
	}
}

// end closes the connection and waits until nothing is left of it.
func (a *Attempt) end() {
	if a.ep == nil {
		return
	}
	a.ep.Close()
	deadline := time.NewTimer(lingering)
	defer deadline.Stop()
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for !gone(a.ep) {
		select {
		case <-t.C:
			continue
		case <-deadline.C:
		case <-a.s.ctx.Done():
		}
		a.ep.Abort()
		return
	}
}

// gone tells whether an endpoint holds no data any more.
func gone(ep tcpip.Endpoint) bool {
	switch tcp.EndpointState(ep.State()) {
	case tcp.StateClose, tcp.StateError, tcp.StateTimeWait:
		return true
	default:
		return false
	}
}
