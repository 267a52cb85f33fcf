package govern

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// Two of the types of principals. Only persons vote and review.
const (
	Person = "person"
	Agent  = "agent"
)

// People holds the principals and their roles, with their histories. The zero
// value is empty.
type People struct {
	principals map[string][]life            // histories by name, oldest first
	roles      map[string]map[string][]span // times for which roles are held, by principal and role, oldest first
}

// life is the type and suspension of a principal from one event to the next.
type life struct {
	from      uint64
	at        string // time of the event (contract.TimeFormat); empty if it has none
	kind      string
	suspended bool
}

// become appends a new state to the history of a principal. The state begins at the
// given event; earlier states remain for queries about the past.
func (p *People) become(principal string, at moment, kind string, suspended bool) {
	if p.principals == nil {
		p.principals = map[string][]life{}
	}
	p.principals[principal] = append(p.principals[principal], life{at.lamport, at.time, kind, suspended})
}

func (p *People) grant(principal, role string, x span) {
	p.revoke(principal, role, x.from)
	if p.roles == nil {
		p.roles = map[string]map[string][]span{}
	}
	if p.roles[principal] == nil {
		p.roles[principal] = map[string][]span{}
	}
	p.roles[principal][role] = append(p.roles[principal][role], x)
}

func (p *People) revoke(principal, role string, lamport uint64) {
	if x := p.roles[principal][role]; len(x) > 0 && x[len(x)-1].to == 0 {
		x[len(x)-1].to = lamport
	}
}

// last returns the current state of a principal, or the zero life if the principal has
// been neither registered nor suspended.
func (p *People) last(principal string) life {
	if l := p.principals[principal]; len(l) > 0 {
		return l[len(l)-1]
	}
	return life{}
}

// TypeOf returns the type that a principal is registered as, or "" if it is not
// registered.
func (p *People) TypeOf(principal string) string { return p.last(principal).kind }

// Suspended reports whether a principal is suspended. All calls of a suspended principal
// are denied.
func (p *People) Suspended(principal string) bool { return p.last(principal).suspended }

// holds reports whether a principal holds a role at now (contract.TimeFormat).
func (p *People) holds(principal, role, now string) bool {
	x := p.roles[principal][role]
	return len(x) > 0 && x[len(x)-1].holds(now)
}

// Roles returns the roles that a principal holds at now (contract.TimeFormat),
// sorted. The caller owns the slice.
func (p *People) Roles(principal, now string) []string {
	var out []string
	for role := range p.roles[principal] {
		if p.holds(principal, role, now) {
			out = append(out, role)
		}
	}
	slices.Sort(out)
	return out
}

// MayVote returns the reason why a principal's votes do not count, or nil.
// Principals that are not registered are not persons.
func (p *People) MayVote(principal string) error {
	switch t := p.TypeOf(principal); {
	case p.Suspended(principal):
		return fmt.Errorf("approver: %s is suspended", principal)
	case t == "":
		return fmt.Errorf("approver: %s is not registered; only registered persons vote (`binnacle principals register %s person`)", principal, principal)
	case t != Person:
		return fmt.Errorf("approver: %s is registered as %s; only persons vote", principal, t)
	}
	return nil
}

// forgottenAfter is how long a suspended person still counts as an approver for dual
// control. It is long, so that a caller cannot avoid the approval of the other persons
// by suspending them first.
const forgottenAfter = 7 * 24 * time.Hour

// others reports whether a person other than actor is registered. A person whose
// suspension is older than forgottenAfter does not count.
func (p *People) others(actor string, now time.Time) bool {
	for name, lives := range p.principals {
		l := lives[len(lives)-1]
		if name != actor && l.kind == Person && !(l.suspended && p.suspendedSince(name) < contract.Time(now.Add(-forgottenAfter))) {
			return true
		}
	}
	return false
}

// suspendedSince returns when the current suspension began, or "" if the principal is
// not suspended.
func (p *People) suspendedSince(principal string) string {
	at := ""
	for _, l := range slices.Backward(p.principals[principal]) {
		if !l.suspended {
			break
		}
		at = l.at
	}
	return at
}

type registerArgs struct {
	Principal string `json:"principal"`
	Type      string `json:"type"`
}

// DualControl reports whether a registration needs the approval of a second person. That
// is the case if the registration changes the type of the principal to or from person,
// and a person other than actor is registered (see others). args are the arguments of
// the call. If they cannot be decoded, DualControl returns true; the schema denies such
// a call in any case.
func (p *People) DualControl(args []byte, actor string, now time.Time) bool {
	var a registerArgs
	return json.Unmarshal(args, &a) != nil || p.dual(&a, actor, now)
}

// dual implements DualControl for decoded arguments.
func (p *People) dual(a *registerArgs, actor string, now time.Time) bool {
	was := p.TypeOf(a.Principal)
	return was != a.Type && (was == Person || a.Type == Person) && p.others(actor, now)
}

