package guard

import (
	"errors"
	"fmt"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// MaxStartWindow is the longest time from the proposal of a call, or from the end of the
// votes on it, to its start. The claim of a call is unique because, within the stream's
// duplicate window of 5 minutes, NATS stores one message per message id. This time plus
// the clock difference between services must therefore stay below 5 minutes.
const MaxStartWindow = 2 * time.Minute

// mint returns the intent of an allowed call.
func mint(in *Inputs, v Answer) *contract.ExecutionIntent {
	from, until, deadline, _ := window(in)
	i := &contract.ExecutionIntent{
		ArgsDigest: in.Facts.ArgsDigest, CallID: in.CallID, Egress: in.Tool.Egress, EgressRules: egressOf(in, v), Executor: in.Tool.Executor, Expires: contract.Time(until),
		ID: contract.IDIntent + in.CallID, IdemKey: in.IdemKey, Kind: in.Facts.Kind, NotBefore: contract.Time(from),
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
		s := narrowed(in, v)
		i.Sandbox = &s
	}
	return i
}

// ErrExpired is returned by CheckIntent if the start window of the intent has ended and
// every other check succeeds.
var ErrExpired = errors.New("intent expired")

// KeyAt returns the public key with id kid, or an error unless kid was a key of
// owner for use at lamport. trust.Registry.At implements it.
type KeyAt func(kid, owner, use string, lamport uint64) (public []byte, err error)

// VerifyDecision returns an error unless policy signed the decision with a key that was
// valid at the decision's Lamport time, and the decision's digests and intent match its
// other fields. It does not check the policies that the decision names; package evidence
// checks that they were activated.
func VerifyDecision(d *contract.Decision, keys KeyAt) error {
	pub, err := keys(d.KID, "policy", contract.UseDecision, uint64(d.Lamport))
	if err != nil {
		return fmt.Errorf("decision %s: %w", d.ID, err)
	}
	body := *d
	body.Sig = ""
	if err := contract.Verify(pub, sign.DomainDecision, &body, d.Sig); err != nil {
		return fmt.Errorf("decision %s: %w", d.ID, err)
	}
	switch {
	case sign.Digest(d.Facts) != d.FactsDigest:
		return fmt.Errorf("decision %s: facts do not match their digest", d.ID)
	case policyHash(d) != d.PolicyHash:
		return fmt.Errorf("decision %s: policy_decision_hash does not bind its fields", d.ID)
	case (d.Verdict == contract.Allow) != (d.Intent != nil):
		return fmt.Errorf("decision %s: an intent belongs to ALLOW and only to ALLOW", d.ID)
	case d.Intent != nil && !sameCall(d.Intent, d):
		return fmt.Errorf("decision %s: intent is for another call", d.ID)
	}
	return nil
}

// sameCall reports whether the intent is for the call that the decision is about.
func sameCall(i *contract.ExecutionIntent, d *contract.Decision) bool {
	return i.CallID == d.CallID && i.ArgsDigest == d.ArgsDigest && i.Kind == d.Kind && i.Tool == d.Tool
}

// ApproverOwner returns the owner under which the trust registry lists a principal's own
// approval key: "approver:", the tenant, a slash and the principal (trust.Owner).
func ApproverOwner(tenant, principal string) string {
	return contract.OwnerApprover + tenant + "/" + principal
}

// BallotOf returns the document that the approver of a signed vote signed.
// escalated is the ESCALATE decision that the vote is about.
func BallotOf(a *contract.Approval, escalated *contract.Decision) *contract.Ballot {
	return &contract.Ballot{Approver: a.Approver, CallID: a.CallID, DecisionDigest: contract.Digest(escalated), KID: a.KID, Reason: a.Reason,
		Tenant: a.Tenant, Vote: a.Vote}
}

// PasskeyAt returns the passkey with an id that was registered in a tenant before a Lamport
// time, or an error.
type PasskeyAt func(tenant, id string, lamport uint64) (*contract.PasskeyRegistered, error)

// VerifyPasskey verifies the signature of a vote that a passkey has signed, and returns the
// authenticator's counter of signatures. The passkey must be one of the approver's, in the
// tenant of the escalated decision, at lamport, and no other key may have signed the vote.
func VerifyPasskey(a *contract.Approval, escalated *contract.Decision, passkeys PasskeyAt, lamport uint64) (count uint32, err error) {
	p, err := passkeys(escalated.Tenant, a.Passkey.CredentialID, lamport)
	switch {
	case err != nil:
	case a.Sig != "" || a.KID != "":
		err = errors.New("kid: a vote is signed with a key or with a passkey, not with both")
	case p.Principal != a.Approver:
		err = errors.New("passkey: is that of another person")
	default:
		count, err = passkey.Verify(p, passkey.Challenge(BallotOf(a, escalated)), a.Passkey)
	}
	if err != nil {
		return 0, fmt.Errorf("vote of %s: %w", a.Approver, err)
	}
	return count, nil
}

// VerifyBallot checks the signature of a vote, which VerifyPasskey verifies if it is that of
// a passkey. A vote with a key or a signature needs both, and the key must have been the
// approver's, in the tenant of the escalated decision, at lamport; otherwise VerifyBallot
// returns an error. It returns nil for a vote without a signature: it was cast by an
// authenticated person, which the producer of the event attests.
func VerifyBallot(a *contract.Approval, escalated *contract.Decision, keys KeyAt, passkeys PasskeyAt, lamport uint64) error {
	if a.Passkey != nil {
		_, err := VerifyPasskey(a, escalated, passkeys, lamport)
		return err
	}
	if a.Sig == "" && a.KID == "" {
		return nil
	}
	pub, err := keys(a.KID, ApproverOwner(escalated.Tenant, a.Approver), contract.UseApproval, lamport)
	if err != nil {
		return fmt.Errorf("vote of %s: %w", a.Approver, err)
	}
	if err := contract.Verify(pub, sign.DomainApproval, BallotOf(a, escalated), a.Sig); err != nil {
		return fmt.Errorf("vote of %s: %w", a.Approver, err)
	}
	return nil
}

// CheckIntent returns nil if the executor may start the call. The decision must verify
// and allow the call; its intent must be for this executor, tenant and session; a.Call
// must be the call that was decided; and the start window must not have ended at now.
// CheckIntent does not compare now with the start of the window. If only the window has
// ended, the error is ErrExpired.
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
	case !decided(&a.Call, d):
		return fmt.Errorf("intent %s: its call is not the one decided", d.Intent.ID)
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

// decided reports whether the decision d is about the call c.
func decided(c *contract.Call, d *contract.Decision) bool {
	return c.ID == d.CallID && c.Args.Commitment == d.ArgsDigest && c.Kind == d.Kind && c.Tool == d.Tool
}
