// Package netstack is where the packets of a sandbox with a network of its own
// end: gVisor's network stack, as a library, makes connections and datagrams of
// them, which others decide on. Everything that comes in is hostile: it is
// looked at by code without pointers into it, and bounded.
package netstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

const (
	nic = 1
	// queued bounds the packets that wait for the sandbox; more are dropped, as
	// networks do.
	queued = 256
	// halfOpen bounds connections that are being made.
	halfOpen = 128
	// buffer bounds what a connection holds in each direction.
	buffer = 256 << 10
	// datagramBuffer is the same for datagrams.
	datagramBuffer = 128 << 10
	// A program that does not answer is not waited for as long as a server far
	// away would be.
	handshakeRetries = 3
	timeWait         = 2 * time.Second
)

// Options is what a Stack is made from.
type Options struct {
	// Address is the sandbox's, Gateway this end's.
	Address, Gateway netip.Addr
	MTU              int
	// TCP is called for every connection that a program wants, in a goroutine of
	// its own; it accepts or refuses it, and has it until it returns. ctx ends
	// with the stack.
	TCP func(ctx context.Context, a *Attempt)
	// UDP is called for the first datagram of a flow; the same holds.
	UDP func(ctx context.Context, d *Datagrams)
	// MaxTCP and MaxUDP bound the flows.
	MaxTCP, MaxUDP int
}

// Stack is one sandbox's. Its methods are safe for concurrent use.
type Stack struct {
	o     Options
	link  *channel.Endpoint
	stack *stack.Stack
	tcp   chan struct{} // a slot for each connection
	udp   chan struct{} // and for each flow, those that are ending too

	ctx    context.Context //nolint:containedctx // the stack's life
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	flows  map[*Datagrams]struct{}
}

// New makes a Stack. The caller closes it.
func New(o Options) (*Stack, error) {
	s := &Stack{
		o: o, link: channel.New(queued, uint32(o.MTU), ""), tcp: make(chan struct{}, o.MaxTCP), udp: make(chan struct{}, 2*o.MaxUDP),
		flows: map[*Datagrams]struct{}{},
	}
	// The stream that packets come on loses and changes nothing.
	s.link.LinkEPCapabilities = stack.CapabilityRXChecksumOffload
	s.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	s.ctx, s.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // the stack's own life
	if err := s.configure(); err != nil {
		_ = s.Close()
		return nil, err
	}
	fwd := tcp.NewForwarder(s.stack, buffer, halfOpen, s.attempt)
	s.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, fwd.HandlePacket)
	s.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(s.stack, s.datagram).HandlePacket)
	return s, nil
}

func (s *Stack) configure() error {
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(false)
	wait, linger := tcpip.TCPTimeWaitTimeoutOption(timeWait), tcpip.TCPLingerTimeoutOption(lingering)
	retries := tcpip.TCPSynRetriesOption(handshakeRetries)
	for _, opt := range []tcpip.SettableTransportProtocolOption{
		&sack, &moderate, &wait, &linger, &retries,
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: buffer, Max: buffer},
		&tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: buffer, Max: buffer},
	} {
		if err := s.stack.SetTransportProtocolOption(tcp.ProtocolNumber, opt); err != nil {
			return fmt.Errorf("netstack: option: %s", err)
		}
	}
	if err := s.stack.SetOption(tcpip.ReceiveBufferSizeOption{Min: 4 << 10, Default: datagramBuffer, Max: datagramBuffer}); err != nil {
		return fmt.Errorf("netstack: option: %s", err)
	}
	if err := s.stack.CreateNIC(nic, s.link); err != nil {
		return fmt.Errorf("netstack: device: %s", err)
	}
	gateway := tcpip.ProtocolAddress{
		Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddrFrom4(s.o.Gateway.As4()).WithPrefix(),
	}
	if err := s.stack.AddProtocolAddress(nic, gateway, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("netstack: address: %s", err)
	}
	// What is for any address ends here, and is answered in its name.
	if err := s.stack.SetPromiscuousMode(nic, true); err != nil {
		return fmt.Errorf("netstack: device: %s", err)
	}
	if err := s.stack.SetSpoofing(nic, true); err != nil {
		return fmt.Errorf("netstack: device: %s", err)
	}
	s.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	return nil
}

// ListenPacket is a socket for datagrams at a port of the gateway.
func (s *Stack) ListenPacket(port uint16) (net.PacketConn, error) {
	return gonet.DialUDP(s.stack, &tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(s.o.Gateway.As4()), Port: port}, nil, ipv4.ProtocolNumber)
}

// Listen is a socket for connections to a port of the gateway. Security: those
// that are waiting for an Accept are bounded by the stack.
func (s *Stack) Listen(port uint16) (net.Listener, error) {
	return gonet.ListenTCP(s.stack, tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(s.o.Gateway.As4()), Port: port}, ipv4.ProtocolNumber)
}

// Go runs f in a goroutine that Close waits for.
func (s *Stack) Go(f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Go(func() { f(s.ctx) })
	return true
}

// Close ends every flow and waits for all goroutines. It is idempotent.
func (s *Stack) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for open := true; open; {
		// One that is being made may appear after the others were ended.
		for _, e := range s.stack.RegisteredEndpoints() {
			e.Abort()
		}
		select {
		case <-done:
			open = false
		case <-t.C:
		}
	}
	if first {
		s.stack.Close()
		s.stack.Wait()
		s.link.Close()
	}
	return nil
}

var errRefused = errors.New("netstack: the sandbox's network is closed")

func addrPort(a tcpip.Address, port uint16) netip.AddrPort {
	ip, _ := netip.AddrFromSlice(a.AsSlice())
	return netip.AddrPortFrom(ip, port)
}
