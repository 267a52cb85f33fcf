package govern

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// This file is what ends authority, and what one principal lets another do in
// its name: revocations, consents to virtual keys, and session grants.

// Principal types.
const (
	Person  = "person"
	Agent   = "agent"
	Machine = "service"
)

type consent struct {
	events.VirtualKeyConsented
	from uint64
	at   string
}

type sessionFor struct {
	owner string
	span
}

func (s *State) evolveAuthority(e *contract.Event) error {
	switch e.Name {
	case events.TokenRevokedName:
		var d events.TokenRevoked
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		if d.ID != "" {
			s.revoked[d.ID] = true
		}
		if d.Principal != "" {
			s.endAll(&d, e.Lamport)
		}
	case events.VirtualKeyConsentedName:
		c := &consent{from: e.Lamport, at: e.Time}
		if err := contract.Decode(e.Data, &c.VirtualKeyConsented); err != nil {
			return err
		}
		s.consents[c.ID] = c
	case events.VirtualKeyConsentWithdrawnName:
		var d events.VirtualKeyConsentWithdrawn
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		delete(s.consents, d.ID)
		if k := s.keys[d.ID]; k != nil && k.Actor == d.Principal && k.revoked == "" {
			k.revoked = "consent withdrawn"
		}
	case events.SessionGrantedName:
		var d events.SessionGranted
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		if s.sessions[d.Session] == nil {
			s.sessions[d.Session] = map[string]sessionFor{}
		}
		s.sessions[d.Session][d.Principal] = sessionFor{d.Owner, span{from: e.Lamport, expires: d.Expires}}
	case events.SessionGrantRevokedName:
		var d events.SessionGrantRevoked
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		delete(s.sessions[d.Session], d.Principal)
	}
	return nil
}

// endAll ends what a principal's credentials gave until now: whoever held one of
// them may have made keys, delegations, consents and grants with it.
func (s *State) endAll(d *events.TokenRevoked, lamport uint64) {
	p := d.Principal
	s.ended[p] = max(s.ended[p], d.Before)
	for _, k := range s.keys {
		if k.revoked == "" && (k.Actor == p || k.Maker == p) {
			k.revoked = "credentials of " + p + " revoked: " + d.Reason
		}
	}
	for _, g := range s.delegations {
		if g.Delegator == p && g.to == 0 {
			g.to = lamport
		}
	}
	maps.DeleteFunc(s.consents, func(_ string, c *consent) bool { return c.Principal == p || c.Maker == p })
	for _, to := range s.sessions {
		maps.DeleteFunc(to, func(_ string, g sessionFor) bool { return g.owner == p })
	}
}

// Revoked reports whether a call's credential ended before it was decided: its
// token by id, or all that its actor's tokens proposed until a revocation.
func (s *State) Revoked(token, actor, proposed string) bool {
	return token != "" && s.revoked[token] || s.ended[actor] != "" && proposed <= s.ended[actor]
}

// EndedAt is when a principal's credentials were last revoked, all of them, or "".
func (s *State) EndedAt(principal string) string { return s.ended[principal] }

// GrantedBy is who lets a principal make calls in a session, or "".
func (s *State) GrantedBy(session, principal, now string) string {
	g, ok := s.sessions[session][principal]
	if !ok || !g.holds(now) || s.Suspended(g.owner) {
		return ""
	}
	return g.owner
}

// Delegator is the scopes that a delegation was given under; known is false for
// delegations of releases before 0.5, which have no record of them.
func (s *State) Delegator(id string) (scopes []string, known bool) {
	d := s.delegations[id]
	if d == nil {
		return nil, false
	}
	return d.Scopes, len(d.Scopes) > 0
}

