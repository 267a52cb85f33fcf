package execute

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
)

// bodyWait is the maximum time to wait for a body, which is stored concurrently with its
// proposal.
const bodyWait = 2 * time.Second

// bodyReader returns a call's body. It waits for the body at most until ctx ends.
type bodyReader = func(ctx context.Context) ([]byte, error)

// fetch starts to read the body of a call from the object store while the decision is
// checked and the call is claimed, to save time; reading has no effect. It returns nil
// if the call has no body in the object store.
func (x *Executor) fetch(ctx context.Context, tenant string, c *contract.Call) bodyReader {
	if c.Body == nil || c.Body.Store != contract.StoreObject {
		return nil
	}
	var body []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		body, err = x.body(ctx, tenant, "", "", c)
	}()
	return func(ctx context.Context) ([]byte, error) {
		select {
		case <-done:
			return body, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// body returns the body of a call of the given tenant. A withheld body is requested from
// instance, the instance of service that proposed the call; any other is read from the
// call or from the object store. The bytes are checked against the commitment in the
// call. body waits at most bodyWait, and returns an error if the call has no body.
func (x *Executor) body(ctx context.Context, tenant, service, instance string, c *contract.Call) ([]byte, error) {
	if c.Body == nil {
		return nil, errors.New("the call has no body")
	}
	ctx, cancel := context.WithTimeout(ctx, bodyWait)
	defer cancel()
	if c.Body.Store != contract.StoreWithheld {
		for {
			b, err := x.Blobs.In(tenant).Open(ctx, c.Body)
			if !errors.Is(err, contract.ErrErased) || ctx.Err() != nil {
				return b, err
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	in, err := rpc.Bytes(ctx, (&rpc.Client{Transport: x.Transport}).In(tenant).To(instance), query.BodyQuery.Of(service), query.BodyRequest{CallID: c.ID})
	if err != nil {
		return nil, fmt.Errorf("cannot read the body from the instance that proposed the call: %w", err)
	}
	defer in.Close()
	body, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("cannot read the body from the instance that proposed the call: %w", err)
	}
	return c.Body.Open(body)
}
