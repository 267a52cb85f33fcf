package audit

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// misplaced returns why a service may not have recorded an event of a call, or "".
// An entry of a service that has no right to it becomes an alarm and no part of the
// view: it neither answers for the call nor takes an id that belongs to another.
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

// idNames are the events whose ids are made from a call's, by prefix.
var idNames = map[string][]string{
	"d": {contract.EventAllowed, contract.EventEscalated},
	"o": {contract.EventOutcomeReported},
	"p": {contract.EventCallProposed},
	"q": {contract.EventEscalated},
	"r": {contract.EventEffectRecorded},
	"s": {contract.EventEffectStarted, contract.EventStartExpired},
	"x": {contract.EventCancelRequested},
}

// idOwner returns why an event may not hold its id, or "". Ids that are made from a
// call's are looked up by it.
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

func orNone(executor string) string {
	if executor == "" {
		return "none, since policy has not allowed it"
	}
	return executor
}

// executor is the service that policy allowed the call of e to, or "".
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

// eventKey is where bEvents has a session's event.
func eventKey(id string, seq uint64) []byte { return append([]byte(id+"\x00"), key(seq)...) }

// named is what bEvents has of an event: its name, with whom an allowed event
// addresses.
func named(e *contract.Event) string {
	if e.Target == "" {
		return e.Name
	}
	return e.Name + "_" + e.Target
}
