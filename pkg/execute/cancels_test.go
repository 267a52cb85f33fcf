package execute

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// cancellation returns the entry of an event by which a service requests the cancellation
// of the call in a tenant. It appends the event if store is true.
func cancellation(tt *tenantsTest, service, tenant string, store bool) eventlog.Entry {
	tt.Helper()
	by := &emit.Emitter{Log: tt.log, Tenant: tenant, Source: service + "/" + service + "-1", Now: time.Now}
	e := by.New(contract.EventCancelRequested, "s-1", []byte("{}"), nil)
	e.ID, e.Session, e.CallID, e.Actor, e.Client = contract.IDCancel+"c-"+tenant, "s-1", "c-"+tenant, "alice", "-"
	raw, err := e.Encode()
	if err == nil && store {
		_, err = by.Append(tt.Context(), e)
	}
	if err != nil {
		tt.Fatal(err)
	}
	return eventlog.Entry{Seq: 1, Subject: e.Subject(), Data: raw}
}

// TestCancelledBefore shows that, if the cancellation of a call arrives before its work,
// the call is recorded as cancelled, and not run; that this also holds if the
// cancellation was stored before the executor was started; and that the cancellation by a
// service that did not propose the call has no effect.
func TestCancelledBefore(t *testing.T) {
	for _, c := range []struct {
		name, service     string
		received, stored  bool
		restarted, cancel bool
	}{
		{"received", "gateway", true, false, false, true},
		{"stored before the start", "gateway", false, true, true, true},
		{"by another service", "judge", true, true, true, false},
		{"none", "", false, false, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tt := newTenantsTest(t)
			tt.x.frozen.Emit, tt.x.frozen.Instance = tt.x.Emit, tt.x.Instance
			ran := 0
			tt.x.Handler = func(context.Context, *Work) Result { ran++; return Result{} }
			if c.service != "" {
				if en := cancellation(tt, c.service, "one", c.stored); c.received {
					_ = tt.x.control(t.Context(), en)
				}
			}
			if c.restarted {
				tt.x.cancels.begin(time.Now())
			}
			want, code, times := contract.Succeeded, "", 1
			if c.cancel {
				want, code, times = contract.Cancelled, contract.CodeCancelled, 0
			}
			d, m := tt.deliver("one", 1)
			tt.x.Process(t.Context(), d)
			if status, got := tt.outcome("one"); ran != times || status != want || got != code || m.Settled != "ack" {
				t.Errorf("run %d times, recorded %q %q, settled by %q", ran, status, got, m.Settled)
			}
			d, _ = tt.deliver("two", 1)
			tt.x.Process(t.Context(), d)
			if status, _ := tt.outcome("two"); status != contract.Succeeded {
				t.Errorf("another call: %q", status)
			}
		})
	}
}

// TestCancelsBounded shows that the number of stored cancellations is limited,
// and that has does not report its answer as complete for a call without a
// stored cancellation that was proposed less than clockSkew after the newest
// discarded one.
func TestCancelsBounded(t *testing.T) {
	var c cancels
	now := time.Date(2026, 3, 3, 12, 0, 0, 0, time.UTC)
	key := func(i int) cancel { return cancel{callKey{"t", fmt.Sprint(i)}, "gateway"} }
	for i := range maxCancels + 10 {
		e := &contract.Event{Tenant: "t", CallID: fmt.Sprint(i), Source: "gateway/gw1", Time: contract.Time(now.Add(time.Duration(i) * time.Second))}
		c.add(e)
		c.add(e)
	}
	if len(c.seen) != maxCancels || len(c.order) != maxCancels {
		t.Errorf("%d and %d are stored", len(c.seen), len(c.order))
	}
	for _, x := range []struct {
		i               int
		proposed        time.Duration
		found, complete bool
	}{
		{9, 0, false, false}, {9, 9*time.Second + clockSkew - 1e6, false, false}, {9, 9*time.Second + clockSkew, false, true}, {10, 0, true, false}, {maxCancels + 9, time.Hour, true, true},
	} {
		if found, complete := c.has(key(x.i), contract.Time(now.Add(x.proposed))); found != x.found || complete != x.complete {
			t.Errorf("%d, proposed after %s: %t %t", x.i, x.proposed, found, complete)
		}
	}
}
