package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/egressbroker"
)

const (
	openTime = 5 * time.Second // maximum time until an egress-broker has opened a connection
	tryTime  = time.Second     // maximum time of the first attempt with each broker; it doubles with each round
	silence  = 10 * Beat       // time without a frame after which a connection has broken
)

// Beat is the maximum time between two frames that the egress-broker sends to the client of a
// connection. Without bytes of the proxy, it sends empty ones.
const Beat = 250 * time.Millisecond

// failedKey is the context key of the names of the brokers whose connections for the same request
// have broken.
type failedKey struct{}

// dial opens a connection to the proxy of an endpoint, in a broker that it selects at random from
// the running ones. If that does not open the connection, dial selects another one, and when there is
// no other it begins again. It fails with a *Denied if there is no such endpoint, with the error of
// queries if no broker runs, and otherwise if no broker opens the connection within openTime or
// before ctx ends. The open connection does not end with ctx, but at the latest rpc.Patience after
// the deadline of the query connect.
func dial(ctx context.Context, queries *rpc.Client, name, reference string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	var before error
	for limit := tryTime; ; limit *= 2 {
		brokers, err := order(ctx, queries)
		if err != nil {
			return nil, errors.Join(err, before)
		}
		for _, to := range brokers {
			c, err := open(ctx, queries.To(to), to, request(name, reference), limit)
			switch code := rpc.CodeOf(err); {
			case err == nil:
				return c, nil
			case code == contract.CodeNotFound:
				return nil, &Denied{name, string(netrule.EndpointUnknown)}
			case code != contract.CodeUnavailable && code != contract.CodeTimeout:
				return nil, err
			}
			before = err
			if ctx.Err() != nil {
				return nil, fmt.Errorf("no egress-broker opened the connection in time: %w", before)
			}
		}
		select {
		case <-ctx.Done(): // the next attempt fails
		case <-time.After(again):
		}
	}
}

// again is the time between two rounds of dial: a broker may refuse connections at once.
const again = 100 * time.Millisecond

// order returns the names of the running brokers in random order, except that those whose
// connections for the same request have broken are the last.
func order(ctx context.Context, queries *rpc.Client) ([]string, error) {
	running, err := queries.Running(ctx, services.EgressBroker)
	if err != nil {
		return nil, err
	}
	var first, last []string
	failed, _ := ctx.Value(failedKey{}).([]string)
	for _, i := range rand.Perm(len(running)) {
		if to := running[i].Name; slices.Contains(failed, to) {
			last = append(last, to)
		} else {
			first = append(first, to)
		}
	}
	return append(first, last...), nil
}

// request returns the request for a new connection.
func request(name, reference string) egressbroker.ConnectRequest {
	return egressbroker.ConnectRequest{ConnectionID: emit.NewID(contract.IDConnection), Endpoint: name, Reference: reference}
}

// open opens a connection in the broker that queries leads to, within limit.
func open(ctx context.Context, queries *rpc.Client, to string, q egressbroker.ConnectRequest, limit time.Duration) (net.Conn, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	try, done := context.WithTimeout(ctx, limit)
	defer done()
	given := context.AfterFunc(try, cancel)
	in, err := rpc.Bytes(life, queries, egressbroker.ConnectQuery, q)
	if err == nil {
		_, err = io.ReadFull(in, make([]byte, 1))
	}
	if !given() {
		err = errors.Join(rpc.Errorf(contract.CodeTimeout, "%s did not open the connection in time", to), err)
	}
	if err != nil {
		cancel()
		if in != nil {
			_ = in.Close()
		}
		if rpc.CodeOf(err) == contract.CodeTimeout { // it may still open
			go closeAt(context.WithoutCancel(ctx), queries, q.ConnectionID, 1, nil)
		}
		return nil, err
	}
	in.Expect(silence)
	own, far := net.Pipe()
	c := &conn{Conn: own, broker: to}
	go func() {
		_, err := io.Copy(far, in)
		c.fail(err)
		_ = far.Close()
		cancel()
	}()
	go func() {
		err := write(life, queries, q.ConnectionID, far)
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
		if end != nil {
			closeAt(context.WithoutCancel(ctx), queries, id, n, buf[:size]) // ctx may have ended
			return nil
		}
		if _, err := rpc.Do(ctx, queries, egressbroker.ConnectionWriteQuery, egressbroker.ConnectionWriteRequest{ConnectionID: id, N: n, Data: buf[:size]}); err != nil {
			return err
		}
	}
}

// closeAt closes the broker's end of a connection after the last bytes, with query number n. It
// ignores errors: the broker may have closed the connection already.
func closeAt(ctx context.Context, queries *rpc.Client, id string, n int64, last []byte) {
	_, _ = rpc.Do(ctx, queries, egressbroker.ConnectionWriteQuery, egressbroker.ConnectionWriteRequest{ConnectionID: id, N: n, Data: last, Close: true})
}

// conn is a connection through a broker whose Read returns the error that broke it, a *Lost, instead
// of io.EOF.
type conn struct {
	net.Conn
	broker string
	err    atomic.Pointer[Lost]
}

// fail sets the error that Read returns instead of io.EOF, unless it is set. It ignores nil and
// io.ErrClosedPipe.
func (c *conn) fail(err error) {
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		c.err.CompareAndSwap(nil, &Lost{c.broker, err})
	}
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if e := c.err.Load(); e != nil && errors.Is(err, io.EOF) {
		err = e
	}
	return n, err
}

// Write implements net.Conn. After the connection broke, its error is a *Lost.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if e := c.err.Load(); e != nil && err != nil {
		err = e
	}
	return n, err
}
