package rpc

import (
	"context"
	"encoding/json"
	"io"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Server registers the query handlers of an instance and brings the view that they read
// up to date. Its fields are set before its first use.
type Server struct {
	Transport Registrar
	// View reports the state of the view that queries with a view read. If it is nil,
	// responses contain no state.
	View View
	// Fresh brings the view up to the ledger's end. It is called before each query that
	// names a view; if it is nil, queries read the view without an update.
	Fresh func(context.Context) error
}

// Registrar registers the handler of a verb for the services that may query it.
// *transient.Transport implements it.
type Registrar interface {
	Serve(verb string, h transient.Handler, callers ...string)
}

// View reports the state of a view of the ledger. *follow.Follower implements it.
type View interface {
	Position() uint64 // ledger sequence of the last entry applied
	Pending() uint64  // entries not applied yet
}

// Serve registers the handler of a query with one response. Each query is handled in a
// goroutine of its own, with a context that ends at the query's deadline. A request that
// cannot be decoded fails with code invalid_input, and one for a tenant outside the
// query's scope with not_found. If the error of the handler, or of Server.Fresh, is or
// wraps an *Error, the query fails with its code, and otherwise with unavailable.
func Serve[Q, A any](s *Server, q query.Query[Q, A], h func(context.Context, *Q) (A, error)) {
	handle(s, q.Info, func(ctx context.Context, req *Q, reply func(any) error) error {
		doc, err := h(ctx, req)
		if err != nil {
			return err
		}
		if b, ok := any(doc).([]byte); ok { // encoded as base64 in JSON, because reply would send a []byte as a binary frame
			raw, err := transient.Encode(b)
			if err != nil {
				return err
			}
			return reply(json.RawMessage(raw))
		}
		return reply(doc)
	})
}

// partSize is the size, in bytes of JSON, at which a part of a list is sent.
const partSize = 256 << 10

// ServeList registers the handler of a query whose response is a list. The handler calls
// add for each item, from one goroutine; the items are sent in parts of about 256 KiB
// while the handler runs. Errors are those of Serve; the caller may have received some
// parts before an error.
func ServeList[Q, I any](s *Server, q query.List[Q, I], h func(ctx context.Context, req *Q, add func(I) error) error) {
	handle(s, q.Info, func(ctx context.Context, req *Q, reply func(any) error) error {
		p := parts{reply: reply}
		if err := h(ctx, req, func(item I) error { return p.add(item) }); err != nil {
			return err
		}
		return p.flush()
	})
}

// parts collects list items and sends them in parts of about partSize bytes.
type parts struct {
	reply func(any) error
	items []json.RawMessage
	size  int
}

// add adds an item and sends the collected items if they have reached partSize. A
// json.RawMessage is sent unchanged, except that white space between tokens is removed.
func (p *parts) add(item any) error {
	raw, ok := item.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = transient.Encode(item); err != nil {
			return err
		}
	}
	p.items, p.size = append(p.items, raw), p.size+len(raw)
	if p.size < partSize {
		return nil
	}
	return p.flush()
}

// flush sends the collected items as one part. An empty part is not sent.
func (p *parts) flush() error {
	if len(p.items) == 0 {
		return nil
	}
	err := p.reply(p.items)
	p.items, p.size = nil, 0
	return err
}

// ServeBytes registers the handler of a query whose response is bytes. Each Write sends
// one frame and does not retain its argument; a handler that writes small pieces should
// buffer them. Errors are those of ServeList.
func ServeBytes[Q any](s *Server, q query.Bytes[Q], h func(ctx context.Context, req *Q, w io.Writer) error) {
	handle(s, q.Info, func(ctx context.Context, req *Q, reply func(any) error) error {
		return h(ctx, req, frames(reply))
	})
}

// frames is an io.Writer that sends each Write as one binary frame.
type frames func(any) error

// Write implements io.Writer.
func (f frames) Write(b []byte) (int, error) {
	if err := f(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// handle registers a handler that checks the scope of the query, decodes the request and
// brings the view up to date before it calls h. An absent request is the zero value of Q.
func handle[Q any](s *Server, q query.Info, h func(context.Context, *Q, func(any) error) error) {
	s.Transport.Serve(q.Verb, func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		if !q.Scope.Admits(transient.Standing(ctx)) {
			return Errorf(contract.CodeNotFound, "%s is not for tenant %s", q.Verb, transient.Tenant(ctx))
		}
		req := new(Q)
		if len(raw) > 0 {
			if err := json.Unmarshal(raw, req); err != nil {
				return Errorf(contract.CodeInvalidInput, "the request of %s: %v", q.Verb, err)
			}
		}
		if q.View != "" {
			if err := s.read(ctx, q.View, reply); err != nil {
				return err
			}
		}
		return h(ctx, req, reply)
	}, q.Callers...)
}

// read brings the view up to date if Fresh is set and, if View is set, adds the view's
// state to the response. It takes the state before the handler reads the view, so the
// response contains at least everything up to that position.
func (s *Server) read(ctx context.Context, name string, reply func(any) error) error {
	if s.Fresh != nil {
		if err := s.Fresh(ctx); err != nil {
			return err
		}
	}
	if s.View == nil {
		return nil
	}
	return reply(transient.At{View: name, Position: s.View.Position(), Lag: s.View.Pending()})
}
