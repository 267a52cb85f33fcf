package mcprouter

import (
	"context"
	"maps"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	declared "github.com/binnacle-mesh/binnacle/pkg/view"
)

// Views returns the declaration of the view of the MCP servers and of the catalog of tools. Each
// instance has its own. Sessions with servers, feeds and suspended calls are state of an
// instance, and not part of the view.
func Views() []declared.Declaration {
	return []declared.Declaration{declared.Of(services.MCPRouter, services.ViewServers, viewReader, func(o *declared.Origin) (declared.State, error) {
		return &replayed{newView(trust.KeyAt(o.Keys))}, nil
	})}
}

// replayed adapts the view to view.State, for replay.
type replayed struct{ *view }

// Apply implements view.State.
func (r *replayed) Apply(en eventlog.Entry, e *contract.Event) error {
	if e != nil {
		r.view.apply(en.Seq, e)
	}
	return nil
}

// Dump implements view.State.
func (r *replayed) Dump() ([]byte, error) {
	_, dump := r.view.dump()
	return dump, nil
}

// dump returns the sequence of the last entry applied, and the canonical form of the view: a
// line of JSON for each server, sorted by name, and then the dump of the catalog.
func (v *view) dump() (at uint64, lines []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(v.servers)) {
		lines = append(append(lines, contract.Bytes(v.servers[name])...), '\n')
	}
	return v.at, append(lines, v.catalog.Dump()...)
}

// serve registers the query for the view. The response has every event that was stored when
// the query was received.
func (v *view) serve(transport rpc.Registrar) {
	s := &rpc.Server{Transport: transport, View: v.follower, Fresh: func(ctx context.Context) error {
		_, err := v.follower.Reach(ctx)
		return err
	}}
	rpc.Serve(s, query.ViewQuery, func(context.Context, *query.ViewRequest) (query.ViewDump, error) {
		at, dump := v.dump()
		return query.ViewDump{Name: services.ViewServers, Position: at, Dump: string(dump)}, nil
	})
}
