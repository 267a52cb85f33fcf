package quota

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// Addresses limits the requests from each address at one gateway. It is safe for concurrent use.
// Rate is set before the first use.
type Addresses struct {
	Rate int // requests per second

	mu   sync.Mutex
	seen map[netip.Prefix]*usage
}

// maxAddresses is the number of addresses from which Addresses counts requests at a time. Above it,
// those without a request in the last second are forgotten, which changes nothing for them.
const maxAddresses = 100_000

// Middleware rejects the requests (429) that Take does not permit.
func (a *Addresses) Middleware(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !a.Take(c.Request().RemoteAddr, time.Now()) {
			return apierr.Quota("", fmt.Sprintf("a gateway accepts %d requests per second from one address; send fewer", a.Rate), 1)
		}
		return next(c)
	}
}

// Take counts a request from a peer at now, and reports whether it is permitted. Up to Rate requests
// may come at once after a second without requests. IPv6 addresses count by /64, because one host can
// have all addresses of such a network. Requests of more than maxAddresses addresses within a second
// are not counted, since otherwise some would be refused for the requests of others. The peer is the
// one of the connection: no header changes it.
func (a *Addresses) Take(peer string, now time.Time) bool {
	key := networkOf(peer)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen == nil {
		a.seen = map[netip.Prefix]*usage{}
	}
	u := a.seen[key]
	if u == nil {
		if len(a.seen) >= maxAddresses {
			a.prune(now)
		}
		if len(a.seen) >= maxAddresses {
			return true
		}
		u = &usage{}
		a.seen[key] = u
	}
	return u.spend(int64(a.Rate), now)
}

// prune forgets the addresses without a request in the last second. The caller holds mu.
func (a *Addresses) prune(now time.Time) {
	for k, u := range a.seen {
		if now.Sub(u.at) > time.Second {
			delete(a.seen, k)
		}
	}
}

// networkOf returns the network under which a peer, host:port, counts. Peers that are no addresses
// count as one.
func networkOf(peer string) netip.Prefix {
	host, _, err := net.SplitHostPort(peer)
	if err != nil {
		host = peer
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{}
	}
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits)
	return p
}
