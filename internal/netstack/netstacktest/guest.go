// Package netstacktest is the other end for tests of package netstack: a network
// stack in the place of a sandbox's kernel.
package netstacktest

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"
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

const nic = 1

// Guest is a sandbox's network stack.
type Guest struct {
	addr  tcpip.Address
	link  *channel.Endpoint
	stack *stack.Stack

	mu  sync.Mutex // held while a frame is written
	out io.Writer
}

// New makes a guest whose packets are frames on out. The caller closes it.
func New(addr netip.Addr, mtu int, out io.Writer) (*Guest, error) {
	g := &Guest{addr: tcpip.AddrFrom4(addr.As4()), link: channel.New(1024, uint32(mtu), ""), out: out}
	g.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	if err := g.stack.CreateNIC(nic, g.link); err != nil {
		return nil, &net.OpError{Op: "nic", Err: net.UnknownNetworkError(err.String())}
	}
	own := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: g.addr.WithPrefix()}
	if err := g.stack.AddProtocolAddress(nic, own, stack.AddressProperties{}); err != nil {
		return nil, &net.OpError{Op: "address", Err: net.UnknownNetworkError(err.String())}
	}
	g.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	return g, nil
}

// Run exchanges packets until r or ctx ends.
func (g *Guest) Run(ctx context.Context, r io.Reader) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			pkt := g.link.ReadContext(ctx)
			if pkt == nil {
				return
			}
			v := pkt.ToView()
			pkt.DecRef()
			if g.Inject(v.AsSlice()) != nil {
				return
			}
		}
	})
	var head [2]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			break
		}
		p := make([]byte, binary.BigEndian.Uint16(head[:]))
		if _, err := io.ReadFull(r, p); err != nil {
			break
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(p)})
		g.link.InjectInbound(header.IPv4ProtocolNumber, pkt)
		pkt.DecRef()
	}
	cancel()
	wg.Wait()
}

// Inject sends the host a frame with anything in it.
func (g *Guest) Inject(packet []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := g.out.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...))
	return err
}

func full(to netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(to.Addr().As4()), Port: to.Port()}
}

// Dial connects a program to an address.
func (g *Guest) Dial(ctx context.Context, to netip.AddrPort) (*gonet.TCPConn, error) {
	return gonet.DialContextTCP(ctx, g.stack, full(to), ipv4.ProtocolNumber)
}

// DialUDP gives a program a socket for datagrams to an address.
func (g *Guest) DialUDP(to netip.AddrPort) (net.Conn, error) {
	remote := full(to)
	return gonet.DialUDP(g.stack, nil, &remote, ipv4.ProtocolNumber)
}

// Close ends the guest.
func (g *Guest) Close() {
	g.link.Close()
	g.stack.Close()
	g.stack.Wait()
}
