package backend

import (
	"errors"
	"fmt"
	"net/netip"
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
// precedence).
type Network struct {
	Mode   NetworkMode  `json:"mode,omitempty"`
	Allow  []Rule       `json:"allow,omitempty"`
	Deny   []Rule       `json:"deny,omitempty"`
	Inject []HeaderRule `json:"inject,omitempty"`
	// Upstream is a proxy that allowed traffic goes through.
	Upstream *Proxy `json:"upstream,omitempty"`
	// DNS servers that resolve allowed names; the host's when empty.
	DNS []string `json:"dns,omitempty"`
}

// Rule matches connections. Exactly one of Host and CIDR is set.
type Rule struct {
	Host    string   `json:"host,omitempty"`    // a name, or *.name for everything below it
	CIDR    string   `json:"cidr,omitempty"`    // a range, or one address
	Ports   []uint16 `json:"ports,omitempty"`   // empty: all
	Methods []string `json:"methods,omitempty"` // plain HTTP only
	Path    string   `json:"path,omitempty"`    // a prefix, plain HTTP only
}

// Validate tells what is wrong with n. Nothing of it may be set without a
// network, since it would be ignored quietly.
func (n Network) Validate() error {
	switch n.Mode {
	case "", NetworkNone:
		if len(n.Allow)+len(n.Deny)+len(n.Inject)+len(n.DNS) > 0 || n.Upstream != nil {
			return &Error{
				Op: "spec", Kind: ErrInvalid, Field: "network",
				Err: errors.New("rules without a network"), Fix: "set network.mode to allowlist",
			}
		}
	case NetworkAllowlist, NetworkFull:
	default:
		return invalid("network.mode", "unknown mode %q, known are none, allowlist, full", n.Mode)
	}
	for i, r := range n.Allow {
		if err := r.Validate(fmt.Sprintf("network.allow[%d]", i)); err != nil {
			return err
		}
	}
	for i, r := range n.Deny {
		if err := r.Validate(fmt.Sprintf("network.deny[%d]", i)); err != nil {
			return err
		}
	}
	for i, h := range n.Inject {
		field := fmt.Sprintf("network.inject[%d]", i)
		if err := h.Rule.Validate(field + ".rule"); err != nil {
			return err
		}
		if h.Header == "" || strings.ContainsAny(h.Header, " \t\r\n:\x00") {
			return invalid(field+".header", "%q is not a header's name", h.Header)
		}
		if h.Secret == "" {
			return invalid(field+".secret", "no secret is named")
		}
	}
	return nil
}

// Validate tells what is wrong with r; field names it in the error.
func (r Rule) Validate(field string) error {
	switch {
	case (r.Host == "") == (r.CIDR == ""):
		return invalid(field, "exactly one of host and cidr must be set")
	case strings.ContainsAny(r.Host, " \t\r\n/:\x00"):
		return invalid(field+".host", "%q is not a host's name", r.Host)
	case r.CIDR != "":
		if _, err := netip.ParsePrefix(r.CIDR); err == nil {
			return nil
		}
		if _, err := netip.ParseAddr(r.CIDR); err != nil {
			return invalid(field+".cidr", "%q is neither an address nor a range such as 192.0.2.0/24", r.CIDR)
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

// SecretRef names a secret by where it is found ("env:NAME", "file:/path");
// only the proxy's process resolves it.
type SecretRef string

// Proxy is an upstream proxy.
type Proxy struct {
	URL    string    `json:"url"`
	Secret SecretRef `json:"secret,omitempty"`
}
