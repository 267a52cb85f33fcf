// Package guard decides: it joins the layers' answers, applies the P0
// ceilings, mints the execution intent and later checks it. It is the only
// maker of Decision and ExecutionIntent.
//
// Everything here is a pure function of its arguments. Rego, schemas and
// storage stay outside; their answers come in as values.
package guard

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Reason codes this package itself gives.
const (
	ReasonUnknownTool     = "UNKNOWN_TOOL"
	ReasonProposalExpired = "PROPOSAL_EXPIRED"
	ReasonCeiling         = "P0_CEILING_FORBIDS_KIND"
	ReasonNoPolicy        = "POLICY_MISSING"
	ReasonBadPolicy       = "POLICY_INVALID_ANSWER"
	ReasonParentNotLive   = "PARENT_NOT_LIVE"
	ReasonTruncated       = "LEDGER_TRUNCATED"
)

// MaxStartWindow bounds how long after its proposal a call may start. It must
// stay below the ledger's dedupe window (5 minutes), on which the claim
// rests, by more than any clock difference between services.
const MaxStartWindow = 2 * time.Minute

// Ceilings is the P0 layer: what no other layer can exceed.
type Ceilings struct {
	EgressHosts    []string         `json:"egress_hosts,omitempty"`
	ForbiddenKinds []string         `json:"forbidden_kinds,omitempty"` // exact, or prefix ending in "*"
	MaxCents       int64            `json:"max_cents_per_call"`
	Sandbox        contract.Sandbox `json:"sandbox"`
	StartWindowMS  int64            `json:"start_window_ms"`
}

// Canonical implements canon.Document.
func (c *Ceilings) Canonical(m *canon.Codec) {
	m.OptStrs("egress_hosts", &c.EgressHosts)
	m.OptStrs("forbidden_kinds", &c.ForbiddenKinds)
	m.Int("max_cents_per_call", &c.MaxCents)
	m.Doc("sandbox", &c.Sandbox)
	m.Int("start_window_ms", &c.StartWindowMS)
}

// Validate reports a ceiling document that could not be enforced.
func (c *Ceilings) Validate() error {
	switch {
	case c.StartWindowMS <= 0 || time.Duration(c.StartWindowMS)*time.Millisecond > MaxStartWindow:
		return fmt.Errorf("start_window_ms: want 1 to %d", MaxStartWindow.Milliseconds())
	case c.Sandbox.MemoryMiB <= 0 || c.Sandbox.Pids <= 0 || c.Sandbox.WallMS <= 0 || c.Sandbox.CPUMillis <= 0 || c.Sandbox.OutputBytes <= 0:
		return errors.New("sandbox: every limit must be above zero")
	case tierRank(c.Sandbox.Tier) < 0:
		return fmt.Errorf("sandbox.tier %q: want process or container", c.Sandbox.Tier)
	}
	return nil
}

// SignedCeilings is the P0 document as it is kept and activated.
type SignedCeilings struct {
	Ceilings Ceilings `json:"ceilings"`
	KID      string   `json:"kid"` // root key
	Sig      string   `json:"sig,omitempty"`
}

// Canonical implements canon.Document; an unset Sig is absent.
func (x *SignedCeilings) Canonical(c *canon.Codec) {
	c.Doc("ceilings", &x.Ceilings)
	c.Str("kid", &x.KID)
	c.OptStr("sig", &x.Sig)
}

// SignP0 signs ceilings with the root key.
func SignP0(root *sign.Key, c Ceilings) []byte {
	s := SignedCeilings{Ceilings: c, KID: root.KID}
	s.Sig = root.Sign(sign.DomainP0, contract.Bytes(&s))
	return contract.Bytes(&s)
}

// OpenP0 verifies a P0 document against the trusted root.
func OpenP0(doc []byte, rootKID string, rootPublic []byte) (*Ceilings, error) {
	var s SignedCeilings
	if err := contract.Decode(doc, &s); err != nil {
		return nil, fmt.Errorf("p0: %w", err)
	}
	body := s
	body.Sig = ""
	if s.KID != rootKID || sign.KID(rootPublic) != rootKID {
		return nil, errors.New("p0: not signed by the trusted root")
	}
	if err := sign.Verify(rootPublic, sign.DomainP0, contract.Bytes(&body), s.Sig); err != nil {
		return nil, fmt.Errorf("p0: %w", err)
	}
	return &s.Ceilings, s.Ceilings.Validate()
}

