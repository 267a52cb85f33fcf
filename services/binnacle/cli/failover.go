package cli

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// dialWithin is how long a connection to one of several gateways may take.
const dialWithin = 3 * time.Second

// failover makes a transport for the first of several addresses of one mesh connect to the next one
// if a gateway accepts no connection within dialWithin. It begins with the address to which the
// transport connected last, and verifies each gateway's certificate under the gateway's own name. It
// does not change the transport if list has one address. The error is for a list that is malformed,
// or mixes http and https.
func failover(t *http.Transport, list string) error {
	urls := addresses(list)
	if len(urls) == 1 {
		return nil
	}
	var hosts []string // with ports
	scheme := ""
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" || u.Path != "" {
			return fail(exitUsage, "address %q of the mesh: want host:port or a URL without a path", text)
		}
		if scheme == "" {
			scheme = u.Scheme
		}
		if u.Scheme != scheme {
			return fail(exitUsage, "addresses of the mesh: %s and %s; give all of them with the same scheme", urls[0], text)
		}
		port := u.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
		}
		hosts = append(hosts, net.JoinHostPort(u.Hostname(), port))
	}
	var last atomic.Int64
	each := func(dial func(addr string) (net.Conn, error)) (conn net.Conn, err error) {
		begin := int(last.Load())
		for i := range hosts {
			at := (begin + i) % len(hosts)
			if conn, err = dial(hosts[at]); err == nil {
				last.Store(int64(at))
				return conn, nil
			}
		}
		return nil, err
	}
	d := &net.Dialer{Timeout: dialWithin}
	t.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return each(func(addr string) (net.Conn, error) { return d.DialContext(ctx, network, addr) })
	}
	t.DialTLSContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return each(func(addr string) (net.Conn, error) {
			return (&tls.Dialer{NetDialer: d, Config: t.TLSClientConfig}).DialContext(ctx, network, addr)
		})
	}
	return nil
}
