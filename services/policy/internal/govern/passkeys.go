package govern

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// The kinds of the calls about passkeys. A gateway makes the first for a person that is
// logged in by a browser.
const (
	KindRegisterPasskey = "policy.register_passkey"
	KindRemovePasskey   = "policy.remove_passkey"
)

// scopeAdmin is the scope of callers that may remove the passkeys of other persons.
const scopeAdmin = "policy:admin"

// MaxPasskeys is the maximum number of passkeys of a person.
const MaxPasskeys = 16

// Passkeys holds the passkeys of persons. The zero value is empty.
type Passkeys struct {
	by map[string]*registeredPasskey // by the id of the credential, including those that have ended
}

type registeredPasskey struct {
	contract.PasskeyRegistered
	span
	count uint32 // last counter of signatures
}

func (x *Passkeys) add(d *contract.PasskeyRegistered, at moment) {
	if x.by == nil {
		x.by = map[string]*registeredPasskey{}
	}
	if x.by[d.ID] == nil {
		x.by[d.ID] = &registeredPasskey{*d, span{from: at.lamport}, uint32(d.SignCount)}
	}
}

func (x *Passkeys) remove(id string, at moment) {
	if p := x.by[id]; p != nil && p.to == 0 {
		p.to = at.lamport
	}
}

// endOf ends the passkeys of a principal.
func (x *Passkeys) endOf(principal string, at moment) {
	for id, p := range x.by {
		if p.Principal == principal {
			x.remove(id, at)
		}
	}
}

// Signed records the counter of signatures of a vote that policy has recorded.
func (x *Passkeys) Signed(id string, count uint32) {
	if p := x.by[id]; p != nil {
		p.count = max(p.count, count)
	}
}

// Find returns a passkey that is registered and was not removed, and the last counter of
// its signatures.
func (x *Passkeys) Find(id string) (p *contract.PasskeyRegistered, count uint32, err error) {
	k := x.by[id]
	if k == nil || k.to != 0 {
		return nil, 0, errors.New("passkey: is not registered, or was removed; a person registers one on the page /auth/passkeys")
	}
	return &k.PasskeyRegistered, k.count, nil
}

func (x *Passkeys) identities() (out []Identity) {
	for id, p := range x.by {
		out = append(out, Identity{Kind: "passkey", ID: id, Principal: p.Principal, Name: p.Name, From: p.from, To: p.to})
	}
	return out
}

// dump appends a line for each counter of signatures.
func (x *Passkeys) dump(b []byte) []byte {
	all := make([]*registeredPasskey, 0, len(x.by))
	for _, p := range x.by {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *registeredPasskey) int { return cmp.Compare(a.ID, b.ID) })
	for _, p := range all {
		w := canon.Object(b)
		w.Int("count", int64(p.count))
		w.Str("passkey", p.ID)
		b = append(w.End(), '\n')
	}
	return b
}

type registerPasskeyArgs struct {
	AAGUID      string `json:"aaguid"`
	Attestation string `json:"attestation"`
	ID          string `json:"id"`
	Name        string `json:"name"`
	Origin      string `json:"origin"`
	PublicKey   string `json:"public_key"`
	RPID        string `json:"rp_id"`
	SignCount   int64  `json:"sign_count"`
}

// registerPasskey returns the event that registers a passkey of the caller, a registered
// person. If other persons are registered, the decision on the call requires the approval
// of one of them (see People.SecondPerson), because the passkey votes as the caller.
func registerPasskey(s *State, c *Caller, a *registerPasskeyArgs) (Fact, error) {
	if err := authenticated(c); err != nil {
		return none, errors.New("id: a passkey is registered on the page /auth/passkeys of a gateway")
	}
	if err := c.View.MayVote(c.Actor); err != nil {
		return none, err
	}
	n := 0
	for _, p := range s.Passkeys.by {
		if p.Principal == c.Actor && p.to == 0 {
			n++
		}
	}
	switch {
	case s.Passkeys.by[a.ID] != nil:
		return none, errors.New("id: a passkey with this id was registered before")
	case n >= MaxPasskeys:
		return none, fmt.Errorf("id: %s has %d passkeys already; remove one first", c.Actor, n)
	}
	d := &contract.PasskeyRegistered{AAGUID: a.AAGUID, Attestation: a.Attestation, ID: a.ID, Name: a.Name, Origin: a.Origin, Principal: c.Actor,
		PublicKey: a.PublicKey, RPID: a.RPID, SignCount: a.SignCount}
	return Fact{contract.EventPasskeyRegistered, d}, passkey.Check(d)
}

type removePasskeyArgs struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// removePasskey returns the event that ends a passkey of the caller, or of another person if
// the caller's credential has the scope scopeAdmin.
func removePasskey(s *State, c *Caller, a *removePasskeyArgs) (Fact, error) {
	p := s.Passkeys.by[a.ID]
	if p == nil || p.to != 0 || p.Principal != c.Actor && !slices.Contains(c.Held, scopeAdmin) {
		return none, errors.New("id: passkey not found among the caller's, or removed")
	}
	return explained(a.Reason, events.PasskeyRemovedName, &events.PasskeyRemoved{ID: a.ID, Principal: p.Principal, Reason: a.Reason})
}