// register returns the event that sets the type of a principal and ends its suspension.
// If dual control applies, the caller must be a registered person; the decision on the
// call requires the approval of another registered person.
func register(s *State, c *Caller, a *registerArgs) (Fact, error) {
	if s.People.dual(a, c.Actor, c.Now) && s.MayVote(c.Actor) != nil {
		return none, errors.New("principal: only registered persons can register persons")
	}
	return Fact{events.PrincipalRegisteredName, &events.PrincipalRegistered{Principal: a.Principal, Type: a.Type}}, nil
}

// Bootstrap returns the event that registers the first principal of a tenant as a person,
// or nil if that principal was registered or suspended before.
func Bootstrap(s *State, principal string) *events.PrincipalRegistered {
	if len(s.People.principals[principal]) > 0 {
		return nil
	}
	return &events.PrincipalRegistered{Principal: principal, Type: Person}
}

type principalArgs struct {
	Principal string `json:"principal"`
	Reason    string `json:"reason"`
}

// suspend returns the event that suspends a principal until it is resumed or registered
// again. The call is rejected if the principal is the caller or the reason is blank.
func suspend(_ *State, c *Caller, a *principalArgs) (Fact, error) {
	if a.Principal == c.Actor {
		return none, errors.New("principal: principals cannot suspend themselves")
	}
	return explained(a.Reason, events.PrincipalSuspendedName, &events.PrincipalSuspended{Principal: a.Principal, Reason: a.Reason})
}

// resume returns the event that ends the suspension of a principal. The call is rejected
// if the principal is not suspended or the reason is blank.
func resume(s *State, _ *Caller, a *principalArgs) (Fact, error) {
	if !s.People.Suspended(a.Principal) {
		return none, fmt.Errorf("principal: %s is not suspended", a.Principal)
	}
	return explained(a.Reason, events.PrincipalResumedName, &events.PrincipalResumed{Principal: a.Principal, Reason: a.Reason})
}

type grantRoleArgs struct {
	Principal string `json:"principal"`
	Role      string `json:"role"`
	TTLMS     int64  `json:"ttl_ms"`
}

// grantRole returns the event that gives a principal a role, for ttl_ms or, if that is 0,
// until it is revoked. The grant replaces an earlier grant of the role to the principal.
// Some roles give scopes; a caller cannot grant one with a scope that its credential
// lacks, and only owners grant the role of owners once a principal holds it.
func grantRole(s *State, c *Caller, a *grantRoleArgs) (Fact, error) {
	if !contract.Token(a.Role) {
		return none, errors.New("role: want 1 to 128 of [A-Za-z0-9_-]")
	}
	if err := s.People.mayChange(c, a.Role); err != nil {
		return none, err
	}
	d := &events.RoleGranted{Principal: a.Principal, Role: a.Role}
	if a.TTLMS != 0 {
		if err := lasts(a.TTLMS, MaxTerm); err != nil {
			return none, err
		}
		d.Expires = c.until(a.TTLMS)
	}
	return Fact{events.RoleGrantedName, d}, nil
}

// mayChange returns the reason why the caller may not grant or revoke a role, or nil.
func (p *People) mayChange(c *Caller, role string) error {
	if role == contract.RoleOwner && p.owned(c.now(), "") && !p.holds(c.Actor, role, c.now()) {
		return errors.New("role: only owners grant and revoke the role of owners")
	}
	for _, s := range contract.MemberScopes([]string{role}) {
		if !slices.Contains(c.Held, s) {
			return fmt.Errorf("role: %s gives the scope %s, which the caller's credential lacks", role, s)
		}
	}
	return nil
}

// owned reports whether a principal other than except is an owner at now
// (contract.TimeFormat).
func (p *People) owned(now, except string) bool {
	for name := range p.roles {
		if name != except && p.holds(name, contract.RoleOwner, now) {
			return true
		}
	}
	return false
}

type revokeRoleArgs struct {
	Principal string `json:"principal"`
	Role      string `json:"role"`
}

// revokeRole returns the event that ends a role of a principal. The call is rejected if
// the principal does not hold the role at the time of the call, if the caller may not
// change the role (see mayChange), or if the principal is the last owner and the role is
// that of owners.
func revokeRole(s *State, c *Caller, a *revokeRoleArgs) (Fact, error) {
	if !s.People.holds(a.Principal, a.Role, c.now()) {
		return none, fmt.Errorf("role: %s does not hold %s", a.Principal, a.Role)
	}
	if err := s.People.mayChange(c, a.Role); err != nil {
		return none, err
	}
	if a.Role == contract.RoleOwner && !s.People.owned(c.now(), a.Principal) {
		return none, fmt.Errorf("role: %s is the last owner; give another principal the role first", a.Principal)
	}
	return Fact{events.RoleRevokedName, &events.RoleRevoked{Principal: a.Principal, Role: a.Role}}, nil
}
