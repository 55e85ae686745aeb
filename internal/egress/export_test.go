package egress

import "net/netip"

// Own tells what is taken for an address of this host.
func (p *Proxy) Own(a netip.Addr) bool { return p.own(a) }
