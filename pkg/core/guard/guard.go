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

// MaxStartWindow bounds how long after its proposal a call may start. It must
// stay below the ledger's dedupe window (5 minutes), on which the claim
// rests, by more than any clock difference between services.
const MaxStartWindow = 2 * time.Minute

// Answer is one layer's opinion. The zero Answer is no opinion, and no
// opinion from P1 is a denial.
type Answer struct {
	Verdict   string
	Reason    string
	Approvals []contract.ApprovalRule // what ESCALATE asks for; all of them must be met
	Sandbox   *contract.Sandbox       // narrows; nil leaves the tool's own request
	Obliged   []string                // what the executor must do on the way
}

// Inputs is everything Decide looks at.
type Inputs struct {
	CallID   string
	IdemKey  string
	Facts    Facts
	Tool     *contract.Tool // nil: unknown
	Schema   Answer         // DENY with its reason, or zero when the args fit
	P1       Answer
	P2       []Answer  // of the overlays that apply
	P0       *Ceilings // nil: missing, denied
	Policies contract.PolicyDigests
	Lamport  uint64
}

// Decide returns the signed decision. It never fails open: every doubt is a
// DENY with its reason.
func Decide(in Inputs, key *sign.Key) contract.Decision {
	v := Judge(in)
	f := contract.Bytes(&in.Facts)
	d := contract.Decision{
		Actor: in.Facts.Actor, ArgsDigest: in.Facts.ArgsDigest, CallID: in.CallID, CatalogDigest: in.Facts.CatalogDigest,
		Client: in.Facts.Client, Facts: f, FactsDigest: sign.Digest(f), ID: "d-" + in.CallID,
		KID: key.KID, Kind: in.Facts.Kind, Lamport: int64(in.Lamport), Policies: in.Policies,
		ReasonCode: v.Reason, Session: in.Facts.Session, Tenant: in.Facts.Tenant, Time: in.Facts.Now,
		Tool: in.Facts.Tool, ToolDigest: in.Facts.ToolDigest, Verdict: v.Verdict,
	}
	switch v.Verdict {
	case contract.Allow:
		d.Intent = mint(in, v)
	case contract.Escalate:
		d.ID = EscalationID(in.CallID)
	}
	d.PolicyHash = policyHash(&d)
	d.Sig = key.Sign(sign.DomainDecision, contract.Bytes(&d))
	return d
}

// EscalationID is the id of the decision that escalates a call; the one that
// ends the wait has the call's decision id.
func EscalationID(callID string) string { return "q-" + callID }

