// Package receipt issues and checks receipts, the signed records of how calls ended.
// Except in tests, no other package makes a contract.Receipt.
//
// The receipts of a session form a chain from Genesis, in which each receipt names the
// digest of the one before. The chain lets a reader without the log detect that
// receipts were reordered, or that any but the last ones were removed. The functions are
// pure; time, key and the end of the chain are arguments. The rules about which service
// may record which status are in checkSigner and checkAttested.
package receipt

import (
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// ID returns the id of a call's receipt. It depends only on the id of the call, so a
// second receipt of the same call would have the same id.
func ID(callID string) string { return contract.IDReceipt + callID }

// Tip is the end of a session's receipt chain, from which the next receipt
// continues.
type Tip struct {
	Digest string // digest of the last receipt's canonical bytes, or of the genesis text before the first
	Index  int64  // index of the last receipt; 0 before the first
}

// Genesis returns the tip of a session without receipts. It depends on tenant and
// session, so that a chain cannot be moved to another session.
func Genesis(tenant, session string) Tip {
	return Tip{Digest: sign.Digest([]byte("binnacle receipt genesis v1\n" + tenant + "\n" + session))}
}

// TipOf returns the tip of a session whose last receipt is r.
func TipOf(r *contract.Receipt) Tip { return Tip{contract.Digest(r), r.Index} }

// Issue returns the signed receipt of the effect e. In the session's chain, the receipt
// follows tip. d is the decision on the call, executor the name of the service that owns
// key, lamport the Lamport time of the event that will contain the receipt, and now a
// time in contract.TimeFormat. Issue changes neither d nor e and checks nothing:
// verifiers call CheckRecord, CheckDecided and CheckLink.
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
	r.Sig = contract.Sign(key, sign.DomainReceipt, &r)
	return r
}

// CheckRecord returns an error unless the receipt of a recorded outcome is signed by a key
// of its executor that was valid at the receipt's Lamport time, and agrees with the effect
// and the commitment to the output. Every error names the receipt, and wraps
// sign.ErrSignature if the signature does not verify. Whether the outcome follows from a
// decision is checked by CheckDecided, its position in the session's chain by CheckLink.
func CheckRecord(rec *contract.Recorded, keys guard.KeyAt) error {
	r := &rec.Receipt
	if err := verify(r, keys); err != nil {
		return fmt.Errorf("receipt %s: %w", r.ID, err)
	}
	if err := checkEffect(rec); err != nil {
		return fmt.Errorf("receipt %s: %w", r.ID, err)
	}
	return nil
}

// CheckDecided returns an error unless a recorded outcome is permitted by d, the decision
// on the call: the receipt must agree with the decision, and the executor must have the
// right to record the status. digest is the digest of d. A nil d, for a call without a
// recorded decision, is an error. Every error names the receipt. The caller has checked
// the outcome with CheckRecord.
func CheckDecided(rec *contract.Recorded, d *contract.Decision, digest string) error {
	r := &rec.Receipt
	if d == nil {
		return fmt.Errorf("receipt %s: no decision for it", r.ID)
	}
	if !checkAttested(r, &rec.Effect) {
		return fmt.Errorf("receipt %s: attested_by does not match the executor and the status", r.ID)
	}
	if !decidedBy(r, d, digest) || rec.Effect.Tool != d.Tool || rec.Effect.InputDigest != d.ArgsDigest {
		return fmt.Errorf("receipt %s: decision and receipt disagree", r.ID)
	}
	if err := checkSigner(r, d.Intent); err != nil {
		return fmt.Errorf("receipt %s: %w", r.ID, err)
	}
	return nil
}

// verify checks the signature of r.
func verify(r *contract.Receipt, keys guard.KeyAt) error {
	pub, err := keys(r.KID, r.Executor, contract.UseReceipt, uint64(r.Lamport))
	if err != nil {
		return err
	}
	body := *r
	body.Sig = ""
	return contract.Verify(pub, sign.DomainReceipt, &body, r.Sig)
}

// checkEffect checks the receipt's id, and compares the receipt with the effect and with
// the output in the same record.
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

// checkAttested reports whether receipt and effect have the same attested_by, and
// whether this value is permitted for the executor and the status. Without attested_by,
// the executor itself observed how the call ended. The service CallerExecutor, whose
// calls are executed by their callers, can observe only that no report arrived
// (unknown), and that it withheld the intent (cancelled). With attested_by set to
// Caller, it records the status that the caller reported: succeeded, failed, timed_out
// or cancelled.
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

// decidedBy reports whether the receipt repeats the fields of the decision and its digest.
func decidedBy(r *contract.Receipt, d *contract.Decision, digest string) bool {
	return r.DecisionID == d.ID && r.DecisionDigest == digest && r.Verdict == d.Verdict && r.ReasonCode == d.ReasonCode &&
		r.CallID == d.CallID && r.ArgsDigest == d.ArgsDigest && r.Session == d.Session && r.Tenant == d.Tenant
}

// checkRefusal checks the outcome of a call that was not allowed.
func checkRefusal(r *contract.Receipt) error {
	if r.Executor != "policy" || r.Status != contract.Denied || r.IntentID != "" {
		return errors.New("a call that was not allowed can only end denied, by policy")
	}
	return nil
}

// checkSigner checks that the receipt names the intent, and that the service that signed
// it may record this status. Policy records the outcomes of calls that were not allowed
// or that expired; the executor that the intent names records all other outcomes.
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
		return errors.New("only policy may record that a call expired, and it may record nothing else of another executor's call")
	case r.Executor != intent.Executor:
		return errors.New("signed by another service than the intent's executor")
	}
	return nil
}

// CheckLink returns an error unless r follows tip: the index of r is the next one, and r
// names the digest of tip. It does not compare the session.
func CheckLink(tip Tip, r *contract.Receipt) error {
	if r.Prev != tip.Digest || r.Index != tip.Index+1 {
		return fmt.Errorf("receipt %s: does not follow the chain of session %s at %d", r.ID, r.Session, tip.Index)
	}
	return nil
}
