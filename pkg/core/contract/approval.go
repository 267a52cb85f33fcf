package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// ApprovalRule is one requirement on the approvers of an escalated call.
type ApprovalRule struct {
	Quorum    int64    `json:"quorum"`          // distinct approvers, none of them the caller
	Roles     []string `json:"roles,omitempty"` // each approver holds one of these; empty = any approver
	TimeoutMS int64    `json:"timeout_ms"`      // after that the call is denied
}

// Canonical implements canon.Document.
func (a *ApprovalRule) Canonical(c *canon.Codec) {
	c.Int("quorum", &a.Quorum)
	c.OptStrs("roles", &a.Roles)
	c.Int("timeout_ms", &a.TimeoutMS)
}

// Escalated is the data of policy.escalated: the call waits for approval. The
// decision's verdict is ESCALATE, and every rule must be met before Expires.
type Escalated struct {
	Call     Call           `json:"call"`
	Decision Decision       `json:"decision"`
	Expires  string         `json:"expires"`
	Rules    []ApprovalRule `json:"rules,omitempty"`
}

// Canonical implements canon.Document.
func (e *Escalated) Canonical(c *canon.Codec) {
	c.Doc("call", &e.Call)
	c.Doc("decision", &e.Decision)
	c.Str("expires", &e.Expires)
	canon.List(c, "rules", &e.Rules)
}

// Votes.
const (
	Grant   = "grant"
	Refuse  = "deny"
	TimeOut = "timed_out" // no vote: the time to vote is over
)

// Approval is the data of policy.approval_recorded: one vote on an escalated
// call, or the end of its time. Resolved is set on the event that settles the
// escalation; no event on the call's approvals follows that one.
type Approval struct {
	Approver string   `json:"approver"` // principal; "-" for the mesh itself
	CallID   string   `json:"call_id"`
	KID      string   `json:"kid,omitempty"` // the approver's own key, where the vote is signed
	Reason   string   `json:"reason,omitempty"`
	Resolved string   `json:"resolved,omitempty"` // "granted", "denied", "timed_out"
	Roles    []string `json:"roles,omitempty"`    // the approver held at that lamport
	Sig      string   `json:"sig,omitempty"`
	Tenant   string   `json:"tenant"`
	Vote     string   `json:"vote"` // "grant", "deny", "timed_out"
}

// Canonical implements canon.Document.
func (a *Approval) Canonical(c *canon.Codec) {
	c.Str("approver", &a.Approver)
	c.Str("call_id", &a.CallID)
	c.OptStr("kid", &a.KID)
	c.OptStr("reason", &a.Reason)
	c.OptStr("resolved", &a.Resolved)
	c.OptStrs("roles", &a.Roles)
	c.OptStr("sig", &a.Sig)
	c.Str("tenant", &a.Tenant)
	c.Str("vote", &a.Vote)
}

// Ballot is what an approver signs: the vote, and the digest of the signed
// ESCALATE decision that it is about, so that the signature covers what the
// approver was shown.
type Ballot struct {
	Approver       string `json:"approver"`
	CallID         string `json:"call_id"`
	DecisionDigest string `json:"decision_digest"`
	KID            string `json:"kid"`
	Reason         string `json:"reason,omitempty"`
	Tenant         string `json:"tenant"`
	Vote           string `json:"vote"`
}

// Canonical implements canon.Document.
func (b *Ballot) Canonical(c *canon.Codec) {
	c.Str("approver", &b.Approver)
	c.Str("call_id", &b.CallID)
	c.Str("decision_digest", &b.DecisionDigest)
	c.Str("kid", &b.KID)
	c.OptStr("reason", &b.Reason)
	c.Str("tenant", &b.Tenant)
	c.Str("vote", &b.Vote)
}

// FreezeAck is the data of <executor>.freeze_acknowledged: after this event the
// instance starts no effect until the freeze is over.
type FreezeAck struct {
	FreezeID string `json:"freeze_id"`
	Instance string `json:"instance"`
}

// Canonical implements canon.Document.
func (f *FreezeAck) Canonical(c *canon.Codec) {
	c.Str("freeze_id", &f.FreezeID)
	c.Str("instance", &f.Instance)
}
