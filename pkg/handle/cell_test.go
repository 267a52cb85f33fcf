package handle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

const aggregate = "policies"

// upgraded is a ledger of release 0.5 that is then opened as a cell.
type upgraded struct {
	memlog.Log
	cell Cell
	m    *emit.Emitter
}

func newUpgraded() *upgraded {
	u := &upgraded{cell: Cell{Tenant: "original"}}
	u.m = &emit.Emitter{Log: &u.Log, Tenant: "original", Source: "policy/policy-1", Now: time.Now}
	return u
}

// at returns the state of the cell.
func (u *upgraded) at(context.Context) (Cell, error) { return u.cell, nil }

// add appends an event to the aggregate in a tenant.
func (u *upgraded) add(t *testing.T, tenant, name string) uint64 {
	t.Helper()
	seq, err := u.m.Append(t.Context(), u.m.In(tenant).New(name, aggregate, []byte(`{}`), nil))
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

// open appends cell_opened, and updates the state of the cell.
func (u *upgraded) open(t *testing.T) {
	t.Helper()
	by := &emit.Emitter{Log: &u.Log, Tenant: "original", Source: "provision/provision-1", Now: time.Now}
	seq, err := by.Append(t.Context(), by.New(contract.EventCellOpened, "cell", []byte(`{}`), nil))
	if err != nil {
		t.Fatal(err)
	}
	u.cell = Cell{Tenant: contract.CellTenant, Original: "original", Opened: seq}
}

// do runs DoCell with a function that returns the named event. It returns the appended
// event, the events that the function received last, as "tenant name", and the number of
// its calls.
func (u *upgraded) do(t *testing.T, l eventlog.Log, name string) (e *contract.Event, history string, n int) {
	t.Helper()
	e, err := DoCell(t.Context(), l, u.at, "policy", aggregate, func(h []*contract.Event) (*contract.Event, error) {
		n++
		var all []string
		for _, e := range h {
			all = append(all, e.Tenant+" "+e.Name)
		}
		history = strings.Join(all, ", ")
		return u.m.New(name, aggregate, []byte(`{}`), nil), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return e, history, n
}

// TestDoCell shows that an aggregate of the cell has one history over cell_opened, which
// begins in the original tenant and continues in the cell's. Later events of the original
// tenant under the same key, and events of other tenants, are not part of it.
// Cell.History returns the same history.
func TestDoCell(t *testing.T) {
	u := newUpgraded()
	u.add(t, "other", "foreign")
	if e, h, _ := u.do(t, &u.Log, "one"); h != "" || e.Tenant != "original" {
		t.Errorf("%s after %q", e.Tenant, h)
	}
	if e, h, _ := u.do(t, &u.Log, "two"); h != "original one" || e.Tenant != "original" {
		t.Errorf("%s after %q", e.Tenant, h)
	}
	u.open(t)
	u.add(t, "original", "own")
	if e, h, _ := u.do(t, &u.Log, "three"); h != "original one, original two" || e.Tenant != contract.CellTenant {
		t.Errorf("%s after %q", e.Tenant, h)
	}
	u.add(t, "original", "own")
	u.add(t, "other", "foreign")
	if e, h, _ := u.do(t, &u.Log, "four"); h != "original one, original two, "+contract.CellTenant+" three" || e.Tenant != contract.CellTenant {
		t.Errorf("%s after %q", e.Tenant, h)
	}
	got, err := u.cell.History(t.Context(), &u.Log, bus.Filter{Service: "policy", Key: aggregate})
	if err != nil || len(got) != 4 || got[0].Seq != 2 || got[3].Name != "four" {
		t.Errorf("%v %v", got, err)
	}
}

// TestDoCellStricter shows that a ceiling which a person made stricter by a call before
// cell_opened is in force after it: the ceiling in the file, which is older, is found in
// the history and is not activated again.
func TestDoCellStricter(t *testing.T) {
	u := newUpgraded()
	configure := func(file string) (*contract.Event, error) {
		return DoCell(t.Context(), &u.Log, u.at, "policy", aggregate, func(h []*contract.Event) (*contract.Event, error) {
			for _, e := range h {
				if e.Name == file {
					return nil, nil // the file has not changed since it was activated
				}
			}
			return u.m.New(file, aggregate, []byte(`{}`), nil), nil
		})
	}
	if e, err := configure("ceiling_of_file"); err != nil || e == nil {
		t.Fatal(e, err)
	}
	u.do(t, &u.Log, "ceiling_of_person")
	u.open(t)
	if e, err := configure("ceiling_of_file"); err != nil || e != nil {
		t.Errorf("the file replaces what is in force: %v %v", e, err)
	}
	if _, h, _ := u.do(t, &u.Log, "next"); !strings.HasSuffix(h, "original ceiling_of_person") {
		t.Errorf("in force: %q", h)
	}
}

// opening is a ledger that calls the function in its field before once, ahead of the
// first conditional append.
type opening struct {
	eventlog.Log
	before func()
}

func (o *opening) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	if f := o.before; f != nil {
		o.before = nil
		f()
	}
	return o.Log.AppendExpect(ctx, subject, id, data, filter, expect)
}

// TestDoCellRaces shows that DoCell calls decide again after another writer appended,
// and after the cell was opened between its read and its append, with the event then in
// the cell's tenant.
func TestDoCellRaces(t *testing.T) {
	u := newUpgraded()
	u.do(t, &u.Log, "one")
	e, h, n := u.do(t, &opening{&u.Log, func() { u.open(t) }}, "two")
	if n != 2 || e.Tenant != contract.CellTenant || h != "original one" {
		t.Errorf("%s after %q, decided %d times", e.Tenant, h, n)
	}
	e, h, n = u.do(t, &opening{&u.Log, func() { u.add(t, contract.CellTenant, "theirs") }}, "three")
	if n != 2 || e.Tenant != contract.CellTenant || !strings.HasSuffix(h, contract.CellTenant+" theirs") {
		t.Errorf("%s after %q, decided %d times", e.Tenant, h, n)
	}
}

// TestHolds checks which events can be events of the cell, by their tenant and sequence.
func TestHolds(t *testing.T) {
	fresh, upgraded := Cell{Tenant: "cell"}, Cell{Tenant: "cell", Original: "one", Opened: 5}
	for _, x := range []struct {
		cell   Cell
		seq    uint64
		tenant string
		want   bool
	}{
		{fresh, 1, "cell", true}, {fresh, 1, "one", false}, {fresh, 1, "", false},
		{upgraded, 1, "cell", true}, {upgraded, 9, "cell", true}, {upgraded, 4, "one", true}, {upgraded, 5, "one", false}, {upgraded, 6, "one", false}, {upgraded, 4, "two", false},
		{Cell{}, 1, "", false},
	} {
		if got := x.cell.Holds(x.seq, x.tenant); got != x.want {
			t.Errorf("%+v, event %d of %q: %v", x.cell, x.seq, x.tenant, got)
		}
	}
}

// TestHistoryOnce checks that the history holds each event once, also if Original is Tenant. Of
// another original tenant it holds only the events before cell_opened.
func TestHistoryOnce(t *testing.T) {
	u := newUpgraded()
	u.do(t, &u.Log, "one")
	u.open(t)
	u.do(t, &u.Log, "two")
	for _, x := range []struct {
		cell Cell
		want string
	}{
		{u.cell, "one two "},
		{Cell{Tenant: "original", Original: "original", Opened: u.cell.Opened}, "one " + contract.EventCellOpened + " "},
		{Cell{Tenant: contract.CellTenant}, "two "},
	} {
		all, err := x.cell.History(t.Context(), &u.Log, bus.Filter{})
		got := ""
		for _, e := range all {
			got += e.Name + " "
		}
		if err != nil || got != x.want {
			t.Errorf("%+v: %q, %v", x.cell, got, err)
		}
	}
}

// full is a ledger that stores nothing.
type full struct{ memlog.Log }

var errFull = errors.New("the disk is full")

func (*full) AppendExpect(context.Context, string, string, []byte, string, uint64) (uint64, error) {
	return 0, errFull
}

// TestDoCellFails shows that the errors of at, of decide and of the append are returned, that
// nothing is appended after an error of at or of decide, and that DoCell ends after a bounded
// number of conflicts.
func TestDoCellFails(t *testing.T) {
	u, failed := newUpgraded(), errors.New("failed")
	decide := func([]*contract.Event) (*contract.Event, error) { return nil, failed }
	if _, err := DoCell(t.Context(), &u.Log, u.at, "policy", aggregate, decide); !errors.Is(err, failed) {
		t.Error(err)
	}
	if _, err := DoCell(t.Context(), &u.Log, func(context.Context) (Cell, error) { return Cell{}, failed }, "policy", aggregate, nil); !errors.Is(err, failed) {
		t.Error(err)
	}
	if _, err := DoCell(t.Context(), &full{}, u.at, "policy", aggregate, func([]*contract.Event) (*contract.Event, error) {
		return u.m.New("one", aggregate, []byte(`{}`), nil), nil
	}); !errors.Is(err, errFull) {
		t.Errorf("a ledger that stores nothing: %v", err)
	}
	n := 0
	_, err := DoCell(t.Context(), &busy{}, u.at, "policy", aggregate, func([]*contract.Event) (*contract.Event, error) {
		n++
		return u.m.New("one", aggregate, fmt.Appendf(nil, `{"n":%d}`, n), nil), nil
	})
	if !errors.Is(err, eventlog.ErrConflict) || n != tries || u.Size() != 0 {
		t.Errorf("%d attempts, %d events, %v", n, u.Size(), err)
	}
}
