package mcprouter

import (
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
)

// viewReader reads the catalog, and the MCP servers of the mesh.
var viewReader = bus.Reader{Name: "servers", Stream: bus.Events, Filters: append(slices.Clone(catalog.ViewFilters), bus.Filters(Name, events.ServerAddedName, events.ServerRemovedName)...)}

// view is the view of the catalog and of the MCP servers, which is built from the ledger
// alone: the running service and replay use it. Its methods other than apply are safe for
// concurrent use, also with apply.
type view struct {
	catalog  catalog.View
	follower *follow.Follower

	mu      sync.Mutex
	servers map[string]*events.ServerAdded // by name; the values are not modified
	at      uint64                         // sequence of the last entry applied, or 0
}

// newView returns an empty view without a follower. keyAt looks up the root key that signed
// cell_opened.
func newView(keyAt trust.KeyAt) *view {
	return &view{catalog: catalog.View{Keys: keyAt}, servers: map[string]*events.ServerAdded{}}
}

// liveView returns an empty view with its follower, whose state is part of the health of env.
func liveView(env *run.Env) *view {
	v := newView(trust.KeyAt(env.Trust.At))
	v.follower = follow.New(env.Conn, env.Instance, viewReader, func(en eventlog.Entry) error {
		e, err := eventlog.Open(en, viewReader.Filters...)
		if err != nil {
			env.Log.Error("ledger entry refused", "seq", en.Seq, "err", err)
			return nil
		}
		env.Emit.See(e.Lamport)
		v.apply(en.Seq, e)
		return nil
	})
	env.ReportFollower("servers", v.follower, nil)
	return v
}

// apply applies an event at a sequence of the ledger. It logs and ignores a malformed event,
// and ignores an event about a server in another tenant than that of the mesh's own events.
// It must be called by one goroutine at a time.
func (v *view) apply(seq uint64, e *contract.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.at = seq
	if e.Tenant == v.catalog.Tenant() {
		if err := v.applyServer(e); err != nil {
			slog.Error("malformed event about an MCP server", "event", e.ID, "err", err)
		}
	}
	if err := v.catalog.Apply(e); err != nil {
		slog.Error("malformed approval of a tool", "event", e.ID, "err", err)
	}
}

// applyServer applies an event about a server, and ignores other events and those of other
// services. It returns the error of decoding the event. The caller holds v.mu.
func (v *view) applyServer(e *contract.Event) error {
	switch {
	case e.Service() != Name:
	case e.Name == events.ServerAddedName:
		var s events.ServerAdded
		if err := contract.Decode(e.Data, &s); err != nil {
			return err
		}
		v.servers[s.Name] = &s
	case e.Name == events.ServerRemovedName:
		var s events.ServerRemoved
		if err := contract.Decode(e.Data, &s); err != nil {
			return err
		}
		delete(v.servers, s.Name)
	}
	return nil
}

// server returns the settings of a server, or nil. The caller must not modify them.
func (v *view) server(name string) *events.ServerAdded {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.servers[name]
}

// all returns the settings of all servers, sorted by name.
func (v *view) all() []*events.ServerAdded {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []*events.ServerAdded
	for _, s := range v.servers {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *events.ServerAdded) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// offered returns the registered documents of a server, by kind.
func (v *view) offered(server string) map[string]contract.Tool {
	out := map[string]contract.Tool{}
	for _, t := range v.catalog.Tools() {
		if o := mcpdoc.Of(&t); o != nil && o.Server == server {
			out[t.Kind] = t
		}
	}
	return out
}

// tool returns the document of a kind that is registered for this service, or nil if
// there is none.
func (v *view) tool(kind string) *contract.Tool {
	if t, _ := v.catalog.Lookup(kind); t != nil && t.Executor == Name {
		return t
	}
	return nil
}
