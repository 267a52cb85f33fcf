package tunnel

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
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Set holds the ends of the connections of other services to this instance. It is safe for
// concurrent use. Its zero value is ready to use.
type Set struct {
	mu      sync.Mutex
	open    map[id]*End
	closed  bool
	running sync.WaitGroup // counts the ends in open
}

// Max is the maximum number of connections in a Set.
const Max = 128

// ErrStops is the error of connections that end because their instance stops.
var ErrStops = rpc.Errorf(contract.CodeUnavailable, "the instance stops")

// id identifies a connection. Tenant and service are those in the queries' subjects; the NATS
// server has checked the service.
type id struct{ tenant, service, name string }

// End is the end of a connection at this instance: Set.Write writes to it, and Send reads from it.
type End struct {
	net.Conn
	Cancel context.CancelFunc // ends what uses the connection
	left   atomic.Bool
	used   atomic.Int64 // time of the last query that wrote, in nanoseconds since 1970

	mu sync.Mutex
	n  int64 // number of the last query that wrote
}

// Left reports whether the sender has closed the connection.
func (e *End) Left() bool { return e.left.Load() }

// Used returns the time of the last query that wrote, or that of Set.Add.
func (e *End) Used() time.Time { return time.Unix(0, e.used.Load()) }

// Add registers the end of a connection, whose name is that in the query with the context ctx,
// until remove is called.
func (s *Set) Add(ctx context.Context, name string, e *End) (remove func(), err error) {
	key := id{transient.Tenant(ctx), transient.From(ctx), name}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !contract.Token(name):
		return nil, rpc.Errorf(contract.CodeInvalidInput, "connection_id: want a name")
	case s.closed:
		return nil, ErrStops
	case len(s.open) >= Max:
		return nil, rpc.Errorf(contract.CodeUnavailable, "the instance has %d such connections; repeat the request later", Max)
	case s.open[key] != nil:
		return nil, rpc.Errorf(contract.CodeInvalidInput, "connection_id: is in use")
	}
	if s.open == nil {
		s.open = map[id]*End{}
	}
	e.used.Store(time.Now().UnixNano())
	s.open[key] = e
	s.running.Add(1)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, key)
		s.running.Done()
	}, nil
}

// Stopped reports whether Close was called.
func (s *Set) Stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close ends all connections, and waits until they are removed. Later ones are refused.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	for _, e := range s.open {
		e.Cancel()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// Write handles the query number n that writes bytes to a connection, or closes it after them.
// Bytes that were not read at the deadline of ctx are an error.
func (s *Set) Write(ctx context.Context, name string, n int64, data []byte, last bool) (bool, error) {
	s.mu.Lock()
	e := s.open[id{transient.Tenant(ctx), transient.From(ctx), name}]
	s.mu.Unlock()
	if e == nil {
		return false, rpc.Errorf(contract.CodeNotFound, "no connection %s", name)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if n != e.n+1 {
		return false, rpc.Errorf(contract.CodeInvalidInput, "n: want %d", e.n+1)
	}
	e.n = n
	e.used.Store(time.Now().UnixNano())
	if end, ok := ctx.Deadline(); ok {
		_ = e.SetWriteDeadline(end)
	}
	if len(data) > 0 {
		if _, err := e.Conn.Write(data); err != nil {
			return false, err
		}
	}
	if last {
		e.left.Store(true)
		_ = e.Conn.Close()
	}
	return true, nil
}

// Send writes a zero byte, which reports that the connection is open, hello, and then the bytes of
// the connection, until either side closes it. If there are none for the time beat, it writes an empty
// frame, so that the sender of the query notices if this process ends.
func (e *End) Send(w io.Writer, hello []byte, beat time.Duration) error {
	if _, err := w.Write(append([]byte{0}, hello...)); err != nil {
		return err
	}
	buf := make([]byte, pieceSize)
	for {
		_ = e.SetReadDeadline(time.Now().Add(beat))
		n, err := e.Read(buf)
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