// Facts is what a decision is computed from, args excepted.
type Facts struct {
	Actor         string   `json:"actor"`
	ArgsDigest    string   `json:"args_digest"`
	CatalogDigest string   `json:"catalog_digest"`
	Client        string   `json:"client"`
	Deadline      string   `json:"deadline"`
	Kind          string   `json:"kind"`
	Truncated     bool     `json:"ledger_truncated,omitempty"` // audit missed history; nothing is allowed until it is recovered
	Now           string   `json:"now"`
	Parent        string   `json:"parent,omitempty"`
	ParentLive    bool     `json:"parent_live,omitempty"`
	Proposed      string   `json:"proposed"`
	Proposer      string   `json:"proposer"` // service that proposed
	Scopes        []string `json:"scopes"`
	Session       string   `json:"session"`
	Tenant        string   `json:"tenant"`
	Tool          string   `json:"tool"`
	ToolDigest    string   `json:"tool_schema_digest"`
}

// Canonical implements canon.Document.
func (f *Facts) Canonical(c *canon.Codec) {
	c.Str("actor", &f.Actor)
	c.Str("args_digest", &f.ArgsDigest)
	c.Str("catalog_digest", &f.CatalogDigest)
	c.Str("client", &f.Client)
	c.Str("deadline", &f.Deadline)
	c.Str("kind", &f.Kind)
	c.OptBool("ledger_truncated", &f.Truncated)
	c.Str("now", &f.Now)
	c.OptStr("parent", &f.Parent)
	c.OptBool("parent_live", &f.ParentLive)
	c.Str("proposed", &f.Proposed)
	c.Str("proposer", &f.Proposer)
	c.Strs("scopes", &f.Scopes)
	c.Str("session", &f.Session)
	c.Str("tenant", &f.Tenant)
	c.Str("tool", &f.Tool)
	c.Str("tool_schema_digest", &f.ToolDigest)
}

// Answer is one layer's opinion. The zero Answer is no opinion, and no
// opinion from P1 is a denial.
type Answer struct {
	Verdict string
	Reason  string
	Sandbox *contract.Sandbox // narrows; nil leaves the tool's own request
}

// Inputs is everything Decide looks at.
type Inputs struct {
	CallID   string
	IdemKey  string
	Facts    Facts
	Tool     *contract.Tool // nil: unknown
	Schema   Answer         // DENY with its reason, or zero when the args fit
	P1, P2   Answer
	P0       *Ceilings // nil: missing, denied
	Policies contract.PolicyDigests
	Lamport  uint64
}

// Decide returns the signed decision. It never fails open: every doubt is a
// DENY with its reason.
func Decide(in Inputs, key *sign.Key) contract.Decision {
	v := judge(in)
	f := contract.Bytes(&in.Facts)
	d := contract.Decision{
		Actor: in.Facts.Actor, ArgsDigest: in.Facts.ArgsDigest, CallID: in.CallID, CatalogDigest: in.Facts.CatalogDigest,
		Client: in.Facts.Client, Facts: f, FactsDigest: sign.Digest(f), ID: "d-" + in.CallID,
		KID: key.KID, Kind: in.Facts.Kind, Lamport: int64(in.Lamport), Policies: in.Policies,
		ReasonCode: v.Reason, Session: in.Facts.Session, Tenant: in.Facts.Tenant, Time: in.Facts.Now,
		Tool: in.Facts.Tool, ToolDigest: in.Facts.ToolDigest, Verdict: v.Verdict,
	}
	if v.Verdict == contract.Allow {
		d.Intent = mint(in, v)
	}
	d.PolicyHash = policyHash(&d)
	d.Sig = key.Sign(sign.DomainDecision, contract.Bytes(&d))
	return d
}

// Redecide computes the verdict, reason and policy decision hash again from
// recorded inputs, for replay.
func Redecide(in Inputs) (verdict, reason, hash string) {
	v := judge(in)
	d := contract.Decision{ArgsDigest: in.Facts.ArgsDigest, FactsDigest: contract.Digest(&in.Facts), Policies: in.Policies,
		ReasonCode: v.Reason, Verdict: v.Verdict}
	return v.Verdict, v.Reason, policyHash(&d)
}

