// Package endpoint connects services to servers that the operator has configured, through
// the egress-broker. The service names an endpoint; the broker decides by its own
// configuration what can be reached, and records each flow. With HTTPS, TLS is between the
// service and the server, so that the broker reads neither paths nor secrets.
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Transport is an http.RoundTripper whose connections lead to the proxy of an endpoint, through any
// running instance of the egress-broker. Each request has a connection of its own.
type Transport struct{ *http.Transport }

// New returns a transport whose connections lead to the proxy of the named endpoint. Flows are
// recorded in the tenant of queries, with reference: the id of the content that is sent, the id of
// the call that sends the request, or "".
func New(queries *rpc.Client, name, reference string) *Transport {
	return &Transport{&http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: services.EgressBroker}),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, queries, name, reference)
		},
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, r *http.Response) error {
			return Refusal(name, r)
		},
		DisableKeepAlives:   true,
		TLSHandshakeTimeout: handshakeTime,
	}}
}

// maxTries is the maximum number of connections for one request.
const maxTries = 3

// RoundTrip implements http.RoundTripper. A request that the broker does not permit fails with an
// error that wraps *Denied. However, a request with plain HTTP to an endpoint that exists gets a
// response, for which Refusal returns the error. If the connection to the broker breaks, RoundTrip
// sends the request through another connection, of another broker if one runs, provided that it was
// not sent before, or that its method is GET or HEAD and no response has begun. Otherwise the error
// of RoundTrip, or that of reading the response, wraps *Lost 2.5 s after the end of the
// broker.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var failed []string
	for {
		var sent atomic.Bool
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
		resp, err := t.Transport.RoundTrip(r.WithContext(context.WithValue(ctx, failedKey{}, failed)))
		lost := (*Lost)(nil)
		if !errors.As(err, &lost) || r.Context().Err() != nil || sent.Load() && r.Method != http.MethodGet && r.Method != http.MethodHead {
			return resp, err
		}
		if failed = append(failed, lost.Instance); len(failed) == maxTries {
			return nil, err
		}
		if r.Body != nil && r.Body != http.NoBody {
			if r.GetBody == nil {
				return nil, err
			}
			body, e := r.GetBody()
			if e != nil {
				return nil, errors.Join(err, e)
			}
			r = r.WithContext(r.Context())
			r.Body = body
		}
	}
}

// Lost is the error of a request whose connection to the egress-broker broke, for example because
// the broker ended. The server may have received the request. It may succeed when it is repeated.
type Lost struct {
	Instance string // instance of the broker
	Cause    error
}

// Error returns a text with the broker and the cause.
func (l *Lost) Error() string {
	return fmt.Sprintf("the connection through %s was interrupted: %v", l.Instance, l.Cause)
}

// Unwrap returns Cause.
func (l *Lost) Unwrap() error { return l.Cause }

// Denied is the error of a request that the egress-broker has not sent, because its
// configuration does not permit it.
type Denied struct {
	Endpoint string // name of the endpoint
	Reason   string // reason of the event endpoint_flow_denied
}

// Error returns a text with the reason and the setting that permits the request.
func (d *Denied) Error() string {
	fix := "add the server to " + egress.EndpointSetting(d.Endpoint)
	switch netrule.Reason(d.Reason) {
	case netrule.EndpointUnknown:
		fix = egress.EndpointSetting(d.Endpoint) + " is not set"
	case netrule.AddressBlocked:
		fix = "its name leads to an address of special use; if that is intended, add the network to egress-broker.networks"
	}
	return fmt.Sprintf("the egress-broker denied the request to the server (%s): %s", d.Reason, fix)
}

// Refusal returns an error with the reason if r, the response to a request to an endpoint, is one of
// the egress-broker and not of the server: the broker sent nothing to the server, or received no
// response from it. The error is a *Denied if the broker does not permit the request. A server can
// imitate such a response with the field Proxy-Status.
func Refusal(name string, r *http.Response) error {
	status := r.Header.Get("Proxy-Status")
	if r.StatusCode == http.StatusOK || status == "" {
		return nil
	}
	if reason := egress.Denial(r); reason != "" {
		return &Denied{name, reason}
	}
	return fmt.Errorf("the egress-broker returned %s: %.200s", r.Status, status)
}

// Maximum times of steps of a connection.
const (
	handshakeTime = 10 * time.Second // handshake of TLS
	connectTime   = 15 * time.Second // opening a tunnel, including the broker's attempts to connect
)
