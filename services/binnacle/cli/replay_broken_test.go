package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/schemas/mcprouter"
	"github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/schemas/work"
)

// folded returns the entries of a ledger with events that the views of session-runner, work and
// mcp-router read.
func folded(t *testing.T) (out []replayed) {
	l, at := &memlog.Log{}, time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	put := func(service, tenant, key, name string, d canon.Document) {
		t.Helper()
		m := &emit.Emitter{Log: l, Tenant: tenant, Source: service + "/" + service + "-1", Now: func() time.Time { return at }}
		e := m.New(name, key, contract.Bytes(d), nil)
		e.CallID = "c-1"
		if _, err := m.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	id := contract.IDArtifact + strings.Repeat("1", 64)
	tool := contract.Tool{Executor: services.SessionRunner, Kind: "tool.x", Tool: "x", Class: "E0", Version: "v1", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)}
	put(services.Provision, contract.CellTenant, "trust", contract.EventKeyPublished, &contract.TrustKey{KID: "k"})
	put(services.SessionRunner, contract.CellTenant, catalog.Key(tool.Kind), contract.EventToolRegistered, &tool)
	put(services.MCPRouter, contract.CellTenant, "server-a", mcprouter.ServerAddedName, &mcprouter.ServerAdded{Name: "a", Url: "https://a.example/mcp", CallID: "c-1", Class: "E1"})
	put(services.Work, "t", id, contract.EventArtifactStored, &artifact.Stored{Actor: "ann", Artifact: id, CallID: "c-1", Index: artifact.DigestOf(id), Service: services.Gateway, Session: "s-1", Size: 1, Upload: "u-1"})
	put(services.Work, "t", "pr-1", contract.EventPipelineStarted, &work.PipelineStarted{CallID: "c-1", Digest: "d", Name: "x", Steps: []work.PipelineStep{}})
	put(services.Work, "t", "ps-1", contract.EventScheduleStarted, &work.ScheduleStarted{CallID: "c-1", Cron: "@every 10s", Digest: "d", Missed: "skip", Name: "x", Timezone: "UTC"})
	put(services.SessionRunner, "t", "sb-1", contract.EventSandboxCreated, &sessionrunner.SandboxCreated{Actor: "ann", CallID: "c-1", Instance: "session-runner-1", Session: "s-1"})
	for en, err := range l.Scan(t.Context(), bus.EveryEvent, 1) {
		if err != nil {
			t.Fatal(err)
		}
		en.Data = slices.Clone(en.Data)
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, replayed{Entry: en, event: e})
	}
	return out
}

// forgetful is a view whose fold misses one entry.
type forgetful struct {
	view.State
	misses uint64
}

func (f forgetful) Apply(en eventlog.Entry, e *contract.Event) error {
	if en.Seq == f.misses {
		return nil
	}
	return f.State.Apply(en, e)
}

// TestBrokenFold shows, for each view of session-runner, work and mcp-router, that replay finds
// the rebuilt view equal to the live one; that it reports a difference if either fold misses any
// of the entries that the view reads; and that the view of an instance that has not read the
// newest entries is compared at its position.
func TestBrokenFold(t *testing.T) {
	ledger := folded(t)
	replay := func(d view.Declaration, live liveView, misses uint64) (v viewResult, dump string) {
		t.Helper()
		broken := d
		broken.Empty = func(o *view.Origin) (view.State, error) {
			s, err := d.Empty(o)
			return forgetful{s, misses}, err
		}
		r := newReplayer(t.Context(), &env{}, "k-root")
		if err := r.begin(t.TempDir(), map[string]liveView{d.Name: live}, []view.Declaration{broken}); err != nil {
			t.Fatal(err)
		}
		defer r.close()
		for i := range ledger {
			if err := r.applyViews(&ledger[i]); err != nil {
				t.Fatal(err)
			}
		}
		b, err := r.views[0].Dump()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.compareViews(); err != nil {
			t.Fatal(err)
		}
		return r.rep.Views[0], string(b)
	}
	reads := map[string]int{services.ViewSandboxes: 1, services.ViewArtifacts: 1, services.ViewPipelines: 2, services.ViewTools: 2, services.ViewServers: 3}
	for _, d := range declaredViews() {
		want, ok := reads[d.Name]
		if !ok {
			continue
		}
		delete(reads, d.Name)
		end := ledger[len(ledger)-1].Seq
		_, dump := replay(d, liveView{Position: end}, 0)
		if v, _ := replay(d, liveView{Position: end, Dump: dump}, 0); !v.Equal || v.Where != "" || v.NotCompared != "" {
			t.Errorf("%+v", v)
		}
		n := 0
		for i := range ledger {
			x := &ledger[i]
			if !bus.MatchAny(d.Reader.Filters, x.Subject) {
				continue
			}
			n++
			if v, _ := replay(d, liveView{Position: end, Dump: dump}, x.Seq); v.Equal || v.Where == "" {
				t.Errorf("%s: a fold that misses entry %d is equal: %+v", d.Name, x.Seq, v)
			}
			_, without := replay(d, liveView{Position: end}, x.Seq)
			if v, _ := replay(d, liveView{Position: end, Dump: without}, 0); v.Equal {
				t.Errorf("%s: a live view that misses entry %d is equal: %+v", d.Name, x.Seq, v)
			}
			_, before := replay(d, liveView{Position: x.Seq - 1}, 0)
			if v, _ := replay(d, liveView{Position: x.Seq - 1, Dump: before}, 0); !v.Equal || before == dump {
				t.Errorf("%s before entry %d: %+v", d.Name, x.Seq, v)
			}
		}
		if n != want {
			t.Errorf("%s reads %d entries, want %d", d.Name, n, want)
		}
	}
	if len(reads) > 0 {
		t.Errorf("not declared: %v", reads)
	}
	var out bytes.Buffer
	r := &replayer{c: &env{out: &out}}
	r.compare(services.ViewArtifacts, 1, []byte("sha256:1"), []byte("sha256:2"))
	if r.print(); !strings.Contains(out.String(), "DIFFERS at line 1: live sha256:1, rebuilt sha256:2") {
		t.Error(out.String())
	}
}
