package budget

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

// TestSubjects checks which tokens of a subject name the tenant and the event.
func TestSubjects(t *testing.T) {
	for subject, want := range map[string][2]string{
		"evt.t.policy.-.allowed_judge.s-1": {"t", "allowed_judge"}, "evt.t.policy.-.allowed_judge.s.1": {"t", "allowed_judge"},
		"evt.t.policy.-.allowed_judge": {"t", ""}, "evt": {"", ""}, "": {"", ""},
	} {
		if tenant, event := tenantOf(subject), eventOf(subject); tenant != want[0] || event != want[1] {
			t.Errorf("%q: tenant %q, event %q", subject, tenant, event)
		}
	}
}

// stored appends an event of a call to the log, and returns its entry.
func stored(t *testing.T, log *memlog.Log, tenant, service, name, target, call string, data []byte) eventlog.Entry {
	t.Helper()
	record(t, log, tenant, service, name, target, call, data)
	en, err := log.Last(t.Context(), eventlog.Every)
	if err != nil {
		t.Fatal(err)
	}
	return en
}

// outcomeOf returns the data of an outcome.
func outcomeOf(call string, effect contract.Effect) []byte {
	effect.CallID = call
	return contract.Bytes(&contract.Recorded{Effect: effect})
}

// TestWants checks which entries a book ignores by their subject and data: outcomes of calls
// that have drawn nothing, and allowed calls without draws.
func TestWants(t *testing.T) {
	log := &memlog.Log{}
	k := &book{calls: map[limit.Call]string{{Tenant: "t", ID: "c-1"}: "t"}}
	for i, c := range []struct {
		tenant, service, name, target, call string
		data                                []byte
		want                                bool
	}{
		{"t", "judge", contract.EventEffectRecorded, "", "c-1", outcomeOf("c-1", contract.Effect{}), true},
		{"t", "judge", contract.EventEffectRecorded, "", "c-2", outcomeOf("c-2", contract.Effect{}), false},
		{"u", "judge", contract.EventEffectRecorded, "", "c-1", outcomeOf("c-1", contract.Effect{}), false},
		{"t", "policy", contract.EventAllowed, "judge", "c-3", allowedData(&guard.BudgetFact{Allotment: "al-1"}), true},
		{"t", "policy", contract.EventAllowed, "judge", "c-3", allowedData(&guard.BudgetFact{}), false},
		{"t", "policy", events.AllotmentClosedName, "", "", contract.Bytes(&events.AllotmentClosed{Allotment: "al-1"}), true},
	} {
		en := stored(t, log, c.tenant, c.service, c.name, c.target, c.call, c.data)
		if got := k.wants(en.Subject, en.Data); got != c.want {
			t.Errorf("%d: %s of %s in %s: %v", i, c.name, c.call, c.tenant, got)
		}
	}
}

