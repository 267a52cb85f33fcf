// Package rpctest makes responses to queries for tests of packages that send them.
package rpctest

import (
	"context"

	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// response is the response to one query.
type response struct {
	doc any
	end error
}

// Response returns a response of one document, or of none if doc is nil, that ends with the error
// end, or as a complete one does if end is nil.
func Response(doc any, end error) rpc.Frames {
	if end == nil {
		end = transient.ErrEnd
	}
	return &response{doc, end}
}

// Next implements rpc.Frames.
func (r *response) Next(ctx context.Context) (transient.Frame, error) {
	if err := ctx.Err(); err != nil {
		return transient.Frame{}, err
	}
	if r.doc == nil {
		return transient.Frame{}, r.end
	}
	b, err := transient.Encode(r.doc)
	r.doc = nil
	return transient.Frame{Kind: transient.Data, Data: b}, err
}

// Close implements rpc.Frames.
func (*response) Close() {}