func policyHash(d *contract.Decision) string {
	w := canon.Object(nil)
	w.Str("args_digest", d.ArgsDigest)
	w.Str("facts_digest", d.FactsDigest)
	w.Raw("policies", contract.Bytes(&d.Policies))
	w.Str("reason_code", d.ReasonCode)
	w.Str("verdict", d.Verdict)
	return sign.Digest(w.End())
}

func judge(in Inputs) Answer {
	deny := func(reason string) Answer { return Answer{Verdict: contract.Deny, Reason: reason} }
	switch {
	case in.P0 == nil:
		return deny(ReasonNoPolicy)
	case in.Facts.Truncated:
		return deny(ReasonTruncated)
	case in.Tool == nil:
		return deny(ReasonUnknownTool)
	case late(in):
		return deny(ReasonProposalExpired)
	case (in.Facts.Parent != "" || in.Facts.Proposer != "gateway") && !in.Facts.ParentLive:
		return deny(ReasonParentNotLive)
	}
	if slices.ContainsFunc(in.P0.ForbiddenKinds, func(p string) bool {
		prefix, wild := strings.CutSuffix(p, "*")
		return p == in.Facts.Kind || wild && strings.HasPrefix(in.Facts.Kind, prefix)
	}) {
		return deny(ReasonCeiling)
	}
	return Combine(in.Schema, orDeny(in.P1), in.P2)
}

func orDeny(a Answer) Answer {
	if a.Verdict == "" {
		return Answer{Verdict: contract.Deny, Reason: ReasonNoPolicy}
	}
	if rank(a.Verdict) == 0 || a.Reason == "" {
		return Answer{Verdict: contract.Deny, Reason: ReasonBadPolicy}
	}
	return a
}

func rank(verdict string) int {
	switch verdict {
	case contract.Deny:
		return 3
	case contract.Escalate:
		return 2
	case contract.Allow:
		return 1
	}
	return 0
}

// Combine joins layers: DENY > ESCALATE > ALLOW, the earlier layer speaks
// where two are equally strong, limits by minimum. Layers without opinion
// (zero Verdict) are passed over; an unknown verdict is a denial.
func Combine(layers ...Answer) Answer {
	var out Answer
	for _, a := range layers {
		if a.Verdict != "" && rank(a.Verdict) == 0 {
			a = Answer{Verdict: contract.Deny, Reason: ReasonBadPolicy}
		}
		s := out.Sandbox
		if a.Sandbox != nil {
			if s == nil {
				s = a.Sandbox
			} else {
				n := Narrow(*s, *a.Sandbox)
				s = &n
			}
		}
		if rank(a.Verdict) > rank(out.Verdict) {
			out = a
		}
		out.Sandbox = s
	}
	return out
}

func late(in Inputs) bool {
	now, err1 := contract.ParseTime(in.Facts.Now)
	proposed, err2 := contract.ParseTime(in.Facts.Proposed)
	deadline, err3 := contract.ParseTime(in.Facts.Deadline)
	if err1 != nil || err2 != nil || err3 != nil {
		return true
	}
	window := time.Duration(in.P0.StartWindowMS) * time.Millisecond
	return now.After(deadline) || now.After(proposed.Add(min(window, MaxStartWindow)))
}

func mint(in Inputs, v Answer) *contract.ExecutionIntent {
	proposed, _ := contract.ParseTime(in.Facts.Proposed)
	expires := proposed.Add(min(time.Duration(in.P0.StartWindowMS)*time.Millisecond, MaxStartWindow))
	if deadline, err := contract.ParseTime(in.Facts.Deadline); err == nil && deadline.Before(expires) {
		expires = deadline
	}
	i := &contract.ExecutionIntent{
		ArgsDigest: in.Facts.ArgsDigest, CallID: in.CallID, Executor: in.Tool.Executor, Expires: contract.Time(expires),
		ID: "i-" + in.CallID, IdemKey: in.IdemKey, Kind: in.Facts.Kind, NotBefore: in.Facts.Proposed,
		Secrets: in.Tool.Secrets, Tool: in.Facts.Tool,
	}
	if i.IdemKey == "" {
		i.IdemKey = in.CallID
	}
	if in.Tool.Sandbox != nil {
		s := Narrow(*in.Tool.Sandbox, in.P0.Sandbox)
		if v.Sandbox != nil {
			s = Narrow(s, *v.Sandbox)
		}
		i.Sandbox = &s
	}
	return i
}

