package address

import (
	"errors"
	"net/netip"
	"testing"
)

// TestCheck checks that the first and the last address of each special-use network are
// blocked, that addresses outside of all networks are permitted, and that certain other
// addresses are blocked, such as those that embed an IPv4 address.
func TestCheck(t *testing.T) {
	last := func(n netip.Prefix) netip.Addr {
		b := n.Addr().AsSlice()
		for i := n.Bits(); i < len(b)*8; i++ {
			b[i/8] |= 0x80 >> (i % 8)
		}
		a, _ := netip.AddrFromSlice(b)
		return a
	}
	for _, s := range special {
		for _, a := range []netip.Addr{s.net.Addr(), last(s.net)} {
			if b, ok := errors.AsType[*BlockedError](Policy{}.Check(a)); !ok || b.Addr != a {
				t.Errorf("%v of %v is permitted", a, s.net)
			}
		}
	}
	for _, a := range []string{"8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "9.255.255.255", "11.0.0.0", "2606:4700::1111", "2001:200::1", "2a00::1"} {
		if err := (Policy{}).Check(netip.MustParseAddr(a)); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
	for _, a := range []string{"::ffff:8.8.8.8", "::8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1", "4000::1", "255.255.255.255", "0.0.0.0", "168.63.129.16", "fe80::1%eth0"} {
		if err := (Policy{}).Check(netip.MustParseAddr(a)); err == nil {
			t.Errorf("%s is permitted", a)
		}
	}
	if (Policy{}).Check(netip.Addr{}) == nil {
		t.Error("the zero address is permitted")
	}
}

func TestAllowed(t *testing.T) {
	policy := func(nets ...string) (p Policy) {
		for _, n := range nets {
			p.Allowed = append(p.Allowed, netip.MustParsePrefix(n))
		}
		return p
	}
	for _, d := range []struct {
		allowed []string
		addr    string
		ok      bool
	}{
		{[]string{"10.1.0.0/16"}, "10.1.2.3", true}, {[]string{"10.1.0.0/16"}, "10.2.0.0", false}, {[]string{"::1/128"}, "::1", true}, {[]string{"127.0.0.0/8"}, "::ffff:127.0.0.1", false},
		{[]string{"169.254.0.0/16"}, "169.254.1.1", true}, {[]string{"169.254.0.0/16"}, "169.254.169.254", false}, {[]string{"169.254.169.254/31"}, "169.254.169.254", false}, {[]string{"169.254.169.254/32"}, "169.254.169.254", true},
		{[]string{"fd00::/8"}, "fd00:ec2::254", false}, {[]string{"fd00::/8"}, "fd00::1", true}, {[]string{"100.64.0.0/10"}, "100.100.100.200", false}, {[]string{"0.0.0.0/0"}, "168.63.129.16", false},
		// The IPv4 address inside must be permitted too.
		{[]string{"64:ff9b::/96"}, "64:ff9b::8.8.8.8", true}, {[]string{"64:ff9b::/96"}, "64:ff9b::10.0.0.1", false}, {[]string{"64:ff9b::/96", "10.0.0.0/8"}, "64:ff9b::10.0.0.1", true}, {[]string{"64:ff9b::/96", "169.254.0.0/16"}, "64:ff9b::a9fe:a9fe", false},
		{[]string{"64:ff9b:1::/48"}, "64:ff9b:1::808:808", true}, {[]string{"64:ff9b:1::/48"}, "64:ff9b:1::a00:1", false}, {[]string{"64:ff9b:1::/48"}, "64:ff9b:1:a00:0:100::", false}, {[]string{"64:ff9b:1::/48"}, "64:ff9b:1:0a:00:0001::", false},
		{[]string{"2002::/16"}, "2002:808:808::1", true}, {[]string{"2002::/16"}, "2002:a00:1::1", false}, {[]string{"::ffff:0:0/96"}, "::ffff:8.8.8.8", true}, {[]string{"::/96"}, "::10.0.0.1", false},
		{[]string{"2001::/32"}, "2001:0:808:808:0:0:f7f7:f7f7", true}, {[]string{"2001::/32"}, "2001:0:a00:1:0:0:f7f7:f7f7", false}, {[]string{"2001::/32"}, "2001:0:808:808:0:0:f5ff:fffe", false},
	} {
		if err := policy(d.allowed...).Check(netip.MustParseAddr(d.addr)); (err == nil) != d.ok {
			t.Errorf("%v with %v: %v", d.addr, d.allowed, err)
		}
	}
}
