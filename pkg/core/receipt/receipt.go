// Package receipt issues and checks receipts, the signed records of how calls
// ended. It is the only maker of contract.Receipt.
package receipt

import (
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// ID is the receipt id of a call, known before the outcome.
func ID(callID string) string { return "r-" + callID }

// Tip is the end of a session's receipt chain.
type Tip struct {
	Digest string // of the last receipt's bytes; that of Genesis before the first
	Index  int64  // of the last receipt; 0 before the first
}

// Genesis is the tip of a session that has no receipt yet.
func Genesis(tenant, session string) Tip {
	return Tip{Digest: sign.Digest([]byte("binnacle receipt genesis v1\n" + tenant + "\n" + session))}
}

// TipOf is the tip after r.
func TipOf(r *contract.Receipt) Tip { return Tip{contract.Digest(r), r.Index} }

// Issue returns the signed receipt of an effect, the next one after tip. d is
// the decision on the call, executor the service whose key signs, and now a time
// in contract.TimeFormat. Neither d nor e is changed, or checked: Check is.
func Issue(key *sign.Key, executor string, tip Tip, d *contract.Decision, e *contract.Effect, lamport uint64, now string) contract.Receipt {
	r := contract.Receipt{
		ArgsDigest: d.ArgsDigest, CallID: d.CallID, DecisionDigest: contract.Digest(d), DecisionID: d.ID,
		AttestedBy: e.AttestedBy, EffectDigest: contract.Digest(e), Executor: executor, ID: ID(d.CallID), Index: tip.Index + 1,
		KID: key.KID, Lamport: int64(lamport), OutputDigest: e.OutputDigest, Prev: tip.Digest, ReasonCode: d.ReasonCode,
		Session: d.Session, Status: e.Status, Tenant: d.Tenant, Time: now, Verdict: d.Verdict,
	}
	if d.Intent != nil {
		r.IntentID = d.Intent.ID
	}
	r.Sig = key.Sign(sign.DomainReceipt, contract.Bytes(&r))
	return r
}

// Check returns an error unless one recorded outcome is authentic and one that
// its decision d permits: a key of its executor signed the receipt, valid at the
// receipt's lamport; every digest is that of the document it names; and the
// executor may sign the status. d is nil where no decision was recorded, which
// is an error. The place in the session's chain is CheckLink's.
func Check(rec *contract.Recorded, d *contract.Decision, keys guard.KeyAt) error {
	r := &rec.Receipt
	if err := verify(r, keys); err != nil {
		return fmt.Errorf("receipt %s: %w", r.ID, err)
	}
	if err := checkEffect(rec); err != nil {
		return fmt.Errorf("receipt %s: %w", r.ID, err)
	}
	if d == nil {
		return fmt.Errorf("receipt %s: no decision for it", r.ID)
	}
	if !checkAttested(r, &rec.Effect) {
		return fmt.Errorf("receipt %s: attested_by is not what executor and status come to", r.ID)
	}
	if !decidedBy(r, d) || rec.Effect.Tool != d.Tool || rec.Effect.InputDigest != d.ArgsDigest {
		return fmt.Errorf("receipt %s: decision and receipt disagree", r.ID)
	}
	if err := checkSigner(r, d.Intent); err != nil {
		return fmt.Errorf("receipt %s: %w", r.ID, err)
	}
	return nil
}

// verify checks the signature.
func verify(r *contract.Receipt, keys guard.KeyAt) error {
	pub, err := keys(r.KID, r.Executor, contract.UseReceipt, uint64(r.Lamport))
	if err != nil {
		return err
	}
	body := *r
	body.Sig = ""
	return sign.Verify(pub, sign.DomainReceipt, contract.Bytes(&body), r.Sig)
}

// checkEffect compares the receipt with the effect and the output beside it.
func checkEffect(rec *contract.Recorded) error {
	r, e := &rec.Receipt, &rec.Effect
	output := ""
	if rec.Output != nil {
		output = rec.Output.Commitment
	}
	switch {
	case r.ID != ID(r.CallID):
		return errors.New("id does not belong to its call")
	case r.EffectDigest != contract.Digest(e):
		return errors.New("effect does not match its digest")
	case e.CallID != r.CallID || e.Status != r.Status || e.OutputDigest != r.OutputDigest || e.OutputDigest != output:
		return errors.New("effect and receipt disagree")
	}
	return nil
}

// checkAttested reports whether the outcome is attested by whom executor and
// status allow. An executor observes what it signs. Of an intent that was handed
// out to the caller, the service that did so observes only that it was withheld
// after all, or that no report came; the rest is the caller's attestation.
func checkAttested(r *contract.Receipt, e *contract.Effect) bool {
	lent := r.Executor == contract.CallerExecutor
	switch {
	case r.AttestedBy != e.AttestedBy:
		return false
	case r.AttestedBy == "":
		return !lent || r.Status == contract.Unknown || r.Status == contract.Cancelled
	case r.AttestedBy != contract.Caller || !lent:
		return false
	}
	return r.Status == contract.Succeeded || r.Status == contract.Failed || r.Status == contract.TimedOut || r.Status == contract.Cancelled
}

// decidedBy reports whether the receipt repeats the decision.
func decidedBy(r *contract.Receipt, d *contract.Decision) bool {
	return r.DecisionID == d.ID && r.DecisionDigest == contract.Digest(d) && r.Verdict == d.Verdict && r.ReasonCode == d.ReasonCode &&
		r.CallID == d.CallID && r.ArgsDigest == d.ArgsDigest && r.Session == d.Session && r.Tenant == d.Tenant
}

// checkRefusal checks how a call that was not allowed ended.
func checkRefusal(r *contract.Receipt) error {
	if r.Executor != "policy" || r.Status != contract.Denied || r.IntentID != "" {
		return errors.New("a call that was not allowed can only end denied, by policy")
	}
	return nil
}

// checkSigner checks that the service that signed may record this status: policy
// records what never started, the executor that the intent names the rest.
func checkSigner(r *contract.Receipt, intent *contract.ExecutionIntent) error {
	if intent == nil {
		return checkRefusal(r)
	}
	byPolicy, expired := r.Executor == "policy", r.Status == contract.Expired
	switch {
	case r.IntentID != intent.ID:
		return errors.New("names another intent")
	case r.Status == contract.Denied:
		return errors.New("a call that was allowed cannot end denied")
	case expired && byPolicy:
		return nil
	case expired || byPolicy && intent.Executor != "policy":
		return errors.New("only policy records an expiry, and nothing else of another's call")
	case r.Executor != intent.Executor:
		return errors.New("signed by another service than the intent's executor")
	}
	return nil
}

// CheckLink returns an error unless r is the next receipt after tip.
func CheckLink(tip Tip, r *contract.Receipt) error {
	if r.Prev != tip.Digest || r.Index != tip.Index+1 {
		return fmt.Errorf("receipt %s: does not follow the chain of session %s at %d", r.ID, r.Session, tip.Index)
	}
	return nil
}
