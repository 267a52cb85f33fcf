package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// The verdicts of decisions, strongest first; guard.Combine defines how they are
// joined.
const (
	Deny     = "DENY"
	Escalate = "ESCALATE"
	Allow    = "ALLOW"
)

// Decision is policy's signed verdict on one call. Facts holds the data from which the
// decision was computed, except the args, the tool's document and the policies: the
// decision names these by commitment or digest. A reader who has them can compute
// verdict and reason again. Only guard.Decide makes a Decision.
type Decision struct {
	Actor         string           `json:"actor"`
	ArgsDigest    string           `json:"args_digest"` // the commitment to the args
	CallID        string           `json:"call_id"`
	CatalogDigest string           `json:"catalog_digest"`
	Client        string           `json:"client"`
	Facts         Raw              `json:"facts"`
	FactsDigest   string           `json:"facts_digest"`
	ID            string           `json:"id"`
	Intent        *ExecutionIntent `json:"intent,omitempty"` // present if and only if Verdict is ALLOW
	KID           string           `json:"kid"`
	Kind          string           `json:"kind"`
	Lamport       int64            `json:"lamport"`
	Policies      PolicyDigests    `json:"policies"`
	PolicyHash    string           `json:"policy_decision_hash"` // SHA-256 that binds verdict and reason code to the digests of args, facts and policies
	ReasonCode    string           `json:"reason_code"`
	Session       string           `json:"session"`
	Sig           string           `json:"sig,omitempty"`
	Tenant        string           `json:"tenant"`
	Time          string           `json:"time"`
	Tool          string           `json:"tool"`
	ToolDigest    string           `json:"tool_schema_digest"` // digest of the Tool document in force; "none" if the tool is unknown
	Verdict       string           `json:"verdict"`
}

// DecisionIn returns the decision that policy recorded in the event e: that of an allowed or
// escalated event, or of an outcome with which policy denied the call. It returns nil for
// an event that contains none and for one of another service, and an error if the event's
// data cannot be decoded.
func DecisionIn(e *Event) (*Decision, error) {
	if e.Service() != "policy" {
		return nil, nil
	}
	switch e.Name {
	case EventAllowed:
		var x Allowed
		err := Decode(e.Data, &x)
		return &x.Decision, err
	case EventEscalated:
		var x Escalated
		err := Decode(e.Data, &x)
		return &x.Decision, err
	case EventEffectRecorded:
		var x Recorded
		err := Decode(e.Data, &x)
		return x.Decision, err
	}
	return nil, nil
}

