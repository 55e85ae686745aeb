package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

// rule is a backend.Rule made ready. Presets are several.
type rule struct {
	text    string // for people: where it stands and what it names
	name    string
	wild    bool // everything below name
	prefix  netip.Prefix
	ports   []uint16
	methods []string
	path    string
}

// query is an HTTP request as far as rules look at it.
type query struct {
	method string
	path   string // decoded
	// ambiguous is a path that the server may read as another.
	ambiguous bool
	// any stands for the request that suits the rules best.
	any bool
}

// verdict is a decision and what it rests on.
type verdict struct {
	ok     bool
	rule   string // the rule that decided; "" for none
	reason string // why not, for people
}

// policy decides. It is not changed once made.
type policy struct {
	mode      backend.NetworkMode
	allow     []rule
	deny      []rule
	inject    []injection
	intercept bool
	specials  []special
	looks     bool                  // rules are about more than addresses and ports
	own       func(netip.Addr) bool // is it an address of this host?
}

// injection is a header for matching requests.
type injection struct {
	rule   rule
	header string
	value  string // Security: the secret itself
}

// compile makes rules of a list. The list is valid.
func compile(field string, list []backend.Rule) []rule {
	var out []rule
	for i, r := range list {
		rules := []backend.Rule{r}
		where := fmt.Sprintf("%s[%d]", field, i)
		if r.Preset != "" {
			rules, _ = backend.PresetRules(r.Preset)
			where += " " + r.Preset + ":"
		}
		for _, r := range rules {
			c := rule{text: where + " " + r.Host + r.CIDR, ports: r.Ports, methods: r.Methods, path: r.Path}
			if r.CIDR != "" {
				c.prefix = parsePrefix(r.CIDR)
			} else {
				c.name, c.wild = strings.CutPrefix(strings.ToLower(strings.TrimSuffix(r.Host, ".")), "*.")
			}
			out = append(out, c)
		}
	}
	return out
}

