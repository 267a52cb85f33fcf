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

// bodyWait is how long a stored body may come behind its proposal.
const bodyWait = 2 * time.Second

// bodyReader reads a call's body.
type bodyReader = func(ctx context.Context) ([]byte, error)

// fetch begins to read a body that is stored by itself, while the decision is
// checked and the call claimed; nil: there is none. Reading is no effect.
func (x *Executor) fetch(ctx context.Context, c *contract.Call) bodyReader {
	if c.Body == nil || c.Body.Store != contract.StoreObject {
		return nil
	}
	var body []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		body, err = x.body(ctx, "", "", c)
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

// body reads a call's body from where it is kept or, where it is kept nowhere,
// from the instance of service that proposed.
func (x *Executor) body(ctx context.Context, service, instance string, c *contract.Call) ([]byte, error) {
	if c.Body == nil {
		return nil, errors.New("the call has no body")
	}
	ctx, cancel := context.WithTimeout(ctx, bodyWait)
	defer cancel()
	if c.Body.Store != contract.StoreWithheld {
		for {
			b, err := x.Blobs.Open(ctx, c.Body)
			if !errors.Is(err, contract.ErrErased) || ctx.Err() != nil {
				return b, err
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	in, err := rpc.Bytes(ctx, (&rpc.Client{Box: x.Box}).To(instance), query.BodyQuery.Of(service), query.BodyRequest{CallID: c.ID})
	if err != nil {
		return nil, fmt.Errorf("the instance that proposed does not hand the body over: %w", err)
	}
	defer in.Close()
	body, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("the instance that proposed does not hand the body over: %w", err)
	}
	return c.Body.Open(body)
}
