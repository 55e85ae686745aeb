package cli

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/glovebox-dev/glovebox/backend"
)

// networkFlags are what a sandbox may reach.
type networkFlags struct {
	mode        string
	allow, deny []string
	secrets     []string
	intercept   bool
}

func (f *networkFlags) register(fl *pflag.FlagSet) {
	presets := strings.Join(backend.Presets(), ", ")
	fl.StringVar(&f.mode, "network", "", "`MODE`: none (default), allowlist (--allow means it), full")
	fl.StringArrayVar(&f.allow, "allow", nil, "may be reached: `HOST[:PORT]`, *.DOMAIN, an address or a range, or the registries of "+presets+" (repeatable)")
	fl.StringArrayVar(&f.deny, "deny", nil, "may not be reached with --network full: `HOST[:PORT]` as for --allow, which wins (repeatable)")
	fl.StringArrayVar(&f.secrets, "secret", nil, "a header that requests to a host get outside the sandbox: `NAME=REF@HOST`, REF being env:VARIABLE or file:/PATH (repeatable)")
	fl.BoolVar(&f.intercept, "intercept", false, "open HTTPS to the hosts of --secret, with certificates that this sandbox alone trusts")
}

// policy is what the flags ask for. Its own rules check it later.
func (f *networkFlags) policy() (n backend.Network, err error) {
	n = backend.Network{Mode: backend.NetworkMode(f.mode), Intercept: f.intercept}
	if n.Mode == "" && len(f.allow) > 0 {
		n.Mode = backend.NetworkAllowlist
	}
	if n.Mode == "" && len(f.deny)+len(f.secrets) > 0 {
		return n, usagef("--deny and --secret are for a sandbox with a network; add --allow or --network")
	}
	for _, v := range f.allow {
		r, err := rule("allow", v)
		if err != nil {
			return n, err
		}
		n.Allow = append(n.Allow, r)
	}
	for _, v := range f.deny {
		r, err := rule("deny", v)
		if err != nil {
			return n, err
		}
		n.Deny = append(n.Deny, r)
	}
	for _, v := range f.secrets {
		h, err := header(v)
		if err != nil {
			return n, err
		}
		n.Inject = append(n.Inject, h)
	}
	return n, nil
}

// rule reads HOST[:PORT].
func rule(flag, v string) (backend.Rule, error) {
	if slices.Contains(backend.Presets(), v) {
		return backend.Rule{Preset: v}, nil
	}
	if isRange(v) {
		return backend.Rule{CIDR: v}, nil
	}
	var r backend.Rule
	if strings.Contains(v, "://") {
		return r, usagef("--%s: %q is an URL; name its host alone, as HOST[:PORT]", flag, v)
	}
	host := v
	if strings.Contains(v, ":") {
		h, port, err := net.SplitHostPort(v)
		if err != nil {
			return r, usagef("--%s: %q is not HOST[:PORT]; an address with colons and a port is written [ADDRESS]:PORT", flag, v)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return r, usagef("--%s: %q: %q is not a port", flag, v, port)
		}
		host, r.Ports = h, []uint16{uint16(n)}
	}
	if isRange(host) {
		r.CIDR = host
	} else {
		r.Host = host
	}
	if err := r.Validate("--" + flag); err != nil {
		return r, &usageError{err}
	}
	return r, nil
}

func isRange(v string) bool {
	if _, err := netip.ParseAddr(v); err == nil {
		return true
	}
	_, err := netip.ParsePrefix(v)
	return err == nil
}

// header reads NAME=REF@HOST. Security: what is wrong with it is said without
// repeating it, for it may be the secret itself.
func header(v string) (h backend.HeaderRule, err error) {
	name, rest, ok := strings.Cut(v, "=")
	at := strings.LastIndex(rest, "@")
	if !ok || name == "" || at <= 0 || at == len(rest)-1 {
		return h, usagef("--secret: write NAME=REF@HOST, as in Authorization=env:TOKEN@api.example.com")
	}
	ref := rest[:at]
	if kind, what, _ := strings.Cut(ref, ":"); what == "" || kind != "env" && (kind != "file" || what[0] != '/') {
		return h, usagef("--secret: a secret is named as env:VARIABLE or file:/PATH, and never written down here")
	}
	r, err := rule("secret", rest[at+1:])
	return backend.HeaderRule{Rule: r, Header: name, Secret: backend.SecretRef(ref)}, err
}
