// Package endpoint connects services to servers that the operator has configured, through
// the egress-broker. The service names an endpoint; the broker decides by its own
// configuration what can be reached, and records each flow. With HTTPS, TLS is between the
// service and the server, so that the broker reads neither paths nor secrets.
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/egressbroker"
)

// Transport returns a transport whose connections lead to the proxy of the named endpoint. Each
// request has a connection of its own, whose flow is recorded in the tenant of queries, with
// reference: the id of the content that is sent, the id of the call that sends the request, or "".
// A request that the broker does not permit fails with an error that wraps *Denied. However, a
// request with plain HTTP to an endpoint that exists gets a response, for which Refusal returns
// the error.
func Transport(queries *rpc.Client, name, reference string) *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: services.EgressBroker}),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, queries, name, reference)
		},
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, r *http.Response) error {
			return Refusal(name, r)
		},
		DisableKeepAlives:   true,
		TLSHandshakeTimeout: handshakeTime,
	}
}

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

// detailsRE matches the reason in a field Proxy-Status of the egress-broker.
var detailsRE = regexp.MustCompile(`details="([a-z_]{1,64})"`)

// Refusal returns an error with the reason if r, the response to a request to an endpoint, is one of
// the egress-broker and not of the server: the broker sent nothing to the server, or received no
// response from it. The error is a *Denied if the broker does not permit the request. A server can
// imitate such a response with the field Proxy-Status.
func Refusal(name string, r *http.Response) error {
	status := r.Header.Get("Proxy-Status")
	if r.StatusCode == http.StatusOK || status == "" {
		return nil
	}
	if m := detailsRE.FindStringSubmatch(status); m != nil && r.StatusCode == http.StatusForbidden {
		return &Denied{name, m[1]}
	}
	return fmt.Errorf("the egress-broker returned %s: %.200s", r.Status, status)
}

const (
	openTime      = 5 * time.Second  // maximum time until the egress-broker has opened a connection
	handshakeTime = 10 * time.Second // maximum time of a TLS handshake
	pieceSize     = 32 << 10         // maximum number of bytes of a write
)

// dial opens a connection to the proxy of an endpoint. It fails if the broker does not respond
// within openTime or before ctx ends. The open connection does not end with ctx, but at the latest
// rpc.Patience after the deadline of the query connect.
func dial(ctx context.Context, queries *rpc.Client, name, reference string) (net.Conn, error) {
	to, err := queries.Live(ctx, services.EgressBroker)
	if err != nil {
		return nil, err
	}
	queries = queries.To(to.Name) // the connection is in the memory of this instance
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	late := time.AfterFunc(openTime, cancel)
	given := context.AfterFunc(ctx, cancel)
	id := emit.NewID(contract.IDConnection)
	in, err := rpc.Bytes(life, queries, egressbroker.ConnectQuery, egressbroker.ConnectRequest{ConnectionID: id, Endpoint: name, Reference: reference})
	if err == nil {
		_, err = io.ReadFull(in, make([]byte, 1))
	}
	if rpc.CodeOf(err) == contract.CodeNotFound {
		err = &Denied{name, string(netrule.EndpointUnknown)}
	}
	if !late.Stop() || !given() {
		err = errors.Join(err, errors.New("the egress-broker did not open the connection in time"))
	}
	if err != nil {
		cancel()
		if in != nil {
			_ = in.Close()
		}
		return nil, err
	}
	own, far := net.Pipe()
	c := &conn{Conn: own}
	go func() {
		_, err := io.Copy(far, in)
		c.fail(err)
		_ = far.Close()
	}()
	go func() {
		err := write(life, queries, id, far)
		c.fail(err)
		_ = far.Close()
		_ = in.Close()
		cancel()
	}()
	return c, nil
}

// write sends the bytes of from to the broker until a query fails or from ends. At the end of from,
// it closes the broker's end of the connection with the given id, and returns nil.
func write(ctx context.Context, queries *rpc.Client, id string, from io.Reader) error {
	buf := make([]byte, pieceSize)
	for n := int64(1); ; n++ {
		size, end := from.Read(buf)
		_, err := rpc.Do(ctx, queries, egressbroker.ConnectionWriteQuery, egressbroker.ConnectionWriteRequest{ConnectionID: id, N: n, Data: buf[:size], Close: end != nil})
		if end != nil {
			return nil // the broker may have closed the connection already
		}
		if err != nil {
			return err
		}
	}
}

// conn is a connection whose Read returns the error that broke it instead of io.EOF.
type conn struct {
	net.Conn
	err atomic.Pointer[error]
}

// fail sets the error that Read returns instead of io.EOF, unless it is set. It ignores nil and
// io.ErrClosedPipe.
func (c *conn) fail(err error) {
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		c.err.CompareAndSwap(nil, &err)
	}
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if e := c.err.Load(); e != nil && errors.Is(err, io.EOF) {
		err = *e
	}
	return n, err
}
