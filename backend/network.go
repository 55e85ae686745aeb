package backend

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
)

// NetworkMode is what a sandbox may reach.
type NetworkMode string

// The network modes, tightest first. The zero value means NetworkNone.
const (
	NetworkNone      NetworkMode = "none"      // loopback only
	NetworkAllowlist NetworkMode = "allowlist" // what Network.Allow names, through our proxy
	NetworkFull      NetworkMode = "full"      // everything but the host, private and metadata ranges
)

// Network is a sandbox's network policy. The zero value is no network.
// An address that Allow names is allowed even when Deny names it too (E2B's
// precedence). In mode allowlist what no rule of Allow matches is refused; in
// mode full what Deny does not match is allowed, but for the ranges below.
//
// A name is resolved by us, never by the sandbox, and only when a rule of Allow
// matches it by Host (or is 0.0.0.0/0 or ::/0). Loopback, private, link-local,
// multicast and other special ranges, metadata services and the host's own
// addresses are refused even when an allowed name resolves to them, unless a
// rule of Allow names the address by CIDR: a range that lies inside the special
// one, or for metadata services and the host's own the address alone.
//
// HTTP is decided on request by request, and its Host must be the name that was
// asked for, as must be the server name of TLS. Redirects are new requests.
type Network struct {
	Mode   NetworkMode  `json:"mode,omitempty"`
	Allow  []Rule       `json:"allow,omitempty"`
	Deny   []Rule       `json:"deny,omitempty"`
	Inject []HeaderRule `json:"inject,omitempty"`
	// Intercept opens HTTPS where a rule with Methods or Path, or one of Inject,
	// decides on it: with certificates of an authority that is made for this
	// sandbox alone and that its programs are told to trust. Without it such
	// rules hold for plain HTTP, and HTTPS to their hosts is refused unless
	// another rule allows it as a whole; HTTPS to hosts of Inject always is.
	Intercept bool `json:"intercept,omitempty"`
	// Upstream is a proxy that allowed traffic goes through. It is asked for
	// addresses, never for names, since what was checked must be what is dialled.
	Upstream *Proxy `json:"upstream,omitempty"`
	// DNS servers (addresses, with a port or without) that resolve allowed
	// names; the host's when empty.
	DNS []string `json:"dns,omitempty"`
}

// Rule matches connections. Exactly one of Host, CIDR and Preset is set.
type Rule struct {
	// Host is a name, or *.name for everything below it and not itself. Letters
	// are ASCII; their case does not matter, nor does a dot at the end.
	Host string `json:"host,omitempty"`
	CIDR string `json:"cidr,omitempty"` // a range, or one address
	// Preset is a named list of rules (PresetRules): pip, npm, go, debian.
	// Nothing else is set beside it.
	Preset  string   `json:"preset,omitempty"`
	Ports   []uint16 `json:"ports,omitempty"`   // empty: all
	Methods []string `json:"methods,omitempty"` // HTTP only; empty: all
	// Path is matched by itself and by what lies below it, HTTP only. A path
	// whose meaning depends on who reads it (dot segments, encoded slashes)
	// matches none of Allow and all of Deny.
	Path string `json:"path,omitempty"`
}

// maxRules bounds each list of rules.
const maxRules = 1000

// Presets are the names that Rule.Preset takes.
func Presets() []string { return []string{"debian", "go", "npm", "pip"} }

// PresetRules is what a preset stands for: the package registries of pip, npm,
// Go and Debian. Go's has the store that large modules are redirected to by its
// path, which needs Network.Intercept: the host serves everybody's files.
func PresetRules(name string) ([]Rule, bool) {
	web := []uint16{80, 443}
	tls := []uint16{443}
	switch name {
	case "pip":
		return []Rule{{Host: "pypi.org", Ports: tls}, {Host: "files.pythonhosted.org", Ports: tls}}, true
	case "npm":
		return []Rule{{Host: "registry.npmjs.org", Ports: tls}}, true
	case "go":
		return []Rule{
			{Host: "proxy.golang.org", Ports: tls},
			{Host: "sum.golang.org", Ports: tls},
			{Host: "storage.googleapis.com", Ports: tls, Methods: []string{"GET", "HEAD"}, Path: "/proxy-golang-org-prod/"},
		}, true
	case "debian":
		return []Rule{{Host: "deb.debian.org", Ports: web}, {Host: "security.debian.org", Ports: web}}, true
	default:
		return nil, false
	}
}

