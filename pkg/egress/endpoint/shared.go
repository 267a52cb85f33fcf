package endpoint

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
)

const (
	// sharedTime is the time after which a Shared opens new connections. The egress-broker ends a
	// connection after a minute, so a request that lasts less than half a minute is not interrupted.
	sharedTime  = 25 * time.Second
	sharedIdle  = 10 * time.Second // after this time without a request, a connection is closed
	sharedConns = 16               // maximum number of connections of a Shared, except those of requests that last longer than sharedTime
)

// Shared is an http.RoundTripper for many requests to one endpoint, such as those for the parts of
// artifacts. Its connections serve several requests each, one after the other. So a connection and
// not a request is a flow, also without TLS. Make one with NewShared.
type Shared struct {
	fresh func() *Transport

	mu      sync.Mutex
	current *Transport
	until   time.Time // when current is replaced
}

// NewShared returns a round tripper for requests to the named endpoint. Flows are recorded in the
// tenant of queries. conf is the configuration of TLS, or nil for the default; the caller must not
// change it later.
func NewShared(queries *rpc.Client, name string, conf *tls.Config) *Shared {
	return &Shared{fresh: func() *Transport {
		t := New(queries, name, "")
		t.Proxy, t.DisableKeepAlives, t.TLSClientConfig = nil, false, conf
		t.MaxConnsPerHost, t.MaxIdleConnsPerHost, t.IdleConnTimeout = sharedConns, sharedConns, sharedIdle
		t.DialContext = func(ctx context.Context, _, to string) (net.Conn, error) {
			c, err := dial(ctx, queries, name, "")
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, connectTime)
			defer cancel()
			c, refused, err := egress.Connect(ctx, c, to)
			if refused != nil {
				err = Refusal(name, refused)
			}
			return c, err
		}
		return t
	}}
}

// RoundTrip implements http.RoundTripper, as Transport.RoundTrip does.
func (s *Shared) RoundTrip(r *http.Request) (*http.Response, error) {
	return s.transport().RoundTrip(r)
}

// transport returns the transport for the next request.
func (s *Shared) transport() *Transport {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.current == nil || now.After(s.until) {
		if s.current != nil {
			s.current.CloseIdleConnections()
		}
		s.current, s.until = s.fresh(), now.Add(sharedTime)
	}
	return s.current
}
