package mcprouter

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
)

// viewReader reads the catalog, and the MCP servers of the mesh.
var viewReader = bus.Reader{Name: "servers", Stream: bus.Events, Filters: append(slices.Clone(catalog.Filters), bus.Filters(Name, events.ServerAddedName, events.ServerRemovedName)...)}

// view is the view of the catalog and of the MCP servers. It is safe for concurrent use.
type view struct {
	catalog  catalog.Catalog
	follower *follow.Follower
	cell     handle.Cell // read again when it does not hold an event; only the follower uses it

	mu      sync.Mutex
	servers map[string]*events.ServerAdded // by name; the values are not modified
}

// newView returns a view that is not filled yet.
func newView(env *run.Env) *view {
	v := &view{servers: map[string]*events.ServerAdded{}}
	v.follower = follow.New(env.Conn, env.Instance, viewReader, func(en eventlog.Entry) error {
		e, err := eventlog.Open(en, viewReader.Filters...)
		if err != nil {
			env.Log.Error("ledger entry refused", "seq", en.Seq, "err", err)
			return nil
		}
		env.Emit.See(e.Lamport)
		if v.cell.Opened == 0 || !v.cell.Holds(en.Seq, e.Tenant) {
			if v.cell, err = env.Cell.Now(context.Background()); err != nil {
				return err
			}
		}
		tenant := v.cell.Tenant
		if v.cell.Holds(en.Seq, e.Tenant) {
			tenant = e.Tenant
			v.apply(env, e)
		}
		if err := v.catalog.Apply(tenant, e); err != nil {
			env.Log.Error("malformed approval of a tool", "event", e.ID, "err", err)
		}
		return nil
	})
	env.ReportFollower("servers", v.follower, nil)
	return v
}

// apply applies an event about a server.
func (v *view) apply(env *run.Env, e *contract.Event) {
	var err error
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case e.Service() != Name:
	case e.Name == events.ServerAddedName:
		var s events.ServerAdded
		if err = contract.Decode(e.Data, &s); err == nil {
			v.servers[s.Name] = &s
		}
	case e.Name == events.ServerRemovedName:
		var s events.ServerRemoved
		if err = contract.Decode(e.Data, &s); err == nil {
			delete(v.servers, s.Name)
		}
	}
	if err != nil {
		env.Log.Error("malformed event about an MCP server", "event", e.ID, "err", err)
	}
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
