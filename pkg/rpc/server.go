package rpc

import (
	"context"
	"encoding/json"
	"io"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Server is what the queries of an instance have in common.
type Server struct {
	Box Registrar
	// View is where queries that name a view read; nil: their responses say no
	// position.
	View View
	// Fresh brings the view to the ledger's end before a query that names a view is
	// handled; nil: the view is read as it is.
	Fresh func(context.Context) error
}

// Registrar takes the handlers of verbs. *transient.Box is one.
type Registrar interface {
	Serve(verb string, h transient.Handler, callers ...string)
}

// View says where a view is. *follow.Follower is one.
type View interface {
	Position() uint64 // ledger sequence of the last entry applied
	Pending() uint64  // entries that wait
}

// Serve registers the handler of a query with one response. The handler runs on a
// goroutine of its own until the caller's deadline. A request that does not decode
// fails with invalid_input; an error of the handler that is an *Error keeps its
// code, any other is unavailable.
func Serve[Q, A any](s *Server, q query.Query[Q, A], h func(context.Context, *Q) (A, error)) {
	handle(s, q.Info, func(ctx context.Context, req *Q, reply func(any) error) error {
		doc, err := h(ctx, req)
		if err != nil {
			return err
		}
		if b, ok := any(doc).([]byte); ok { // a document of base64; the bytes themselves would be a binary frame
			raw, err := transient.Encode(b)
			if err != nil {
				return err
			}
			return reply(json.RawMessage(raw))
		}
		return reply(doc)
	})
}

// partSize is about how large a part of a list is, in bytes of JSON.
const partSize = 256 << 10

// ServeList registers the handler of a query whose response is a list. The handler
// calls add for each item; parts of some 256 KiB are sent on the way. Errors are
// those of Serve; a caller may have received parts before one.
func ServeList[Q, I any](s *Server, q query.List[Q, I], h func(ctx context.Context, req *Q, add func(I) error) error) {
	handle(s, q.Info, func(ctx context.Context, req *Q, reply func(any) error) error {
		p := parts{reply: reply}
		if err := h(ctx, req, func(item I) error { return p.add(item) }); err != nil {
			return err
		}
		return p.flush()
	})
}

// parts collects items until they make a part.
type parts struct {
	reply func(any) error
	items []json.RawMessage
	size  int
}

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

func (p *parts) flush() error {
	if len(p.items) == 0 {
		return nil
	}
	err := p.reply(p.items)
	p.items, p.size = nil, 0
	return err
}

// ServeBytes registers the handler of a query whose response is bytes. Each Write
// is sent as one frame and keeps nothing of its argument; the handler buffers what
// it writes in small pieces. Errors are those of ServeList.
func ServeBytes[Q any](s *Server, q query.Bytes[Q], h func(ctx context.Context, req *Q, w io.Writer) error) {
	handle(s, q.Info, func(ctx context.Context, req *Q, reply func(any) error) error {
		return h(ctx, req, frames(reply))
	})
}

// frames sends what is written as binary frames.
type frames func(any) error

// Write implements io.Writer.
func (f frames) Write(b []byte) (int, error) {
	if err := f(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

func handle[Q any](s *Server, q query.Info, h func(context.Context, *Q, func(any) error) error) {
	s.Box.Serve(q.Verb, func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
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

// read brings the view up to date and puts its state on the response. The state is
// taken before the view is read, so the response holds at least that much.
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
