package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/audit"
)

// slowLog is a ledger whose method Get blocks until the channel may is closed.
type slowLog struct {
	*memlog.Log
	may chan struct{}
}

// Get implements eventlog.Log.
func (l slowLog) Get(ctx context.Context, seq uint64) (eventlog.Entry, error) {
	select {
	case <-l.may:
		return l.Log.Get(ctx, seq)
	case <-ctx.Done():
		return eventlog.Entry{}, ctx.Err()
	}
}

// TestLongReads shows that a tenant with as many exports as it may have gets no further
// export, pack or proof graph, that another tenant's export begins all the same, and that
// the tenant may have exports again when its own have ended.
func TestLongReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := open(t, t.TempDir())
		defer v.Close()
		var r register
		r.key(t, "mesh", "provision")
		entries := slices.Concat(r, tenantCall(t, "a", "s-1", 2), tenantCall(t, "b", "s-2", 6))
		addAll(t, v, entries)
		log := slowLog{&memlog.Log{}, make(chan struct{})}
		for _, en := range entries {
			if _, err := log.Append(t.Context(), en.Subject, "", en.Data); err != nil {
				t.Fatal(err)
			}
		}
		all := handlers{}
		(&Service{view: v, env: &run.Env{Emit: &emit.Emitter{Log: log}}}).serve(&rpc.Server{Transport: all})
		query := func(tenant, verb string, q any) error {
			raw, err := json.Marshal(q)
			if err != nil {
				t.Fatal(err)
			}
			return all[verb](transient.InTenant(t.Context(), tenant), raw, func(any) error { return nil })
		}
		part := events.TenantExportRequest{Next: fmt.Sprintf("%d.0.", len(entries))}
		ends := make(chan error, longReads)
		for range longReads / 2 {
			go func() { ends <- query("a", events.TenantExportQuery.Verb, part) }()
		}
		synctest.Wait()
		for verb, q := range map[string]any{events.TenantExportQuery.Verb: part, events.EvidenceQuery.Verb: events.EvidenceRequest{Session: "s-1"}, events.ProofgraphQuery.Verb: events.ProofgraphRequest{Session: "s-1"}} {
			if err := query("a", verb, q); rpc.CodeOf(err) != contract.CodeReadsExceeded {
				t.Errorf("%s: %v, want %s", verb, err, contract.CodeReadsExceeded)
			}
		}
		other := make(chan error, 1)
		go func() { other <- query("b", events.TenantExportQuery.Verb, part) }()
		synctest.Wait()
		if len(ends) != 0 || len(other) != 0 {
			t.Fatalf("%d exports of a and %d of b have ended before the ledger was read", len(ends), len(other))
		}
		close(log.may)
		for range longReads / 2 {
			if err := <-ends; err != nil {
				t.Error(err)
			}
		}
		if err := <-other; err != nil {
			t.Error("the export of another tenant:", err)
		}
		if err := query("a", events.TenantExportQuery.Verb, part); err != nil {
			t.Error("after the others have ended:", err)
		}
	})
}
