// Package govern is what people have put in force beside the policies: roles,
// delegations, approved tools, the freeze, break-glass grants and limits. It
// is pure: Evolve folds events, Decide says what a command comes to.
package govern

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// Aggregates: the key that each event lies under.
const (
	KeyIdentity   = "identity"
	KeyTools      = "tools"
	KeyFreeze     = "freeze"
	KeyLimits     = "limits"
	KeyBreakGlass = "break-glass"
	KeyKeys       = "keys"
)

// State is the fold. The zero value is empty. It keeps what has ended, so that
// it can answer for any lamport.
type State struct {
	principals  map[string][]life            // by name
	roles       map[string]map[string][]span // principal, role
	delegations map[string]*delegation
	frozen      *events.MeshFrozen
	grants      map[string]*grant
	limits      []guard.Limit
	limitsDoc   []byte
	keys        map[string]*virtualKey
	revoked     map[string]bool                  // tokens, by id
	ended       map[string]string                // by principal: its tokens issued until then (contract.TimeFormat) are revoked
	consents    map[string]*consent              // by id of the key to be
	sessions    map[string]map[string]sessionFor // grants, by session and principal
}

// span is a life by lamport; to 0 = not ended. Expires ends it by time.
type span struct {
	from, to uint64
	expires  string
}

// life is what a principal is from a lamport on.
type life struct {
	from      uint64
	at        string // contract.TimeFormat; empty where the event had none
	kind      string
	suspended bool
}

// TypeOf is what a principal was registered as, or "".
func (s *State) TypeOf(principal string) string {
	if l := s.principals[principal]; len(l) > 0 {
		return l[len(l)-1].kind
	}
	return ""
}

// Suspended reports whether a principal is.
func (s *State) Suspended(principal string) bool {
	l := s.principals[principal]
	return len(l) > 0 && l[len(l)-1].suspended
}

type delegation struct {
	events.DelegationGranted
	span
}

type grant struct {
	events.BreakGlassOpened
	reviewed *events.BreakGlassReviewed
}

// Evolve folds one event in; events of other names change nothing.
func Evolve(s *State, e *contract.Event) error {
	if s.roles == nil {
		s.principals = map[string][]life{}
		s.keys = map[string]*virtualKey{}
		s.revoked, s.ended = map[string]bool{}, map[string]string{}
		s.consents, s.sessions = map[string]*consent{}, map[string]map[string]sessionFor{}
		s.roles, s.delegations, s.grants = map[string]map[string][]span{}, map[string]*delegation{}, map[string]*grant{}
	}
	if e.Service() != "policy" {
		return nil
	}
	switch e.Name {
	case events.PrincipalRegisteredName:
		var d events.PrincipalRegistered
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		s.principals[d.Principal] = append(s.principals[d.Principal], life{e.Lamport, e.Time, d.Type, false})
	case events.PrincipalSuspendedName:
		var d events.PrincipalSuspended
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		s.principals[d.Principal] = append(s.principals[d.Principal], life{e.Lamport, e.Time, s.TypeOf(d.Principal), true})
	case events.PrincipalResumedName:
		var d events.PrincipalResumed
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		s.principals[d.Principal] = append(s.principals[d.Principal], life{e.Lamport, e.Time, s.TypeOf(d.Principal), false})
	case events.RoleGrantedName:
		var d events.RoleGranted
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		s.end(d.Principal, d.Role, e.Lamport)
		if s.roles[d.Principal] == nil {
			s.roles[d.Principal] = map[string][]span{}
		}
		s.roles[d.Principal][d.Role] = append(s.roles[d.Principal][d.Role], span{from: e.Lamport, expires: d.Expires})
	case events.RoleRevokedName:
		var d events.RoleRevoked
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		s.end(d.Principal, d.Role, e.Lamport)
	case events.DelegationGrantedName:
		var d events.DelegationGranted
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		s.delegations[d.ID] = &delegation{d, span{from: e.Lamport, expires: d.Expires}}
	case events.DelegationRevokedName:
		var d events.DelegationRevoked
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		if g := s.delegations[d.ID]; g != nil && g.to == 0 {
			g.to = e.Lamport
		}
	case events.VirtualKeyCreatedName:
		k := &virtualKey{}
		if err := contract.Decode(e.Data, &k.VirtualKeyCreated); err != nil {
			return err
		}
		s.keys[k.ID] = k
	case events.VirtualKeyRevokedName:
		var d events.VirtualKeyRevoked
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		if k := s.keys[d.ID]; k != nil {
			k.revoked = d.Reason
		}
	case events.MeshFrozenName:
		var d events.MeshFrozen
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		s.frozen = &d
	case events.MeshUnfrozenName:
		s.frozen = nil
	case events.LimitsSetName:
		return s.setLimits(e.Data)
	case events.BreakGlassOpenedName:
		var d events.BreakGlassOpened
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		s.grants[d.ID] = &grant{BreakGlassOpened: d}
	case events.BreakGlassReviewedName:
		var d events.BreakGlassReviewed
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		if g := s.grants[d.ID]; g != nil && g.reviewed == nil {
			g.reviewed = &d
		}
	}
	return s.evolveAuthority(e)
}

