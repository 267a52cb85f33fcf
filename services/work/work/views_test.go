package work

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view/viewtest"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// recordedViews returns a ledger with events that the views read.
func recordedViews(t *testing.T) *memlog.Log {
	l := &memlog.Log{}
	at := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	put := func(service, tenant, key, name string, d canon.Document) {
		t.Helper()
		at = at.Add(time.Second)
		m := &emit.Emitter{Log: l, Tenant: tenant, Source: service + "/" + service + "-1", Now: func() time.Time { return at }}
		e := m.New(name, key, contract.Bytes(d), nil)
		e.CallID, e.Session, e.Actor = "c-run", "s-1", "ann"
		if _, err := m.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	id := contract.IDArtifact + strings.Repeat("1", 64)
	put(services.Provision, contract.CellTenant, "trust", contract.EventKeyPublished, &contract.TrustKey{KID: "k"})
	tool := contract.Tool{Executor: services.SessionRunner, Kind: "tool.upper", Tool: "upper", Class: "E0", Version: "v1", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)}
	put(services.SessionRunner, contract.CellTenant, catalog.Key(tool.Kind), contract.EventToolRegistered, &tool)
	put(services.Work, "t", id, contract.EventArtifactStored, &artifact.Stored{Actor: "ann", Artifact: id, CallID: "c-1", Index: artifact.DigestOf(id), Kind: kindPut, Name: "n", Service: services.Gateway, Session: "s-1", Size: 1, Upload: "u-1"})
	put(services.Work, "t", id, contract.EventArtifactHeld, &events.ArtifactHeld{Artifact: id, CallID: "c-2", Reason: "case"})
	put(services.SessionRunner, "t", "s-1", contract.EventArtifactUsed, &artifact.Used{Artifact: id, CallID: "c-3"})
	put(services.Work, "t", "pr-1", contract.EventPipelineStarted, &events.PipelineStarted{CallID: "c-run", Digest: "d", Name: "x", Steps: []events.PipelineStep{{ID: "a", Needs: []string{}, Pack: "p"}}})
	put(services.Work, "t", "pr-1", contract.EventPipelineStepStarted, &events.PipelineStepStarted{Attempt: 1, CallID: "c-a", Run: "c-run", Step: "a"})
	put(services.Work, "t", "ps-1", contract.EventScheduleStarted, &events.ScheduleStarted{CallID: "c-run", Cron: "@every 10s", Digest: "d", Missed: "skip", Name: "x", Timezone: "UTC"})
	put(services.Work, "t", "s-1", contract.EventEffectRecorded, &contract.Recorded{Effect: contract.Effect{CallID: "c-run", Status: contract.Failed, Tool: "pipeline.run"}})
	return l
}

// entries returns the entries of a ledger that a reader reads.
func entries(t *testing.T, l *memlog.Log, r bus.Reader) (out []eventlog.Entry) {
	for en, err := range l.Scan(t.Context(), bus.EveryEvent, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if bus.MatchAny(r.Filters, en.Subject) {
			en.Data = slices.Clone(en.Data)
			out = append(out, en)
		}
	}
	return out
}

// TestViews shows, for each declared view, that the live view of an instance has, after each of
// the entries that it reads, the dump that replay rebuilds, with the sequence of the entry as its
// position; that an instance that starts later has the same dump and position in the end; that a
// fold that misses any of the entries has another dump; and that a malformed entry changes
// nothing.
func TestViews(t *testing.T) {
	l := recordedViews(t)
	type instance struct {
		apply func(eventlog.Entry) error
		dump  func() query.ViewDump
	}
	instances := map[string]func() instance{
		services.ViewArtifacts: func() instance {
			s := &Service{env: &run.Env{Emit: &emit.Emitter{}, Log: slog.New(slog.DiscardHandler)}}
			return instance{s.apply, func() query.ViewDump { return dumpArtifacts(s) }}
		},
		services.ViewPipelines: func() instance { p := &pipelines{}; return instance{p.apply, p.dump} },
		services.ViewTools:     func() instance { p := &pipelines{tools: &catalog.View{}}; return instance{p.applyTool, p.dumpTools} },
	}
	declared := Views()
	if len(declared) != len(instances) {
		t.Errorf("%d views are declared", len(declared))
	}
	for i := range declared {
		d := &declared[i]
		live, all := instances[d.Name](), entries(t, l, d.Reader)
		if len(all) < 3 && d.Name != services.ViewTools || len(all) < 2 {
			t.Fatalf("%s reads %d entries", d.Name, len(all))
		}
		if got := live.dump(); got.Name != d.Name || got.Position != 0 || got.Dump != viewtest.Rebuilt(t, d, nil) {
			t.Errorf("empty: %+v", got)
		}
		for n, en := range all {
			if err := live.apply(en); err != nil {
				t.Fatal(err)
			}
			if got, want := live.dump(), viewtest.Rebuilt(t, d, all[:n+1]); got.Dump != want || got.Position != en.Seq {
				t.Errorf("%s at %d, want %d: %s, rebuilt %s", d.Name, got.Position, en.Seq, got.Dump, want)
			}
		}
		later := instances[d.Name]()
		for _, en := range all {
			if err := later.apply(en); err != nil {
				t.Fatal(err)
			}
		}
		if later.dump() != live.dump() {
			t.Errorf("%s: %+v, and of an instance that starts later %+v", d.Name, live.dump(), later.dump())
		}
		for n := range all {
			if got := viewtest.Rebuilt(t, d, slices.Delete(slices.Clone(all), n, n+1)); got == live.dump().Dump {
				t.Errorf("%s: a fold that misses entry %d (%s) has the same dump", d.Name, all[n].Seq, all[n].Subject)
			}
		}
		if err := live.apply(eventlog.Entry{Seq: 100, Subject: all[0].Subject, Data: []byte("{")}); err != nil || live.dump() != later.dump() {
			t.Errorf("%s after an entry that is not an event: %v", d.Name, err)
		}
	}
}