// Narrow is the lattice meet of two sandboxes: the smaller of each limit and
// the stronger tier. A zero limit in b means b says nothing about it.
func Narrow(a, b contract.Sandbox) contract.Sandbox {
	lower := func(x, y int64) int64 {
		if x == 0 || y != 0 && y < x {
			return y
		}
		return x
	}
	a.CPUMillis = lower(a.CPUMillis, b.CPUMillis)
	a.MemoryMiB = lower(a.MemoryMiB, b.MemoryMiB)
	a.OutputBytes = lower(a.OutputBytes, b.OutputBytes)
	a.Pids = lower(a.Pids, b.Pids)
	a.WallMS = lower(a.WallMS, b.WallMS)
	if tierRank(b.Tier) > tierRank(a.Tier) {
		a.Tier = b.Tier
	}
	return a
}

func tierRank(t string) int {
	switch t {
	case "process":
		return 0
	case "container":
		return 1
	}
	return -1
}

// TierSatisfies reports whether tier have is at least as strong as want.
func TierSatisfies(have, want string) bool {
	return tierRank(have) >= 0 && tierRank(have) >= tierRank(want)
}

// ErrExpired says that an intent's start window is over.
var ErrExpired = errors.New("intent expired")

// KeyAt answers whether kid was a key of owner for use at a lamport.
type KeyAt func(kid, owner, use string, lamport uint64) (public []byte, err error)

// VerifyDecision checks a decision's signature and its inner digests.
func VerifyDecision(d *contract.Decision, keys KeyAt) error {
	pub, err := keys(d.KID, "policy", contract.UseDecision, uint64(d.Lamport))
	if err != nil {
		return fmt.Errorf("decision %s: %w", d.ID, err)
	}
	body := *d
	body.Sig = ""
	if err := sign.Verify(pub, sign.DomainDecision, contract.Bytes(&body), d.Sig); err != nil {
		return fmt.Errorf("decision %s: %w", d.ID, err)
	}
	switch {
	case sign.Digest(d.Facts) != d.FactsDigest:
		return fmt.Errorf("decision %s: facts do not match their digest", d.ID)
	case policyHash(d) != d.PolicyHash:
		return fmt.Errorf("decision %s: policy_decision_hash does not bind its fields", d.ID)
	case (d.Verdict == contract.Allow) != (d.Intent != nil):
		return fmt.Errorf("decision %s: an intent belongs to ALLOW and only to ALLOW", d.ID)
	case d.Intent != nil && (d.Intent.CallID != d.CallID || d.Intent.ArgsDigest != d.ArgsDigest || d.Intent.Kind != d.Kind || d.Intent.Tool != d.Tool):
		return fmt.Errorf("decision %s: intent speaks of another call", d.ID)
	}
	return nil
}

// CheckIntent is the executor's gate: the decision verifies, its intent is
// for this executor and this very proposal, and the window is open.
func CheckIntent(a *contract.Allowed, tenant, session, executor string, now time.Time, keys KeyAt) error {
	d := &a.Decision
	if err := VerifyDecision(d, keys); err != nil {
		return err
	}
	switch {
	case d.Verdict != contract.Allow:
		return fmt.Errorf("decision %s: verdict %s permits nothing", d.ID, d.Verdict)
	case d.Tenant != tenant || d.Session != session:
		return fmt.Errorf("decision %s: belongs to another tenant or session", d.ID)
	case d.Intent.Executor != executor:
		return fmt.Errorf("intent %s: addressed to executor %s", d.Intent.ID, d.Intent.Executor)
	case a.Call.ID != d.CallID || a.Call.Args.Commitment != d.ArgsDigest || a.Call.Kind != d.Kind || a.Call.Tool != d.Tool:
		return fmt.Errorf("intent %s: the call beside it is not the one decided", d.Intent.ID)
	}
	expires, err := contract.ParseTime(d.Intent.Expires)
	if err != nil {
		return fmt.Errorf("intent %s: %w", d.Intent.ID, err)
	}
	if now.After(expires) {
		return ErrExpired
	}
	return nil
}
