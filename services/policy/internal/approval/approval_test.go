package approval

import (
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

var noon = time.Date(2026, 3, 3, 12, 0, 0, 0, time.UTC)

func escalation(rules ...contract.ApprovalRule) *contract.Escalated {
	return &contract.Escalated{Call: contract.Call{ID: "c-1", OnBehalfOf: "dave"}, Decision: contract.Decision{Actor: "agent", Tenant: "t"},
		Expires: contract.Time(Expiry(rules, noon)), Rules: rules}
}

func vote(who string, roles ...string) Vote {
	return Vote{Approver: who, Roles: roles, Vote: contract.Grant, Reason: "seen"}
}

// TestDecide records votes one after the other, and checks which of them count and which
// one resolves the call.
func TestDecide(t *testing.T) {
	two := escalation(contract.ApprovalRule{Quorum: 2, Roles: []string{"sec", "ops"}, TimeoutMS: 60_000})
	type step struct {
		v        Vote
		at       time.Duration
		resolved string
		fails    bool
	}
	for name, c := range map[string]struct {
		esc   *contract.Escalated
		steps []step
	}{
		"two grants":              {two, []step{{vote("bob", "sec"), 0, "", false}, {vote("carol", "ops"), 0, "granted", false}, {vote("eve", "ops"), 0, "", true}}},
		"the same twice":          {two, []step{{vote("bob", "sec"), 0, "", false}, {vote("bob", "ops"), 0, "", true}}},
		"the caller":              {two, []step{{vote("agent", "sec"), 0, "", true}}},
		"the one it is done for":  {two, []step{{vote("dave", "sec"), 0, "", true}}},
		"without the role":        {two, []step{{vote("bob", "approver"), 0, "", true}}},
		"without a reason":        {two, []step{{Vote{Approver: "bob", Roles: []string{"sec"}, Vote: contract.Grant}, 0, "", true}}},
		"a vote that is none":     {two, []step{{Vote{Approver: "bob", Roles: []string{"sec"}, Vote: "maybe", Reason: "x"}, 0, "", true}}},
		"one denial ends it":      {two, []step{{vote("bob", "sec"), 0, "", false}, {Vote{Approver: "carol", Roles: []string{"ops"}, Vote: contract.Refuse, Reason: "no"}, 0, "denied", false}}},
		"after its time":          {two, []step{{vote("bob", "sec"), time.Minute, "", true}, {Vote{Vote: contract.TimeOut}, time.Minute, "timed_out", false}}},
		"time out before time":    {two, []step{{Vote{Vote: contract.TimeOut}, 59 * time.Second, "", true}}},
		"two rules, both met":     {escalation(contract.ApprovalRule{Quorum: 1, Roles: []string{"sec"}, TimeoutMS: 1000}, contract.ApprovalRule{Quorum: 1, TimeoutMS: 9000}), []step{{vote("bob", "sec"), 0, "", false}, {vote("carol", "approver"), 0, "granted", false}}},
		"the shortest time holds": {escalation(contract.ApprovalRule{Quorum: 1, TimeoutMS: 1000}, contract.ApprovalRule{Quorum: 1, TimeoutMS: 9000}), []step{{vote("bob", "approver"), time.Second, "", true}}},
	} {
		var votes []contract.Approval
		for i, s := range c.steps {
			a, err := Decide(c.esc, votes, s.v, noon.Add(s.at))
			if (err != nil) != s.fails || err == nil && a.Resolved != s.resolved {
				t.Errorf("%s, step %d: %+v %v", name, i, a, err)
			}
			if err == nil {
				votes = append(votes, *a)
			}
		}
	}
	_, err := Decide(two, []contract.Approval{{Resolved: "denied"}}, vote("bob", "sec"), noon)
	if !errors.Is(err, ErrSettled) {
		t.Error(err)
	}
}