// Validate tells what is wrong with n. Nothing of it may be set without a
// network, since it would be ignored quietly.
func (n Network) Validate() error {
	switch n.Mode {
	case "", NetworkNone:
		if len(n.Allow)+len(n.Deny)+len(n.Inject)+len(n.DNS) > 0 || n.Upstream != nil || n.Intercept {
			return &Error{
				Op: "spec", Kind: ErrInvalid, Field: "network",
				Err: errors.New("rules without a network"), Fix: "set network.mode to allowlist",
			}
		}
	case NetworkAllowlist, NetworkFull:
	default:
		return invalid("network.mode", "unknown mode %q, known are none, allowlist, full", n.Mode)
	}
	if err := validateRules("network.allow", n.Allow); err != nil {
		return err
	}
	if err := validateRules("network.deny", n.Deny); err != nil {
		return err
	}
	if len(n.Inject) > maxRules {
		return invalid("network.inject", "more than %d rules", maxRules)
	}
	for i, h := range n.Inject {
		if err := h.validate(fmt.Sprintf("network.inject[%d]", i)); err != nil {
			return err
		}
	}
	if err := n.Upstream.validate("network.upstream"); err != nil {
		return err
	}
	return validateDNS("network.dns", n.DNS)
}

func validateRules(field string, rules []Rule) error {
	if len(rules) > maxRules {
		return invalid(field, "more than %d rules", maxRules)
	}
	for i, r := range rules {
		if err := r.Validate(fmt.Sprintf("%s[%d]", field, i)); err != nil {
			return err
		}
	}
	return nil
}

// Validate tells what is wrong with r; field names it in the error.
func (r Rule) Validate(field string) error {
	set := 0
	for _, s := range []string{r.Host, r.CIDR, r.Preset} {
		if s != "" {
			set++
		}
	}
	switch {
	case set != 1:
		return invalid(field, "exactly one of host, cidr and preset must be set")
	case r.Preset != "":
		if _, ok := PresetRules(r.Preset); !ok {
			return invalid(field+".preset", "unknown preset %q, known are %s", r.Preset, strings.Join(Presets(), ", "))
		}
		if len(r.Ports)+len(r.Methods) > 0 || r.Path != "" {
			return invalid(field+".preset", "a preset brings its own ports, methods and paths")
		}
	case r.Host != "":
		if err := validateHost(field+".host", r.Host); err != nil {
			return err
		}
	case r.CIDR != "":
		p, err := netip.ParsePrefix(r.CIDR)
		if a, aerr := netip.ParseAddr(r.CIDR); err != nil && (aerr != nil || a.Zone() != "") {
			return invalid(field+".cidr", "%q is neither an address nor a range such as 192.0.2.0/24", r.CIDR)
		}
		if err == nil && p.Addr() != p.Masked().Addr() {
			return invalid(field+".cidr", "%q has bits behind its length; the range is %s", r.CIDR, p.Masked())
		}
	}
	if slices.Contains(r.Ports, 0) {
		return invalid(field+".ports", "0 is no port")
	}
	for _, m := range r.Methods {
		if m == "" || strings.ToUpper(m) != m || strings.ContainsFunc(m, func(c rune) bool { return (c < 'A' || c > 'Z') && c != '-' && c != '_' }) {
			return invalid(field+".methods", "%q is not a method such as GET", m)
		}
		if m == "CONNECT" {
			return invalid(field+".methods", "CONNECT is how a proxy is asked, no method of a server")
		}
	}
	if r.Path != "" && (r.Path[0] != '/' || strings.ContainsAny(r.Path, "?#%\\") ||
		strings.ContainsFunc(r.Path, func(c rune) bool { return c <= ' ' || c == 0x7f }) ||
		path.Clean(r.Path) != r.Path && path.Clean(r.Path)+"/" != r.Path) {
		return invalid(field+".path", "%q is not a clean path below / without query or escapes", r.Path)
	}
	return nil
}

