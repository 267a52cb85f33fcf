package guard

import (
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Facts holds the inputs of a decision other than the args, the tool and the policies.
// The canonical bytes of Facts are part of the decision, so that the decision can be
// computed again later.
type Facts struct {
	Accepts         []string       `json:"accepts,omitempty"` // data labels that the operator permits the model to receive; "*" stands for every label; set only if the call carries labels
	Actor           string         `json:"actor"`
	Approvals       []ApprovalFact `json:"approvals,omitempty"` // votes, if the call was escalated before
	ArgsDigest      string         `json:"args_digest"`
	BreakGlass      string         `json:"break_glass,omitempty"` // id of the actor's open break-glass grant; empty for a call under a valid delegation
	Budget          *BudgetFact    `json:"budget,omitempty"`      // result of the limits; absent if they were not checked, or none applies
	CatalogDigest   string         `json:"catalog_digest"`
	Client          string         `json:"client"`
	Deadline        string         `json:"deadline"`
	Delegation      string         `json:"delegation,omitempty"`       // id of the delegation that the caller named for OnBehalfOf
	DelegationBad   string         `json:"delegation_fault,omitempty"` // reason code why the delegation does not permit the call; empty = it does, or there is none
	Delegator       *DelegatorFact `json:"delegator,omitempty"`        // authority of OnBehalfOf under a valid delegation, nil without one; the rules must allow the call to both principals
	DualControl     bool           `json:"dual_control,omitempty"`     // approval by a second person is required
	Frozen          string         `json:"frozen,omitempty"`           // id of the freeze in force; empty = the mesh is not frozen
	Key             *KeyFact       `json:"key,omitempty"`              // the virtual key that the caller presented; nil = none
	Kind            string         `json:"kind"`
	Labels          []string       `json:"labels,omitempty"`           // data labels of the session, of the parent call's session, and of the request
	Truncated       bool           `json:"ledger_truncated,omitempty"` // audit found events missing from the ledger; nothing is allowed until a new log epoch is opened
	MeshTenant      string         `json:"mesh_tenant,omitempty"`      // tenant of the mesh's own events; set only if the call's tenant does not exist
	Now             string         `json:"now"`
	OnBehalfOf      string         `json:"on_behalf_of,omitempty"`
	Operator        bool           `json:"operator,omitempty"`     // a root key made the actor an operator; set only in calls of contract.CellTenant
	OutsideCell     bool           `json:"outside_cell,omitempty"` // the call governs the whole mesh, by its kind or its args, and is not of contract.CellTenant; before the cell is opened: the call creates or changes a tenant
	OwnBundles      int64          `json:"own_bundles,omitempty"`  // number of bundles at the end of Decision.Policies.P1 that are the tenant's own; they can only narrow the permissions of the others
	Parent          string         `json:"parent,omitempty"`
	ParentLive      bool           `json:"parent_live,omitempty"`
	Proposed        string         `json:"proposed"`
	Proposer        string         `json:"proposer"`                    // service that proposed the call
	ReportWithin    int64          `json:"report_within_ms,omitempty"`  // milliseconds within which the caller, which executes the call itself, reports the effect
	Requested       string         `json:"requested_session,omitempty"` // digest of a session id that the caller named without the right to use it
	Resolution      string         `json:"resolution,omitempty"`        // how the escalation ended: granted, denied or timed_out; empty = it has not ended
	Resolved        string         `json:"resolved,omitempty"`          // time at which the escalation ended
	ReviewDue       bool           `json:"review_due,omitempty"`        // the review of an expired break-glass grant of the actor or of OnBehalfOf is overdue
	Revoked         bool           `json:"revoked,omitempty"`           // the caller's credential is revoked
	Roles           []string       `json:"roles,omitempty"`             // roles of the actor
	Scopes          []string       `json:"scopes"`
	SecretAccess    []SecretFact   `json:"secret_access,omitempty"` // results of the tenant's access list for the secrets that the tool declares; empty if the tenant has no list, or the tool declares none
	Session         string         `json:"session"`
	SessionName     string         `json:"session_name,omitempty"`  // the caller's name for the session; empty = none
	SessionOwner    string         `json:"session_owner,omitempty"` // owner of the session, or "-" if unknown; set only if the actor neither owns the session nor has a grant for it
	Suspended       bool           `json:"suspended,omitempty"`     // the actor or OnBehalfOf is suspended
	Tenant          string         `json:"tenant"`
	TenantSuspended bool           `json:"tenant_suspended,omitempty"` // the call's tenant is suspended
	Tool            string         `json:"tool"`
	ToolPinned      string         `json:"tool_pinned,omitempty"` // the approved digest if it is not ToolDigest; "none" if the ceilings require an approval that the tool lacks
	ToolDigest      string         `json:"tool_schema_digest"`
	Unverified      bool           `json:"unverified,omitempty"` // a signature among the args does not verify
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
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
	c.OptBool("operator", &f.Operator)
	c.OptBool("outside_cell", &f.OutsideCell)
	c.OptInt("own_bundles", &f.OwnBundles)
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
	canon.List(c, "secret_access", &f.SecretAccess)
	c.Str("session", &f.Session)
	c.OptStr("session_name", &f.SessionName)
	c.OptStr("session_owner", &f.SessionOwner)
	c.OptBool("suspended", &f.Suspended)
	c.Str("tenant", &f.Tenant)
	c.OptBool("tenant_suspended", &f.TenantSuspended)
	c.Str("tool", &f.Tool)
	c.OptStr("tool_pinned", &f.ToolPinned)
	c.Str("tool_schema_digest", &f.ToolDigest)
	c.OptBool("unverified", &f.Unverified)
}

// ForRules returns a copy of the facts as input for bundles. It omits Approvals, Budget,
// Resolution and Resolved, which are known only after the rules were first evaluated for
// the call, and OwnBundles, which determines how the answers of the bundles are combined.
// Session holds the caller's name for the session, if there is one, because rules of
// older releases refer to sessions by name. The copy shares slices and pointers with f.
func (f *Facts) ForRules() *Facts {
	g := *f
	if f.SessionName != "" {
		g.Session, g.SessionName = f.SessionName, ""
	}
	g.Approvals, g.Budget, g.Resolution, g.Resolved, g.OwnBundles = nil, nil, "", "", 0
	return &g
}

// DelegatorFact is the authority of the principal on whose behalf a call is made: the
// roles that it holds at the time of the decision, and the scopes of the credential with
// which it granted the delegation. Scopes is empty if the delegation does not record
// them, as before release 0.5.
type DelegatorFact struct {
	Roles  []string `json:"roles,omitempty"`
	Scopes []string `json:"scopes,omitempty"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (d *DelegatorFact) Canonical(c *canon.Codec) {
	c.OptStrs("roles", &d.Roles)
	c.OptStrs("scopes", &d.Scopes)
}

// KeyFact is the state of a virtual key at the time of the decision, with the
// models that it may be used for.
type KeyFact struct {
	Fault  string   `json:"fault,omitempty"` // reason code why the key may not be used for the call; empty = it may
	ID     string   `json:"id"`
	Models []string `json:"models,omitempty"` // patterns of model names; empty = every model
	Tags   []string `json:"tags,omitempty"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (k *KeyFact) Canonical(c *canon.Codec) {
	c.OptStr("fault", &k.Fault)
	c.Str("id", &k.ID)
	c.OptStrs("models", &k.Models)
	c.OptStrs("tags", &k.Tags)
}

// ApprovalFact is one vote that the decision was computed from, whether or not it
// counted.
type ApprovalFact struct {
	Approver string   `json:"approver"`
	EventID  string   `json:"event_id"`
	Passkey  bool     `json:"passkey,omitempty"` // a passkey of the approver signed the vote
	Roles    []string `json:"roles,omitempty"`
	Vote     string   `json:"vote"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (a *ApprovalFact) Canonical(c *canon.Codec) {
	c.Str("approver", &a.Approver)
	c.Str("event_id", &a.EventID)
	c.OptBool("passkey", &a.Passkey)
	c.OptStrs("roles", &a.Roles)
	c.Str("vote", &a.Vote)
}

// BudgetFact is the result of checking the limits: the amounts that are reserved for the
// call, or the reason why they were refused.
type BudgetFact struct {
	Accounts  []string         `json:"accounts"`            // accounts on which the amounts are reserved or, after a refusal, the accounts for which a limit refused them; empty if the budget ledger failed
	Allotment string           `json:"allotment,omitempty"` // id of the allotment that the amounts are drawn from; empty after a refusal, and in decisions of releases up to 0.5
	Amounts   contract.Amounts `json:"amounts"`
	Draws     []DrawFact       `json:"draws,omitempty"`    // draws from the allotment, one for each account
	Escalate  bool             `json:"escalate,omitempty"` // the limit that refused the amounts requires approval instead of denying the call
	Refused   string           `json:"refused,omitempty"`  // reason code of the refusal; empty = the amounts are reserved
	RetryAt   string           `json:"retry_at,omitempty"` // end of the current window of the exceeded limit; empty if it has no calendar windows, or if no limit is exceeded
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (b *BudgetFact) Canonical(c *canon.Codec) {
	c.Strs("accounts", &b.Accounts)
	c.OptStr("allotment", &b.Allotment)
	c.Doc("amounts", &b.Amounts)
	canon.List(c, "draws", &b.Draws)
	c.OptBool("escalate", &b.Escalate)
	c.OptStr("refused", &b.Refused)
	c.OptStr("retry_at", &b.RetryAt)
}

// DrawFact is the part of an account that a call draws from an allotment.
type DrawFact struct {
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
	Rest    int64  `json:"rest"` // unused amount of the account in the allotment after the draw, as far as its holder has read the ledger
	Window  string `json:"window,omitempty"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (d *DrawFact) Canonical(c *canon.Codec) {
	c.Str("account", &d.Account)
	c.Int("amount", &d.Amount)
	c.Int("rest", &d.Rest)
	c.OptStr("window", &d.Window)
}
