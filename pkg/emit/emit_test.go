package emit

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

func emitter() *Emitter {
	return &Emitter{Log: &memlog.Log{}, Tenant: "t", Source: "policy/policy-1", Now: func() time.Time { return time.Unix(1_700_000_000, 0) }}
}

// TestNew shows that an event has its cause's tenant, caller, origin, session, call,
// trace context and correlation id, that its lamport is greater than that of its cause,
// that an event without a cause has the Emitter's tenant and no caller, and that See
// does not set the clock back.
func TestNew(t *testing.T) {
	m := emitter()
	cause := &contract.Event{ID: "p-1", Tenant: "acme", Actor: "ann", Client: "sdk", Session: "s-1", CallID: "c-1", Origin: "gw1", Lamport: 41, TraceCtx: "00-a-b-01"}
	e := m.New(contract.EventAllowed, "s-1", []byte(`{}`), cause)
	if e.Tenant != "acme" || e.Actor != "ann" || e.Client != "sdk" || e.Session != "s-1" || e.CallID != "c-1" || e.Origin != "gw1" || e.Cause != "p-1" || e.TraceCtx != cause.TraceCtx {
		t.Errorf("not inherited: %+v", e)
	}
	if e.Lamport != 42 || e.Correl != "p-1" || e.Source != m.Source || e.Version != contract.VersionOf(contract.EventAllowed) || e.Time != contract.Time(m.Now()) {
		t.Errorf("%+v", e)
	}
	cause.Correl = "p-0"
	if e := m.New(contract.EventAllowed, "s-1", nil, cause); e.Correl != "p-0" || e.Lamport != 43 {
		t.Errorf("%+v", e)
	}
	if e := m.New(contract.EventAllowed, "s-1", nil, nil); e.Tenant != "t" || e.Actor != "-" || e.Client != "-" || e.Origin != "-" || e.Cause != "" || e.Lamport != 44 {
		t.Errorf("without a cause: %+v", e)
	}
	m.See(10) // a lower value does not set the Lamport clock back
	if l := m.Tick(); l != 45 {
		t.Errorf("lamport %d after 45 events", l)
	}
}

// TestIn shows that the Emitters of two tenants share one Lamport clock, that an event
// without a cause has the tenant of its Emitter, and that an event with a cause has that
// of its cause.
func TestIn(t *testing.T) {
	m := emitter()
	a := m.In("a")
	a.See(41)
	if l := m.Tick(); l != 42 {
		t.Errorf("lamport %d after 41 in another tenant", l)
	}
	e := a.In("b").New(contract.EventStartExpired, "s-1", nil, nil)
	if e.Tenant != "b" || e.Lamport != 43 || e.Source != m.Source || e.Time != m.Time() {
		t.Errorf("%+v", e)
	}
	if e := a.New(contract.EventAllowed, "s-1", nil, &contract.Event{ID: "p-1", Tenant: "b"}); e.Tenant != "b" || e.Lamport != 44 {
		t.Errorf("with a cause: %+v", e)
	}
	if a.In("a") != a || m.In("t") != m {
		t.Error("an Emitter of the same tenant is a new one")
	}
}

// TestTick shows that concurrent calls of Tick return distinct values, each greater than
// the value that the same goroutine passed to See.
func TestTick(t *testing.T) {
	m := emitter()
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				at := uint64(100*i + j)
				m.See(at)
				l := m.Tick()
				mu.Lock()
				if l <= at || seen[l] {
					t.Errorf("%d after %d", l, at)
				}
				seen[l] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// TestAppend shows that appending an event again returns the sequence of the first
// append, and that the event is stored under its subject.
func TestAppend(t *testing.T) {
	m := emitter()
	e := m.New(contract.EventStartExpired, "s-1", []byte(`{"call_id":"c-1","decision_id":"d-1","intent_id":"i-1"}`), &contract.Event{ID: "x-1", Tenant: "t", Actor: "ann", Client: "-", Origin: "-", Session: "s-1", CallID: "c-1"})
	for range 2 {
		seq, err := m.Append(t.Context(), e)
		if err != nil || seq != 1 {
			t.Fatalf("sequence %d, %v", seq, err)
		}
	}
	en, err := m.Log.Last(t.Context(), e.Subject())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := eventlog.Open(en, eventlog.Every); err != nil || got.ID != e.ID {
		t.Errorf("%+v %v", got, err)
	}
}

// TestNewID shows that ids have their prefix, a hyphen and 26 characters, are unique, and
// can be tokens of a subject.
func TestNewID(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID(contract.IDEvent)
		if !strings.HasPrefix(id, "e-") || len(id) != 28 || seen[id] || !contract.Token(id) {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
}
