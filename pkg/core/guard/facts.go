package guard

import (
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Facts is what a decision is computed from, beside the args. No fact comes from
// the args: each was read from the ledger or from the event's envelope.
type Facts struct {
	Accepts       []string       `json:"accepts,omitempty"` // labels of data that the operator lets the model receive, or *; only where data is labelled
	Actor         string         `json:"actor"`
	Approvals     []ApprovalFact `json:"approvals,omitempty"` // votes, where the call was escalated before
	ArgsDigest    string         `json:"args_digest"`
	BreakGlass    string         `json:"break_glass,omitempty"` // id of the actor's open break-glass grant
	Budget        *BudgetFact    `json:"budget,omitempty"`      // result of the limits; absent where none applies
	CatalogDigest string         `json:"catalog_digest"`
	Client        string         `json:"client"`
	Deadline      string         `json:"deadline"`
	Delegation    string         `json:"delegation,omitempty"`       // id of the delegation that the call is made under
	DelegationBad string         `json:"delegation_fault,omitempty"` // reason code why it does not hold
	Delegator     *DelegatorFact `json:"delegator,omitempty"`        // what OnBehalfOf holds; the rules must allow the call to both
	DualControl   bool           `json:"dual_control,omitempty"`     // a second person must approve
	Frozen        string         `json:"frozen,omitempty"`           // id of the freeze in force
	Key           *KeyFact       `json:"key,omitempty"`              // the virtual key that was shown
	Kind          string         `json:"kind"`
	Labels        []string       `json:"labels,omitempty"`           // data classes that reached this call by causation
	Truncated     bool           `json:"ledger_truncated,omitempty"` // audit missed history; nothing is allowed until it is recovered
	MeshTenant    string         `json:"mesh_tenant,omitempty"`      // set where the call's tenant is not the mesh's
	Now           string         `json:"now"`
	OnBehalfOf    string         `json:"on_behalf_of,omitempty"`
	Parent        string         `json:"parent,omitempty"`
	ParentLive    bool           `json:"parent_live,omitempty"`
	Proposed      string         `json:"proposed"`
	Proposer      string         `json:"proposer"`                    // service that proposed
	ReportWithin  int64          `json:"report_within_ms,omitempty"`  // the caller executes the call itself and reports within this time
	Requested     string         `json:"requested_session,omitempty"` // digest of a session id that the caller named and may not use
	Resolution    string         `json:"resolution,omitempty"`        // how an escalation was settled
	Resolved      string         `json:"resolved,omitempty"`          // when
	ReviewDue     bool           `json:"review_due,omitempty"`        // a break-glass use of the actor's waits for its review too long
	Revoked       bool           `json:"revoked,omitempty"`           // the caller's credential was
	Roles         []string       `json:"roles,omitempty"`             // of the actor
	Scopes        []string       `json:"scopes"`
	Session       string         `json:"session"`
	SessionName   string         `json:"session_name,omitempty"`  // the caller's own name for the session
	SessionOwner  string         `json:"session_owner,omitempty"` // set where the session was opened by somebody else
	Suspended     bool           `json:"suspended,omitempty"`     // the actor, or whom it acts for, is
	Tenant        string         `json:"tenant"`
	Tool          string         `json:"tool"`
	ToolPinned    string         `json:"tool_pinned,omitempty"` // the approved digest, where it is not the one in force; "none" where none is
	ToolDigest    string         `json:"tool_schema_digest"`
	Unverified    bool           `json:"unverified,omitempty"` // a signature among the args does not verify
}

// Canonical implements canon.Document.
func (f *Facts) Canonical(c *canon.Codec) {
	c.OptStrs("accepts", &f.Accepts)
	c.Str("actor", &f.Actor)
	canon.List(c, "approvals", &f.Approvals)
	c.Str("args_digest", &f.ArgsDigest)
	c.OptStr("break_glass", &f.BreakGlass)
	canon.OptDoc(c, "budget", &f.Budget)
	c.Str("catalog_digest", &f.CatalogDigest)
	c.Str("client", &f.Client)
	c.Str("deadline", &f.Deadline)
	c.OptStr("delegation", &f.Delegation)
	c.OptStr("delegation_fault", &f.DelegationBad)
	canon.OptDoc(c, "delegator", &f.Delegator)
	c.OptBool("dual_control", &f.DualControl)
	c.OptStr("frozen", &f.Frozen)
	canon.OptDoc(c, "key", &f.Key)
	c.Str("kind", &f.Kind)
	c.OptStrs("labels", &f.Labels)
	c.OptBool("ledger_truncated", &f.Truncated)
	c.OptStr("mesh_tenant", &f.MeshTenant)
	c.Str("now", &f.Now)
	c.OptStr("on_behalf_of", &f.OnBehalfOf)
	c.OptStr("parent", &f.Parent)
	c.OptBool("parent_live", &f.ParentLive)
	c.Str("proposed", &f.Proposed)
	c.Str("proposer", &f.Proposer)
	c.OptInt("report_within_ms", &f.ReportWithin)
	c.OptStr("requested_session", &f.Requested)
	c.OptStr("resolution", &f.Resolution)
	c.OptStr("resolved", &f.Resolved)
	c.OptBool("review_due", &f.ReviewDue)
	c.OptBool("revoked", &f.Revoked)
	c.OptStrs("roles", &f.Roles)
	c.Strs("scopes", &f.Scopes)
	c.Str("session", &f.Session)
	c.OptStr("session_name", &f.SessionName)
	c.OptStr("session_owner", &f.SessionOwner)
	c.OptBool("suspended", &f.Suspended)
	c.Str("tenant", &f.Tenant)
	c.Str("tool", &f.Tool)
	c.OptStr("tool_pinned", &f.ToolPinned)
	c.Str("tool_schema_digest", &f.ToolDigest)
	c.OptBool("unverified", &f.Unverified)
}

// ForRules returns a copy of the facts as bundles read them: without what is known
// only after their evaluation, and with the session under the caller's own name for
// it, if there is one, since rules named sessions before ids were derived.
func (f *Facts) ForRules() *Facts {
	g := *f
	if f.SessionName != "" {
		g.Session, g.SessionName = f.SessionName, ""
	}
	g.Approvals, g.Budget, g.Resolution, g.Resolved = nil, nil, "", ""
	return &g
}

// DelegatorFact is the authority of the principal on whose behalf a call is made:
// its roles now, and the scopes of the credential that it delegated with.
type DelegatorFact struct {
	Roles  []string `json:"roles,omitempty"`
	Scopes []string `json:"scopes,omitempty"`
}

// Canonical implements canon.Document.
func (d *DelegatorFact) Canonical(c *canon.Codec) {
	c.OptStrs("roles", &d.Roles)
	c.OptStrs("scopes", &d.Scopes)
}

// KeyFact is a virtual key as it was at the decision.
type KeyFact struct {
	Fault  string   `json:"fault,omitempty"` // reason code why it does not hold
	ID     string   `json:"id"`
	Models []string `json:"models,omitempty"` // patterns; empty = every model
	Tags   []string `json:"tags,omitempty"`
}

// Canonical implements canon.Document.
func (k *KeyFact) Canonical(c *canon.Codec) {
	c.OptStr("fault", &k.Fault)
	c.Str("id", &k.ID)
	c.OptStrs("models", &k.Models)
	c.OptStrs("tags", &k.Tags)
}

// ApprovalFact is one vote that a decision counted or rejected.
type ApprovalFact struct {
	Approver string   `json:"approver"`
	EventID  string   `json:"event_id"`
	Roles    []string `json:"roles,omitempty"`
	Vote     string   `json:"vote"`
}

// Canonical implements canon.Document.
func (a *ApprovalFact) Canonical(c *canon.Codec) {
	c.Str("approver", &a.Approver)
	c.Str("event_id", &a.EventID)
	c.OptStrs("roles", &a.Roles)
	c.Str("vote", &a.Vote)
}

// BudgetFact is the result of the limits.
type BudgetFact struct {
	Accounts []string         `json:"accounts"` // reserved on, or, where refused, the account that is full
	Amounts  contract.Amounts `json:"amounts"`
	Escalate bool             `json:"escalate,omitempty"` // the limit asks for approval instead of a denial
	Refused  string           `json:"refused,omitempty"`  // reason code
	RetryAt  string           `json:"retry_at,omitempty"` // when the window ends
}

// Canonical implements canon.Document.
func (b *BudgetFact) Canonical(c *canon.Codec) {
	c.Strs("accounts", &b.Accounts)
	c.Doc("amounts", &b.Amounts)
	c.OptBool("escalate", &b.Escalate)
	c.OptStr("refused", &b.Refused)
	c.OptStr("retry_at", &b.RetryAt)
}
