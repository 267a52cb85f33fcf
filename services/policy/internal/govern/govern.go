// Package govern is what people have put in force beside the policies: who is
// who, roles, delegations, virtual keys, session grants, revocations, limits,
// the freeze and break-glass grants.
//
// It is pure. Two tables are its surface: commands maps a governing verb to how
// its arguments are decoded and what it decides, folds maps an event to what it
// changes. A command sees the history of its own aggregate alone; what it needs
// of others it reads from a View.
package govern

import (
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// State is the fold of every governing event. The zero value is empty. It keeps
// what has ended, so that it can answer for any lamport. It is not safe for
// concurrent use.
type State struct {
	People      People
	Delegations Delegations
	Tokens      Tokens
	Keys        Keys
	Sessions    Sessions
	Freeze      Freeze
	Emergencies Emergencies
	Limits      Limits
}

// moment is when an event was recorded.
type moment struct {
	lamport uint64
	time    string // contract.TimeFormat; empty where the event had none
}

// folds maps the name of an event to what it changes.
var folds = map[string]func(*State, *contract.Event) error{
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
		s.Tokens.revoke(d)
		if d.Principal != "" {
			s.endAll(d, at.lamport)
		}
	}),
	events.VirtualKeyCreatedName:          fold(func(s *State, d *events.VirtualKeyCreated, _ moment) { s.Keys.add(d) }),
	events.VirtualKeyRevokedName:          fold(func(s *State, d *events.VirtualKeyRevoked, _ moment) { s.Keys.revoke(d) }),
	events.VirtualKeyConsentedName:        fold(func(s *State, d *events.VirtualKeyConsented, at moment) { s.Keys.consent(d, at) }),
	events.VirtualKeyConsentWithdrawnName: fold(func(s *State, d *events.VirtualKeyConsentWithdrawn, _ moment) { s.Keys.withdraw(d) }),
	events.SessionGrantedName:             fold(func(s *State, d *events.SessionGranted, at moment) { s.Sessions.grant(d, at.lamport) }),
	events.SessionGrantRevokedName:        fold(func(s *State, d *events.SessionGrantRevoked, _ moment) { s.Sessions.revoke(d) }),
	events.MeshFrozenName:                 fold(func(s *State, d *events.MeshFrozen, _ moment) { s.Freeze.in = d }),
	events.MeshUnfrozenName:               func(s *State, _ *contract.Event) error { s.Freeze.in = nil; return nil },
	events.BreakGlassOpenedName:           fold(func(s *State, d *events.BreakGlassOpened, _ moment) { s.Emergencies.open(d) }),
	events.BreakGlassReviewedName:         fold(func(s *State, d *events.BreakGlassReviewed, _ moment) { s.Emergencies.review(d) }),
	events.LimitsSetName: func(s *State, e *contract.Event) error {
		return s.Limits.set(e.Data)
	},
}

// fold makes a fold of an event of type T: its data is decoded and applied.
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

// Folds reports whether Evolve folds events of a name.
func Folds(name string) bool { return folds[name] != nil }

// Evolve folds one event in. Events of other names, and those that another
// service recorded, change nothing. It fails where the event's data is malformed.
func Evolve(s *State, e *contract.Event) error {
	apply := folds[e.Name]
	if apply == nil || e.Service() != "policy" {
		return nil
	}
	return apply(s, e)
}

// endAll ends what a principal's credentials gave until now: a holder of one of
// them may have made keys, delegations, consents and grants with it.
func (s *State) endAll(d *events.TokenRevoked, lamport uint64) {
	s.Keys.endOf(d.Principal, d.Reason)
	s.Delegations.endOf(d.Principal, lamport)
	s.Sessions.endOf(d.Principal)
}

// Key returns a virtual key as a call of a kind at now (contract.TimeFormat) finds
// it. model is the one that the call names, or "" where it is not to a model.
func (s *State) Key(id, actor, kind, now, model string) *guard.KeyFact {
	f, maker := s.Keys.fact(id, actor, kind, now, model)
	if maker != "" && s.People.Suspended(maker) {
		return &guard.KeyFact{ID: id, Fault: contract.ReasonKeyInvalid}
	}
	return f
}

// GrantedBy returns who lets a principal make calls in a session at now, or "".
func (s *State) GrantedBy(session, principal, now string) string {
	owner := s.Sessions.grantedBy(session, principal, now)
	if owner == "" || s.People.Suspended(owner) {
		return ""
	}
	return owner
}

// MayVote implements View.
func (s *State) MayVote(principal string) error { return s.People.MayVote(principal) }

// EndedAt implements View.
func (s *State) EndedAt(principal string) string { return s.Tokens.ended[principal] }

// span is a time of being in force, by lamport; to is 0 until it ends. It ends
// at expires (contract.TimeFormat), too, if set.
type span struct {
	from, to uint64
	expires  string
}

// holds reports whether the span has begun and not ended at now.
func (x span) holds(now string) bool {
	return x.from != 0 && x.to == 0 && (x.expires == "" || now < x.expires)
}

// at answers for a lamport in the past, at time now; an empty now looks at the
// lamport alone.
func (x span) at(lamport uint64, now string) bool {
	return x.from <= lamport && (x.to == 0 || lamport < x.to) && (x.expires == "" || now == "" || now < x.expires)
}

// Dump is the state's canonical form: sorted JSON lines.
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
	w := canon.Object(b)
	w.Str("frozen", s.Freeze.ID())
	if s.Limits.doc != nil {
		w.Raw("limits", s.Limits.doc)
	}
	return append(w.End(), '\n')
}

// unknownKind is the error of a kind that no command is for.
func unknownKind(kind string) error { return fmt.Errorf("kind %s is not one of govern's", kind) }
