package backend

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
	Host    string   `json:"host,omitempty"` // a name, or *.name for everything below it
	CIDR    string   `json:"cidr,omitempty"`
	Ports   []uint16 `json:"ports,omitempty"`   // empty: all
	Methods []string `json:"methods,omitempty"` // plain HTTP only
	Path    string   `json:"path,omitempty"`    // a prefix, plain HTTP only
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
