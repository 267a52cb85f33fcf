// Package receipt issues and checks receipts. It is the only maker of
// contract.Receipt.
package receipt

import (
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// ID is the receipt id of a call, known before the outcome.
func ID(callID string) string { return "r-" + callID }

// Tip is the end of a session's receipt chain.
type Tip struct {
	Digest string // of the last receipt's bytes; Genesis before the first
	Index  int64  // of the last receipt; 0 before the first
}

// Genesis is the tip of a session that has no receipt yet.
func Genesis(tenant, session string) Tip {
	return Tip{Digest: sign.Digest([]byte("binnacle receipt genesis v1\n" + tenant + "\n" + session))}
}

// TipOf is the tip after r.
func TipOf(r *contract.Receipt) Tip { return Tip{contract.Digest(r), r.Index} }

// Issue signs the receipt of an effect behind tip. executor is the signing
// service; now is in contract.TimeFormat.
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

// checkAttested verifies who attests an outcome. An executor observes what it
// signs. Of an intent that was handed out, the service that did so observes only
// that it was withheld after all, or that no report came; the rest is the caller's
// attestation.
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

// Check verifies one recorded outcome against its decision: the signature,
// every digest, and that the status is one the verdict permits.
func Check(rec *contract.Recorded, d *contract.Decision, keys guard.KeyAt) error {
	r := &rec.Receipt
	pub, err := keys(r.KID, r.Executor, contract.UseReceipt, uint64(r.Lamport))
	if err != nil {
		return fmt.Errorf("receipt %s: %w", r.ID, err)
	}
	body := *r
	body.Sig = ""
	if err := sign.Verify(pub, sign.DomainReceipt, contract.Bytes(&body), r.Sig); err != nil {
		return fmt.Errorf("receipt %s: %w", r.ID, err)
	}
	e := &rec.Effect
	var output string
	if rec.Output != nil {
		output = rec.Output.Commitment
	}
	bad := func(what string) error { return fmt.Errorf("receipt %s: %s", r.ID, what) }
	switch {
	case r.ID != ID(r.CallID):
		return bad("id does not belong to its call")
	case r.EffectDigest != contract.Digest(e):
		return bad("effect does not match its digest")
	case e.CallID != r.CallID || e.Status != r.Status || e.OutputDigest != r.OutputDigest || e.OutputDigest != output:
		return bad("effect and receipt disagree")
	case d == nil:
		return bad("no decision for it")
	case !checkAttested(r, e):
		return bad("attested_by is not what executor and status come to")
	case r.DecisionID != d.ID || r.DecisionDigest != contract.Digest(d) || r.Verdict != d.Verdict || r.ReasonCode != d.ReasonCode ||
		r.CallID != d.CallID || r.ArgsDigest != d.ArgsDigest || r.Session != d.Session || r.Tenant != d.Tenant || e.Tool != d.Tool || e.InputDigest != d.ArgsDigest:
		return bad("decision and receipt disagree")
	}
	// Who may sign what: policy closes what never started, the executor
	// named by the intent closes the rest.
	if d.Intent == nil {
		if r.Executor != "policy" || r.Status != contract.Denied || r.IntentID != "" {
			return bad("a call that was not allowed can only end denied, by policy")
		}
		return nil
	}
	if r.IntentID != d.Intent.ID {
		return bad("names another intent")
	}
	if r.Status == contract.Denied {
		return bad("a call that was allowed cannot end denied")
	}
	if r.Status == contract.Expired && r.Executor != "policy" || r.Executor == "policy" && r.Status != contract.Expired && d.Intent.Executor != "policy" {
		return bad("only policy records an expiry, and nothing else of another's call")
	}
	if r.Executor != "policy" && r.Executor != d.Intent.Executor {
		return bad("signed by another service than the intent's executor")
	}
	return nil
}

// CheckLink verifies that r follows tip.
func CheckLink(tip Tip, r *contract.Receipt) error {
	if r.Prev != tip.Digest || r.Index != tip.Index+1 {
		return fmt.Errorf("receipt %s: does not follow the chain of session %s at %d", r.ID, r.Session, tip.Index)
	}
	return nil
}