// PolicyDigests names the policies in force, by layer. If a layer has several documents,
// their digests are joined by "+", in P1 in ascending precedence and in P2 in order of
// name. P2 is empty if no overlay applied, and all are empty if a policy document could
// not be read.
type PolicyDigests struct {
	P0 string `json:"p0"`
	P1 string `json:"p1"`
	P2 string `json:"p2,omitempty"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (p *PolicyDigests) Canonical(c *canon.Codec) {
	c.Str("p0", &p.P0)
	c.Str("p1", &p.P1)
	c.OptStr("p2", &p.P2)
}

// Canonical implements canon.Document. An unset Sig is absent; the signature covers the
// bytes without it.
func (d *Decision) Canonical(c *canon.Codec) {
	c.Str("actor", &d.Actor)
	c.Str("args_digest", &d.ArgsDigest)
	c.Str("call_id", &d.CallID)
	c.Str("catalog_digest", &d.CatalogDigest)
	c.Str("client", &d.Client)
	c.Raw("facts", (*[]byte)(&d.Facts))
	c.Str("facts_digest", &d.FactsDigest)
	c.Str("id", &d.ID)
	canon.OptDoc(c, "intent", &d.Intent)
	c.Str("kid", &d.KID)
	c.Str("kind", &d.Kind)
	c.Int("lamport", &d.Lamport)
	c.Doc("policies", &d.Policies)
	c.Str("policy_decision_hash", &d.PolicyHash)
	c.Str("reason_code", &d.ReasonCode)
	c.Str("session", &d.Session)
	c.OptStr("sig", &d.Sig)
	c.Str("tenant", &d.Tenant)
	c.Str("time", &d.Time)
	c.Str("tool", &d.Tool)
	c.Str("tool_schema_digest", &d.ToolDigest)
	c.Str("verdict", &d.Verdict)
}

// ExecutionIntent is the permission inside an ALLOW: one executor may execute one
// call once, with these args, within these ceilings, and start it between
// NotBefore and Expires. Only guard.Decide makes one.
type ExecutionIntent struct {
	ArgsDigest  string        `json:"args_digest"`
	Budget      *Reservation  `json:"budget,omitempty"`
	CallID      string        `json:"call_id"`
	Deadline    string        `json:"deadline,omitempty"`     // time by which the effect must have ended; absent = the call's deadline
	EgressRules []EgressRule  `json:"egress,omitempty"`       // requests that the execution may make: the rules of the tool, narrowed by policy; empty = those to Egress
	Egress      []string      `json:"egress_hosts,omitempty"` // hosts to which the tool declares that it connects; see Tool.Egress
	Executor    string        `json:"executor"`
	Expires     string        `json:"expires"` // time by which the effect must have started
	ID          string        `json:"id"`
	IdemKey     string        `json:"idempotency_key"`
	Kind        string        `json:"kind"`
	NotBefore   string        `json:"not_before"`
	Obliged     []string      `json:"obligations,omitempty"` // duties of the executor during the execution; only the llm-router reads them, and it fails a call with an unknown one
	Sandbox     *Sandbox      `json:"sandbox,omitempty"`
	Secrets     []SecretGrant `json:"secrets,omitempty"`
	Tool        string        `json:"tool"`
}

// Amounts holds an amount for each measure that limits can bound. An absent measure is
// zero.
type Amounts struct {
	Calls         int64 `json:"calls,omitempty"`
	Cents         int64 `json:"cents,omitempty"`
	ComputeMillis int64 `json:"compute_ms,omitempty"` // milliseconds of CPU time of one core
	EgressBytes   int64 `json:"egress_bytes,omitempty"`
	Risk          int64 `json:"risk_points,omitempty"`
	Tokens        int64 `json:"tokens,omitempty"`
	USDMicros     int64 `json:"usd_micros,omitempty"` // millionths of a US dollar
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (a *Amounts) Canonical(c *canon.Codec) {
	c.OptInt("calls", &a.Calls)
	c.OptInt("cents", &a.Cents)
	c.OptInt("compute_ms", &a.ComputeMillis)
	c.OptInt("egress_bytes", &a.EgressBytes)
	c.OptInt("risk_points", &a.Risk)
	c.OptInt("tokens", &a.Tokens)
	c.OptInt("usd_micros", &a.USDMicros)
}

// Reservation holds the amounts that are reserved for one call, and the accounts of the
// budget ledger on which they are reserved.
type Reservation struct {
	Accounts []string `json:"accounts"` // "<limit>/<level>:<subject>"
	Amounts  Amounts  `json:"amounts"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (r *Reservation) Canonical(c *canon.Codec) {
	c.Strs("accounts", &r.Accounts)
	c.Doc("amounts", &r.Amounts)
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (i *ExecutionIntent) Canonical(c *canon.Codec) {
	c.Str("args_digest", &i.ArgsDigest)
	canon.OptDoc(c, "budget", &i.Budget)
	c.Str("call_id", &i.CallID)
	c.OptStr("deadline", &i.Deadline)
	canon.List(c, "egress", &i.EgressRules)
	c.OptStrs("egress_hosts", &i.Egress)
	c.Str("executor", &i.Executor)
	c.Str("expires", &i.Expires)
	c.Str("id", &i.ID)
	c.Str("idempotency_key", &i.IdemKey)
	c.Str("kind", &i.Kind)
	c.Str("not_before", &i.NotBefore)
	c.OptStrs("obligations", &i.Obliged)
	canon.OptDoc(c, "sandbox", &i.Sandbox)
	canon.List(c, "secrets", &i.Secrets)
	c.Str("tool", &i.Tool)
}

// Allowed is the data of policy.allowed, which is the work item of the executor
// that Decision.Intent names.
type Allowed struct {
	Decision Decision `json:"decision"`
	// Call is the proposal that the decision is about, repeated so that an
	// executor needs no second read.
	Call Call `json:"call"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (a *Allowed) Canonical(c *canon.Codec) {
	c.Doc("call", &a.Call)
	c.Doc("decision", &a.Decision)
}
