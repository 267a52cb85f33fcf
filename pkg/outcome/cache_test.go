package outcome_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

// restarted is a ledger that a test replaces with another one, as if the server had
// restarted without the end of the ledger.
type restarted struct{ eventlog.Log }

// started returns the event that claims a call; it does not append the event.
func started(call string) *contract.Event {
	return event(executor, contract.EventEffectStarted, "", call, []byte(`{}`))
}

// TestLostTail shows that, after a reconnection to a server that lost the end of the
// ledger, the next receipt follows the chain that the server has, even if another writer
// has stored a receipt at the sequence of the one that is lost.
func TestLostTail(t *testing.T) {
	log := &restarted{&memlog.Log{}}
	m := emitter(log)
	r, other := recorder(m), recorder(m)
	epoch := uint64(0)
	r.Epoch = func() uint64 { return epoch }
	record(t, r, started("c-lost"), "c-lost")

	log.Log = &memlog.Log{}
	epoch++
	record(t, other, started("c-other"), "c-other")
	record(t, r, started("c-next"), "c-next")
	tip := receipt.Genesis("t", "s-1")
	for seq, call := range []string{"c-other", "c-next"} {
		en, err := log.Get(t.Context(), uint64(seq+1))
		if err != nil {
			t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			t.Fatal(err)
		}
		var rec contract.Recorded
		if err := contract.Decode(e.Data, &rec); err != nil || rec.Receipt.CallID != call {
			t.Fatalf("entry %d is of call %s, want %s: %v", seq+1, rec.Receipt.CallID, call, err)
		}
		if err := receipt.CheckLink(tip, &rec.Receipt); err != nil {
			t.Errorf("the receipt of %s: %v", call, err)
		}
		tip = receipt.TipOf(&rec.Receipt)
	}
}

// TestTips shows that a recorder reads the end of a session's chain once while the session is among
// the 8,192 that were used last, and that the cache holds at most 640 bytes for each of these, also
// after a million sessions.
func TestTips(t *testing.T) {
	log := &logtest.Counter{Log: &memlog.Log{}}
	r := recorder(emitter(log))
	reads := func(session, call string, want int64) {
		t.Helper()
		log.Reset()
		e := started(call)
		e.Session = session
		record(t, r, e, call)
		if got := log.Reads.Load(); got != want {
			t.Errorf("%d reads for the outcome of %s, want %d", got, call, want)
		}
	}
	reads("s-old", "c-1", 1)
	reads("s-old", "c-2", 0)
	var before, after runtime.MemStats
	use := func(n int) uint64 {
		for i := range n {
			r.Known("t", fmt.Sprint("s-", i))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		return after.HeapAlloc
	}
	runtime.GC()
	runtime.ReadMemStats(&before)
	if got := use(8191); got > before.HeapAlloc+8192*640 {
		t.Errorf("%d bytes for 8,192 sessions", got-before.HeapAlloc)
	}
	reads("s-old", "c-3", 0)
	if got := use(1_000_000); got > before.HeapAlloc+8192*640 {
		t.Errorf("%d bytes after a million sessions", got-before.HeapAlloc)
	}
	reads("s-old", "c-4", 1)
}
