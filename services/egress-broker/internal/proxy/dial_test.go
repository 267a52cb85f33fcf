package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// TestDialAddresses shows that every address of a name is checked, also those that are not
// dialed, and that at most the first maxDials are dialed, each once, until one accepts a
// connection.
func TestDialAddresses(t *testing.T) {
	public := func(n int) (out []netip.Addr) {
		for i := range n {
			out = append(out, netip.AddrFrom4([4]byte{8, 8, 4, byte(i + 1)}))
		}
		return out
	}
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		addrs  []netip.Addr
		opens  int // index of the address that accepts connections; -1: none
		dials  int
		reason netrule.Reason
		text   string
	}{
		"the first":           {public(3), 0, 1, "", ""},
		"the last that fits":  {public(maxDials), maxDials - 1, maxDials, "", ""},
		"one too late":        {public(maxDials + 1), maxDials, maxDials, ConnectFailed, "1 further address(es) of a.example not tried"},
		"none":                {public(maxDials), -1, maxDials, ConnectFailed, "refused"},
		"each once":           {append(public(2), public(2)...), -1, 2, ConnectFailed, "refused"},
		"a late one blocked":  {append(public(3*maxDials), netip.MustParseAddr("169.254.169.254")), 0, 0, netrule.AddressBlocked, "169.254.169.254"},
		"mapped and blocked":  {append(public(maxDials), netip.MustParseAddr("::ffff:10.0.0.1")), 0, 0, netrule.AddressBlocked, "10.0.0.1"},
		"a name without any":  {nil, 0, 0, ResolveFailed, "no address"},
		"only a blocked one":  {[]netip.Addr{netip.MustParseAddr("127.0.0.1")}, 0, 0, netrule.AddressBlocked, "127.0.0.1"},
		"many, the first one": {public(250), 0, 1, "", ""},
	} {
		dials := 0
		p, err := New(Config{
			Resolve: func(context.Context, string) ([]netip.Addr, error) { return c.addrs, nil },
			Dial: func(_ context.Context, _, address string) (net.Conn, error) {
				if dials++; c.opens < 0 || address != netip.AddrPortFrom(c.addrs[c.opens], 443).String() {
					return nil, refused
				}
				conn, _ := net.Pipe()
				return conn, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		conn, err := p.dial(t.Context(), "tcp", "a.example:443")
		if conn != nil {
			conn.Close()
		}
		var f *failure
		if dials != c.dials || (err == nil) != (c.reason == "") || err != nil && (!errors.As(err, &f) || f.reason != c.reason || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%s: %d addresses dialed, want %d: %v", name, dials, c.dials, err)
		}
	}
}
