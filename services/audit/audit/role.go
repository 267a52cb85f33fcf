package audit

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// misplaced returns the reason why e must not have its id, or why the service that
// recorded e must not record such an event. It returns "" if there is no reason. The
// view records a misplaced event as an alarm and otherwise ignores it: it does not count
// as an event of the call, and a later event may have the same id.
func (w *writer) misplaced(e *contract.Event) string {
	if want := idOwner(e); want != "" {
		return want
	}
	service := e.Service()
	switch e.Name {
	case contract.EventAllowed, contract.EventEscalated, contract.EventApprovalRecorded, contract.EventStartExpired:
		if service != "policy" {
			return e.Name + " of call " + e.CallID + " by " + service + ", want policy"
		}
	case contract.EventEffectStarted:
		if to := w.executor(e); service != to {
			return "call " + e.CallID + " claimed by " + service + ", want " + orNone(to)
		}
	case contract.EventEffectRecorded:
		if service == "policy" {
			return ""
		}
		if to := w.executor(e); service != to {
			return "outcome of call " + e.CallID + " by " + service + ", want " + orNone(to)
		}
	}
	return ""
}

// idNames maps each prefix of ids that are derived from call ids to the names of the
// events that may have such an id.
var idNames = map[string][]string{
	"d": {contract.EventAllowed, contract.EventEscalated},
	"o": {contract.EventOutcomeReported},
	"p": {contract.EventCallProposed},
	"q": {contract.EventEscalated},
	"r": {contract.EventEffectRecorded},
	"s": {contract.EventEffectStarted, contract.EventStartExpired},
	"x": {contract.EventCancelRequested},
}

// idOwner returns the reason why an event must not have its id, or "". Events are looked
// up by ids that are derived from call ids, so no other event may have such an id.
func idOwner(e *contract.Event) string {
	prefix, call, ok := strings.Cut(e.ID, "-"+contract.IDCall)
	if !ok {
		return ""
	}
	names := idNames[prefix]
	if names == nil || contract.IDCall+call == e.CallID && slices.Contains(names, e.Name) {
		return ""
	}
	return "event id " + e.ID + " belongs to " + names[0] + " of that call, not to " + e.Name + " of " + e.CallID
}

// orNone returns the executor's name for use in an alarm. If executor is empty, it
// returns a phrase that says so.
func orNone(executor string) string {
	if executor == "" {
		return "none, since policy has not allowed it"
	}
	return executor
}

// executor returns the executor named in the decision that allowed the call of e, or ""
// if policy has not allowed it.
func (w *writer) executor(e *contract.Event) string {
	seq := w.tx.Bucket(bIDs).Get([]byte(contract.IDDecision + e.CallID))
	if seq == nil {
		return ""
	}
	name := w.tx.Bucket(bEvents).Get(eventKey(e.Tenant+"."+e.Session, binary.BigEndian.Uint64(seq)))
	to, ok := strings.CutPrefix(strings.Trim(string(name), `"`), contract.EventAllowed+"_")
	if !ok {
		return ""
	}
	return to
}

// eventKey returns the key of an event in bEvents. id is tenant.session.
func eventKey(id string, seq uint64) []byte { return append([]byte(id+"\x00"), key(seq)...) }

// named returns the value of an event in bEvents: the event's name, followed by an
// underscore and the executor if the event allows a call.
func named(e *contract.Event) string {
	if e.Target == "" {
		return e.Name
	}
	return e.Name + "_" + e.Target
}