func (s *State) setLimits(data []byte) error {
	var d events.LimitsSet
	if err := contract.Decode(data, &d); err != nil {
		return err
	}
	var doc guard.Limits
	if err := contract.Decode(d.Limits, &doc); err != nil {
		return err
	}
	s.limits, s.limitsDoc = doc.Limits, slices.Clone(d.Limits)
	return nil
}

func (s *State) end(principal, role string, lamport uint64) {
	if sp := s.roles[principal][role]; len(sp) > 0 && sp[len(sp)-1].to == 0 {
		sp[len(sp)-1].to = lamport
	}
}

// holds reports whether a principal holds a role at now.
func (s *State) holds(principal, role, now string) bool {
	sp := s.roles[principal][role]
	return len(sp) > 0 && sp[len(sp)-1].holds(now)
}

func (x span) holds(now string) bool {
	return x.from != 0 && x.to == 0 && (x.expires == "" || now < x.expires)
}

// Roles lists what a principal holds at now (contract.TimeFormat), sorted.
func (s *State) Roles(principal, now string) []string {
	var out []string
	for role := range s.roles[principal] {
		if s.holds(principal, role, now) {
			out = append(out, role)
		}
	}
	slices.Sort(out)
	return out
}

// RoleAt answers for a point in the past: did the principal hold the role at
// that lamport, at time at?
func (s *State) RoleAt(principal, role string, lamport uint64, at string) bool {
	return slices.ContainsFunc(s.roles[principal][role], func(x span) bool { return x.at(lamport, at) })
}

func (x span) at(lamport uint64, at string) bool {
	return x.from <= lamport && (x.to == 0 || lamport < x.to) && (x.expires == "" || at == "" || at < x.expires)
}

// Delegation returns why the delegation does not let delegate act for
// delegator, or "".
func (s *State) Delegation(id, delegator, delegate, kind, now string) string {
	d := s.delegations[id]
	switch {
	case d == nil || d.Delegator != delegator || d.Delegate != delegate || !d.holds(now):
		return contract.ReasonDelegationInvalid
	case !slices.ContainsFunc(d.Kinds, func(p string) bool { return guard.MatchKind(p, kind) }):
		return contract.ReasonDelegationScopeViolation
	}
	return ""
}

// DelegationAt answers for a point in the past.
func (s *State) DelegationAt(id string, lamport uint64, at string) bool {
	d := s.delegations[id]
	return d != nil && d.at(lamport, at)
}

// Frozen is the id of the freeze in force, or "".
func (s *State) Frozen() string {
	if s.frozen == nil {
		return ""
	}
	return s.frozen.ID
}

// Limits are the limits set by people.
func (s *State) Limits() []guard.Limit { return s.limits }

// ReviewWithin is how long a break-glass grant may wait for its review, counted
// from its end, before its actor is stopped.
const ReviewWithin = 24 * time.Hour

// BreakGlass tells whether actor has an open grant at now, and whether a
// review of an earlier one is overdue; dueBefore is now less ReviewWithin.
func (s *State) BreakGlass(actor, now, dueBefore string) (open string, overdue bool) {
	for _, id := range slices.Sorted(maps.Keys(s.grants)) {
		g := s.grants[id]
		if g.Actor != actor || g.reviewed != nil {
			continue
		}
		if now < g.Expires {
			open = id
		}
		overdue = overdue || g.Expires < dueBefore
	}
	return open, overdue
}

