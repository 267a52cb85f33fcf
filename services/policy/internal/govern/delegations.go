package govern

import (
	"errors"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// Delegations holds the delegations that were granted, including those that have ended.
// The zero value is empty.
type Delegations struct {
	given map[string]*delegation // delegations by id
}

// delegation is a granted delegation and the time for which it is in force.
type delegation struct {
	events.DelegationGranted
	span
}

func (x *Delegations) add(d *events.DelegationGranted, lamport uint64) {
	if x.given == nil {
		x.given = map[string]*delegation{}
	}
	x.given[d.ID] = &delegation{*d, span{from: lamport, expires: d.Expires}}
}

func (x *Delegations) end(id string, lamport uint64) {
	if d := x.given[id]; d != nil && d.to == 0 {
		d.to = lamport
	}
}

// endOf ends every delegation that a principal granted.
func (x *Delegations) endOf(delegator string, lamport uint64) {
	for id, d := range x.given {
		if d.Delegator == delegator {
			x.end(id, lamport)
		}
	}
}

// Fault returns the reason code why the delegation with this id does not permit delegate
// to make calls of this kind on behalf of delegator at now (contract.TimeFormat), or ""
// if it does. An unknown delegation permits nothing.
func (x *Delegations) Fault(id, delegator, delegate, kind, now string) string {
	d := x.given[id]
	switch {
	case d == nil || d.Delegator != delegator || d.Delegate != delegate || !d.holds(now):
		return contract.ReasonDelegationInvalid
	case !slices.ContainsFunc(d.Kinds, func(p string) bool { return guard.MatchKind(p, kind) }):
		return contract.ReasonDelegationScopeViolation
	}
	return ""
}

// Scopes returns the scopes of the credential with which a delegation was granted; the
// caller must not change the slice. known is false for unknown delegations and for
// delegations without recorded scopes, such as those of releases before 0.5.
func (x *Delegations) Scopes(id string) (scopes []string, known bool) {
	d := x.given[id]
	if d == nil {
		return nil, false
	}
	return d.DelegationGranted.Scopes, len(d.DelegationGranted.Scopes) > 0
}

type delegateArgs struct {
	Delegate string   `json:"delegate"`
	Kinds    []string `json:"kinds"`
	TTLMS    int64    `json:"ttl_ms"`
}

// delegate returns the event that lets another principal act for the caller. No argument
// names the delegator, so a principal cannot delegate the authority of another one.
func delegate(_ *State, c *Caller, a *delegateArgs) (Fact, error) {
	if err := lasts(a.TTLMS, MaxDelegation); err != nil {
		return none, err
	}
	if a.Delegate == c.Actor {
		return none, errors.New("delegate: is the caller itself")
	}
	return Fact{events.DelegationGrantedName, &events.DelegationGranted{Delegate: a.Delegate, Delegator: c.Actor, Expires: c.until(a.TTLMS),
		ID: contract.IDDelegation + c.CallID, Kinds: a.Kinds, Scopes: c.Held}}, nil
}

type revokeDelegationArgs struct {
	ID string `json:"id"`
}

// revokeDelegation returns the event that ends a delegation in force. The caller need not
// be its delegator, so an administrator can end any delegation.
func revokeDelegation(s *State, c *Caller, a *revokeDelegationArgs) (Fact, error) {
	if d := s.Delegations.given[a.ID]; d == nil || !d.holds(c.now()) {
		return none, errors.New("id: delegation not found or ended")
	}
	return Fact{events.DelegationRevokedName, &events.DelegationRevoked{ID: a.ID}}, nil
}
