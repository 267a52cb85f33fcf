package audit

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/audit/internal/runs"
)

// misplaced returns the reason why e must not have its id, why it must not be in its
// tenant, or why the service that recorded e must not record such an event. It returns
// "" if there is no reason. The view records a misplaced event as an alarm and otherwise
// ignores it: it does not count as an event of the call, and a later event may have the
// same id.
func (w *writer) misplaced(e *contract.Event) (string, error) {
	if want := idOwner(e); want != "" {
		return want, nil
	}
	if why := w.inWrongTenant(e); why != "" {
		return why, nil
	}
	service := e.Service()
	switch e.Name {
	case contract.EventAllowed, contract.EventEscalated, contract.EventApprovalRecorded, contract.EventStartExpired:
		if service != "policy" {
			return e.Name + " of call " + e.CallID + " by " + service + ", want policy", nil
		}
	case contract.EventEffectStarted:
		if to, err := w.executor(e); service != to {
			return "call " + e.CallID + " claimed by " + service + ", want " + orNone(to), err
		}
	case contract.EventEffectRecorded:
		if service == "policy" {
			return "", nil
		}
		if to, err := w.executor(e); service != to {
			return "outcome of call " + e.CallID + " by " + service + ", want " + orNone(to), err
		}
	}
	return "", nil
}

// idNames maps each prefix of ids that are derived from call ids to the names of the
// events that may have such an id.
var idNames = map[string][]string{
	"d":  {contract.EventAllowed, contract.EventEscalated},
	"j":  {contract.EventCallDeferred},
	"jn": {contract.EventJobNotified},
	"o":  {contract.EventOutcomeReported},
	"p":  {contract.EventCallProposed},
	"q":  {contract.EventEscalated},
	"r":  {contract.EventEffectRecorded},
	"s":  {contract.EventEffectStarted, contract.EventStartExpired},
	"x":  {contract.EventCancelRequested},
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

// orNone returns the executor's name for use in an alarm, or a phrase for no executor if
// the name is empty.
func orNone(executor string) string {
	if executor == "" {
		return "none, since policy has not allowed it"
	}
	return executor
}

// executor returns the executor named in the decision that allowed the call of e, or ""
// if policy has not allowed it in the session of e.
func (w *writer) executor(e *contract.Event) (string, error) {
	value, err := w.ids.Find(runs.KeyOf(kindEvent, contract.IDDecision+e.CallID))
	if value == 0 || err != nil {
		return "", err
	}
	seq := value & (1<<seqBits - 1) // the tenant in value need not be compared, because the session that is compared below belongs to the tenant of e
	b := w.tx.Bucket(bExecutor).Get(key(seq))
	if len(b) < 8 || binary.BigEndian.Uint64(b) != w.firstOf(e.Tenant+"."+e.Session) {
		return "", nil
	}
	return string(b[8:]), nil
}

// firstOf returns the sequence of a session's first event, or 0. id is tenant.session.
func (w *writer) firstOf(id string) uint64 {
	if s := w.sessions[id]; s != nil {
		return s.first
	}
	if b := w.tx.Bucket(bSessions).Get([]byte(id)); len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}