// parsePrefix reads a range or an address, IPv4 in its one form.
func parsePrefix(s string) netip.Prefix {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, aerr := netip.ParseAddr(s)
		if aerr != nil {
			return netip.Prefix{}
		}
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// httpOnly tells whether the rule looks at requests.
func (r *rule) httpOnly() bool { return len(r.methods) > 0 || r.path != "" }

// all tells whether the rule is every address, and so every name.
func (r *rule) all() bool { return r.name == "" && r.prefix.IsValid() && r.prefix.Bits() == 0 }

func (r *rule) names(name string) bool {
	if name == "" || r.name == "" {
		return false
	}
	if r.wild {
		return strings.HasSuffix(name, "."+r.name)
	}
	return name == r.name
}

func (r *rule) port(p uint16) bool { return len(r.ports) == 0 || slices.Contains(r.ports, p) }

// request tells whether the rule holds for q; nil is what is no HTTP. unsure is
// the answer for what cannot be told: false for rules that allow, true for those
// that deny.
func (r *rule) request(q *query, unsure bool) bool {
	switch {
	case !r.httpOnly():
		return true
	case q == nil:
		return unsure
	case q.any:
		return !unsure
	case len(r.methods) > 0 && !slices.Contains(r.methods, q.method):
		return false
	case r.path == "":
		return true
	case q.ambiguous:
		return unsure
	}
	dir := strings.TrimSuffix(r.path, "/")
	return q.path == r.path || q.path == dir && dir != "" && r.path == dir || strings.HasPrefix(q.path, dir+"/")
}

// decide tells whether q may be asked of t, as far as t alone tells. A name
// still has to be resolved, and address asked.
func (p *policy) decide(t target, q *query) verdict {
	if t.name == "" {
		return p.address(t, t.addr, q)
	}
	// Security: a wildcard or a whole network is no consent to this.
	if metadataName(t.name) && !slices.ContainsFunc(p.allow, func(r rule) bool { return !r.wild && r.names(t.name) }) {
		return verdict{reason: fmt.Sprintf("%s is the name of a metadata service, and no rule of network.allow names it", t.name)}
	}
	for i := range p.allow {
		if r := &p.allow[i]; (r.names(t.name) || r.all()) && r.port(t.port) && r.request(q, false) {
			return verdict{ok: true, rule: r.text}
		}
	}
	if p.mode != backend.NetworkFull {
		return verdict{reason: p.missing(t, q)}
	}
	for i := range p.deny {
		if r := &p.deny[i]; r.names(t.name) && r.port(t.port) && r.request(q, true) {
			return verdict{rule: r.text, reason: fmt.Sprintf("%s denies %s", r.text, t)}
		}
	}
	return verdict{ok: true, rule: "network.mode full"}
}

// address tells whether q may be asked of t at addr, which t resolved to.
func (p *policy) address(t target, addr netip.Addr, q *query) verdict {
	if v := p.special(t, addr, q); !v.ok {
		return v
	}
	for i := range p.allow {
		if r := &p.allow[i]; (r.names(t.name) || r.prefix.Contains(addr)) && r.port(t.port) && r.request(q, false) {
			return verdict{ok: true, rule: r.text}
		}
	}
	if p.mode != backend.NetworkFull {
		if t.name != "" {
			return verdict{reason: fmt.Sprintf("%s is at %s, which no rule of network.allow covers", t, addr)}
		}
		return verdict{reason: p.missing(t, q)}
	}
	for i := range p.deny {
		if r := &p.deny[i]; (r.names(t.name) || r.prefix.Contains(addr)) && r.port(t.port) && r.request(q, true) {
			return verdict{rule: r.text, reason: fmt.Sprintf("%s denies %s", r.text, addr)}
		}
	}
	return verdict{ok: true, rule: "network.mode full"}
}

// special refuses addresses that are not public and that no rule names.
func (p *policy) special(t target, addr netip.Addr, q *query) verdict {
	if !addr.IsValid() || addr.Zone() != "" || addr.Is4In6() || addr.IsUnspecified() {
		// Security: systems connect to the unspecified address as to themselves.
		return verdict{reason: "not an address that can be connected to"}
	}
	bits, what := -1, ""
	if i := slices.IndexFunc(p.specials, func(s special) bool { return s.prefix.Contains(addr) }); i >= 0 {
		bits, what = p.specials[i].prefix.Bits(), p.specials[i].what
	}
	if !addr.IsLoopback() && p.own(addr) {
		bits, what = addr.BitLen(), "an address of the host itself"
	}
	if bits < 0 {
		return verdict{ok: true}
	}
	for i := range p.allow {
		r := &p.allow[i]
		if r.prefix.IsValid() && r.prefix.Bits() >= bits && r.prefix.Contains(addr) && r.port(t.port) && r.request(q, false) {
			return verdict{ok: true, rule: r.text}
		}
	}
	whose := t.String() + " is"
	if t.name != "" {
		whose = fmt.Sprintf("%s is at %s,", t, addr)
	}
	return verdict{reason: fmt.Sprintf("%s %s, and no rule of network.allow names it by cidr", whose, what)}
}

// http tells whether some request might be allowed at t.
func (p *policy) http(t target) bool { return p.decide(t, &query{any: true}).ok }

// injects tells whether some request to t gets a header.
func (p *policy) injects(t target) bool {
	return slices.ContainsFunc(p.inject, func(in injection) bool { return in.matches(t) })
}

func (in *injection) matches(t target) bool {
	r := &in.rule
	return (r.names(t.name) || t.name == "" && r.prefix.Contains(t.addr)) && r.port(t.port)
}

// ports are those that a name is listened on for, inside.
func (p *policy) ports(name string, most int) []uint16 {
	ports := []uint16{80, 443}
	for i := range p.allow {
		if r := &p.allow[i]; r.names(name) || r.all() {
			for _, port := range r.ports {
				if !slices.Contains(ports, port) && len(ports) < most {
					ports = append(ports, port)
				}
			}
		}
	}
	return ports
}

// named tells whether name is allowed on any port for anything.
func (p *policy) named(name string) verdict {
	t := target{name: name, port: 443}
	for i := range p.allow {
		r := &p.allow[i]
		if metadataName(name) && r.wild || !r.names(name) && !r.all() {
			continue
		}
		if len(r.ports) > 0 {
			t.port = r.ports[0]
		}
		if !metadataName(name) || r.names(name) {
			return verdict{ok: true, rule: r.text}
		}
	}
	if v := p.decide(t, nil); p.mode != backend.NetworkFull || !v.ok {
		if v.reason == "" {
			v.reason = p.missing(t, nil)
		}
		v.ok = false
		return v
	}
	return verdict{ok: true, rule: "network.mode full"}
}

// missing says which rule would have to be there.
func (p *policy) missing(t target, q *query) string {
	var names, ports bool
	for i := range p.allow {
		r := &p.allow[i]
		if r.names(t.name) || t.name == "" && r.prefix.Contains(t.addr) {
			names = true
			ports = ports || r.port(t.port)
		}
	}
	switch {
	case ports && q == nil:
		return fmt.Sprintf("rules of network.allow name %s for certain methods or paths of HTTP only", t)
	case ports:
		return fmt.Sprintf("no rule of network.allow names %s for this method and path", t)
	case names:
		return fmt.Sprintf("rules of network.allow name %s, but not port %d", t.host(), t.port)
	default:
		return fmt.Sprintf("no rule of network.allow names %s", t.host())
	}
}
