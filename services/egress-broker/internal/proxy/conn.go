package proxy

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// clientConn is an HTTP/1 connection of the client, or the connection below TLS. The server
// reads only bytes that framing accepts. Other bytes make reads fail, and the server ends the
// connection, with status 400 if they are in the head of its first request.
type clientConn struct {
	net.Conn
	p      *Proxy
	tunnel *tunnel // nil outside of tunnels
	check  func(*head) netrule.Reason

	framing *framing
	in      []byte // read and not yet accepted
	ready   []byte // accepted and not yet passed on
	bad     atomic.Pointer[failure]
	served  bool // a head was accepted
}

// readSize is the maximum number of bytes of one read in a state in which framing must check them,
// as in a head or in the size line of a chunk.
const readSize = 4 << 10

// Read implements net.Conn. It is not for concurrent use.
func (c *clientConn) Read(b []byte) (int, error) {
	if c.framing == nil {
		c.framing = &framing{maxHead: c.p.cfg.Limits.Head, check: c.check}
		if c.check == nil {
			c.framing.state = inTunnel
		}
	}
	for {
		if len(c.ready) > 0 {
			n := copy(b, c.ready)
			c.ready = c.ready[n:]
			return n, nil
		}
		if bad := c.bad.Load(); bad != nil {
			return 0, bad
		}
		if len(c.in) == 0 {
			if left := c.framing.direct(); left > 0 {
				n, err := c.Conn.Read(b[:min(int64(len(b)), left)])
				c.framing.passed(n)
				return n, err
			}
		} else {
			atHead := c.framing.state == inHead
			n, err := c.framing.accept(c.in)
			if err != nil {
				c.refuse(err)
				continue
			}
			if n > 0 {
				c.served = c.served || atHead
				c.ready, c.in = c.in[:n:n], c.in[n:]
				continue
			}
		}
		var buf [readSize]byte
		n, err := c.Conn.Read(buf[:])
		c.in = append(c.in, buf[:n]...)
		if err != nil && n == 0 {
			return 0, err // if a deadline has passed, the next call can continue
		}
	}
}

// refuse makes the current read and all later ones fail. It records the denial of a
// head; a body belongs to an open flow, which is recorded at its end.
func (c *clientConn) refuse(err error) {
	bad, ok := errors.AsType[*failure](err)
	if !ok {
		bad = &failure{RequestInvalid, err}
	}
	c.bad.Store(bad)
	if c.framing.state != inHead {
		return
	}
	rec := Flow{Reason: bad.reason}
	if !c.served {
		rec.Status = http.StatusBadRequest // the server ends the connection without a response after an earlier request
	}
	if c.tunnel != nil {
		rec.Host, rec.Port, rec.Mode = c.tunnel.host, c.tunnel.port, c.tunnel.mode
	}
	c.p.deny(rec)
}

// checkOuter returns "" if the target of a request outside of tunnels is an absolute
// URI of scheme http or, for CONNECT, a host and a port, and the Host field, if
// there is one, has the same host and port. Otherwise it returns the reason for a
// refusal.
func checkOuter(h *head) netrule.Reason {
	authority, fallback := h.target, 0
	if h.method != "CONNECT" {
		rest, ok := cutPrefixFold(h.target, "http://")
		if !ok {
			return RequestInvalid
		}
		authority, fallback = rest, 80
		if i := strings.IndexAny(rest, "/?"); i >= 0 {
			authority = rest[:i]
		}
	}
	host, _, port, err := netrule.ParseAuthority(authority, fallback)
	if err != nil {
		return HostInvalid
	}
	if len(h.host) == 0 {
		return ""
	}
	return sameAuthority(h.host[0], port, host, port)
}

// checkInner returns the check of a request in a tunnel: its target must begin with "/",
// and its Host field must have the host and port of the tunnel.
func checkInner(t *tunnel) func(*head) netrule.Reason {
	return func(h *head) netrule.Reason {
		if !strings.HasPrefix(h.target, "/") {
			return RequestInvalid
		}
		if len(h.host) == 0 {
			return AuthorityMismatch
		}
		return sameAuthority(h.host[0], defaultPort(t.mode), t.host, t.port)
	}
}

// sameAuthority returns "" if authority has the given host and port. If authority has
// no port, its port is fallback. Otherwise sameAuthority returns the reason for a
// refusal.
func sameAuthority(authority string, fallback int, host string, port int) netrule.Reason {
	got, _, gotPort, err := netrule.ParseAuthority(authority, fallback)
	if err != nil {
		return HostInvalid
	}
	if got != host || gotPort != port {
		return AuthorityMismatch
	}
	return ""
}

func cutPrefixFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}
