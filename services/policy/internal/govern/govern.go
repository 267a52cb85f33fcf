// Package govern holds the state that governing calls put in force in addition to the
// policy documents: principals, roles, delegations, virtual keys and consents to them,
// session grants, logins, members, revocations, limits, the access list of secrets,
// passkeys, the freeze and break-glass grants.
//
// It is pure, and has two tables. commands maps a governing verb to the function
// that decodes and decides it; folds maps an event to the function that applies
// it. A command is decided on the history of its own aggregate; it reads other
// aggregates through a View.
package govern

import (
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// State is the result of the governing events that Folds selects. The zero value is empty.
// Identities that have ended are kept, except earlier reports of groups, so that queries can return
// them as they were at any Lamport time. A State is not safe for concurrent use.
type State struct {
	People      People
	Delegations Delegations
	Tokens      Tokens
	Keys        Keys
	Sessions    Sessions
	Freeze      Freeze
	Emergencies Emergencies
	Limits      Limits
	Logins      Logins
	Members     Members
	Access      Access
	Passkeys    Passkeys
}

// moment is the Lamport time and the time of an event.
type moment struct {
	lamport uint64
	time    string // contract.TimeFormat; empty if the event has none
}

// folds maps the name of an event to the function that applies it.
var folds = map[string]func(*State, *contract.Event) error{
	contract.EventTenantCreated: fold(func(s *State, d *contract.TenantCreated, at moment) {
		s.People.become(d.Admin, at, Person, false)
	}),
	events.PrincipalRegisteredName: fold(func(s *State, d *events.PrincipalRegistered, at moment) {
		s.People.become(d.Principal, at, d.Type, false)
	}),
	events.PrincipalSuspendedName: fold(func(s *State, d *events.PrincipalSuspended, at moment) {
		s.People.become(d.Principal, at, s.People.TypeOf(d.Principal), true)
	}),
	events.PrincipalResumedName: fold(func(s *State, d *events.PrincipalResumed, at moment) {
		s.People.become(d.Principal, at, s.People.TypeOf(d.Principal), false)
	}),
	events.RoleGrantedName: fold(func(s *State, d *events.RoleGranted, at moment) {
		s.People.grant(d.Principal, d.Role, span{from: at.lamport, expires: d.Expires})
	}),
	events.RoleRevokedName: fold(func(s *State, d *events.RoleRevoked, at moment) {
		s.People.revoke(d.Principal, d.Role, at.lamport)
	}),
	events.DelegationGrantedName: fold(func(s *State, d *events.DelegationGranted, at moment) { s.Delegations.add(d, at.lamport) }),
	events.DelegationRevokedName: fold(func(s *State, d *events.DelegationRevoked, at moment) { s.Delegations.end(d.ID, at.lamport) }),
	events.TokenRevokedName: fold(func(s *State, d *events.TokenRevoked, at moment) {
		s.Tokens.revoke(d, at.lamport)
		if d.Principal != "" {
			s.endAll(d, at.lamport)
		}
	}),
	events.VirtualKeyCreatedName:          fold(func(s *State, d *events.VirtualKeyCreated, _ moment) { s.Keys.add(d) }),
	events.VirtualKeyRevokedName:          fold(func(s *State, d *events.VirtualKeyRevoked, _ moment) { s.Keys.revoke(d) }),
	events.VirtualKeyConsentedName:        fold(func(s *State, d *events.VirtualKeyConsented, at moment) { s.Keys.consent(d, at) }),
	events.VirtualKeyConsentWithdrawnName: fold(func(s *State, d *events.VirtualKeyConsentWithdrawn, at moment) { s.Keys.withdraw(d, at.lamport) }),
	events.SessionGrantedName:             fold(func(s *State, d *events.SessionGranted, at moment) { s.Sessions.grant(d, at.lamport) }),
	events.SessionGrantRevokedName: fold(func(s *State, d *events.SessionGrantRevoked, at moment) {
		s.Sessions.end(d.Session, d.Principal, at.lamport)
	}),
	events.MeshFrozenName:         fold(func(s *State, d *events.MeshFrozen, _ moment) { s.Freeze.in = d }),
	events.MeshUnfrozenName:       func(s *State, _ *contract.Event) error { s.Freeze.in = nil; return nil },
	events.BreakGlassOpenedName:   fold(func(s *State, d *events.BreakGlassOpened, _ moment) { s.Emergencies.open(d) }),
	events.BreakGlassReviewedName: fold(func(s *State, d *events.BreakGlassReviewed, _ moment) { s.Emergencies.review(d) }),
	events.LoginEndedName: fold(func(s *State, d *events.LoginEnded, at moment) {
		s.Logins.end(d.ID)
		s.Tokens.revoke(&events.TokenRevoked{ID: d.ID}, at.lamport)
	}),
	events.MemberInvitedName: fold(func(s *State, d *events.MemberInvited, at moment) { s.Members.invite(d, at) }),
	events.InvitationWithdrawnName: fold(func(s *State, d *events.InvitationWithdrawn, at moment) {
		s.Members.end(d.ID, at)
	}),
	events.IdentityLinkedName: fold(func(s *State, d *events.IdentityLinked, at moment) {
		s.Members.link(d, at)
		if s.People.TypeOf(d.Principal) == "" {
			s.People.become(d.Principal, at, Person, false)
		}
	}),
	events.IdentityUnlinkedName: fold(func(s *State, d *events.IdentityUnlinked, at moment) {
		s.Members.unlink(d, at)
		s.Passkeys.endOf(d.Principal, at)
		x := &events.TokenRevoked{Principal: d.Principal, Before: at.time, Reason: d.Reason}
		s.Tokens.revoke(x, at.lamport)
		s.endAll(x, at.lamport)
	}),
	events.GroupMappedName:          fold(func(s *State, d *events.GroupMapped, at moment) { s.Members.mapped(d, at) }),
	events.GroupUnmappedName:        fold(func(s *State, d *events.GroupUnmapped, at moment) { s.Members.unmapped(d, at) }),
	events.GroupsReportedName:       fold(func(s *State, d *events.GroupsReported, at moment) { s.Members.report(d, at) }),
	contract.EventPasskeyRegistered: fold(func(s *State, d *contract.PasskeyRegistered, at moment) { s.Passkeys.add(d, at) }),
	events.PasskeyRemovedName:       fold(func(s *State, d *events.PasskeyRemoved, at moment) { s.Passkeys.remove(d.ID, at) }),
	events.SecretAccessSetName:      func(s *State, e *contract.Event) error { return s.Access.set(e.Data) },
	events.LimitsSetName: func(s *State, e *contract.Event) error {
		return s.Limits.set(e.Data)
	},
}

// ownFolds is like folds, for events that are read only for decisions on changes of their
// own aggregate. The views of a tenant do not contain them.
var ownFolds = map[string]func(*State, *contract.Event) error{
	events.LoginOpenedName:  fold(func(s *State, d *events.LoginOpened, at moment) { s.Logins.open(d, at) }),
	events.LoginRenewedName: fold(func(s *State, d *events.LoginRenewed, at moment) { s.Logins.renew(d, at) }),
}

// fold returns a function that decodes the data of an event into a T and applies
// it.
func fold[T any, P interface {
	*T
	canon.Document
}](apply func(s *State, d P, at moment)) func(*State, *contract.Event) error {
	return func(s *State, e *contract.Event) error {
		d := P(new(T))
		if err := contract.Decode(e.Data, d); err != nil {
			return err
		}
		apply(s, d, moment{e.Lamport, e.Time})
		return nil
	}
}

// Folds reports whether a view of a tenant processes events with this name. Evolve also
// processes the events of ownFolds.
func Folds(name string) bool { return folds[name] != nil }

// Evolve applies one event of the service policy to the state. The event that creates a
// tenant belongs to the state of that tenant, although the event is in the cell's own
// tenant. Events of other services, and those in neither of the tables, change nothing. If
// the event's data cannot be decoded, Evolve returns an error and changes nothing; the
// data of mesh_unfrozen is not read.
func Evolve(s *State, e *contract.Event) error {
	apply := folds[e.Name]
	if apply == nil {
		apply = ownFolds[e.Name]
	}
	if apply == nil || e.Service() != services.Policy {
		return nil
	}
	return apply(s, e)
}

// endAll ends the authority that may have been given with stolen credentials of the
// principal before this event: the keys that the principal made or that act for it, the
// consents that it gave or received, and the delegations and session grants that it
// gave.
func (s *State) endAll(d *events.TokenRevoked, lamport uint64) {
	s.Keys.endOf(d.Principal, d.Reason, lamport)
	s.Delegations.endOf(d.Principal, lamport)
	s.Sessions.endOf(d.Principal, lamport)
}

// Key returns the facts about a virtual key for a call of actor with this kind at now
// (contract.TimeFormat). Fault is empty if the key may be used for the call. A key whose
// maker is suspended is invalid. model is the model that the call requests, or "".
func (s *State) Key(id, actor, kind, now, model string) *guard.KeyFact {
	f, maker := s.Keys.fact(id, actor, kind, now, model)
	if maker != "" && s.People.Suspended(maker) {
		return &guard.KeyFact{ID: id, Fault: contract.ReasonKeyInvalid}
	}
	return f
}

// GrantedBy returns the owner whose grant permits a principal to make calls in a session
// at now (contract.TimeFormat), or "". A grant of a suspended owner permits nothing.
func (s *State) GrantedBy(session, principal, now string) string {
	owner := s.Sessions.grantedBy(session, principal, now)
	if owner == "" || s.People.Suspended(owner) {
		return ""
	}
	return owner
}

// MayVote implements View. It returns the reason why a principal's votes do not count,
// or nil.
func (s *State) MayVote(principal string) error { return s.People.MayVote(principal) }

// EndedAt implements View. It returns when all credentials of a principal were
// last revoked, or "".
func (s *State) EndedAt(principal string) string { return s.Tokens.ended[principal] }

// Roles implements View. It returns the roles that a principal holds at now, by a grant or
// by a group of the identity provider, sorted. The caller owns the slice.
func (s *State) Roles(principal, now string) []string {
	out := append(s.People.Roles(principal, now), s.Members.Roles(principal, now)...)
	slices.Sort(out)
	return slices.Compact(out)
}

// Linked implements View. It returns the identity that is linked to a principal, or "".
func (s *State) Linked(principal string) string { return s.Members.linked(principal) }

// Revoked implements View; see Tokens.Revoked.
func (s *State) Revoked(token, actor, at string) bool { return s.Tokens.Revoked(token, actor, at) }

// span is the time during which an entry is in force: from the Lamport time from until
// the Lamport time to, which is 0 if no event has ended the span. If expires
// (contract.TimeFormat) is set, the span also ends at that time.
type span struct {
	from, to uint64
	expires  string
}

// holds reports whether the span has begun and has not ended at now.
func (x span) holds(now string) bool {
	return x.from != 0 && x.to == 0 && (x.expires == "" || now < x.expires)
}

// at reports whether the span included the given Lamport time and, unless now is empty,
// had not expired at the time now.
func (x span) at(lamport uint64, now string) bool {
	return x.from <= lamport && (x.to == 0 || lamport < x.to) && (x.expires == "" || now == "" || now < x.expires)
}

// Dump returns the canonical form of the state without the freeze and the logins: lines
// of JSON in a fixed order. It is part of the view policy.state.
func (s *State) Dump() []byte {
	b := s.dumpIdentities(nil)
	for _, g := range s.Emergencies.List() {
		w := canon.Object(b)
		w.Str("break_glass", g.ID)
		w.Str("expires", g.Expires)
		w.Str("reviewer", g.Reviewer)
		b = append(w.End(), '\n')
	}
	for _, k := range s.Keys.List() {
		w := canon.Object(b)
		w.Raw("key", contract.Bytes(&k.VirtualKeyCreated))
		w.Str("revoked", k.Revoked)
		b = append(w.End(), '\n')
	}
	b = s.dumpAuthorities(b)
	if s.Limits.doc != nil {
		w := canon.Object(b)
		w.Raw("limits", s.Limits.doc)
		b = append(w.End(), '\n')
	}
	if s.Access.doc != nil {
		w := canon.Object(b)
		w.Raw("secret_access", s.Access.doc)
		b = append(w.End(), '\n')
	}
	return s.Passkeys.dump(b)
}

// unknownKind returns the error for a kind without a command.
func unknownKind(kind string) error { return fmt.Errorf("kind %s is not a governing call", kind) }
