package propose

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// registrar holds the handler that was registered last.
type registrar struct{ handler transient.Handler }

func (r *registrar) Serve(_ string, h transient.Handler, _ ...string) { r.handler = h }

// TestTenant shows that a call is in the tenant of its request, in that of its parent if
// it is nested, and in that of the Emitter if the request names none; that the events of
// all tenants have one Lamport clock; and that the call's body is sent only in response
// to a query for the call's tenant.
func TestTenant(t *testing.T) {
	p := &Proposer{Emit: &emit.Emitter{Log: &memlog.Log{}, Tenant: "t", Source: "gateway/gw1", Now: time.Now}, Blobs: &blob.Store{Tenant: "t"}, Instance: "gw1"}
	var transport registrar
	p.ServeBodies(&transport)
	parent := &contract.Event{ID: "p-c-0", Tenant: "b", CallID: "c-0", Session: "s-0"}
	lamport := uint64(0)
	for _, c := range []struct {
		name, tenant, want string
		parent             *contract.Event
	}{
		{"named", "a", "a", nil},
		{"nested", "a", "b", parent},
		{"default", "", "t", nil},
	} {
		pend, err := p.Propose(t.Context(), Request{ID: "c-" + c.name, Tenant: c.tenant, Parent: c.parent, Kind: "tool.noop", Args: []byte("{}"), Actor: "ann", Client: "-", Session: "s-1",
			Timeout: time.Minute, Body: &Body{Carried: []byte("body")}})
		if err != nil {
			t.Fatal(err)
		}
		defer pend.Close()
		if <-pend.Stored(); pend.lost != nil || pend.Event.Tenant != c.want || pend.Event.Lamport <= lamport {
			t.Errorf("%s: %v, tenant %s, lamport %d", c.name, pend.lost, pend.Event.Tenant, pend.Event.Lamport)
		}
		lamport = pend.Event.Lamport
		for _, tenant := range []string{"a", "b", "t"} {
			var got []byte
			err := transport.handler(transient.InTenant(t.Context(), tenant), json.RawMessage(`{"call_id":"c-`+c.name+`"}`), func(part any) error {
				got = append(got, part.([]byte)...)
				return nil
			})
			if tenant == c.want && (err != nil || string(got) != "body") {
				t.Errorf("%s: %q, %v", c.name, got, err)
			}
			if tenant != c.want && (rpc.CodeOf(err) != contract.CodeNotFound || got != nil) {
				t.Errorf("%s: a query for %s gets %q, %v", c.name, tenant, got, err)
			}
		}
	}
}

// silentLog is a log that is unavailable for its first n appends.
type silentLog struct {
	memlog.Log
	n int
}

func (l *silentLog) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	if l.n--; l.n >= 0 {
		return 0, eventlog.ErrUnavailable
	}
	return l.Log.Append(ctx, subject, id, data)
}

// TestPatience shows that the append of a proposal is repeated while the ledger is unavailable, for
// as long as the request has patience, and not without patience.
func TestPatience(t *testing.T) {
	for _, c := range []struct {
		patience time.Duration
		silent   int
		stored   bool
	}{{0, 0, true}, {0, 1, false}, {time.Minute, 1, true}, {time.Minute, 500, true}, {time.Minute, 700, false}} {
		synctest.Test(t, func(t *testing.T) {
			p := &Proposer{Emit: &emit.Emitter{Log: &silentLog{n: c.silent}, Tenant: "t", Source: "gateway/gw1", Now: time.Now}, Blobs: &blob.Store{Tenant: "t"}, Instance: "gw1"}
			pend, err := p.Propose(t.Context(), Request{ID: "c-1", Kind: "tool.a", Actor: "ann", Client: "-", Args: []byte("{}"), Session: "s-1", Patience: c.patience})
			if err != nil {
				t.Fatal(err)
			}
			defer pend.Close()
			if <-pend.Stored(); (pend.Seq() == 1) != c.stored || (pend.lost == nil) != c.stored {
				t.Errorf("%+v: sequence %d, %v", c, pend.Seq(), pend.lost)
			}
		})
	}
}
