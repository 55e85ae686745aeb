package egress

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// maxNames bounds the names that have an address.
const maxNames = 1024

// nameTable gives each name an address inside. Addresses are not used again
// for a long time, since programs remember them.
type nameTable struct {
	mu     sync.Mutex
	byName map[string]*named
	byAddr map[netip.Addr]*named
	next   uint32
	clock  uint64
	base   uint32
	size   uint32
}

type named struct {
	name string
	addr netip.Addr
	used uint64
}

func newNameTable() *nameTable {
	p := netip.MustParsePrefix(wire.NetNames)
	four := p.Addr().As4()
	n := &nameTable{
		byName: map[string]*named{}, byAddr: map[netip.Addr]*named{},
		base: binary.BigEndian.Uint32(four[:]), size: 1 << (32 - p.Bits()),
	}
	// After a restart programs may still remember what another table gave.
	var b [4]byte
	_, _ = rand.Read(b[:])
	n.next = binary.BigEndian.Uint32(b[:]) % n.size
	return n
}

// of is the address of a name.
func (n *nameTable) of(name string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clock++
	e := n.byName[name]
	if e == nil {
		if len(n.byName) >= maxNames {
			n.forgetOldest()
		}
		e = &named{name: name, addr: n.free()}
		n.byName[name], n.byAddr[e.addr] = e, e
	}
	e.used = n.clock
	return e.addr
}

// free is the next address that nobody has. n.mu is held.
func (n *nameTable) free() netip.Addr {
	for {
		n.next = (n.next + 1) % n.size
		var four [4]byte
		binary.BigEndian.PutUint32(four[:], n.base+n.next)
		a := netip.AddrFrom4(four)
		if last := four[3]; last != 0 && last != 255 && n.byAddr[a] == nil {
			return a
		}
	}
}

// forgetOldest makes room. n.mu is held.
func (n *nameTable) forgetOldest() {
	var oldest *named
	for _, e := range n.byName {
		if oldest == nil || e.used < oldest.used {
			oldest = e
		}
	}
	delete(n.byName, oldest.name)
	delete(n.byAddr, oldest.addr)
}

// name is what an address stands for; inside tells whether it is one of those
// that stand for names at all.
func (n *nameTable) name(a netip.Addr) (name string, inside bool) {
	if !netip.MustParsePrefix(wire.NetNames).Contains(a) {
		return "", false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.byAddr[a]
	if e == nil {
		return "", true
	}
	n.clock++
	e.used = n.clock
	return e.name, true
}