// validateHost refuses what can never match: addresses, and what is no name.
func validateHost(field, host string) error {
	name, wild := strings.CutPrefix(host, "*.")
	name = strings.TrimSuffix(name, ".")
	if host == "*" {
		return &Error{
			Op: "spec", Kind: ErrInvalid, Field: field, Err: errors.New("* would be every name"),
			Fix: "set network.mode to full, or name domains as in *.example.com",
		}
	}
	if _, err := netip.ParseAddr(name); err == nil && !wild {
		return &Error{Op: "spec", Kind: ErrInvalid, Field: field, Err: fmt.Errorf("%q is an address", host), Fix: "name it as cidr"}
	}
	ok := len(name) <= 253
	for label := range strings.SplitSeq(name, ".") {
		ok = ok && label != "" && len(label) <= 63 && label[0] != '-' && label[len(label)-1] != '-'
		ok = ok && !strings.ContainsFunc(label, func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
		})
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	if !ok || strings.Trim(last, "0123456789") == "" || strings.HasPrefix(strings.ToLower(last), "0x") {
		return invalid(field, "%q is not a host's name in ASCII", host)
	}
	return nil
}

func validateDNS(field string, servers []string) error {
	if len(servers) > 10 {
		return invalid(field, "more than 10 servers")
	}
	for _, s := range servers {
		_, err := netip.ParseAddrPort(s)
		if _, aerr := netip.ParseAddr(s); err != nil && aerr != nil {
			return invalid(field, "%q is not a server's address", s)
		}
	}
	return nil
}

// HeaderRule adds a header that the sandbox never sees to matching requests.
type HeaderRule struct {
	Rule   Rule      `json:"rule"`
	Header string    `json:"header"`
	Secret SecretRef `json:"secret"`
}

func (h HeaderRule) validate(field string) error {
	if err := h.Rule.Validate(field + ".rule"); err != nil {
		return err
	}
	if h.Header == "" || strings.ContainsFunc(h.Header, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune("()<>@,;:\\\"/[]?={}", c)
	}) {
		return invalid(field+".header", "%q is not a header's name", h.Header)
	}
	switch strings.ToLower(h.Header) {
	case "host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive", "expect",
		"proxy-authorization", "proxy-connection":
		return invalid(field+".header", "%s belongs to the connection and cannot be set", h.Header)
	}
	if h.Secret == "" {
		return invalid(field+".secret", "no secret is named")
	}
	return nil
}

// SecretRef names a secret by where it is found ("env:NAME", "file:/path");
// only the proxy's process resolves it.
type SecretRef string

// Proxy is an upstream proxy.
type Proxy struct {
	// URL is http://, https:// or socks5:// with a host and a port, and nothing
	// else: credentials come from Secret.
	URL string `json:"url"`
	// Secret holds "user:password" for the proxy.
	Secret SecretRef `json:"secret,omitempty"`
}

func (p *Proxy) validate(field string) error {
	if p == nil {
		return nil
	}
	u, err := url.Parse(p.URL)
	switch {
	case err != nil || u.Hostname() == "" || u.Port() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		// The text may hold a password.
		return invalid(field+".url", "not an URL with host and port alone, such as http://proxy.example:3128")
	case u.User != nil:
		return &Error{
			Op: "spec", Kind: ErrInvalid, Field: field + ".url", Err: errors.New("credentials in an URL"),
			Fix: "name them as network.upstream.secret, which holds user:password",
		}
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "socks5":
		return invalid(field+".url", "unknown scheme %q, known are http, https, socks5", u.Scheme)
	}
	return nil
}
