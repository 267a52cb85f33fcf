package state

import (
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Version is the version of the code that folds the view; see snapshot.Source. It must be
// increased if Reduce or the events that the view reads change.
const Version = 6

// Reduce returns the entries without those of escalated calls that are settled, which
// change nothing in the view any more, but with the last vote of each passkey, whose counter
// the view has. It changes the slice.
func Reduce(entries []eventlog.Entry) []eventlog.Entry {
	settled := map[string]bool{}
	counted := map[string]string{} // id of the event with the last vote of a passkey, by tenant and credential
	for _, en := range entries {
		if e, ok := vote(en); ok {
			var a contract.Approval
			if contract.Decode(e.Data, &a) != nil {
				continue
			}
			if a.Resolved != "" {
				settled[e.Tenant+"."+e.CallID] = true
			}
			if a.Passkey != nil {
				counted[e.Tenant+"."+a.Passkey.CredentialID] = e.ID
			}
		}
	}
	if len(settled) == 0 {
		return entries
	}
	last := map[string]bool{}
	for _, id := range counted {
		last[id] = true
	}
	return slices.DeleteFunc(entries, func(en eventlog.Entry) bool {
		e, ok := vote(en)
		return ok && settled[e.Tenant+"."+e.CallID] && !last[e.ID]
	})
}

// vote returns the event in an entry by which policy escalated a call, or recorded a vote
// or the result of the votes. ok is false for other entries.
func vote(en eventlog.Entry) (e *contract.Event, ok bool) {
	e, err := eventlog.OpenBytes(en.Data, eventlog.Every)
	if err != nil || e.Service() != services.Policy {
		return nil, false
	}
	return e, e.Name == contract.EventEscalated || e.Name == contract.EventApprovalRecorded
}