// Redecide computes the verdict, reason and policy decision hash again from
// recorded inputs, for replay.
func Redecide(in Inputs) (verdict, reason, hash string) {
	v := Judge(in)
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

// Judge is the verdict alone. The gates stand in order; the first that fails
// answers. Behind them the layers are joined, and last come what people and
// limits said.
func Judge(in Inputs) Answer { return judge(&in, nil) }

// judge passes to note, if set, what each part answers.
func judge(in *Inputs, note func(part string, a Answer)) Answer {
	said := func(part string, a Answer) Answer {
		if note != nil {
			note(part, a)
		}
		return a
	}
	if reason := gate(in); reason != "" {
		return said(PartGates, Answer{Verdict: contract.Deny, Reason: reason})
	}
	said(PartGates, Answer{})
	layers := append([]Answer{in.Schema, said(PartCeilings, p0Approvals(in)), orDeny(in.P1)}, in.P2...)
	if in.Facts.DualControl {
		layers = append(layers, said(PartDualControl, dualControl))
	}
	v := Combine(layers...)
	if v.Verdict != contract.Deny && in.Facts.ReportWithin != 0 && len(v.Obliged) > 0 {
		return said(PartCaller, Answer{Verdict: contract.Deny, Reason: contract.ReasonCallerExecutionRefused})
	}
	if v.Verdict != contract.Deny && in.Tool.Sandbox != nil && !runs(narrowed(in, v)) {
		return said(PartSandbox, Answer{Verdict: contract.Deny, Reason: contract.ReasonSandboxViolation})
	}
	b := in.Facts.Budget
	if v.Verdict != contract.Deny && b != nil {
		over := Answer{}
		if b.Refused != "" {
			over = Answer{Verdict: contract.Deny, Reason: b.Refused}
		}
		if b.Refused != "" && b.Escalate {
			over.Verdict = contract.Escalate
		}
		v = Combine(said(PartLimits, over), v)
	}
	if v.Verdict == contract.Escalate {
		return said(PartPeople, settle(in, v))
	}
	return v
}

// gate returns why the call is denied whatever the rules say, or "".
func gate(in *Inputs) string {
	f := &in.Facts
	switch {
	case in.P0 == nil:
		return contract.ReasonNoPolicyDefined
	case f.Truncated:
		return contract.ReasonLedgerTruncated
	case f.MeshTenant != "":
		return contract.ReasonTenantIsolation
	case !ascii(f.Kind) || !ascii(f.Tool):
		return contract.ReasonUnicodeObfuscationDetected
	case !name(f.Kind) || !name(f.Tool):
		return contract.ReasonEnvelopeInvalid
	case f.Frozen != "" && f.Kind != KindUnfreeze:
		return contract.ReasonSystemFrozen
	case in.Tool == nil:
		return contract.ReasonUnknownTool
	case late(*in):
		return contract.ReasonProposalExpired
	case (f.Parent != "" || f.Proposer != "gateway") && !f.ParentLive:
		return contract.ReasonProvenanceFailure
	case f.Suspended:
		return contract.ReasonPrincipalSuspended
	case f.Revoked:
		return contract.ReasonCredentialRevoked
	case f.Key != nil && f.Key.Fault != "":
		return f.Key.Fault
	case f.SessionOwner != "" || f.Requested != "":
		return contract.ReasonIdentityIsolationViolation
	case f.ToolPinned == "none":
		return contract.ReasonToolNotApproved
	case f.ToolPinned != "":
		return contract.ReasonToolDrift
	case f.DelegationBad != "":
		return f.DelegationBad
	case f.Unverified:
		return contract.ReasonVerificationFailure
	case f.ReviewDue && f.Kind != KindReview:
		return contract.ReasonBreakGlassReviewDue
	case matchAny(in.P0.ForbiddenKinds, f.Kind):
		return contract.ReasonPolicyViolation
	case f.ReportWithin != 0 && !callerMay(in):
		return contract.ReasonCallerExecutionRefused
	case slices.ContainsFunc(in.Tool.Egress, func(h string) bool {
		return !slices.ContainsFunc(in.P0.EgressHosts, func(p string) bool { return MatchHost(p, h) })
	}):
		return contract.ReasonDataEgressBlocked
	case in.Tool.Reserve != nil && in.Tool.Reserve.Cents > in.P0.MaxCents:
		return contract.ReasonBudgetExceeded
	}
	return ""
}

// Kinds that the gates know by name: each ends a state in which others are
// denied.
const (
	KindUnfreeze = "policy.unfreeze"
	KindReview   = "policy.review"
)

func ascii(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 })
}

// name reports whether s is a kind's or tool's name.
func name(s string) bool {
	return s != "" && len(s) <= 128 && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	})
}

// p0Approvals is what the ceilings say about people.
func p0Approvals(in *Inputs) Answer {
	var a Answer
	for i := range in.P0.Approvals {
		if k := &in.P0.Approvals[i]; matchAny(k.Kinds, in.Facts.Kind) {
			a.Verdict, a.Reason = contract.Escalate, contract.ReasonApprovalRequired
			a.Approvals = append(a.Approvals, k.Rule)
		}
	}
	return a
}

// dualControl asks for a second person, who has a day to approve.
var dualControl = Answer{Verdict: contract.Escalate, Reason: contract.ReasonApprovalRequired,
	Approvals: []contract.ApprovalRule{{Quorum: 1, TimeoutMS: (24 * time.Hour).Milliseconds()}}}

// defaultApproval is asked for where an ESCALATE names nobody.
var defaultApproval = contract.ApprovalRule{Quorum: 1, TimeoutMS: (5 * time.Minute).Milliseconds()}

