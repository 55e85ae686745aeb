package egress

import (
	"net/netip"
	"slices"
)

// special is a range that is refused unless a rule names addresses of it.
type special struct {
	prefix netip.Prefix
	what   string
}

// specials are the ranges that are no public addresses. Of two that contain an
// address the narrower one counts.
func specials() []special {
	table := []special{
		// Services that hand out credentials to whoever asks.
		{prefix: netip.MustParsePrefix("169.254.169.254/32"), what: "a metadata service"},
		{prefix: netip.MustParsePrefix("169.254.169.253/32"), what: "a metadata service"},
		{prefix: netip.MustParsePrefix("169.254.169.123/32"), what: "a metadata service"},
		{prefix: netip.MustParsePrefix("169.254.170.2/32"), what: "a metadata service"},
		{prefix: netip.MustParsePrefix("169.254.170.23/32"), what: "a metadata service"},
		{prefix: netip.MustParsePrefix("100.100.100.200/32"), what: "a metadata service"},
		{prefix: netip.MustParsePrefix("168.63.129.16/32"), what: "a metadata service"},
		{prefix: netip.MustParsePrefix("192.0.0.192/32"), what: "a metadata service"},
		{prefix: netip.MustParsePrefix("fd00:ec2::254/128"), what: "a metadata service"},
		{prefix: netip.MustParsePrefix("fd00:ec2::23/128"), what: "a metadata service"},
		{prefix: netip.MustParsePrefix("fd20:ce::254/128"), what: "a metadata service"},

		{prefix: netip.MustParsePrefix("0.0.0.0/8"), what: "this network"},
		{prefix: netip.MustParsePrefix("10.0.0.0/8"), what: "a private address"},
		{prefix: netip.MustParsePrefix("100.64.0.0/10"), what: "a carrier's private address"},
		{prefix: netip.MustParsePrefix("127.0.0.0/8"), what: "a loopback address"},
		{prefix: netip.MustParsePrefix("169.254.0.0/16"), what: "a link-local address"},
		{prefix: netip.MustParsePrefix("172.16.0.0/12"), what: "a private address"},
		{prefix: netip.MustParsePrefix("192.0.0.0/24"), what: "a reserved address"},
		{prefix: netip.MustParsePrefix("192.0.2.0/24"), what: "a documentation address"},
		{prefix: netip.MustParsePrefix("192.88.99.0/24"), what: "a relay's address"},
		{prefix: netip.MustParsePrefix("192.168.0.0/16"), what: "a private address"},
		{prefix: netip.MustParsePrefix("198.18.0.0/15"), what: "a benchmarking address"},
		{prefix: netip.MustParsePrefix("198.51.100.0/24"), what: "a documentation address"},
		{prefix: netip.MustParsePrefix("203.0.113.0/24"), what: "a documentation address"},
		{prefix: netip.MustParsePrefix("224.0.0.0/4"), what: "a multicast address"},
		{prefix: netip.MustParsePrefix("240.0.0.0/4"), what: "a reserved address"},

		// Of IPv6 only 2000::/3 is public, and in it not what wraps an IPv4
		// address that would have to be looked at instead.
		{prefix: netip.MustParsePrefix("::/3"), what: "a reserved address"},
		{prefix: netip.MustParsePrefix("::/96"), what: "an embedded IPv4 address"},
		{prefix: netip.MustParsePrefix("::/128"), what: "this network"},
		{prefix: netip.MustParsePrefix("::1/128"), what: "a loopback address"},
		{prefix: netip.MustParsePrefix("64:ff9b::/96"), what: "an embedded IPv4 address"},
		{prefix: netip.MustParsePrefix("64:ff9b:1::/48"), what: "an embedded IPv4 address"},
		{prefix: netip.MustParsePrefix("100::/64"), what: "a discarding address"},
		{prefix: netip.MustParsePrefix("2001::/23"), what: "a reserved address"},
		{prefix: netip.MustParsePrefix("2001::/32"), what: "an embedded IPv4 address"},
		{prefix: netip.MustParsePrefix("2001:db8::/32"), what: "a documentation address"},
		{prefix: netip.MustParsePrefix("2002::/16"), what: "an embedded IPv4 address"},
		{prefix: netip.MustParsePrefix("3fff::/20"), what: "a documentation address"},
		{prefix: netip.MustParsePrefix("4000::/2"), what: "a reserved address"},
		{prefix: netip.MustParsePrefix("8000::/1"), what: "a reserved address"},
		{prefix: netip.MustParsePrefix("fc00::/7"), what: "a private address"},
		{prefix: netip.MustParsePrefix("fe80::/10"), what: "a link-local address"},
		{prefix: netip.MustParsePrefix("fec0::/10"), what: "a private address"},
		{prefix: netip.MustParsePrefix("ff00::/8"), what: "a multicast address"},
	}
	slices.SortStableFunc(table, func(a, b special) int { return b.prefix.Bits() - a.prefix.Bits() })
	return table
}

// metadataName tells the names of metadata services, which no wildcard allows.
func metadataName(name string) bool {
	switch name {
	case "metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal",
		"metadata.tencentyun.com", "metadata.azure.internal", "metadata.azure.com", "metadata.platformequinix.com":
		return true
	}
	return false
}
