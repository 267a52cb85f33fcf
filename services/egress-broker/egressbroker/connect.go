package egressbroker

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/proxy"
)

const (
	maxTunnels    = 128             // connections of services to proxies of endpoints at a time
	tunnelTime    = time.Minute     // longest duration of a connection
	lastResponse  = 2 * time.Second // time for the server to end after the sender has closed its connection
	ledgerEndTime = 5 * time.Second // time to read the last sequence of the ledger
	maxReference  = 128             // bytes of a reference
	tunnelFrame   = 32 << 10        // maximum number of bytes of a frame to the sender
)

// tunnels is the set of the connections of services to the proxies of endpoints. Its zero
// value is ready to use.
type tunnels struct {
	mu      sync.Mutex
	open    map[tunnelID]*tunnel
	closed  bool
	running sync.WaitGroup // counts the handlers of the query connect
}

// tunnelID identifies a connection. Tenant and service are those in the queries' subjects;
// the NATS server has checked the service.
type tunnelID struct{ tenant, service, id string }

// tunnel is the sender's end of a connection. Its other end is a connection of the proxy.
type tunnel struct {
	net.Conn
	cancel context.CancelFunc
	left   atomic.Bool // the sender has closed the connection

	mu sync.Mutex
	n  int64 // number of the last write
}

// serve registers the handlers of the queries.
func (t *tunnels) serve(to *endpoints, transport rpc.Registrar) {
	at := &rpc.Server{Transport: transport}
	rpc.ServeBytes(at, events.ConnectQuery, to.connect)
	rpc.Serve(at, events.ConnectionWriteQuery, t.write)
}

// add registers a connection until remove is called.
func (t *tunnels) add(id tunnelID, x *tunnel) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return errStops
	case len(t.open) >= maxTunnels:
		return rpc.Errorf(contract.CodeUnavailable, "the egress-broker has %d connections to endpoints; repeat the request later", maxTunnels)
	case t.open[id] != nil:
		return rpc.Errorf(contract.CodeInvalidInput, "connection_id: is in use")
	}
	if t.open == nil {
		t.open = map[tunnelID]*tunnel{}
	}
	t.open[id] = x
	t.running.Add(1)
	return nil
}

// errStops is the error of the query connect while the broker stops.
var errStops = rpc.Errorf(contract.CodeUnavailable, "the egress-broker stops")

// stopped reports whether close was called.
func (t *tunnels) stopped() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

func (t *tunnels) remove(id tunnelID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, id)
	t.running.Done()
}

// close ends all connections, and waits until their flows are recorded. Later connections
// are refused.
func (t *tunnels) close() {
	t.mu.Lock()
	t.closed = true
	for _, x := range t.open {
		x.cancel()
	}
	t.mu.Unlock()
	t.running.Wait()
}

// connect handles the query connect: it opens a proxy for one connection, and sends to w the bytes
// that the proxy writes to the connection, until the connection ends, for at most tunnelTime.
func (es *endpoints) connect(ctx context.Context, q *events.ConnectRequest, w io.Writer) error {
	x := sending{Tenant: transient.Tenant(ctx), Endpoint: q.Endpoint, Sender: transient.From(ctx), Reference: q.Reference}
	if !contract.Token(q.ConnectionID) || !contract.Token(q.Endpoint) || len(q.Reference) > maxReference {
		return rpc.Errorf(contract.CodeInvalidInput, "connection_id and endpoint must be names, and reference at most %d bytes", maxReference)
	}
	to, known := es.named[q.Endpoint]
	if !known {
		es.deny(ctx, x)
		return rpc.Errorf(contract.CodeNotFound, "the egress-broker has no endpoint %s in its configuration", q.Endpoint)
	}
	ctx, cancel := context.WithTimeout(ctx, tunnelTime)
	defer cancel()
	own, other := net.Pipe()
	t := &tunnel{Conn: own, cancel: cancel}
	id := tunnelID{x.Tenant, x.Sender, q.ConnectionID}
	p, err := es.proxy(x, to, tunnelTime, func() netrule.Reason { return t.whyEnded(ctx) })
	if err != nil {
		return err
	}
	if err := es.tunnels.add(id, t); err != nil {
		return err
	}
	defer es.tunnels.remove(id)
	l := newOneConn(other, &t.left)
	served := make(chan error, 1)
	go func() { served <- p.Serve(ctx, l) }()
	stop := context.AfterFunc(ctx, func() { _ = own.Close() })
	defer stop()
	err = t.send(w)
	go func() {
		l.wait(ctx, lastResponse) // the flow ends by itself if both sides have closed it
		cancel()
	}()
	err = errors.Join(err, beat(w, served))
	if es.tunnels.stopped() { // the sender must not take this for the end of a response
		err = errors.Join(errStops, err)
	}
	return err
}

// whyEnded returns the reason of a flow that ended because its proxy did.
func (t *tunnel) whyEnded(ctx context.Context) netrule.Reason {
	switch {
	case t.left.Load():
		return proxy.ClientFailed
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return proxy.TimedOut
	}
	return proxy.Cancelled
}

// send writes a zero byte, which reports that the connection is open, and then the bytes that the
// proxy writes, until either side closes the connection. If there are none for endpoint.Beat, it
// writes an empty frame, so that the sender notices if this process ends.
func (t *tunnel) send(w io.Writer) error {
	if _, err := w.Write([]byte{0}); err != nil {
		return err
	}
	buf := make([]byte, tunnelFrame)
	for {
		_ = t.SetReadDeadline(time.Now().Add(endpoint.Beat))
		n, err := t.Read(buf)
		quiet := errors.Is(err, os.ErrDeadlineExceeded)
		if n > 0 || quiet {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err != nil && !quiet {
			return nil // closed by either side
		}
	}
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

// write handles the query connection_write.
func (t *tunnels) write(ctx context.Context, q *events.ConnectionWriteRequest) (bool, error) {
	t.mu.Lock()
	x := t.open[tunnelID{transient.Tenant(ctx), transient.From(ctx), q.ConnectionID}]
	t.mu.Unlock()
	if x == nil {
		return false, rpc.Errorf(contract.CodeNotFound, "no connection %s", q.ConnectionID)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if q.N != x.n+1 {
		return false, rpc.Errorf(contract.CodeInvalidInput, "n: want %d", x.n+1)
	}
	x.n = q.N
	if end, ok := ctx.Deadline(); ok {
		_ = x.SetWriteDeadline(end)
	}
	if _, err := x.Conn.Write(q.Data); len(q.Data) > 0 && err != nil {
		return false, err
	}
	if q.Close {
		x.left.Store(true)
		_ = x.Conn.Close()
	}
	return true, nil
}

// oneConn is a listener that returns one connection.
type oneConn struct {
	conn   chan net.Conn
	ended  chan struct{} // closed when that connection is closed
	closed chan struct{}
	once   sync.Once
}

func newOneConn(c net.Conn, left *atomic.Bool) *oneConn {
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
	left  *atomic.Bool
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
	if err != nil && c.left.Load() {
		return len(b), nil
	}
	return n, err
}

// Close implements net.Conn.
func (c *notified) Close() error {
	c.once.Do(func() { close(c.ended) })
	return c.Conn.Close()
}