// settle is what becomes of an ESCALATE once it is known what people said.
func settle(in *Inputs, v Answer) Answer {
	if len(v.Approvals) == 0 {
		v.Approvals = []contract.ApprovalRule{defaultApproval}
	}
	f := &in.Facts
	switch {
	case f.Resolution == "denied":
		return Answer{Verdict: contract.Deny, Reason: contract.ReasonApprovalDenied}
	case f.Resolution == "timed_out":
		return Answer{Verdict: contract.Deny, Reason: contract.ReasonApprovalTimeout}
	case f.Resolution == "granted" && Approved(v.Approvals, f.Approvals, f.Actor, f.OnBehalfOf):
		v.Verdict, v.Reason = contract.Allow, contract.ReasonApproved
	case f.Resolution == "granted": // the policies ask for more now than they did
		return Answer{Verdict: contract.Deny, Reason: contract.ReasonApprovalDenied}
	case f.BreakGlass != "" && !f.DualControl: // who is a person outlives an emergency
		v.Verdict, v.Reason = contract.Allow, contract.ReasonBreakGlass
	}
	return v
}

// DefaultRole is the role an approver holds where a rule names none.
const DefaultRole = "approver"

// Approved reports whether the grants meet every rule. Whoever asked for the
// call, or whom it is done for, does not count.
func Approved(rules []contract.ApprovalRule, votes []ApprovalFact, callers ...string) bool {
	for i := range rules {
		roles := rules[i].Roles
		if len(roles) == 0 {
			roles = []string{DefaultRole}
		}
		var who []string
		for _, v := range votes {
			if v.Vote == contract.Grant && !slices.Contains(callers, v.Approver) && !slices.Contains(who, v.Approver) &&
				slices.ContainsFunc(v.Roles, func(r string) bool { return slices.Contains(roles, r) }) {
				who = append(who, v.Approver)
			}
		}
		if int64(len(who)) < max(rules[i].Quorum, 1) {
			return false
		}
	}
	return true
}

