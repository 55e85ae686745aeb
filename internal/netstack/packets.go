package netstack

import (
	"context"
	"encoding/binary"
	"io"
	"net/netip"

	gbuffer "gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// headSize is that of a frame's head.
	headSize = 2
	// batch is how much is sent in one go.
	batch = 256 << 10
)

// Receive takes the sandbox's packets, as frames, until r ends. A frame may hold
// anything: what is no packet of the sandbox's is dropped.
func (s *Stack) Receive(r io.Reader) error {
	var head [headSize]byte
	buf := make([]byte, 1<<16)
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		p := buf[:binary.BigEndian.Uint16(head[:])]
		if _, err := io.ReadFull(r, p); err != nil {
			return err
		}
		if s.wanted(p) {
			s.inject(p)
		}
	}
}

func (s *Stack) inject(p []byte) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: gbuffer.MakeWithData(p)})
	defer pkt.DecRef()
	s.link.InjectInbound(header.IPv4ProtocolNumber, pkt)
}

// wanted tells whether a packet may enter the stack: whole, IPv4, from the
// sandbox's own address, to somebody else, and of a protocol that leads
// somewhere.
//
// Security: the stack would answer an echo in anybody's name, keep state for
// addresses that nobody has, and look at what it is not asked to.
func (s *Stack) wanted(p []byte) bool {
	if len(p) > s.o.MTU || len(p) < header.IPv4MinimumSize {
		return false
	}
	ip := header.IPv4(p)
	if !ip.IsValid(len(p)) || header.IPVersion(p) != header.IPv4Version {
		return false
	}
	from, to := netip.AddrFrom4(ip.SourceAddress().As4()), netip.AddrFrom4(ip.DestinationAddress().As4())
	if from != s.o.Address || to == from || to.IsMulticast() || to.IsUnspecified() || to == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return false
	}
	switch ip.TransportProtocol() {
	case header.TCPProtocolNumber, header.UDPProtocolNumber:
		return true
	case header.ICMPv4ProtocolNumber:
		return to == s.o.Gateway
	default:
		return false
	}
}

// Send sends the sandbox its packets, as frames, until ctx ends or w fails.
func (s *Stack) Send(ctx context.Context, w io.Writer) error {
	buf := make([]byte, 0, batch+headSize+1<<16)
	for {
		pkt := s.link.ReadContext(ctx)
		if pkt == nil {
			return context.Cause(ctx)
		}
		buf = buf[:0]
		for pkt != nil {
			buf = appendFrame(buf, pkt)
			pkt.DecRef()
			if len(buf) >= batch {
				break
			}
			pkt = s.link.Read()
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
}

func appendFrame(buf []byte, pkt *stack.PacketBuffer) []byte {
	size := pkt.Size()
	if size > 1<<16-1 {
		return buf
	}
	buf = binary.BigEndian.AppendUint16(buf, uint16(size))
	for _, v := range pkt.AsSlices() {
		buf = append(buf, v...)
	}
	return buf
}
