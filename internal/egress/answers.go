package egress

import (
	"net/netip"
	"slices"
	"sync"
)

const (
	// maxAnswers bounds the addresses whose names are remembered, maxNamesOf the
	// names of each.
	maxAnswers = 4096
	maxNamesOf = 8
)

// answers remembers which names the sandbox was told an address for: in mode
// full programs connect to addresses, and rules name names.
type answers struct {
	mu    sync.Mutex
	names map[netip.Addr][]string // the latest first
}

func newAnswers() *answers { return &answers{names: map[netip.Addr][]string{}} }

// add remembers that name is at addr.
func (a *answers) add(name string, addr netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.names[addr]; !ok && len(a.names) >= maxAnswers {
		for old := range a.names { // any: programs ask again
			delete(a.names, old)
			break
		}
	}
	list := slices.DeleteFunc(a.names[addr], func(n string) bool { return n == name })
	a.names[addr] = slices.Insert(list, 0, name)[:min(len(list)+1, maxNamesOf)]
}

// of are the names that addr was told for.
func (a *answers) of(addr netip.Addr) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.names[addr])
}
