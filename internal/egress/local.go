package egress

import (
	"net"
	"net/netip"
	"slices"
)

// isLocal tells what is an address of this host: those that its interfaces
// have, and what else it would deliver to itself.
//
// Security: the kernel is asked at every decision, by a socket that sends
// nothing, since addresses come and go, and are routed to a host that has them
// on no interface.
func isLocal(known func() []netip.Addr) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		if slices.Contains(known(), a) {
			return true
		}
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
		if err != nil {
			return false
		}
		defer c.Close() //nolint:errcheck // nothing was sent
		return selfConnected(c)
	}
}

// selfConnected tells whether a connection leads back to this host: its two
// ends have one address.
func selfConnected(c net.Conn) bool {
	from, err := netip.ParseAddrPort(c.LocalAddr().String())
	to, rerr := netip.ParseAddrPort(c.RemoteAddr().String())
	return err == nil && rerr == nil && from.Addr().Unmap() == to.Addr().Unmap()
}

// ownOf are the addresses at which this host hears what is sent to n.
func ownOf(n *net.IPNet) []netip.Addr {
	ip, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return nil
	}
	out := []netip.Addr{ip.Unmap()}
	if four, mask := n.IP.To4(), n.Mask; four != nil && len(mask) == net.IPv4len {
		if ones, _ := mask.Size(); ones < 31 {
			var all [4]byte
			for i := range all {
				all[i] = four[i] | ^mask[i]
			}
			out = append(out, netip.AddrFrom4(all))
		}
	}
	return out
}
