package address

import "net/netip"

var (
	global6    = netip.MustParsePrefix("2000::/3")
	compatible = netip.MustParsePrefix("::/96")
	translated = netip.MustParsePrefix("64:ff9b::/96")
	local64    = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	teredo     = netip.MustParsePrefix("2001::/32")
)

// metadata lists the addresses at which cloud providers serve credentials of a machine.
var metadata = []netip.Addr{
	netip.MustParseAddr("169.254.169.254"), // most providers
	netip.MustParseAddr("169.254.170.2"),   // Amazon ECS
	netip.MustParseAddr("169.254.170.23"),  // Amazon EKS
	netip.MustParseAddr("fd00:ec2::254"),   // Amazon EC2
	netip.MustParseAddr("fd00:ec2::23"),    // Amazon EKS
	netip.MustParseAddr("fd20:ce::254"),    // Google Cloud
	netip.MustParseAddr("100.100.100.200"), // Alibaba Cloud
	netip.MustParseAddr("192.0.0.192"),     // Oracle Cloud
	netip.MustParseAddr("168.63.129.16"),   // Azure; not in a special-use network
}

type network struct {
	net netip.Prefix
	use string
}

// special lists the IANA special-purpose address registries for IPv4 and IPv6, the
// multicast networks, and former special networks that some systems still treat as
// special.
var special = func() []network {
	var out []network
	for _, n := range [][2]string{
		{"0.0.0.0/8", "this network (RFC 791)"},
		{"10.0.0.0/8", "private use (RFC 1918)"},
		{"100.64.0.0/10", "shared address space (RFC 6598)"},
		{"127.0.0.0/8", "loopback (RFC 1122)"},
		{"169.254.0.0/16", "link-local (RFC 3927)"},
		{"172.16.0.0/12", "private use (RFC 1918)"},
		{"192.0.0.0/24", "protocol assignments (RFC 6890)"},
		{"192.0.2.0/24", "documentation (RFC 5737)"},
		{"192.31.196.0/24", "AS112 (RFC 7535)"},
		{"192.52.193.0/24", "AMT (RFC 7450)"},
		{"192.88.99.0/24", "6to4 relay anycast (RFC 7526)"},
		{"192.168.0.0/16", "private use (RFC 1918)"},
		{"192.175.48.0/24", "AS112 (RFC 7534)"},
		{"198.18.0.0/15", "benchmarking (RFC 2544)"},
		{"198.51.100.0/24", "documentation (RFC 5737)"},
		{"203.0.113.0/24", "documentation (RFC 5737)"},
		{"224.0.0.0/4", "multicast (RFC 5771)"},
		{"240.0.0.0/4", "reserved or broadcast (RFC 1112)"},
		{"::1/128", "loopback (RFC 4291)"},
		{"::/128", "unspecified (RFC 4291)"},
		{"::/96", "IPv4-compatible (RFC 4291)"},
		{"64:ff9b::/96", "NAT64 (RFC 6052)"},
		{"64:ff9b:1::/48", "NAT64 for local use (RFC 8215)"},
		{"100::/64", "discard (RFC 6666)"},
		{"100:0:0:1::/64", "dummy prefix (RFC 9780)"},
		{"2001::/23", "protocol assignments, among them Teredo (RFC 2928)"},
		{"2001:db8::/32", "documentation (RFC 3849)"},
		{"2002::/16", "6to4 (RFC 3056)"},
		{"2620:4f:8000::/48", "AS112 (RFC 7534)"},
		{"3ffe::/16", "6bone (RFC 3701)"},
		{"3fff::/20", "documentation (RFC 9637)"},
		{"5f00::/16", "segment routing (RFC 9602)"},
		{"fc00::/7", "unique local (RFC 4193)"},
		{"fe80::/10", "link-local (RFC 4291)"},
		{"fec0::/10", "site-local (RFC 3879)"},
		{"ff00::/8", "multicast (RFC 4291)"},
	} {
		out = append(out, network{netip.MustParsePrefix(n[0]), n[1]})
	}
	return out
}()
