//go:build linux

package egress

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// names are the addresses that are listened on. The least recently asked for
// make room for new ones.
type names struct {
	s *Service

	mu     sync.Mutex
	closed bool
	byName map[string]*name
	count  int // listeners
	clock  int64
	wg     sync.WaitGroup
}

type name struct {
	text      string
	addr      netip.Addr
	ports     map[uint16]net.Listener
	lastAsked int64
}

var errFull = errors.New("egress: too many addresses")

// resolve asks the host for the address of a name and listens there. An invalid
// address is that of a name that is not allowed.
func (n *names) resolve(text string) (netip.Addr, error) {
	var answer wire.NetAnswer
	var err error
	herr := n.s.hand(&offer{kind: wire.NetResolve, name: text, serve: func(st *wire.NetStream) {
		_ = st.SetDeadline(time.Now().Add(answerWait))
		err = json.NewDecoder(io.LimitReader(st, 64<<10)).Decode(&answer)
	}}, answerWait)
	if err = errors.Join(herr, err); err != nil || answer.Addr == "" {
		return netip.Addr{}, err
	}
	addr, err := netip.ParseAddr(answer.Addr)
	if err != nil || !netip.MustParsePrefix(wire.NetNames).Contains(addr) {
		return netip.Addr{}, errors.New("egress: an address that cannot stand for a name")
	}
	return addr, n.listen(text, addr, answer.Ports)
}

// listen makes the ports of a name those given.
func (n *names) listen(text string, addr netip.Addr, ports []uint16) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errEnded
	}
	e := n.byName[text]
	if e != nil && e.addr != addr {
		n.drop(e)
		e = nil
	}
	if e == nil {
		if len(n.byName) >= maxNames {
			n.dropOldest(nil)
		}
		e = &name{text: text, addr: addr, ports: map[uint16]net.Listener{}}
		n.byName[text] = e
	}
	n.clock++
	e.lastAsked = n.clock
	for _, p := range ports[:min(len(ports), wire.NetMaxPorts)] {
		if e.ports[p] != nil {
			continue
		}
		for n.count >= maxListeners {
			if !n.dropOldest(e) {
				return errFull
			}
		}
		var lc net.ListenConfig
		l, err := lc.Listen(context.WithoutCancel(n.s.ctx), "tcp4", net.JoinHostPort(addr.String(), strconv.Itoa(int(p))))
		if err != nil {
			// A program of the sandbox has the port: its loss.
			continue
		}
		e.ports[p] = l
		n.count++
		n.wg.Go(func() { n.s.accept(l, func(c *net.TCPConn) { n.s.serveNamed(e, c) }) })
	}
	return nil
}

// drop stops listening for e. Connections live on. n.mu is held.
func (n *names) drop(e *name) {
	for _, l := range e.ports {
		_ = l.Close()
		n.count--
	}
	delete(n.byName, e.text)
}

// dropOldest makes room, but not of keep. n.mu is held.
func (n *names) dropOldest(keep *name) bool {
	var oldest *name
	for _, e := range n.byName {
		if e != keep && (oldest == nil || e.lastAsked < oldest.lastAsked) {
			oldest = e
		}
	}
	if oldest != nil {
		n.drop(oldest)
	}
	return oldest != nil
}

func (n *names) close() {
	n.mu.Lock()
	n.closed = true
	for _, e := range n.byName {
		n.drop(e)
	}
	n.mu.Unlock()
	n.wg.Wait()
}
