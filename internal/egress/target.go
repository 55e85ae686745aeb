package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// target is what a program asks to be connected to: a name or an address, never
// both, and a port.
type target struct {
	name string // in its one spelling: ASCII, lower case, no dot at the end
	addr netip.Addr
	port uint16
}

// host is the name or the address.
func (t target) host() string {
	if t.name != "" {
		return t.name
	}
	return t.addr.String()
}

func (t target) String() string {
	if t.addr.Is6() {
		return fmt.Sprintf("[%s]:%d", t.addr, t.port)
	}
	return fmt.Sprintf("%s:%d", t.host(), t.port)
}

// header is t as a request's Host.
func (t target) header(standard uint16) string {
	switch {
	case t.port != standard:
		return t.String()
	case t.addr.Is6():
		return "[" + t.addr.String() + "]"
	default:
		return t.host()
	}
}

var (
	errNotation = errors.New("an address in an unusual notation")
	errZone     = errors.New("an address with a zone")
	errUserinfo = errors.New("credentials in the address")
	errName     = errors.New("not a host's name in ASCII")
	errPort     = errors.New("not a port")
)

// parseHost reads a host as programs write it. It is the one place that does,
// and what it cannot read in one way only is refused.
func parseHost(host string, port uint16) (target, error) {
	t := target{port: port}
	if port == 0 {
		return t, errPort
	}
	if strings.Contains(host, "@") {
		return t, errUserinfo
	}
	bare, bracketed := host, false
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		bare, bracketed = host[1:len(host)-1], true
	}
	if bracketed || strings.Contains(bare, ":") {
		if strings.Contains(bare, "%") {
			return t, errZone
		}
		a, err := netip.ParseAddr(bare)
		if err != nil || !a.Is6() {
			return t, errNotation
		}
		// Security: one address has one form; ::ffff:127.0.0.1 is 127.0.0.1.
		t.addr = a.Unmap()
		return t, nil
	}
	name := strings.ToLower(strings.TrimSuffix(bare, "."))
	if numeric(name) {
		// Security: resolvers read 0177.1, 0x7f000001 and 2130706433 as
		// addresses; we read dotted quads alone, and ask no resolver.
		a, err := netip.ParseAddr(name)
		if err != nil {
			return t, errNotation
		}
		t.addr = a
		return t, nil
	}
	if !validName(name) {
		return t, errName
	}
	t.name = name
	return t, nil
}

// numeric tells whether some program might read name as an IPv4 address: its
// last label is a number.
func numeric(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if last == "" {
		return false
	}
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

func validName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			if c := label[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}

// parseHostPort reads "host", "host:port" and "[v6]:port"; port is what stands
// for one that is missing, 0 for none.
func parseHostPort(s string, port uint16) (target, error) {
	host := s
	switch i := strings.LastIndexByte(s, ':'); {
	case strings.Contains(s, "@"):
		return target{}, errUserinfo
	case i < 0 || strings.HasSuffix(s, "]"):
	case strings.Count(s, ":") > 1 && s[0] != '[':
		return target{}, errNotation
	default:
		host = s[:i]
		if s[i+1:] == "" || s[i+1] == '+' {
			return target{}, errPort
		}
		n, err := strconv.ParseUint(s[i+1:], 10, 16)
		if err != nil {
			return target{}, errPort
		}
		port = uint16(n)
	}
	return parseHost(host, port)
}
