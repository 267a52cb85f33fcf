package state

import (
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Version is the version of the code that folds the view; see snapshot.Source. It must be
// increased if Reduce or the events that the view reads change.
const Version = 5

// Reduce returns the entries without those of escalated calls that are settled, which
// change nothing in the view any more. It changes the slice.
func Reduce(entries []eventlog.Entry) []eventlog.Entry {
	settled := map[string]bool{}
	for _, en := range entries {
		if e, ok := vote(en); ok {
			var a contract.Approval
			if contract.Decode(e.Data, &a) == nil && a.Resolved != "" {
				settled[e.Tenant+"."+e.CallID] = true
			}
		}
	}
	if len(settled) == 0 {
		return entries
	}
	return slices.DeleteFunc(entries, func(en eventlog.Entry) bool {
		e, ok := vote(en)
		return ok && settled[e.Tenant+"."+e.CallID]
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
