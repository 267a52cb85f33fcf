package freeze_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/freeze"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
)

// fact is the data of a freeze event as policy records it.
type fact struct{ id string }

func (f *fact) Canonical(c *canon.Codec) { c.Str("id", &f.id) }

// record appends an event about the freeze f-1 as the service policy.
func record(t *testing.T, log eventlog.Log, name string) *contract.Event {
	t.Helper()
	m := &emit.Emitter{Log: log, Tenant: "t", Source: "policy/policy-1", Now: time.Now}
	e := m.New(name, "freeze", contract.Bytes(&fact{"f-1"}), nil)
	if _, err := m.Append(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	return e
}

func state(log eventlog.Log) *freeze.State {
	return &freeze.State{Emit: &emit.Emitter{Log: log, Tenant: "t", Source: "judge/judge-1", Now: time.Now}, Instance: "judge-1",
		Cell: func(context.Context) (handle.Cell, error) { return handle.Cell{Tenant: "t"}, nil }}
}

// TestLoad shows that the newer of the last mesh_frozen and mesh_unfrozen determines the
// state.
func TestLoad(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []string
		on     bool
	}{
		{"nothing recorded", nil, false},
		{"frozen", []string{contract.EventMeshFrozen}, true},
		{"unfrozen", []string{contract.EventMeshFrozen, contract.EventMeshUnfrozen}, false},
		{"frozen again", []string{contract.EventMeshFrozen, contract.EventMeshUnfrozen, contract.EventMeshFrozen}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := &memlog.Log{}
			for _, name := range c.events {
				record(t, log, name)
			}
			s := state(log)
			if s.Known() || s.On() {
				t.Error("it reports a state before it has read")
			}
			if err := s.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !s.Known() || s.On() != c.on {
				t.Errorf("known %v, on %v; want on %v", s.Known(), s.On(), c.on)
			}
		})
	}
}

// TestLoadOutage checks that Load reads the state after an outage of the server, and
// that a context that ends during the outage leaves the state unknown.
func TestLoadOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memlog.Log{}
		record(t, log, contract.EventMeshFrozen)
		s := state(memlog.Outage{Log: log, Until: time.Now().Add(time.Minute)})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Load(ctx); err != nil || s.Known() {
			t.Errorf("context ended: %v, known %v", err, s.Known())
		}
		if err := s.Load(t.Context()); err != nil || !s.Known() || !s.On() {
			t.Errorf("after the outage: %v, known %v, on %v", err, s.Known(), s.On())
		}
	})
}

// TestAcknowledge shows that a freeze is in force when Apply returns, that an instance
// acknowledges it once even if it receives the event several times, and that Apply
// reports false for other events.
func TestAcknowledge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memlog.Log{}
		s := state(log)
		frozen := record(t, log, contract.EventMeshFrozen)
		for range 2 {
			if !s.Apply(t.Context(), 1, frozen) || !s.On() {
				t.Fatal("the freeze is not in force")
			}
			synctest.Wait()
		}
		n := 0
		for en, err := range log.Scan(t.Context(), "evt.t.judge.*."+contract.EventFreezeAcknowledged+".freeze", 1) {
			if err != nil {
				t.Fatal(err)
			}
			var ack contract.FreezeAck
			e, err := eventlog.Open(en, eventlog.Every)
			if err == nil {
				err = contract.Decode(e.Data, &ack)
			}
			if err != nil || ack.FreezeID != "f-1" || ack.Instance != "judge-1" || e.Cause != frozen.ID {
				t.Errorf("%+v %v", ack, err)
			}
			n++
		}
		if n != 1 {
			t.Errorf("%d acknowledgements", n)
		}
		if s.Apply(t.Context(), 9, &contract.Event{Name: contract.EventCancelRequested}) || !s.On() {
			t.Error("a cancellation counts as an event of the freeze")
		}
		if !s.Apply(t.Context(), 10, record(t, log, contract.EventMeshUnfrozen)) || s.On() {
			t.Error("still frozen")
		}
	})
}

// TestOrder checks that an event of the control reader that is not newer than the state
// that Load found does not replace that state, and that a newer event does.
func TestOrder(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []string // appended before Load runs; Apply then receives them again
		on     bool
	}{
		{"frozen again", []string{contract.EventMeshUnfrozen, contract.EventMeshFrozen}, true},
		{"unfrozen", []string{contract.EventMeshFrozen, contract.EventMeshUnfrozen}, false},
	} {
		log := &memlog.Log{}
		var events []*contract.Event
		for _, name := range c.events {
			events = append(events, record(t, log, name))
		}
		s := state(log)
		if err := s.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, e := range events {
			if !s.Apply(t.Context(), uint64(i+1), e) || s.On() != c.on {
				t.Errorf("%s: after event %d again: on %v", c.name, i+1, s.On())
			}
		}
		next := map[bool]string{true: contract.EventMeshUnfrozen, false: contract.EventMeshFrozen}[c.on]
		if s.Apply(t.Context(), uint64(len(events)+1), record(t, log, next)); s.On() == c.on {
			t.Errorf("%s: a newer event does not replace the state", c.name)
		}
	}
}

// TestForeign shows that a freeze in a tenant that is not the cell's does not freeze the
// mesh, whether it is loaded or delivered; and that a freeze in the original tenant
// counts only before the cell was opened.
func TestForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memlog.Log{}
		in := func(tenant string, opened uint64) *freeze.State {
			s := state(log)
			s.Cell = func(context.Context) (handle.Cell, error) {
				return handle.Cell{Tenant: contract.CellTenant, Original: tenant, Opened: opened}, nil
			}
			return s
		}
		frozen := record(t, log, contract.EventMeshFrozen)
		for _, c := range []struct {
			name string
			s    *freeze.State
			on   bool
		}{
			{"before the opening", in("t", 2), true},
			{"after the opening", in("t", 1), false},
			{"another tenant", in("u", 2), false},
		} {
			if err := c.s.Load(t.Context()); err != nil || !c.s.Known() || c.s.On() != c.on {
				t.Errorf("%s, loaded: %v, on %v", c.name, err, c.s.On())
			}
			if !c.s.Apply(t.Context(), 1, frozen) || c.s.On() != c.on {
				t.Errorf("%s, delivered: on %v", c.name, c.s.On())
			}
			synctest.Wait()
		}
		s := in("u", 2)
		frozen.Tenant = contract.CellTenant
		if !s.Apply(t.Context(), 3, frozen) || !s.On() {
			t.Error("a freeze of the cell is not in force")
		}
	})
}
