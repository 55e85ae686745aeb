package netstack

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Datagrams is a flow: what one port of the sandbox sends to one port elsewhere,
// and gets back.
type Datagrams struct {
	net.Conn
	To   netip.AddrPort
	used atomic.Int64 // when something was last sent or received
	once sync.Once
}

// Used notes that the flow is in use.
func (d *Datagrams) Used() { d.used.Store(time.Now().UnixNano()) }

// Idle is how long it has not been.
func (d *Datagrams) Idle() time.Duration { return time.Duration(time.Now().UnixNano() - d.used.Load()) }

// Close ends the flow.
func (d *Datagrams) Close() error {
	var err error
	d.once.Do(func() { err = d.Conn.Close() })
	return err
}

// datagram makes a flow of the first datagram of one. It is called by whoever
// brings the packet, and must not take long.
func (s *Stack) datagram(req *udp.ForwarderRequest) bool {
	select {
	case s.udp <- struct{}{}:
	default:
		return true // dropped: so many are ending
	}
	var wq waiter.Queue
	ep, err := req.CreateEndpoint(&wq)
	if err != nil {
		<-s.udp
		return true // one that is there already, or none can be
	}
	d := &Datagrams{Conn: gonet.NewUDPConn(&wq, ep), To: addrPort(req.ID().LocalAddress, req.ID().LocalPort)}
	d.Used()
	s.enter(d)
	ran := s.Go(func(ctx context.Context) {
		defer func() { <-s.udp }()
		defer s.leave(d)
		defer context.AfterFunc(ctx, func() { _ = d.Close() })()
		s.o.UDP(ctx, d)
		_ = d.Close()
	})
	if !ran {
		_ = d.Close()
		s.leave(d)
		<-s.udp
	}
	return true
}

// enter counts a flow; the one that is used least makes room.
func (s *Stack) enter(d *Datagrams) {
	s.mu.Lock()
	var oldest *Datagrams
	if len(s.flows) >= s.o.MaxUDP {
		for f := range s.flows {
			if oldest == nil || f.used.Load() < oldest.used.Load() {
				oldest = f
			}
		}
		delete(s.flows, oldest)
	}
	s.flows[d] = struct{}{}
	s.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
}

func (s *Stack) leave(d *Datagrams) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.flows, d)
}