// Identity is a principal, role or delegation as people see it.
type Identity struct {
	Kind      string   `json:"kind"` // principal, role, delegation, consent, session, revocation
	Type      string   `json:"type,omitempty"`
	Suspended bool     `json:"suspended,omitempty"`
	ID        string   `json:"id,omitempty"`
	Principal string   `json:"principal"`
	Role      string   `json:"role,omitempty"`
	Delegate  string   `json:"delegate,omitempty"`
	Kinds     []string `json:"kinds,omitempty"`
	Expires   string   `json:"expires,omitempty"`
	From      uint64   `json:"from_lamport"`
	To        uint64   `json:"to_lamport,omitempty"`
}

// IdentitiesAt is Identities as they stood at a lamport, at time now.
func (s *State) IdentitiesAt(lamport uint64, now string) []Identity {
	return slices.DeleteFunc(s.Identities(), func(i Identity) bool {
		return !span{i.From, i.To, i.Expires}.at(lamport, now)
	})
}

// Identities lists every principal, role and delegation, also ended ones.
func (s *State) Identities() []Identity {
	out := []Identity{}
	for name, lives := range s.principals {
		for i, l := range lives {
			x := Identity{Kind: "principal", Principal: name, Type: l.kind, Suspended: l.suspended, From: l.from}
			if i+1 < len(lives) {
				x.To = lives[i+1].from
			}
			out = append(out, x)
		}
	}
	for principal, roles := range s.roles {
		for role, sp := range roles {
			for _, x := range sp {
				out = append(out, Identity{Kind: "role", Principal: principal, Role: role, Expires: x.expires, From: x.from, To: x.to})
			}
		}
	}
	for id, d := range s.delegations {
		out = append(out, Identity{Kind: "delegation", ID: id, Principal: d.Delegator, Delegate: d.Delegate, Kinds: d.Kinds, Expires: d.Expires, From: d.from, To: d.to})
	}
	out = append(out, s.authorities()...)
	slices.SortFunc(out, func(a, b Identity) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Principal, b.Principal), cmp.Compare(a.Role, b.Role), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Delegate, b.Delegate))
	})
	return out
}

// Grant is a break-glass grant as people see it.
type Grant struct {
	ID       string `json:"id"`
	Actor    string `json:"actor"`
	Reason   string `json:"reason"`
	Expires  string `json:"expires"`
	Reviewer string `json:"reviewer,omitempty"`
	Verdict  string `json:"verdict,omitempty"`
}

// Grants lists the break-glass grants, sorted by id.
func (s *State) Grants() []Grant {
	out := []Grant{}
	for _, id := range slices.Sorted(maps.Keys(s.grants)) {
		g := s.grants[id]
		x := Grant{ID: id, Actor: g.Actor, Reason: g.Reason, Expires: g.Expires}
		if g.reviewed != nil {
			x.Reviewer, x.Verdict = g.reviewed.Reviewer, g.reviewed.Verdict
		}
		out = append(out, x)
	}
	return out
}

// Dump is the state's canonical form: sorted JSON lines.
func (s *State) Dump() []byte {
	var b []byte
	for _, i := range s.Identities() {
		if slices.Contains(authorityKinds, i.Kind) {
			continue // in lines of their own
		}
		w := canon.Object(b)
		w.Str("delegate", i.Delegate)
		w.Str("expires", i.Expires)
		w.Str("from", fmt.Sprint(i.From))
		w.Str("id", i.ID)
		w.Strs("kinds", i.Kinds)
		w.Str("principal", i.Principal)
		w.Str("role", i.Role)
		w.Str("suspended", fmt.Sprint(i.Suspended))
		w.Str("to", fmt.Sprint(i.To))
		w.Str("type", i.Type)
		b = append(w.End(), '\n')
	}
	for _, g := range s.Grants() {
		w := canon.Object(b)
		w.Str("break_glass", g.ID)
		w.Str("expires", g.Expires)
		w.Str("reviewer", g.Reviewer)
		b = append(w.End(), '\n')
	}
	b = s.dumpAuthority(s.dumpKeys(b))
	w := canon.Object(b)
	w.Str("frozen", s.Frozen())
	if s.limitsDoc != nil {
		w.Raw("limits", s.limitsDoc)
	}
	return append(w.End(), '\n')
}
