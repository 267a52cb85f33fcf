package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// Verdicts, strongest first.
const (
	Deny     = "DENY"
	Escalate = "ESCALATE"
	Allow    = "ALLOW"
)

// Decision is policy's signed answer to one call. Facts is the whole document
// the decision was computed from, args excepted, which are referred to by
// their commitment; so anyone holding the policies and the args can compute
// it again.
type Decision struct {
	Actor         string           `json:"actor"`
	ArgsDigest    string           `json:"args_digest"` // the args' commitment
	CallID        string           `json:"call_id"`
	CatalogDigest string           `json:"catalog_digest"`
	Client        string           `json:"client"`
	Facts         Raw              `json:"facts"`
	FactsDigest   string           `json:"facts_digest"`
	ID            string           `json:"id"`
	Intent        *ExecutionIntent `json:"intent,omitempty"` // present exactly when Verdict is ALLOW
	KID           string           `json:"kid"`
	Kind          string           `json:"kind"`
	Lamport       int64            `json:"lamport"`
	Policies      PolicyDigests    `json:"policies"`
	PolicyHash    string           `json:"policy_decision_hash"` // binds verdict, reason, policies, facts
	ReasonCode    string           `json:"reason_code"`
	Session       string           `json:"session"`
	Sig           string           `json:"sig,omitempty"`
	Tenant        string           `json:"tenant"`
	Time          string           `json:"time"`
	Tool          string           `json:"tool"`
	ToolDigest    string           `json:"tool_schema_digest"` // of the Tool document in force; "none" if unknown
	Verdict       string           `json:"verdict"`
}

// PolicyDigests names the policies in force by layer. P2 is empty where no
// overlay applied.
type PolicyDigests struct {
	P0 string `json:"p0"`
	P1 string `json:"p1"`
	P2 string `json:"p2,omitempty"`
}

// AppendCanonical implements the document encoding.
func (p *PolicyDigests) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Str("p0", p.P0)
	w.Str("p1", p.P1)
	w.OptStr("p2", p.P2)
	return w.End()
}

// AppendCanonical implements the document encoding; an unset Sig is absent,
// which is the signature's preimage.
func (d *Decision) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Str("actor", d.Actor)
	w.Str("args_digest", d.ArgsDigest)
	w.Str("call_id", d.CallID)
	w.Str("catalog_digest", d.CatalogDigest)
	w.Str("client", d.Client)
	w.Raw("facts", d.Facts)
	w.Str("facts_digest", d.FactsDigest)
	w.Str("id", d.ID)
	if d.Intent != nil {
		w.Append("intent", d.Intent.AppendCanonical)
	}
	w.Str("kid", d.KID)
	w.Str("kind", d.Kind)
	w.Int("lamport", d.Lamport)
	w.Append("policies", d.Policies.AppendCanonical)
	w.Str("policy_decision_hash", d.PolicyHash)
	w.Str("reason_code", d.ReasonCode)
	w.Str("session", d.Session)
	w.OptStr("sig", d.Sig)
	w.Str("tenant", d.Tenant)
	w.Str("time", d.Time)
	w.Str("tool", d.Tool)
	w.Str("tool_schema_digest", d.ToolDigest)
	w.Str("verdict", d.Verdict)
	return w.End()
}

// ExecutionIntent is the permission inside an ALLOW: this executor, these
// args, these ceilings, to be started within this window, once.
type ExecutionIntent struct {
	ArgsDigest string        `json:"args_digest"`
	Budget     *Reservation  `json:"budget,omitempty"`
	CallID     string        `json:"call_id"`
	Egress     []string      `json:"egress_hosts,omitempty"` // ceiling; absent = no network
	Executor   string        `json:"executor"`
	Expires    string        `json:"expires"` // the effect must have started before
	ID         string        `json:"id"`
	IdemKey    string        `json:"idempotency_key"`
	Kind       string        `json:"kind"`
	NotBefore  string        `json:"not_before"`
	Sandbox    *Sandbox      `json:"sandbox,omitempty"`
	Secrets    []SecretGrant `json:"secrets,omitempty"`
	Tool       string        `json:"tool"`
}

// Reservation is the budget set aside for one call.
type Reservation struct {
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
}

// AppendCanonical implements the document encoding.
func (r *Reservation) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Str("account", r.Account)
	w.Int("cents", r.Cents)
	return w.End()
}

// AppendCanonical implements the document encoding.
func (i *ExecutionIntent) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Str("args_digest", i.ArgsDigest)
	if i.Budget != nil {
		w.Append("budget", i.Budget.AppendCanonical)
	}
	w.Str("call_id", i.CallID)
	w.OptStrs("egress_hosts", i.Egress)
	w.Str("executor", i.Executor)
	w.Str("expires", i.Expires)
	w.Str("id", i.ID)
	w.Str("idempotency_key", i.IdemKey)
	w.Str("kind", i.Kind)
	w.Str("not_before", i.NotBefore)
	if i.Sandbox != nil {
		w.Append("sandbox", i.Sandbox.AppendCanonical)
	}
	canon.List(&w, "secrets", i.Secrets, SecretGrant.AppendCanonical)
	w.Str("tool", i.Tool)
	return w.End()
}

// Allowed is the data of policy.allowed.v1: the executor's work item.
type Allowed struct {
	Decision Decision `json:"decision"`
	// Call is the proposal decided on, repeated so that the work item is whole.
	Call Call `json:"call"`
}

// AppendCanonical implements the document encoding.
func (a *Allowed) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Append("call", a.Call.AppendCanonical)
	w.Append("decision", a.Decision.AppendCanonical)
	return w.End()
}
