package budget

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

// book is the state of all budget ledgers, computed from their events, from the events
// that allow calls with draws from allotments, and from the outcomes of these calls, in
// the order of the ledger. The zero value is the empty book. A book is not safe for
// concurrent use.
type book struct {
	by    map[string]*limit.State // by the tenant of the budget ledger
	of    map[string]string       // tenant of the budget ledger, by the id of an open allotment
	calls map[limit.Call]string   // tenant of the budget ledger, by a call with drawn amounts, whose Tenant is never empty
}

// in returns the state of the budget ledger in a tenant, which it makes if there is none.
func (k *book) in(tenant string) *limit.State {
	if k.by == nil {
		k.by, k.of, k.calls = map[string]*limit.State{}, map[string]string{}, map[limit.Call]string{}
	}
	s := k.by[tenant]
	if s == nil {
		s = &limit.State{}
		k.by[tenant] = s
	}
	return s
}

// local returns a call of a tenant as the budget ledger in the tenant home identifies it.
func local(home, tenant, id string) limit.Call {
	if tenant == home {
		tenant = ""
	}
	return limit.Call{Tenant: tenant, ID: id}
}

// change is the effect of an event on a book.
type change struct {
	ledger string                    // tenant of the budget ledger that the event belongs to or changes; "" = none
	legacy *events.BudgetChanged     // data of budget_changed; nil for other events
	recall *events.AllotmentRecalled // data of allotment_recalled; nil for other events
	own    string                    // id of the allotment that the event names
	id     string                    // id of the event
	name   string                    // name of the event
}

// wants returns false only if apply would ignore the entry with this subject and data. It
// does not decode the data as a whole.
func (k *book) wants(subject string, data []byte) bool {
	switch name := eventOf(subject); {
	case name == contract.EventEffectRecorded:
		_, ok := k.calls[limit.Call{Tenant: tenantOf(subject), ID: contract.PeekCallID(data)}]
		return ok
	case strings.HasPrefix(name, contract.EventAllowed):
		return bytes.Contains(data, []byte(`"allotment":"`))
	}
	return true
}

// eventOf returns the token of a subject that names the event, or "" if the subject has
// too few tokens.
func eventOf(subject string) string {
	parts := strings.SplitN(subject, ".", 6)
	if len(parts) < 6 {
		return ""
	}
	return parts[4]
}

// apply applies the next event. It ignores outcomes that neither policy nor the executor
// of the call recorded, and other events of services other than policy. An error means
// that the data of an event of policy cannot be decoded.
func (k *book) apply(e *contract.Event) (c change, err error) {
	c.id, c.name = e.ID, e.Name
	switch {
	case e.Name == contract.EventEffectRecorded:
		return c, k.settle(e, &c)
	case e.Service() != services.Policy:
		return c, nil
	case e.Name == contract.EventAllowed:
		return c, k.draw(e, &c)
	}
	return c, k.ledger(e, &c)
}

// ledger applies an event of a budget ledger. It ignores events with other names.
func (k *book) ledger(e *contract.Event, c *change) error {
	var err error
	s := k.in(e.Tenant)
	switch c.ledger = e.Tenant; e.Name {
	case contract.EventBudgetChanged:
		c.legacy = &events.BudgetChanged{}
		if err = contract.Decode(e.Data, c.legacy); err == nil {
			limit.Evolve(s, c.legacy)
		}
	case contract.EventAllotmentTaken:
		var ev events.AllotmentTaken
		if err = contract.Decode(e.Data, &ev); err == nil {
			c.own = ev.Allotment
			s.Take(&ev)
			k.of[ev.Allotment] = e.Tenant
		}
	case contract.EventAllotmentReturned:
		var ev events.AllotmentReturned
		if err = contract.Decode(e.Data, &ev); err == nil {
			c.own = ev.Allotment
			s.Return(&ev)
		}
	case contract.EventAllotmentRecalled:
		c.recall = &events.AllotmentRecalled{}
		err = contract.Decode(e.Data, c.recall)
	case contract.EventAllotmentClosed:
		var ev events.AllotmentClosed
		if err = contract.Decode(e.Data, &ev); err == nil {
			c.own = ev.Allotment
			s.Close(&ev)
			delete(k.of, ev.Allotment)
		}
	default:
		c.ledger = ""
	}
	return err
}

