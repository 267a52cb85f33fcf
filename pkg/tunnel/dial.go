// Package tunnel transports the bytes of a connection between two services by queries. The
// response of one query is the bytes to its sender, and each query of another kind transports
// bytes in the other direction. Dial is the sender's side; a Set holds the ends at the service
// that handles the queries.
package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
)

const pieceSize = 32 << 10 // maximum number of bytes of a frame or a query

// Dialer opens connections to one instance of a service.
type Dialer struct {
	Queries *rpc.Client   // leads to the instance
	Limit   time.Duration // maximum time until the connection is open
	Silence time.Duration // time without a frame after which the connection has broken
	Every   time.Duration // maximum time between two queries that write, also without bytes; 0: only bytes are written
	// Write sends the query number n, from 1, with bytes. If last is set, the service closes its end.
	Write func(ctx context.Context, n int64, data []byte, last bool) error
	// Broken returns the error of Read and Write for the error that broke the connection.
	Broken func(error) error
}

// Dial opens a connection by a query whose response begins with a zero byte. The connection does
// not end with ctx, but at the latest rpc.Patience after the deadline of the query. The errors
// are those of rpc.Bytes; if the connection was not open within d.Limit, the code is timeout.
func Dial[Q any](ctx context.Context, d *Dialer, q query.Bytes[Q], req Q) (net.Conn, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	try, done := context.WithTimeout(ctx, d.Limit)
	defer done()
	given := context.AfterFunc(try, cancel)
	in, err := rpc.Bytes(life, d.Queries, q, req)
	if err == nil {
		_, err = io.ReadFull(in, make([]byte, 1))
	}
	if !given() {
		err = errors.Join(rpc.Errorf(contract.CodeTimeout, "%s did not open the connection in time", q.Service), err)
	}
	if err != nil {
		cancel()
		if in != nil {
			_ = in.Close()
		}
		if rpc.CodeOf(err) == contract.CodeTimeout { // it may still open
			go func() { _ = d.Write(context.WithoutCancel(ctx), 1, nil, true) }()
		}
		return nil, err
	}
	in.Expect(d.Silence)
	own, far := net.Pipe()
	c := &conn{Conn: own, broken: d.Broken}
	go func() {
		_, err := io.Copy(far, in)
		c.fail(err)
		_ = far.Close()
		cancel()
	}()
	go func() {
		err := d.write(life, far)
		c.fail(err)
		_ = far.Close()
		_ = in.Close()
		cancel()
	}()
	return c, nil
}

// write sends the bytes of from until a query fails or from ends. At the end of from, it closes
// the end at the service, and returns nil: the service may have closed it already.
func (d *Dialer) write(ctx context.Context, from net.Conn) error {
	buf := make([]byte, pieceSize)
	for n := int64(1); ; n++ {
		if d.Every > 0 {
			_ = from.SetReadDeadline(time.Now().Add(d.Every))
		}
		size, end := from.Read(buf)
		if end != nil && !errors.Is(end, os.ErrDeadlineExceeded) {
			_ = d.Write(context.WithoutCancel(ctx), n, buf[:size], true) // ctx may have ended
			return nil
		}
		if err := d.Write(ctx, n, buf[:size], false); err != nil {
			return err
		}
	}
}

// conn is a connection whose Read returns the error that broke it instead of io.EOF.
type conn struct {
	net.Conn
	broken func(error) error
	err    atomic.Pointer[error]
}

// fail sets the error that Read returns instead of io.EOF, unless it is set. It ignores nil and
// io.ErrClosedPipe.
func (c *conn) fail(err error) {
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		err = c.broken(err)
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

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if e := c.err.Load(); e != nil && err != nil {
		err = *e
	}
	return n, err
}
