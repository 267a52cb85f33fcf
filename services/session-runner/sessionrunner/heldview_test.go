package sessionrunner

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view/viewtest"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
)

// TestViews shows that a holder that reads from the sequence that begin returns has the dump and
// the position of one that has read the whole ledger; that the dump is what replay rebuilds; and
// that it is another one if the fold misses any of the last four entries.
func TestViews(t *testing.T) {
	l, at := &memlog.Log{}, time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	put := func(after time.Duration, key, name string, d canon.Document) {
		t.Helper()
		at = at.Add(after)
		m := &emit.Emitter{Log: l, Tenant: "t", Source: services.SessionRunner + "/session-runner-1", Now: func() time.Time { return at }}
		if _, err := m.Append(t.Context(), m.New(name, key, contract.Bytes(d), nil)); err != nil {
			t.Fatal(err)
		}
	}
	if from, err := begin(t.Context(), l, at); err != nil || from != 1 {
		t.Errorf("an empty ledger is read from %d, %v", from, err)
	}
	for n := range 8 { // the end of the first ones is never recorded
		put(13*time.Hour, fmt.Sprint("sb-", n), contract.EventSandboxCreated, &events.SandboxCreated{Actor: "ann", CallID: "c-1", Instance: "session-runner-1", LifeMS: 60_000, Session: "s-1"})
	}
	put(time.Second, "sb-7", contract.EventSandboxExecStarted, &events.SandboxExecStarted{CallID: "c-2", Exec: "x-1"})
	put(time.Second, "sb-6", contract.EventSandboxEnded, &events.SandboxEnded{CallID: "c-3", Reason: "terminated"})
	from, err := begin(t.Context(), l, at.Add(100*time.Hour))
	if err != nil || from < 2 || from > 7 {
		t.Fatalf("read from %d, %v", from, err)
	}
	var all []eventlog.Entry
	whole, late := &holder{}, &holder{}
	for en, err := range l.Scan(t.Context(), bus.EveryEvent, 1) {
		if err != nil {
			t.Fatal(err)
		}
		en.Data = slices.Clone(en.Data)
		all = append(all, en)
		e, err := eventlog.Open(en, heldReader.Filters...)
		if err != nil {
			t.Fatal(err)
		}
		if whole.apply(en.Seq, e); en.Seq >= from {
			late.apply(en.Seq, e)
		}
	}
	want := dumpHeld(whole)
	if got := dumpHeld(late); got != want || want.Name != services.ViewSandboxes || want.Position != uint64(len(all)) {
		t.Errorf("%+v, want %+v", got, want)
	}
	d := Views()[0]
	rebuilt := func(all []eventlog.Entry) string { return viewtest.Rebuilt(t, &d, all) }
	if got := rebuilt(all); got != want.Dump {
		t.Errorf("rebuilt %s, want %s", got, want.Dump)
	}
	for n := 6; n < len(all); n++ {
		if got := rebuilt(slices.Delete(slices.Clone(all), n, n+1)); got == want.Dump {
			t.Errorf("a fold that misses entry %d has the same dump", n+1)
		}
	}
}
