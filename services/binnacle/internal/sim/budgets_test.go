package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// budgets applies an event of a budget ledger, and returns an error if the event
// breaks an invariant. handled is false for other events.
func (c *checker) budgets(e *contract.Event) (handled bool, err error) {
	switch e.Name {
	case events.BudgetChangedName:
		return true, errors.New("this release makes no reservations")
	case events.AllotmentTakenName:
		return true, c.take(e)
	case events.AllotmentReturnedName:
		var ev events.AllotmentReturned
		if err := contract.Decode(e.Data, &ev); err != nil {
			return true, err
		}
		return true, c.giveBack(&ev)
	case events.AllotmentRecalledName:
		return true, nil
	case events.AllotmentClosedName:
		var ev events.AllotmentClosed
		if err := contract.Decode(e.Data, &ev); err != nil {
			return true, err
		}
		if c.parts[ev.Allotment] == nil {
			return true, fmt.Errorf("allotment %s is closed and was not open", ev.Allotment)
		}
		delete(c.parts, ev.Allotment)
		return true, nil
	}
	return false, nil
}

// take applies allotment_taken. It returns an error if the sum of what is used, held and
// allotted of an account exceeds the limit.
func (c *checker) take(e *contract.Event) error {
	var ev events.AllotmentTaken
	if err := contract.Decode(e.Data, &ev); err != nil {
		return err
	}
	if c.parts[ev.Allotment] == nil {
		c.parts[ev.Allotment] = map[string]int64{}
	}
	for _, b := range ev.Blocks {
		at := b.Account + " " + b.Window
		c.parts[ev.Allotment][at] += b.Amount
		sum := c.used[at]
		for _, part := range c.parts {
			sum += part[at]
		}
		limit, _, _ := strings.Cut(b.Account, "/")
		if sum > limitOf[limit] {
			return fmt.Errorf("account %s is allotted up to %d of %d", b.Account, sum, limitOf[limit])
		}
	}
	return nil
}

// giveBack applies allotment_returned. It does nothing if the allotment is
// closed, and returns an error if the event returns more than the allotment
// has.
func (c *checker) giveBack(ev *events.AllotmentReturned) error {
	part := c.parts[ev.Allotment]
	for _, b := range ev.Blocks {
		if part == nil {
			return nil // the allotment is closed
		}
		at := b.Account + " " + b.Window
		if part[at] -= b.Amount; part[at] < 0 {
			return fmt.Errorf("allotment %s returns more of %s than it has", ev.Allotment, at)
		}
	}
	return nil
}

// draw applies the draws of an allowed call. It returns an error if a draw is from the
// account of another tenant or more than the allotment has, or if what is used and held
// of an account then exceeds the limit. The draws of a closed allotment are void.
func (c *checker) draw(f *fate, e *contract.Event, a *contract.Allowed) error {
	var facts guard.Facts
	if err := contract.Decode(a.Decision.Facts, &facts); err != nil {
		return err
	}
	if facts.Budget == nil || len(facts.Budget.Draws) == 0 {
		return nil
	}
	part := c.parts[facts.Budget.Allotment]
	if c.void[e.CallID] = part == nil; part == nil {
		return nil
	}
	for _, d := range facts.Budget.Draws {
		if err := charged(f.tenant, d.Account); err != nil {
			return err
		}
		at := d.Account + " " + d.Window
		c.held[e.CallID] = append(c.held[e.CallID], events.Charge{Account: d.Account, Amount: d.Amount, Window: d.Window})
		c.used[at] += d.Amount
		if part[at] -= d.Amount; part[at] < 0 {
			return fmt.Errorf("call %s draws %d of %s more than its allotment has", e.CallID, -part[at], at)
		}
		limit, _, _ := strings.Cut(d.Account, "/")
		if c.used[at] > limitOf[limit] {
			return fmt.Errorf("account %s has %d of %d used and held", d.Account, c.used[at], limitOf[limit])
		}
	}
	c.drawn[e.CallID] = facts.Budget.Allotment
	return nil
}

// spent applies the outcome of an allowed call: what the call does not use returns to its
// allotment, if that is open. It returns an error if the call has an effect although its
// draws are void.
func (c *checker) spent(e *contract.Event, eff *contract.Effect) error {
	if c.void[e.CallID] && len(c.w.effects[e.CallID]) > 0 {
		return fmt.Errorf("call %s has an effect although its draws are void", e.CallID)
	}
	part := c.parts[c.drawn[e.CallID]]
	for _, h := range c.held[e.CallID] {
		at := h.Account + " " + h.Window
		limit, _, _ := strings.Cut(h.Account, "/")
		unused := h.Amount - used(limit, h.Window, h.Amount, eff)
		if c.used[at] -= unused; part != nil {
			part[at] += unused
		}
	}
	delete(c.held, e.CallID)
	delete(c.drawn, e.CallID)
	return nil
}

// stopped simulates that the instance of policy at the other end of l stops for some time
// before its next operation, and reports whether it did. It stops once in a run, before the
// append of a decision with draws in the original tenant that the scene determines. The
// instance then does not return what others recall, so that its allotment may be closed
// before the decision is stored. To make the other instances need what it holds, calls of
// the original tenant are added that start at once.
func (w *world) stopped(l *link, now time.Time) bool {
	o := l.in[0]
	if w.calm || w.scene.stops == 0 || !strings.HasPrefix(o.subject, "evt."+original+".policy.") || !bytes.Contains(o.data, []byte(`"allotment":"`)) {
		return false
	}
	if w.draws++; w.draws != w.scene.stops {
		return false
	}
	l.frozen = now.Add(3*time.Second + millis(w.rng, 2500))
	w.note("STOP %s for %v before its append of %s", l.name, l.frozen.Sub(now), o.subject)
	for range 10 {
		n := len(w.calls)
		body, err := json.Marshal(order{N: n, MS: 2000})
		if err != nil {
			panic(err)
		}
		w.calls = append(w.calls, &call{n: n, at: now.Add(millis(w.rng, 500)),
			request: request{path: packs + "once", tenant: original, body: string(body), session: fmt.Sprintf("s-stop-%d", n), gateway: w.rng.IntN(2), seconds: 12}})
	}
	return true
}
