package govern

import (
	"errors"

	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// Tokens holds the revocations of bearer tokens, by token id and by principal. The zero
// value is empty.
type Tokens struct {
	revoked map[string]bool   // revoked tokens by id
	ended   map[string]string // by principal: time (contract.TimeFormat) up to which all its credentials are revoked
	list    []Identity        // every revocation, in order
}

func (t *Tokens) revoke(d *events.TokenRevoked, lamport uint64) {
	if t.revoked == nil {
		t.revoked, t.ended = map[string]bool{}, map[string]string{}
	}
	if d.ID != "" {
		t.revoked[d.ID] = true
	}
	if d.Principal != "" {
		t.ended[d.Principal] = max(t.ended[d.Principal], d.Before)
	}
	t.list = append(t.list, Identity{Kind: "revocation", ID: d.ID, Principal: d.Principal, Expires: d.Before, From: lamport})
}

// Revoked reports whether the credential of a call was revoked: its token by id, or all
// credentials of its actor if the call was not proposed after that revocation. proposed
// is a time in contract.TimeFormat.
func (t *Tokens) Revoked(token, actor, proposed string) bool {
	return token != "" && t.revoked[token] || t.ended[actor] != "" && proposed <= t.ended[actor]
}

type revokeTokenArgs struct {
	ID        string `json:"id"`
	Principal string `json:"principal"`
	Reason    string `json:"reason"`
}

// revokeToken returns the event that revokes one token by its id, or all credentials of a
// principal up to the time of the call. Exactly one of the id and the principal must be
// given.
func revokeToken(_ *State, c *Caller, a *revokeTokenArgs) (Fact, error) {
	if (a.ID == "") == (a.Principal == "") {
		return none, errors.New("id: name one token by its id, or a principal")
	}
	d := &events.TokenRevoked{ID: a.ID, Principal: a.Principal, Reason: a.Reason}
	if a.Principal != "" {
		d.Before = c.now()
	}
	return explained(a.Reason, events.TokenRevokedName, d)
}
