package endpoint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/tunnel"
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
	return tunnel.Dial(ctx, &tunnel.Dialer{
		Queries: queries, Limit: limit, Silence: silence,
		Write: func(ctx context.Context, n int64, data []byte, last bool) error {
			_, err := rpc.Do(ctx, queries, egressbroker.ConnectionWriteQuery, egressbroker.ConnectionWriteRequest{ConnectionID: q.ConnectionID, N: n, Data: data, Close: last})
			return err
		},
		Broken: func(err error) error { return &Lost{to, err} },
	}, egressbroker.ConnectQuery, q)
}