// TestBook checks which events of a call change a book: draws from an open allotment, and the
// outcome by the executor. An event of policy with invalid data is an error. It also checks
// that outcomeIn returns the usage and the attestation.
func TestBook(t *testing.T) {
	const account, window = "l/agent:alice", "total"
	fact := &guard.BudgetFact{Allotment: "al-1", Draws: []guard.DrawFact{{Account: account, Amount: 3, Window: window}}}
	event := func(tenant, service, name, target, call string, data []byte) *contract.Event {
		e, err := eventlog.Open(stored(t, &memlog.Log{}, tenant, service, name, target, call, data), eventlog.Every)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	take := event("t", "policy", events.AllotmentTakenName, "", "", contract.Bytes(&events.AllotmentTaken{Allotment: "al-1", Holder: "policy-1", Now: "2026-01-02T00:00:00.000Z",
		Blocks: []events.Block{{Account: account, Amount: 10, Window: window}}}))
	facts := contract.Bytes(&guard.Facts{Budget: fact})
	for name, c := range map[string]struct {
		events []*contract.Event
		want   string // ledger of the last change, allotment, and number of calls with draws
		err    string
	}{
		"taken":                {[]*contract.Event{take}, "t al-1 0", ""},
		"drawn":                {[]*contract.Event{take, event("t", "policy", contract.EventAllowed, "judge", "c-1", allowedData(fact))}, "t al-1 1", ""},
		"no open allotment":    {[]*contract.Event{event("t", "policy", contract.EventAllowed, "judge", "c-1", allowedData(fact))}, "  0", ""},
		"by another service":   {[]*contract.Event{take, event("t", "gateway", contract.EventAllowed, "judge", "c-1", allowedData(fact))}, "  0", ""},
		"without an intent":    {[]*contract.Event{take, event("t", "policy", contract.EventAllowed, "judge", "c-1", contract.Bytes(&contract.Allowed{Decision: contract.Decision{Facts: facts}}))}, "  0", ""},
		"not an allowed call":  {[]*contract.Event{take, event("t", "policy", contract.EventAllowed, "judge", "c-1", []byte(`{"allotment":"al-1"}`))}, "  0", "allowed call c-1"},
		"an invalid decision":  {[]*contract.Event{take, event("t", "policy", contract.EventAllowed, "judge", "c-1", []byte(`{"allotment":"al-1","decision":1}`))}, "  0", "allowed call c-1"},
		"invalid facts":        {[]*contract.Event{take, event("t", "policy", contract.EventAllowed, "judge", "c-1", contract.Bytes(&contract.Allowed{Decision: contract.Decision{Facts: []byte(`{"budget":{"allotment":"al-1","draws":1}}`)}}))}, "  0", "facts of call c-1"},
		"settled":              {[]*contract.Event{take, event("t", "policy", contract.EventAllowed, "judge", "c-1", allowedData(fact)), event("t", "judge", contract.EventEffectRecorded, "", "c-1", outcomeOf("c-1", contract.Effect{Status: contract.Succeeded}))}, "t  0", ""},
		"another's outcome":    {[]*contract.Event{take, event("t", "policy", contract.EventAllowed, "judge", "c-1", allowedData(fact)), event("t", "audit", contract.EventEffectRecorded, "", "c-1", outcomeOf("c-1", contract.Effect{Status: contract.Succeeded}))}, "  1", ""},
		"not an outcome":       {[]*contract.Event{take, event("t", "policy", contract.EventAllowed, "judge", "c-1", allowedData(fact)), event("t", "judge", contract.EventEffectRecorded, "", "c-1", []byte(`{"effect":1}`))}, "  1", ""},
		"of another tenant":    {[]*contract.Event{take, event("t", "policy", contract.EventAllowed, "judge", "c-1", allowedData(fact)), event("u", "judge", contract.EventEffectRecorded, "", "c-1", outcomeOf("c-1", contract.Effect{Status: contract.Succeeded}))}, "  1", ""},
		"an event of no book":  {[]*contract.Event{take, event("t", "policy", "escalated", "", "c-1", []byte(`{}`))}, "  0", ""},
		"a recall":             {[]*contract.Event{take, event("t", "policy", events.AllotmentRecalledName, "", "", contract.Bytes(&events.AllotmentRecalled{Now: "2026-01-02T00:00:00.000Z"}))}, "t  0", ""},
		"an invalid recall":    {[]*contract.Event{take, event("t", "policy", events.AllotmentRecalledName, "", "", []byte(`{"blocks":1}`))}, "t  0", "canonical"},
		"an invalid closing":   {[]*contract.Event{take, event("t", "policy", events.AllotmentClosedName, "", "", []byte(`{"allotment":1}`))}, "t  0", "canonical"},
		"an invalid return":    {[]*contract.Event{take, event("t", "policy", events.AllotmentReturnedName, "", "", []byte(`{"allotment":1}`))}, "t  0", "canonical"},
		"an invalid allotment": {[]*contract.Event{event("t", "policy", events.AllotmentTakenName, "", "", []byte(`{"allotment":1}`))}, "t  0", "canonical"},
	} {
		var k book
		var last change
		var err error
		for _, e := range c.events {
			last, err = k.apply(e)
		}
		if got := last.ledger + " " + last.own + " " + string(rune('0'+len(k.calls))); got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v; want %q, %q", name, got, err, c.want, c.err)
		}
	}
	for _, by := range []string{"", "caller"} {
		o := outcomeIn("t", &contract.Event{Tenant: "u", CallID: "c-1"}, &contract.Recorded{Effect: contract.Effect{Status: contract.Succeeded, AttestedBy: by, Usage: &contract.Usage{CPUMillis: 7}}})
		if want := (limit.Call{Tenant: "u", ID: "c-1"}); o.Call != want || o.Attested != (by != "") || o.Usage.CPUMillis != 7 {
			t.Errorf("attested by %q: %+v", by, o)
		}
	}
	if o := outcomeIn("t", &contract.Event{Tenant: "t", CallID: "c-1"}, &contract.Recorded{}); o.Call.Tenant != "" {
		t.Errorf("a call of the ledger's own tenant: %+v", o)
	}
}

// broken is a log whose reads fail.
type broken struct{ memlog.Log }

var errBroken = errors.New("the log cannot be read")

func (*broken) Last(context.Context, string) (eventlog.Entry, error) {
	return eventlog.Entry{}, errBroken
}

func (*broken) Scan(context.Context, string, uint64) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) { yield(eventlog.Entry{}, errBroken) }
}

