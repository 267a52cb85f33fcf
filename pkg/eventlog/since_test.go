package eventlog_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

// TestSince checks that for the time of an event, Since returns a sequence that is not
// after the event and at most 50 before it, although the times of events are up to a
// minute out of order and some entries are not events. For a time before the first event
// and on an empty ledger it returns 1, and for a time after the last event a sequence
// near the end.
func TestSince(t *testing.T) {
	log := &memlog.Log{}
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var times []time.Time
	for i := range 3000 {
		if i%7 == 3 {
			if _, err := log.Append(t.Context(), "evt.t.x.-.foreign.k", fmt.Sprint("x-", i), []byte("no event")); err != nil {
				t.Fatal(err)
			}
			times = append(times, time.Time{})
			continue
		}
		at := began.Add(time.Duration(i)*10*time.Second - time.Duration(i*31%60)*time.Second)
		m := &emit.Emitter{Log: log, Tenant: "t", Source: "policy/p1", Now: func() time.Time { return at }}
		e := m.New(contract.EventCancelRequested, "k", []byte("{}"), nil)
		if _, err := m.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		times = append(times, at)
	}
	for i, at := range times {
		if at.IsZero() || i%13 != 0 {
			continue
		}
		seq, err := eventlog.Since(t.Context(), log, at)
		if err != nil {
			t.Fatal(err)
		}
		if own := uint64(i + 1); seq > own || own-seq > 50 {
			t.Errorf("the event at %d is of a time that is found from %d on", own, seq)
		}
	}
	if seq, err := eventlog.Since(t.Context(), log, began.Add(-time.Hour)); err != nil || seq != 1 {
		t.Error("before the first event:", seq, err)
	}
	if seq, err := eventlog.Since(t.Context(), log, began.Add(1000*time.Hour)); err != nil || seq < 3000 {
		t.Error("after the last event:", seq, err)
	}
	if seq, err := eventlog.Since(t.Context(), &memlog.Log{}, began); err != nil || seq != 1 {
		t.Error("an empty ledger:", seq, err)
	}
}
