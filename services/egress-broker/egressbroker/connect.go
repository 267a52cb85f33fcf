package egressbroker

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/pkg/tunnel"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/proxy"
)

const (
	tunnelTime    = time.Minute     // longest duration of a connection
	lastResponse  = 2 * time.Second // time for the server to end after the sender has closed its connection
	ledgerEndTime = 5 * time.Second // time to read the last sequence of the ledger
	maxReference  = 128             // bytes of a reference
)

// tunnels is the set of the connections of services to the proxies of endpoints.
type tunnels struct{ tunnel.Set }

// serve registers the handlers of the queries.
func (t *tunnels) serve(to *endpoints, transport rpc.Registrar) {
	at := &rpc.Server{Transport: transport}
	rpc.ServeBytes(at, events.ConnectQuery, to.connect)
	rpc.Serve(at, events.ConnectionWriteQuery, t.write)
}

// write handles the query connection_write.
func (t *tunnels) write(ctx context.Context, q *events.ConnectionWriteRequest) (bool, error) {
	return t.Write(ctx, q.ConnectionID, q.N, q.Data, q.Close)
}

// connect handles the query connect: it opens a proxy for one connection, and sends to w the bytes
// that the proxy writes to the connection, until the connection ends, for at most tunnelTime.
func (es *endpoints) connect(ctx context.Context, q *events.ConnectRequest, w io.Writer) error {
	x := sending{Tenant: transient.Tenant(ctx), Endpoint: q.Endpoint, Sender: transient.From(ctx), Reference: q.Reference}
	if !contract.Token(q.ConnectionID) || !contract.Token(q.Endpoint) || len(q.Reference) > maxReference {
		return rpc.Errorf(contract.CodeInvalidInput, "connection_id and endpoint must be names, and reference at most %d bytes", maxReference)
	}
	to, known := es.named[q.Endpoint]
	if !known || !egress.MaySend(x.Sender, x.Endpoint) {
		es.deny(ctx, x)
		return rpc.Errorf(contract.CodeNotFound, "the egress-broker has no endpoint %s for %s in its configuration", q.Endpoint, x.Sender)
	}
	ctx, cancel := context.WithTimeout(ctx, tunnelTime)
	defer cancel()
	own, other := net.Pipe()
	t := &tunnel.End{Conn: own, Cancel: cancel}
	p, err := es.proxy(x, to, limitsOf(x.Endpoint), func() netrule.Reason { return whyEnded(ctx, t) })
	if err != nil {
		return err
	}
	remove, err := es.tunnels.Add(ctx, q.ConnectionID, t)
	if err != nil {
		return err
	}
	defer remove()
	l := newOneConn(other, t.Left)
	served := make(chan error, 1)
	go func() { served <- p.Serve(ctx, l) }()
	stop := context.AfterFunc(ctx, func() { _ = own.Close() })
	defer stop()
	err = t.Send(w, nil, endpoint.Beat)
	go func() {
		l.wait(ctx, lastResponse) // the flow ends by itself if both sides have closed it
		cancel()
	}()
	err = errors.Join(err, beat(w, served))
	if es.tunnels.Stopped() { // the sender must not take this for the end of a response
		err = errors.Join(tunnel.ErrStops, err)
	}
	return err
}

// whyEnded returns the reason of a flow that ended because its proxy did.
func whyEnded(ctx context.Context, t *tunnel.End) netrule.Reason {
	switch {
	case t.Left():
		return proxy.ClientFailed
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return proxy.TimedOut
	}
	return proxy.Cancelled
}

// beat writes an empty frame every endpoint.Beat until served returns a value, which it returns.
func beat(w io.Writer, served <-chan error) error {
	tick := time.NewTicker(endpoint.Beat)
	defer tick.Stop()
	for {
		select {
		case err := <-served:
			return err
		case <-tick.C:
			_, _ = w.Write(nil) // the sender may have left
		}
	}
}

// oneConn is a listener that returns one connection.
type oneConn struct {
	conn   chan net.Conn
	ended  chan struct{} // closed when that connection is closed
	closed chan struct{}
	once   sync.Once
}

func newOneConn(c net.Conn, left func() bool) *oneConn {
	l := &oneConn{conn: make(chan net.Conn, 1), ended: make(chan struct{}), closed: make(chan struct{})}
	l.conn <- &notified{Conn: c, ended: l.ended, left: left}
	return l
}

// Accept implements net.Listener.
func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (*oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "endpoint", Net: "unix"} }

// wait waits until the connection is closed, d has passed or ctx ends.
func (l *oneConn) wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-l.ended:
	case <-t.C:
	case <-ctx.Done():
	}
}

// notified is a connection that closes a channel when it is closed. Once the sender has closed the
// connection, writes of the proxy are discarded and succeed, so that the end of a response, such as
// that of TLS, is not recorded as a failure.
type notified struct {
	net.Conn
	ended chan struct{}
	left  func() bool
	once  sync.Once
}

// Read implements net.Conn. It returns io.EOF once the proxy has closed the connection. The proxy
// does so when the server has sent everything, because the connection has no half-closed state;
// that the sender cannot send more then is no failure either.
func (c *notified) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if errors.Is(err, io.ErrClosedPipe) {
		err = io.EOF
	}
	return n, err
}

// Write implements net.Conn.
func (c *notified) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && c.left() {
		return len(b), nil
	}
	return n, err
}

// Close implements net.Conn.
func (c *notified) Close() error {
	c.once.Do(func() { close(c.ended) })
	return c.Conn.Close()
}