// TestFrom checks from which sequence the entries of a log are applied, that an entry is
// applied once, and that From, Read and Discover return the error of a log that cannot be
// read.
func TestFrom(t *testing.T) {
	log := &memlog.Log{}
	from := func(x *Ledgers) uint64 {
		t.Helper()
		seq, err := x.From(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	if seq := from(member(log, "policy-1", three)); seq != 1 {
		t.Errorf("an empty log is read from %d", seq)
	}
	record(t, log, "t", "policy", "escalated", "", "c-1", []byte(`{}`))
	if seq := from(member(log, "policy-1", three)); seq != 1 {
		t.Errorf("a log without budgets is read from %d", seq)
	}
	m := &emit.Emitter{Log: log, Tenant: "t", Source: "policy/policy-1", Now: time.Now}
	block := []events.Block{{Account: "l/agent:alice", Amount: 1, Window: "total"}}
	put := func(name string, data []byte) {
		t.Helper()
		if _, err := m.Append(t.Context(), m.New(name, aggregate, data, nil)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second event of a name is not the first of the log
		put(events.AllotmentTakenName, contract.Bytes(&events.AllotmentTaken{Allotment: "al-1", Holder: "x", Blocks: block, Now: "2026-01-02T00:00:00.000Z"}))
		put(events.BudgetChangedName, contract.Bytes(&events.BudgetChanged{Now: "2026-01-02T00:00:00.000Z"}))
	}
	x := member(log, "policy-1", three)
	if seq := from(x); seq != 2 {
		t.Errorf("the first event of a budget is at 2; the log is read from %d", seq)
	}
	en, err := log.Get(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	x.Follow(2)
	var dumps []string
	for range 2 {
		if err := x.Apply(en); err != nil {
			t.Fatal(err)
		}
		at, dump := x.Dump()
		if dumps = append(dumps, string(dump)); at != 2 || dumps[0] != dumps[len(dumps)-1] {
			t.Errorf("at %d: %s; after the first time %s", at, dump, dumps[0])
		}
	}
	if seq := from(x); seq != 3 {
		t.Errorf("after the entry at 2 the log is read from %d", seq)
	}
	y := member(&broken{}, "policy-1", three)
	if _, err := y.From(t.Context()); !errors.Is(err, errBroken) {
		t.Error("From with a log that cannot be read:", err)
	}
	if err := y.Read(t.Context()); !errors.Is(err, errBroken) {
		t.Error("Read with a log that cannot be read:", err)
	}
	if err := y.Discover(t.Context()); !errors.Is(err, errBroken) || wanted(y) {
		t.Error("Discover with a log that cannot be read:", err)
	}
}

// TestDecided checks which entries end the grant that an instance holds for a call: those of
// policy about the call of the same tenant.
func TestDecided(t *testing.T) {
	const a, org = "acme_web_prod", "_org-acme"
	held := func(x *Ledgers, b *Ledger, tenant string) {
		x.mu.Lock()
		defer x.mu.Unlock()
		b.share.hold = limit.NewHolding("al-1")
		b.share.hold.Add(b.call(tenant, "c-1").Key(), guard.BudgetFact{}, []events.Block{{Account: "l/agent:alice", Amount: 1, Window: "total"}})
	}
	for name, c := range map[string]struct {
		holder, tenant, service, call string
		dropped                       bool
	}{
		"decided":             {"t", "t", "policy", "c-1", true},
		"another call":        {"t", "t", "policy", "c-2", false},
		"no call":             {"t", "t", "policy", "", false},
		"another service":     {"t", "t", "judge", "c-1", false},
		"of an organization":  {a, a, "policy", "c-1", true},
		"of another tenant":   {"t", a, "policy", "c-1", false},
		"of the other tenant": {a, "t", "policy", "c-1", false},
	} {
		log := &memlog.Log{}
		x := member(log, "policy-1", nil)
		x.tenants = fixed{"t": three, a: three}
		b := x.of(c.holder)
		held(x, b, c.holder)
		en := stored(t, log, c.tenant, c.service, "escalated", "", c.call, []byte(`{}`))
		if err := x.Apply(en); err != nil {
			t.Fatal(err)
		}
		if got := !b.share.hold.Has(b.call(c.holder, "c-1").Key()); got != c.dropped {
			t.Errorf("%s: the grant is dropped: %v", name, got)
		}
	}
	if x := member(&memlog.Log{}, "policy-1", nil); x.of(a).tenant != org || x.of("t").tenant != "t" {
		t.Error("the ledgers of the tenants")
	}
}

// TestLag checks that Read returns an error if the ledger is not read to its end in time, and
// that it returns at once when the last entry is applied.
func TestLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memlog.Log{}
		x := member(log, "policy-1", three)
		m := &emit.Emitter{Log: log, Tenant: "t", Source: "policy/policy-1", Now: time.Now}
		if _, err := m.Append(t.Context(), m.New(events.BudgetChangedName, aggregate, contract.Bytes(&events.BudgetChanged{Now: "2026-01-02T00:00:00.000Z"}), nil)); err != nil {
			t.Fatal(err)
		}
		end(t, log, "t", "judge", "c-1", contract.Succeeded)
		began := time.Now()
		if err := x.Read(t.Context()); !errors.Is(err, errLag) || time.Since(began) != patience {
			t.Errorf("without Follow: %v after %v", err, time.Since(began))
		}
		x.Follow(1)
		for seq := uint64(1); seq <= 2; seq++ {
			began = time.Now()
			if err := x.Read(t.Context()); !errors.Is(err, errLag) || time.Since(began) != patience {
				t.Errorf("before the entry at %d is applied: %v after %v", seq, err, time.Since(began))
			}
			en, err := log.Get(t.Context(), seq)
			if err != nil {
				t.Fatal(err)
			}
			go func() { time.Sleep(time.Second); _ = x.Apply(en) }()
			time.Sleep(2 * time.Second)
		}
		began = time.Now()
		if err := x.Read(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("after the last entry: %v after %v", err, time.Since(began))
		}
	})
}