// draw applies an event that allows a call. It ignores an event without draws, and one
// with draws from an allotment that is not open.
func (k *book) draw(e *contract.Event, c *change) error {
	if !bytes.Contains(e.Data, []byte(`"allotment":"`)) {
		return nil
	}
	var a contract.Allowed
	var f guard.Facts
	if err := contract.Decode(e.Data, &a); err != nil {
		return fmt.Errorf("allowed call %s: %w", e.CallID, err)
	}
	if err := contract.Decode(a.Decision.Facts, &f); err != nil {
		return fmt.Errorf("facts of call %s: %w", e.CallID, err)
	}
	if f.Budget == nil || a.Decision.Intent == nil {
		return nil
	}
	ledger, open := k.of[f.Budget.Allotment]
	if !open {
		return nil // the draws are void
	}
	if k.in(ledger).Draw(local(ledger, e.Tenant, e.CallID), a.Decision.Intent.Executor, f.Budget) {
		c.ledger, c.own = ledger, f.Budget.Allotment
		k.calls[limit.Call{Tenant: e.Tenant, ID: e.CallID}] = ledger
	}
	return nil
}

// settle applies the outcome of a call. It ignores a call without drawn amounts.
func (k *book) settle(e *contract.Event, c *change) error {
	at := limit.Call{Tenant: e.Tenant, ID: e.CallID}
	ledger, ok := k.calls[at]
	if !ok {
		return nil
	}
	var rec contract.Recorded
	if err := contract.Decode(e.Data, &rec); err != nil {
		return nil // not an outcome
	}
	if k.in(ledger).Settle(outcomeIn(ledger, e, &rec), e.Service()) {
		c.ledger = ledger
		delete(k.calls, at)
	}
	return nil
}

// outcomeIn returns the outcome that an event records, for the budget ledger in a tenant.
func outcomeIn(ledger string, e *contract.Event, rec *contract.Recorded) limit.Outcome {
	o := limit.Outcome{Call: local(ledger, e.Tenant, e.CallID), Status: rec.Effect.Status, Attested: rec.Effect.AttestedBy != ""}
	if rec.Effect.Usage != nil {
		o.Usage = *rec.Effect.Usage
	}
	return o
}

// dump returns the canonical form of the ledgers that have changes, each after a line with
// its tenant.
func (k *book) dump() (lines []byte) {
	for _, tenant := range slices.Sorted(maps.Keys(k.by)) {
		if k.by[tenant].Changed() {
			lines = dump(lines, tenant, k.by[tenant])
		}
	}
	return lines
}

// index fills the indexes by allotment and by call from the states.
func (k *book) index() {
	k.in("")
	delete(k.by, "")
	for tenant, s := range k.by {
		for _, id := range s.Allotments() {
			k.of[id] = tenant
		}
		for _, c := range s.Drawn() {
			full := c
			if full.Tenant == "" {
				full.Tenant = tenant
			}
			k.calls[full] = tenant
		}
	}
}

// Filters selects the events that a book processes.
var Filters = slices.Concat(bus.Filters(services.Policy, contract.EventBudgetChanged, contract.EventAllotmentTaken, contract.EventAllotmentRecalled,
	contract.EventAllotmentReturned, contract.EventAllotmentClosed), allowed(), bus.Filters("", contract.EventEffectRecorded))

// allowed returns the filters of the events that allow calls to any executor but policy,
// whose calls are not charged.
func allowed() (out []string) {
	for _, x := range services.Executors() {
		if x != services.Policy {
			out = append(out, bus.AllowedFilter(x))
		}
	}
	return out
}