// MayVote returns why a principal's votes do not count, or nil. An unknown
// principal is not a person.
func (s *State) MayVote(principal string) error {
	switch t := s.TypeOf(principal); {
	case s.Suspended(principal):
		return fmt.Errorf("approver: %s is suspended", principal)
	case t == "":
		return fmt.Errorf("approver: %s is not registered; only registered persons vote (`binnacle principals register %s person`)", principal, principal)
	case t != Person:
		return fmt.Errorf("approver: %s is registered as %s; only persons vote", principal, t)
	}
	return nil
}

// forgottenAfter is how long a suspended person still counts as somebody whose
// approval is needed: long enough that suspending people is no way around them.
const forgottenAfter = 7 * 24 * time.Hour

// others reports whether a person other than actor is registered.
func (s *State) others(actor string, now time.Time) bool {
	for name, lives := range s.principals {
		l := lives[len(lives)-1]
		if name != actor && l.kind == Person && !(l.suspended && s.suspendedSince(name) < contract.Time(now.Add(-forgottenAfter))) {
			return true
		}
	}
	return false
}

// suspendedSince is when the suspension in force began.
func (s *State) suspendedSince(principal string) string {
	at := ""
	for _, l := range slices.Backward(s.principals[principal]) {
		if !l.suspended {
			break
		}
		at = l.at
	}
	return at
}

// DualControl reports whether a registration needs a second person: it makes
// somebody a person, or makes a person something else, and there is a person
// beside the caller who can be asked.
func (s *State) DualControl(c Command) bool {
	was := s.TypeOf(c.Principal)
	return c.Kind == KindRegister && was != c.Type && (was == Person || c.Type == Person) && s.others(c.Actor, c.Now)
}

// KindRegister says what a principal is.
const KindRegister = "policy.register_principal"

// inPerson are the acts that give authority, or speak for somebody: a virtual
// key does none of them, whatever its scopes.
var inPerson = []string{"policy.vote", "policy.consent_key", "policy.withdraw_consent", "policy.create_key", "policy.delegate", "policy.break_glass", "policy.review",
	KindRegister, "policy.resume_principal", "policy.grant_role", "policy.grant_session", "policy.revoke_session"}

// InPerson reports whether a kind is an act that no virtual key does.
func InPerson(kind string) bool { return slices.Contains(inPerson, kind) }

// Bootstrap is the event that registers the administrator of a new mesh as its
// first person, or nil where people have said what it is.
func Bootstrap(s *State) *events.PrincipalRegistered {
	if len(s.principals[contract.BootstrapAdmin]) > 0 {
		return nil
	}
	return &events.PrincipalRegistered{Principal: contract.BootstrapAdmin, Type: Person}
}

var authorityKinds = []string{"consent", "session", "revocation"}

// authorities lists revocations, consents and session grants as people see them.
func (s *State) authorities() []Identity {
	var out []Identity
	for id := range s.revoked {
		out = append(out, Identity{Kind: "revocation", ID: id})
	}
	for p, before := range s.ended {
		out = append(out, Identity{Kind: "revocation", Principal: p, Expires: before})
	}
	for id, c := range s.consents {
		out = append(out, Identity{Kind: "consent", ID: id, Principal: c.Principal, Delegate: c.Maker, Kinds: c.Scopes, Expires: c.Expires, From: c.from})
	}
	for session, to := range s.sessions {
		for p, g := range to {
			out = append(out, Identity{Kind: "session", ID: session, Principal: g.owner, Delegate: p, Expires: g.expires, From: g.from})
		}
	}
	return out
}

func (s *State) dumpAuthority(b []byte) []byte {
	var lines []string
	for _, i := range s.authorities() {
		w := canon.Object(nil)
		w.Str("authority", i.Kind)
		w.Str("expires", i.Expires)
		w.Str("for", i.Delegate)
		w.Str("from", fmt.Sprint(i.From))
		w.Str("id", i.ID)
		w.Str("principal", i.Principal)
		w.Strs("scopes", i.Kinds)
		lines = append(lines, string(w.End()))
	}
	slices.Sort(lines)
	for _, l := range lines {
		b = append(append(b, l...), '\n')
	}
	return b
}
