package budgetfence

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

// TestVoid shows that Load applies the closings up to a sequence, that a closing voids only the
// draws of calls that are allowed after it, that an event of another service closes nothing, and
// that Void waits until the fence has read the ledger up to the call, but does not wait if the call
// draws from no allotment. One entry wakes every caller that waits.
func TestVoid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memlog.Log{}
		var entries []eventlog.Entry
		for _, c := range []struct{ service, name, id string }{{"policy", contract.EventAllotmentClosed, "al-1"}, {"judge", contract.EventAllotmentClosed, "al-2"},
			{"policy", contract.EventAllotmentTaken, "al-3"}, {"policy", contract.EventAllotmentClosed, "al-4"}} {
			m := &emit.Emitter{Log: log, Tenant: "_org-x", Source: c.service + "/" + c.service + "-1", Now: time.Now}
			seq, err := m.Append(t.Context(), m.New(c.name, "budget", []byte(`{"allotment":"`+c.id+`","now":"x"}`), nil))
			if err != nil {
				t.Fatal(err)
			}
			en, err := log.Get(t.Context(), seq)
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, en)
		}
		var f Fence
		if err := f.Load(t.Context(), log, 3); err != nil {
			t.Fatal(err)
		}
		want := func(id string, seq uint64, void bool) {
			t.Helper()
			if got, err := f.Void(t.Context(), contract.Raw(`{"budget":{"allotment":"`+id+`"}}`), seq); got != void || err != nil {
				t.Errorf("%s at %d: %v, %v", id, seq, got, err)
			}
		}
		want("al-1", 1, false)
		want("al-1", 2, true)
		want("al-2", 3, false)
		want("al-3", 3, false)
		want("al-4", 3, false)
		if void, err := f.Void(t.Context(), contract.Raw(`{"actor":"\"allotment\":\"al-1"}`), 99); void || err != nil || Draws(contract.Raw(`{}`)) {
			t.Error("a call without draws waits:", void, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.Void(ctx, contract.Raw(`{"budget":{"allotment":"al-4"}}`), 5); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("a call does not wait:", err)
		}
		go func() {
			time.Sleep(time.Second)
			f.Apply(entries[3])
			f.Apply(eventlog.Entry{Seq: 5, Subject: "evt.t.policy.gw1.allowed_judge.s-1"})
		}()
		want("al-4", 5, true)
		want("al-4", 4, false)
		// Load includes the last sequence, and one entry wakes every caller that waits.
		var fresh Fence
		if err := fresh.Load(t.Context(), log, 4); err != nil {
			t.Fatal(err)
		}
		results := make(chan bool, 2)
		for range 2 {
			go func() {
				void, err := fresh.Void(t.Context(), contract.Raw(`{"budget":{"allotment":"al-4"}}`), 5)
				results <- void && err == nil
			}()
			synctest.Wait()
		}
		fresh.Apply(eventlog.Entry{Seq: 5, Subject: "evt.t.policy.gw1.allowed_judge.s-1"})
		for range 2 {
			if !<-results {
				t.Error("an allotment that the last loaded entry closes is not void")
			}
		}
	})
}
