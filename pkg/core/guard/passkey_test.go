package guard_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey/passkeytest"
)

// TestApprovedByPasskeys shows that a rule that requires passkeys counts only votes that one has
// signed, and that other rules count those too.
func TestApprovedByPasskeys(t *testing.T) {
	vote := func(who string, signed bool) guard.ApprovalFact {
		return guard.ApprovalFact{Approver: who, Passkey: signed, Roles: []string{guard.DefaultRole}, Vote: contract.Grant}
	}
	strict, plain := contract.ApprovalRule{Passkey: true, Quorum: 1}, contract.ApprovalRule{Quorum: 2}
	for name, c := range map[string]struct {
		rules []contract.ApprovalRule
		votes []guard.ApprovalFact
		want  bool
	}{
		"signed":              {[]contract.ApprovalRule{strict}, []guard.ApprovalFact{vote("bob", true)}, true},
		"not signed":          {[]contract.ApprovalRule{strict}, []guard.ApprovalFact{vote("bob", false)}, false},
		"the caller's":        {[]contract.ApprovalRule{strict}, []guard.ApprovalFact{vote("alice", true)}, false},
		"two rules, both met": {[]contract.ApprovalRule{strict, plain}, []guard.ApprovalFact{vote("bob", true), vote("carol", false)}, true},
		"two rules, one met":  {[]contract.ApprovalRule{strict, plain}, []guard.ApprovalFact{vote("bob", false), vote("carol", false)}, false},
	} {
		if guard.Approved(c.rules, c.votes, "alice") != c.want {
			t.Errorf("%s: not %v", name, c.want)
		}
	}
}

// TestVerifyPasskey shows that a vote verifies with a passkey of its approver alone, that the
// counter is returned, and that errors name the approver.
func TestVerifyPasskey(t *testing.T) {
	device := passkeytest.New("https://mesh.example", "mesh.example")
	shown := &contract.Decision{ID: "q-c-1", Facts: contract.Raw("{}"), Tenant: "t"}
	at := func(tenant, id string, lamport uint64) (*contract.PasskeyRegistered, error) {
		if tenant != "t" || lamport != 9 {
			return nil, errors.New("passkey: not registered")
		}
		return device.Registered("bob"), nil
	}
	vote := func() *contract.Approval {
		a := &contract.Approval{Approver: "bob", CallID: "c-1", Reason: "seen", Tenant: "t", Vote: contract.Grant}
		a.Passkey = device.Assert(passkey.Challenge(guard.BallotOf(a, shown)))
		return a
	}
	if n, err := guard.VerifyPasskey(vote(), shown, at, 9); err != nil || n != device.Count {
		t.Fatal(n, err)
	}
	if err := guard.VerifyBallot(vote(), shown, nil, at, 9); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*contract.Approval){
		"another person":    func(a *contract.Approval) { a.Approver = "carol" },
		"not with both":     func(a *contract.Approval) { a.KID = "k-1" },
		"another ballot":    func(a *contract.Approval) { a.Vote = contract.Refuse },
		"does not verify":   func(a *contract.Approval) { a.Passkey.Signature = vote().Passkey.Signature },
		"ballot":            func(a *contract.Approval) { a.CallID = "c-2" },
		"of another ballot": func(a *contract.Approval) { a.Reason = "not seen" },
	} {
		a := vote()
		change(a)
		if err := guard.VerifyBallot(a, shown, nil, at, 9); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "vote of "+a.Approver) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := guard.VerifyPasskey(vote(), shown, at, 8); err == nil {
		t.Error("a passkey that is not registered yet votes")
	}
}
