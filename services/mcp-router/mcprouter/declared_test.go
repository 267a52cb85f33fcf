package mcprouter

import (
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view/viewtest"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
)

// recordedServers returns the entries that the view reads, of a ledger on which servers are
// added, replaced and removed, and a tool is registered.
func recordedServers(t *testing.T) (out []eventlog.Entry) {
	l, at := &memlog.Log{}, time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	put := func(service, tenant, key, name string, d canon.Document) {
		t.Helper()
		m := &emit.Emitter{Log: l, Tenant: tenant, Source: service + "/" + service + "-1", Now: func() time.Time { return at }}
		if _, err := m.Append(t.Context(), m.New(name, key, contract.Bytes(d), nil)); err != nil {
			t.Fatal(err)
		}
	}
	server := func(name, url string) *events.ServerAdded {
		return &events.ServerAdded{Name: name, Url: url, CallID: "c-" + url, Class: "E1", Descriptions: []events.Description{}, Headers: []events.Header{{Name: "Authorization", Secret: "token"}}, Exclude: []string{}, Include: []string{}, Renames: []events.Rename{}}
	}
	tool := contract.Tool{Executor: Name, Kind: "tool.a.x", Tool: "a.x", Class: "E1", Version: "v1", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)}
	put(services.Provision, contract.CellTenant, "trust", contract.EventKeyPublished, &contract.TrustKey{KID: "k"})
	put(Name, contract.CellTenant, "server-b", events.ServerAddedName, server("b", "1"))
	put(Name, contract.CellTenant, "server-a", events.ServerAddedName, server("a", "2"))
	put(Name, contract.CellTenant, "server-b", events.ServerAddedName, server("b", "3"))
	put(Name, contract.CellTenant, catalog.Key(tool.Kind), contract.EventToolRegistered, &tool)
	put(Name, contract.CellTenant, "server-a", events.ServerRemovedName, &events.ServerRemoved{Name: "a", CallID: "c-9"})
	put(Name, "another", "server-c", events.ServerAddedName, server("c", "4")) // of no effect
	for en, err := range l.Scan(t.Context(), bus.EveryEvent, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if bus.MatchAny(viewReader.Filters, en.Subject) {
			en.Data = slices.Clone(en.Data)
			out = append(out, en)
		}
	}
	return out
}

// TestViews shows that the live view of an instance has, after each of the entries that it
// reads, the dump that replay rebuilds, with the sequence of the entry as its position; that
// the dump contains no server of another tenant; and that a fold that misses an entry has
// another dump, unless the entry has no effect or a later one replaces or undoes its effect.
func TestViews(t *testing.T) {
	all := recordedServers(t)
	if len(all) != 7 {
		t.Fatalf("the view reads %d entries", len(all))
	}
	d := Views()[0]
	rebuilt := func(all []eventlog.Entry) string { return viewtest.Rebuilt(t, &d, all) }
	live := newView(nil)
	for n, en := range all {
		e, err := eventlog.Open(en, viewReader.Filters...)
		if err != nil {
			t.Fatal(err)
		}
		live.apply(en.Seq, e)
		if at, dump := live.dump(); at != en.Seq || string(dump) != rebuilt(all[:n+1]) {
			t.Errorf("at %d, want %d: %s, rebuilt %s", at, en.Seq, dump, rebuilt(all[:n+1]))
		}
	}
	_, want := live.dump()
	if live.server("b") == nil || live.server("a") != nil || live.server("c") != nil || live.tool("tool.a.x") == nil {
		t.Errorf("%s", want)
	}
	without := map[int]bool{1: true, 2: true, 6: true} // replaced, removed, of another tenant
	for n := range all {
		if got := rebuilt(slices.Delete(slices.Clone(all), n, n+1)); (got == string(want)) != without[n] {
			t.Errorf("a fold that misses entry %d (%s) has the dump %s, want %s", all[n].Seq, all[n].Subject, got, want)
		}
	}
}
