package receipt

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// TestAttested shows that the gateway, which hands out intents, can record a caller's
// report only with attested_by caller and a status other than unknown and
// dead_lettered, that without attested_by the gateway can record only the statuses
// unknown and cancelled, and that no other executor may set attested_by. It also
// shows that attested_by cannot be removed from a signed receipt.
func TestAttested(t *testing.T) {
	seed := sha256.Sum256([]byte("k"))
	key, err := sign.NewKey(seed[:])
	if err != nil {
		t.Fatal(err)
	}
	keys := func(string, string, string, uint64) ([]byte, error) { return key.Public(), nil }
	for _, c := range []struct {
		executor, by, status string
		ok                   bool
	}{
		{"gateway", "caller", contract.Succeeded, true},
		{"gateway", "caller", contract.Failed, true},
		{"gateway", "caller", contract.TimedOut, true},
		{"gateway", "caller", contract.Cancelled, true},
		{"gateway", "", contract.Unknown, true},
		{"gateway", "", contract.Cancelled, true},
		{"gateway", "", contract.Succeeded, false}, // the gateway cannot observe that a caller succeeded
		{"gateway", "", contract.Failed, false},
		{"gateway", "caller", contract.Unknown, false},
		{"gateway", "caller", contract.DeadLettered, false},
		{"gateway", "alice", contract.Succeeded, false},
		{"session-runner", "", contract.Succeeded, true},
		{"session-runner", "caller", contract.Succeeded, false},
	} {
		d := &contract.Decision{ID: "d-c-1", CallID: "c-1", Verdict: contract.Allow, Intent: &contract.ExecutionIntent{ID: "i-c-1", Executor: c.executor}}
		e := contract.Effect{CallID: "c-1", AttestedBy: c.by, Status: c.status}
		r := Issue(key, c.executor, Tip{}, d, &e, 1, "now")
		err := checked(&contract.Recorded{Effect: e, Receipt: r}, d, keys)
		if (err == nil) != c.ok || !c.ok && !strings.Contains(err.Error(), "attested_by") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// A signed receipt from which attested_by is removed is rejected.
	d := &contract.Decision{ID: "d-c-1", CallID: "c-1", Verdict: contract.Allow, Intent: &contract.ExecutionIntent{ID: "i-c-1", Executor: "gateway"}}
	e := contract.Effect{CallID: "c-1", AttestedBy: contract.Caller, Status: contract.Succeeded}
	r := Issue(key, "gateway", Tip{}, d, &e, 1, "now")
	r.AttestedBy = ""
	if checked(&contract.Recorded{Effect: e, Receipt: r}, d, keys) == nil {
		t.Error("a receipt without its mark passes")
	}
}

func signer(t testing.TB) (*sign.Key, guard.KeyAt) {
	t.Helper()
	seed := sha256.Sum256([]byte("k"))
	key, err := sign.NewKey(seed[:])
	if err != nil {
		t.Fatal(err)
	}
	return key, func(kid, owner, use string, lamport uint64) ([]byte, error) {
		if kid != key.KID || use != contract.UseReceipt || lamport != 7 {
			return nil, fmt.Errorf("key %s of %s for %s at %d", kid, owner, use, lamport)
		}
		return key.Public(), nil
	}
}

// outcome returns the record of an allowed and executed call, with an output, and
// its decision.
func outcome(key *sign.Key) (*contract.Recorded, *contract.Decision) {
	d := &contract.Decision{ID: "d-c-1", CallID: "c-1", ArgsDigest: "sha256:a", Session: "s-1", Tenant: "t", Tool: "echo", ReasonCode: "RULE", Verdict: contract.Allow,
		Intent: &contract.ExecutionIntent{ID: "i-c-1", Executor: "session-runner"}}
	e := contract.Effect{CallID: "c-1", InputDigest: "sha256:a", OutputDigest: "sha256:o", Status: contract.Succeeded, Tool: "echo"}
	return &contract.Recorded{Effect: e, Output: &contract.Content{Commitment: "sha256:o"}, Receipt: Issue(key, "session-runner", Tip{"sha256:p", 4}, d, &e, 7, "now")}, d
}

// resign signs the receipt again after a change, as a dishonest executor could.
func resign(key *sign.Key, r *contract.Receipt) {
	r.Sig = ""
	r.Sig = key.Sign(sign.DomainReceipt, contract.Bytes(r))
}

// checked returns the first error of CheckRecord and CheckDecided.
func checked(rec *contract.Recorded, d *contract.Decision, keys guard.KeyAt) error {
	if err := CheckRecord(rec, keys); err != nil {
		return err
	}
	digest := ""
	if d != nil {
		digest = contract.Digest(d)
	}
	return CheckDecided(rec, d, digest)
}

// TestIssue checks every field of an issued receipt; CheckRecord verifies the signature.
func TestIssue(t *testing.T) {
	key, keys := signer(t)
	rec, d := outcome(key)
	want := contract.Receipt{ArgsDigest: "sha256:a", CallID: "c-1", DecisionDigest: contract.Digest(d), DecisionID: "d-c-1", EffectDigest: contract.Digest(&rec.Effect),
		Executor: "session-runner", ID: "r-c-1", Index: 5, IntentID: "i-c-1", KID: key.KID, Lamport: 7, OutputDigest: "sha256:o", Prev: "sha256:p", ReasonCode: "RULE",
		Session: "s-1", Sig: rec.Receipt.Sig, Status: contract.Succeeded, Tenant: "t", Time: "now", Verdict: contract.Allow}
	if rec.Receipt != want {
		t.Errorf("%+v\nwant %+v", rec.Receipt, want)
	}
	if err := checked(rec, d, keys); err != nil {
		t.Error(err)
	}
}

// TestCheck makes one change at a time to a record or its decision and checks the error,
// if any. Except in one case, the receipt is signed again after the change, as a
// dishonest executor could do. A receipt that is changed and not signed again fails,
// too, and so does a record without a decision.
func TestCheck(t *testing.T) {
	key, keys := signer(t)
	type rec = contract.Recorded
	for name, c := range map[string]struct {
		change func(r *rec, d *contract.Decision)
		want   string // part of the expected error; empty = no error
	}{
		"a key that is not the executor's":  {func(r *rec, _ *contract.Decision) { r.Receipt.KID = "k-0" }, "key k-0"},
		"a key that was not valid yet":      {func(r *rec, _ *contract.Decision) { r.Receipt.Lamport = 6 }, "at 6"},
		"an id of another call":             {func(r *rec, _ *contract.Decision) { r.Receipt.ID = "r-c-2" }, "id does not belong"},
		"another effect":                    {func(r *rec, _ *contract.Decision) { r.Effect.Ended = "later" }, "effect does not match its digest"},
		"an effect of another call":         {effect(func(e *contract.Effect) { e.CallID = "c-2" }), "effect and receipt disagree"},
		"an effect of another status":       {effect(func(e *contract.Effect) { e.Status = contract.Failed }), "effect and receipt disagree"},
		"an effect of another output":       {effect(func(e *contract.Effect) { e.OutputDigest = "sha256:q" }), "effect and receipt disagree"},
		"an output that is another":         {func(r *rec, _ *contract.Decision) { r.Output.Commitment = "sha256:q" }, "effect and receipt disagree"},
		"an output that is missing":         {func(r *rec, _ *contract.Decision) { r.Output = nil }, "effect and receipt disagree"},
		"an effect of another tool":         {effect(func(e *contract.Effect) { e.Tool = "rm" }), "decision and receipt disagree"},
		"an effect of other args":           {effect(func(e *contract.Effect) { e.InputDigest = "sha256:b" }), "decision and receipt disagree"},
		"another decision id":               {func(r *rec, _ *contract.Decision) { r.Receipt.DecisionID = "d-2" }, "decision and receipt disagree"},
		"a decision with other bytes":       {func(_ *rec, d *contract.Decision) { d.Actor = "mallory" }, "decision and receipt disagree"},
		"another verdict":                   {func(r *rec, _ *contract.Decision) { r.Receipt.Verdict = contract.Deny }, "decision and receipt disagree"},
		"another reason":                    {func(r *rec, _ *contract.Decision) { r.Receipt.ReasonCode = "X" }, "decision and receipt disagree"},
		"other args":                        {func(r *rec, _ *contract.Decision) { r.Receipt.ArgsDigest = "sha256:b" }, "decision and receipt disagree"},
		"another session":                   {func(r *rec, _ *contract.Decision) { r.Receipt.Session = "s-2" }, "decision and receipt disagree"},
		"another tenant":                    {func(r *rec, _ *contract.Decision) { r.Receipt.Tenant = "u" }, "decision and receipt disagree"},
		"another intent":                    {func(r *rec, _ *contract.Decision) { r.Receipt.IntentID = "i-2" }, "names another intent"},
		"denied, though allowed":            {status(contract.Denied), "cannot end denied"},
		"expired, not by policy":            {status(contract.Expired), "only policy may record that a call expired"},
		"expired, by policy":                {by("policy", contract.Expired), ""},
		"policy executes another's":         {by("policy", contract.Succeeded), "only policy may record that a call expired"},
		"policy gives another's up":         {by("policy", contract.DeadLettered), "only policy may record that a call expired"},
		"another service than the intent's": {by("llm-router", contract.Succeeded), "signed by another service"},
		"expired, by another service":       {by("llm-router", contract.Expired), "only policy may record that a call expired"},
		"failed":                            {status(contract.Failed), ""},
		"unknown":                           {status(contract.Unknown), ""},
	} {
		r, d := outcome(key)
		c.change(r, d)
		if name != "a decision with other bytes" {
			resign(key, &r.Receipt)
		}
		if err := checked(r, d, keys); (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "receipt "+r.Receipt.ID+": ")) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	r, d := outcome(key)
	r.Receipt.Time = "later"
	if err := checked(r, d, keys); !errors.Is(err, sign.ErrSignature) {
		t.Error("changed and not signed again:", err)
	}
	r, _ = outcome(key)
	if err := checked(r, nil, keys); err == nil || !strings.Contains(err.Error(), "no decision") {
		t.Error("without a decision:", err)
	}
}

// effect returns a change of the effect that also updates the receipt's digest of
// it.
func effect(f func(e *contract.Effect)) func(*contract.Recorded, *contract.Decision) {
	return func(r *contract.Recorded, _ *contract.Decision) {
		f(&r.Effect)
		r.Receipt.EffectDigest = contract.Digest(&r.Effect)
	}
}

func status(s string) func(*contract.Recorded, *contract.Decision) {
	return func(r *contract.Recorded, d *contract.Decision) {
		effect(func(e *contract.Effect) { e.Status = s })(r, d)
		r.Receipt.Status = s
	}
}

func by(executor, s string) func(*contract.Recorded, *contract.Decision) {
	return func(r *contract.Recorded, d *contract.Decision) {
		status(s)(r, d)
		r.Receipt.Executor = executor
	}
}

// TestOwnCalls shows that policy may record the outcomes of the calls that it
// executes itself.
func TestOwnCalls(t *testing.T) {
	key, keys := signer(t)
	for _, s := range []string{contract.Succeeded, contract.Failed, contract.Expired} {
		r, d := outcome(key)
		d.Intent.Executor = "policy"
		by("policy", s)(r, d)
		r.Receipt.DecisionDigest = contract.Digest(d)
		resign(key, &r.Receipt)
		if err := checked(r, d, keys); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// TestDenied shows that CheckDecided accepts the outcome of a call that was not allowed
// only if the status is denied, policy recorded it, and it names no intent.
func TestDenied(t *testing.T) {
	key, keys := signer(t)
	for _, c := range []struct {
		executor, status, intent string
		ok                       bool
	}{
		{"policy", contract.Denied, "", true},
		{"session-runner", contract.Denied, "", false},
		{"policy", contract.Succeeded, "", false},
		{"policy", contract.Expired, "", false},
		{"policy", contract.Denied, "i-c-1", false},
	} {
		d := &contract.Decision{ID: "d-c-1", CallID: "c-1", Verdict: contract.Deny}
		e := contract.Effect{CallID: "c-1", Status: c.status}
		r := Issue(key, c.executor, Tip{}, d, &e, 7, "now")
		r.IntentID = c.intent
		resign(key, &r)
		if err := checked(&contract.Recorded{Effect: e, Receipt: r}, d, keys); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "can only end denied, by policy") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestChain checks the genesis of a chain and that a receipt follows only the tip
// it was issued after.
func TestChain(t *testing.T) {
	key, _ := signer(t)
	tip := Genesis("t", "s-1")
	if tip.Index != 0 || tip == Genesis("t", "s-2") || tip == Genesis("u", "s-1") || tip.Digest != sign.Digest([]byte("binnacle receipt genesis v1\nt\ns-1")) {
		t.Error(tip)
	}
	d := &contract.Decision{CallID: "c-1"}
	for i := range int64(3) {
		r := Issue(key, "policy", tip, d, &contract.Effect{}, 1, "now")
		if r.Index != i+1 {
			t.Errorf("receipt %d has index %d", i+1, r.Index)
		}
		for name, bad := range map[string]Tip{"digest": {"sha256:x", tip.Index}, "index": {tip.Digest, tip.Index + 1}, "both": {"sha256:x", tip.Index - 1}} {
			if CheckLink(bad, &r) == nil {
				t.Errorf("a tip with another %s: %v", name, bad)
			}
		}
		if err := CheckLink(tip, &r); err != nil {
			t.Error(err)
		}
		if tip = TipOf(&r); tip.Digest != contract.Digest(&r) || tip.Index != i+1 {
			t.Error(tip)
		}
	}
}
