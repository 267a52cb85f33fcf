package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// ApprovalRule is one requirement on the approvers of an escalated call. It is
// met when Quorum distinct approvers with a required role have granted the call.
type ApprovalRule struct {
	Passkey   bool     `json:"passkey,omitempty"` // only votes that a passkey of the approver signs count
	Quorum    int64    `json:"quorum"`            // required number of distinct approvers; neither the caller nor the principal it acts for counts
	Roles     []string `json:"roles,omitempty"`   // each approver must hold one of these; empty = guard.DefaultRole
	TimeoutMS int64    `json:"timeout_ms"`        // time to vote in milliseconds from the escalation; of several rules, the shortest time counts
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (a *ApprovalRule) Canonical(c *canon.Codec) {
	c.OptBool("passkey", &a.Passkey)
	c.Int("quorum", &a.Quorum)
	c.OptStrs("roles", &a.Roles)
	c.Int("timeout_ms", &a.TimeoutMS)
}

// Escalated is the data of policy.escalated, which records that a call waits for
// approval. The verdict of Decision is ESCALATE. Every rule must be met before Expires;
// otherwise, or if an approver votes Refuse, the call is denied.
type Escalated struct {
	Call     Call           `json:"call"`
	Decision Decision       `json:"decision"`
	Expires  string         `json:"expires"`
	Rules    []ApprovalRule `json:"rules,omitempty"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (e *Escalated) Canonical(c *canon.Codec) {
	c.Doc("call", &e.Call)
	c.Doc("decision", &e.Decision)
	c.Str("expires", &e.Expires)
	canon.List(c, "rules", &e.Rules)
}

// The values of Approval.Vote.
const (
	Grant   = "grant"
	Refuse  = "deny"
	TimeOut = "timed_out" // not a vote: the time to vote has expired
)

// The values of Approval.Resolved, which state how an escalation ended.
const (
	ResolvedGranted = "granted"
	ResolvedDenied  = "denied"
	ResolvedExpired = TimeOut
)

// Approval is the data of policy.approval_recorded: one vote on an escalated call, or
// the expiry of its time to vote. Resolved is set on the last approval event of a call,
// which ends the escalation.
type Approval struct {
	Approver string     `json:"approver"` // the principal who voted; "-" for an expiry
	CallID   string     `json:"call_id"`
	KID      string     `json:"kid,omitempty"`     // id of the approver's own key; empty if no such key signed the vote
	Passkey  *Assertion `json:"passkey,omitempty"` // signature of a passkey of the approver; nil if none signed the vote
	Reason   string     `json:"reason,omitempty"`
	Resolved string     `json:"resolved,omitempty"` // ResolvedGranted, ResolvedDenied or ResolvedExpired; empty = not resolved yet
	Roles    []string   `json:"roles,omitempty"`    // roles that the approver held when policy recorded the vote
	Sig      string     `json:"sig,omitempty"`
	Tenant   string     `json:"tenant"`
	Vote     string     `json:"vote"` // Grant, Refuse or TimeOut
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (a *Approval) Canonical(c *canon.Codec) {
	c.Str("approver", &a.Approver)
	c.Str("call_id", &a.CallID)
	c.OptStr("kid", &a.KID)
	canon.OptDoc(c, "passkey", &a.Passkey)
	c.OptStr("reason", &a.Reason)
	c.OptStr("resolved", &a.Resolved)
	c.OptStrs("roles", &a.Roles)
	c.OptStr("sig", &a.Sig)
	c.Str("tenant", &a.Tenant)
	c.Str("vote", &a.Vote)
}

// Ballot is the document that an approver signs: the vote and the digest of the signed
// ESCALATE decision. The digest binds the signature to the decision that was shown to
// the approver, so the vote cannot be used for another decision. KID is empty in a ballot
// that a passkey signs, because the approver's device chooses the passkey.
type Ballot struct {
	Approver       string `json:"approver"`
	CallID         string `json:"call_id"`
	DecisionDigest string `json:"decision_digest"`
	KID            string `json:"kid"`
	Reason         string `json:"reason,omitempty"`
	Tenant         string `json:"tenant"`
	Vote           string `json:"vote"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (b *Ballot) Canonical(c *canon.Codec) {
	c.Str("approver", &b.Approver)
	c.Str("call_id", &b.CallID)
	c.Str("decision_digest", &b.DecisionDigest)
	c.Str("kid", &b.KID)
	c.OptStr("reason", &b.Reason)
	c.Str("tenant", &b.Tenant)
	c.Str("vote", &b.Vote)
}

// ConfigReloaded is the data of <service>.config_reloaded. The event is stored before
// the instance begins to use the new values of the members.
type ConfigReloaded struct {
	Digest  string   `json:"digest"`  // SHA-256 of the configuration file's document in canonical JSON
	Members []string `json:"members"` // JSON pointers to the changed members that the service reads
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (r *ConfigReloaded) Canonical(c *canon.Codec) {
	c.Str("digest", &r.Digest)
	c.Strs("members", &r.Members)
}

// FreezeAck is the data of <executor>.freeze_acknowledged. After this event the instance
// starts no effect until the mesh is unfrozen, except that of the call that unfreezes
// it.
type FreezeAck struct {
	FreezeID string `json:"freeze_id"`
	Instance string `json:"instance"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (f *FreezeAck) Canonical(c *canon.Codec) {
	c.Str("freeze_id", &f.FreezeID)
	c.Str("instance", &f.Instance)
}