func orDeny(a Answer) Answer {
	if a.Verdict == "" {
		return Answer{Verdict: contract.Deny, Reason: contract.ReasonNoPolicyDefined}
	}
	if rank(a.Verdict) == 0 || a.Reason == "" {
		return Answer{Verdict: contract.Deny, Reason: contract.ReasonPrgEvaluationError}
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
// where two are equally strong, limits by minimum, approvals all of them.
// Layers without opinion (zero Verdict) are passed over; an unknown verdict is
// a denial.
func Combine(layers ...Answer) Answer {
	var out Answer
	for _, a := range layers {
		if a.Verdict != "" && rank(a.Verdict) == 0 {
			a = Answer{Verdict: contract.Deny, Reason: contract.ReasonPrgEvaluationError}
		}
		if a.Sandbox != nil && out.Sandbox != nil {
			n := Narrow(*out.Sandbox, *a.Sandbox)
			out.Sandbox = &n
		} else if a.Sandbox != nil {
			out.Sandbox = a.Sandbox
		}
		if a.Verdict == contract.Escalate {
			out.Approvals = append(slices.Clip(out.Approvals), a.Approvals...)
		}
		out.Obliged = append(slices.Clip(out.Obliged), a.Obliged...)
		if rank(a.Verdict) > rank(out.Verdict) {
			out.Verdict, out.Reason = a.Verdict, a.Reason
		}
	}
	return out
}

// window is when the call may start, counted from the proposal, or, for a call
// that waited for people, from the moment they settled it; and when its caller
// stops waiting. ok is false where a time is malformed.
func window(in Inputs) (from, until, deadline time.Time, ok bool) {
	proposed, err1 := contract.ParseTime(in.Facts.Proposed)
	deadline, err2 := contract.ParseTime(in.Facts.Deadline)
	from = proposed
	var err3 error
	if in.Facts.Resolved != "" {
		if from, err3 = contract.ParseTime(in.Facts.Resolved); err3 == nil {
			deadline = from.Add(deadline.Sub(proposed))
		}
	}
	until = from.Add(min(time.Duration(in.P0.StartWindowMS)*time.Millisecond, MaxStartWindow))
	if deadline.Before(until) {
		until = deadline
	}
	return from, until, deadline, err1 == nil && err2 == nil && err3 == nil
}

func late(in Inputs) bool {
	now, err := contract.ParseTime(in.Facts.Now)
	_, until, _, ok := window(in)
	return err != nil || !ok || now.After(until)
}

func mint(in Inputs, v Answer) *contract.ExecutionIntent {
	from, until, deadline, _ := window(in)
	i := &contract.ExecutionIntent{
		ArgsDigest: in.Facts.ArgsDigest, CallID: in.CallID, Egress: in.Tool.Egress, Executor: in.Tool.Executor, Expires: contract.Time(until),
		ID: "i-" + in.CallID, IdemKey: in.IdemKey, Kind: in.Facts.Kind, NotBefore: contract.Time(from),
		Obliged: v.Obliged, Secrets: in.Tool.Secrets, Tool: in.Facts.Tool,
	}
	if in.Facts.Resolved != "" {
		i.Deadline = contract.Time(deadline)
	}
	if i.IdemKey == "" {
		i.IdemKey = in.CallID
	}
	if in.Facts.ReportWithin != 0 {
		toCaller(i, &in.Facts)
	}
	if b := in.Facts.Budget; b != nil {
		i.Budget = &contract.Reservation{Accounts: b.Accounts, Amounts: b.Amounts}
	}
	if in.Tool.Sandbox != nil {
		s := narrowed(&in, v)
		i.Sandbox = &s
	}
	return i
}

func narrowed(in *Inputs, v Answer) contract.Sandbox {
	s := Narrow(*in.Tool.Sandbox, in.P0.Sandbox)
	if v.Sandbox != nil {
		s = Narrow(s, *v.Sandbox)
	}
	return s
}

// runs reports whether a sandbox could run anything at all.
func runs(s contract.Sandbox) bool {
	return s.CPUMillis > 0 && s.MemoryMiB > 0 && s.OutputBytes > 0 && s.Pids > 0 && s.WallMS > 0 && tierRank(s.Tier) >= 0 && knownUID(s.UID)
}

// Narrow is the lattice meet of two sandboxes: the smaller of each limit and
// the stronger tier; an unknown tier stays, and nothing satisfies it. A zero
// limit in b means b says nothing about it.
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
	if b.UID != "" {
		a.UID = b.UID
	}
	if b.Tier != "" && (a.Tier == "" || tierRank(a.Tier) >= 0 && (tierRank(b.Tier) < 0 || tierRank(b.Tier) > tierRank(a.Tier))) {
		a.Tier = b.Tier
	}
	return a
}

func tierRank(t string) int {
	switch t {
	case "process":
		return 0
	case "wasi":
		return 1
	case "container":
		return 2
	}
	return -1
}

func knownUID(uid string) bool { return uid == "" || uid == contract.OwnUID }

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

// ApproverOwner is the owner of an approver's own key in the trust registry.
func ApproverOwner(principal string) string { return "approver:" + principal }

// BallotOf is what the approver of a signed vote signed.
func BallotOf(a *contract.Approval, escalated *contract.Decision) *contract.Ballot {
	return &contract.Ballot{Approver: a.Approver, CallID: a.CallID, DecisionDigest: contract.Digest(escalated), KID: a.KID, Reason: a.Reason,
		Tenant: a.Tenant, Vote: a.Vote}
}

// VerifyBallot checks the signature of a vote on an escalated decision; a vote
// without one was cast by an authenticated person.
func VerifyBallot(a *contract.Approval, escalated *contract.Decision, keys KeyAt, lamport uint64) error {
	if a.Sig == "" && a.KID == "" {
		return nil
	}
	pub, err := keys(a.KID, ApproverOwner(a.Approver), contract.UseApproval, lamport)
	if err != nil {
		return fmt.Errorf("vote of %s: %w", a.Approver, err)
	}
	if err := sign.Verify(pub, sign.DomainApproval, contract.Bytes(BallotOf(a, escalated)), a.Sig); err != nil {
		return fmt.Errorf("vote of %s: %w", a.Approver, err)
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
