package sessionrunner

import (
	"context"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/held"
)

// Views returns the declaration of the view of held sandboxes. Each instance that is configured
// to hold sandboxes has its own; another instance responds to the query with an error (see
// serveNoView). The containers and the output of their commands are state of an instance, and
// not part of the view.
func Views() []view.Declaration {
	return []view.Declaration{view.Of(services.SessionRunner, services.ViewSandboxes, heldReader, func(*view.Origin) (view.State, error) {
		return &sandboxes{}, nil
	})}
}

// sandboxes adapts the view of held sandboxes to view.State, for replay.
type sandboxes struct{ held.View }

// Apply implements view.State.
func (s *sandboxes) Apply(en eventlog.Entry, e *contract.Event) error {
	if e != nil {
		s.View.Apply(en.Seq, e)
	}
	return nil
}

// Dump implements view.State.
func (s *sandboxes) Dump() ([]byte, error) { return s.View.Dump(), nil }

// dumpHeld returns the dump of the view.
func dumpHeld(h *holder) query.ViewDump {
	h.mu.Lock()
	defer h.mu.Unlock()
	return query.ViewDump{Name: services.ViewSandboxes, Position: h.at, Dump: string(h.view.Dump())}
}

// serveView registers the query for the view. The response has every event that was stored
// when the query was received.
func serveView(h *holder, transport rpc.Registrar) {
	s := &rpc.Server{Transport: transport, View: h.follower, Fresh: func(ctx context.Context) error {
		_, err := h.follower.Reach(ctx)
		return err
	}}
	rpc.Serve(s, query.ViewQuery, func(context.Context, *query.ViewRequest) (query.ViewDump, error) { return dumpHeld(h), nil })
}

// serveNoView registers the query for the view in an instance without held sandboxes. The query
// fails with not_found.
func serveNoView(transport rpc.Registrar) {
	rpc.Serve(&rpc.Server{Transport: transport}, query.ViewQuery, func(context.Context, *query.ViewRequest) (query.ViewDump, error) {
		return query.ViewDump{}, rpc.Errorf(contract.CodeNotFound, "this session-runner is not configured to hold sandboxes")
	})
}
