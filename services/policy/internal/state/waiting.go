package state

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Waiting is an escalated call that is not settled yet, with the votes recorded
// so far.
type Waiting struct {
	Event     *contract.Event
	Escalated contract.Escalated
	Votes     []contract.Approval // changes while the call waits, so it may be used only within Read
}

// WaitingFor returns the escalation of a call, or nil if the call does not wait for
// votes. The Event and Escalated of the result do not change.
func (st *State) WaitingFor(call string) (w *Waiting) {
	st.Read(func(v *View) { w = v.waiting[call] })
	return w
}

// Escalation is an escalated call as queries return it to approvers.
type Escalation struct {
	CallID         string                  `json:"call_id"`
	Session        string                  `json:"session_id"`
	Tenant         string                  `json:"tenant"`
	Kind           string                  `json:"kind"`
	Tool           string                  `json:"tool"`
	Actor          string                  `json:"actor"`
	OnBehalfOf     string                  `json:"on_behalf_of,omitempty"`
	Reason         string                  `json:"reason_code"`
	Since          string                  `json:"since"`
	Expires        string                  `json:"expires"`
	Rules          []contract.ApprovalRule `json:"rules"`
	Votes          []contract.Approval     `json:"votes"`
	Args           json.RawMessage         `json:"args,omitempty"` // canonical JSON; the functions of this package leave it empty
	DecisionDigest string                  `json:"decision_digest"`
}

// Escalations returns the calls that wait for approval, oldest first. The caller owns
// the slice, but must not change the Rules in it.
func (st *State) Escalations() []Escalation {
	out := []Escalation{}
	st.Read(func(v *View) {
		for _, w := range v.waiting {
			out = append(out, w.show())
		}
	})
	slices.SortFunc(out, func(a, b Escalation) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.CallID, b.CallID))
	})
	return out
}

// Escalation returns one call that waits for approval, and the reference to its args. ok
// is false if the call does not wait. The caller must not change the Rules of the
// result.
func (st *State) Escalation(call string) (x Escalation, args contract.Content, ok bool) {
	st.Read(func(v *View) {
		var w *Waiting
		if w, ok = v.waiting[call]; ok {
			x, args = w.show(), w.Escalated.Call.Args
		}
	})
	return x, args, ok
}

// show returns the escalation as queries return it, without its args.
func (w *Waiting) show() Escalation {
	d := &w.Escalated.Decision
	out := Escalation{CallID: d.CallID, Session: d.Session, Tenant: d.Tenant, Kind: d.Kind, Tool: d.Tool, Actor: d.Actor, OnBehalfOf: w.Escalated.Call.OnBehalfOf, Reason: d.ReasonCode,
		Since: w.Event.Time, Expires: w.Escalated.Expires, Rules: w.Escalated.Rules, Votes: slices.Clone(w.Votes), DecisionDigest: contract.Digest(d)}
	if out.Votes == nil {
		out.Votes = []contract.Approval{}
	}
	return out
}
