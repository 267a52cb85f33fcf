// Package address decides which network addresses the egress-broker may dial. It is pure:
// it resolves no name.
package address

import (
	"fmt"
	"net/netip"
	"slices"
)

// Policy decides which addresses may be dialled. Its zero value permits the addresses
// for which SpecialUse returns "", except those of the metadata services of cloud
// providers.
type Policy struct {
	// Allowed lists special-use networks that may be dialled. A metadata address is
	// permitted only by a prefix that holds no other address.
	Allowed []netip.Prefix
}

// BlockedError is returned by Check for an address that may not be dialled.
type BlockedError struct {
	Addr netip.Addr
	Use  string // what the address is reserved for
}

// Error implements error.
func (e *BlockedError) Error() string {
	return fmt.Sprintf("address %s is blocked: %s", e.Addr, e.Use)
}

// Check returns nil if a may be dialled, else a *BlockedError. It applies the rules to
// IPv4 addresses that an IPv6 address embeds (mapped, compatible, NAT64, 6to4, Teredo)
// even where the network of the IPv6 address is allowed.
func (p Policy) Check(a netip.Addr) error {
	if !a.IsValid() || a.Zone() != "" {
		return &BlockedError{a, "invalid or with a zone id"}
	}
	for _, x := range append(embedded(a), a) {
		if use := p.use(x); use != "" {
			return &BlockedError{a, use}
		}
	}
	return nil
}

// Configured reports whether a is in one of the allowed networks, and may be dialled.
func (p Policy) Configured(a netip.Addr) bool {
	return p.Check(a) == nil && slices.ContainsFunc(p.Allowed, func(n netip.Prefix) bool { return n.Contains(a) })
}

// use returns the special use that blocks a, or "" if a may be dialled. It does not look
// at embedded addresses.
func (p Policy) use(a netip.Addr) string {
	if slices.Contains(metadata, a) {
		if slices.ContainsFunc(p.Allowed, func(n netip.Prefix) bool { return n.IsSingleIP() && n.Addr() == a }) {
			return ""
		}
		return "metadata service of a cloud provider"
	}
	use := SpecialUse(a)
	if use != "" && slices.ContainsFunc(p.Allowed, func(n netip.Prefix) bool { return n.Contains(a) }) {
		return ""
	}
	return use
}

// SpecialUse returns what the network of a is reserved for, or "" for a globally
// reachable unicast address. Every address in an IANA special-purpose registry is special,
// also where the registry says that it is globally reachable, and so is every IPv6
// address outside of 2000::/3.
func SpecialUse(a netip.Addr) string {
	for _, s := range special {
		if s.net.Contains(a) {
			return s.use
		}
	}
	if a.Is6() && !global6.Contains(a) {
		return "not global unicast"
	}
	return ""
}

// embedded returns the IPv4 addresses that an IPv6 address contains in the formats of
// RFC 4291 (compatible, mapped), RFC 6052 (NAT64), RFC 8215, RFC 3056 (6to4) and
// RFC 4380 (Teredo: server and client).
func embedded(a netip.Addr) []netip.Addr {
	if !a.Is6() {
		return nil
	}
	b := a.As16()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	switch {
	case a == netip.IPv6Unspecified(), a == netip.IPv6Loopback():
		return nil
	case a.Is4In6(), translated.Contains(a), compatible.Contains(a):
		return []netip.Addr{at(12)}
	case local64.Contains(a):
		// The operator of the translator chooses the prefix length: 48, 56, 64 or 96 (RFC 6052,
		// section 2.2). Unused bytes are zero, so an address that begins with 0 is that of
		// another length.
		all := []netip.Addr{netip.AddrFrom4([4]byte{b[6], b[7], b[9], b[10]}), netip.AddrFrom4([4]byte{b[7], b[9], b[10], b[11]}), at(9), at(12)}
		return slices.DeleteFunc(all, func(x netip.Addr) bool { return x.As4()[0] == 0 })
	case sixToFour.Contains(a):
		return []netip.Addr{at(2)}
	case teredo.Contains(a):
		return []netip.Addr{at(4), netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})}
	}
	return nil
}
