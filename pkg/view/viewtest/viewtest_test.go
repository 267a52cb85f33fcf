package viewtest

import (
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/view"
)

// keys is a view that lists the keys of the events in its entries.
type keys struct {
	list   string
	counts bool // an entry that is not an event changes the view, against its contract
}

// Apply implements view.State.
func (k *keys) Apply(_ eventlog.Entry, e *contract.Event) error {
	if e != nil {
		k.list += e.Key + " "
	} else if k.counts {
		k.list += "? "
	}
	return nil
}

// Dump implements view.State.
func (k *keys) Dump() ([]byte, error) { return []byte(k.list), nil }

// failing is a test that records whether it failed.
type failing struct {
	testing.TB
	failed bool
}

// Helper implements testing.TB.
func (*failing) Helper() {}

// Errorf implements testing.TB.
func (f *failing) Errorf(string, ...any) { f.failed = true }

// TestRebuilt checks that the dump is that of the given entries, in their order, and that the test
// fails if an entry that is not an event changes the view.
func TestRebuilt(t *testing.T) {
	l := &memlog.Log{}
	m := &emit.Emitter{Log: l, Tenant: "t", Source: "work/work-1", Now: time.Now}
	var all []eventlog.Entry
	for _, key := range []string{"k-1", "k-2"} {
		if _, err := m.Append(t.Context(), m.New(contract.EventEffectStarted, key, []byte("{}"), nil)); err != nil {
			t.Fatal(err)
		}
	}
	for en, err := range l.Scan(t.Context(), bus.EveryEvent, 1) {
		if err != nil {
			t.Fatal(err)
		}
		en.Data = slices.Clone(en.Data)
		all = append(all, en)
	}
	d := &view.Declaration{Empty: func(*view.Origin) (view.State, error) { return &keys{}, nil }}
	if got := Rebuilt(t, d, all); got != "k-1 k-2 " {
		t.Errorf("%q", got)
	}
	if got := Rebuilt(t, d, all[1:]); got != "k-2 " {
		t.Errorf("without the first entry: %q", got)
	}
	f := &failing{TB: t}
	d.Empty = func(*view.Origin) (view.State, error) { return &keys{counts: true}, nil }
	if Rebuilt(f, d, all); !f.failed {
		t.Error("an entry that is not an event changed the view, and the test did not fail")
	}
}
