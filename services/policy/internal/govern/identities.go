package govern

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// Identity is a principal, or an entry that gives or ends authority, as queries return
// it.
type Identity struct {
	Kind      string   `json:"kind"` // principal, role, delegation, consent, session, revocation, invitation, link, group, groups or passkey
	Type      string   `json:"type,omitempty"`
	Suspended bool     `json:"suspended,omitempty"`
	ID        string   `json:"id,omitempty"`
	Name      string   `json:"name,omitempty"`
	Principal string   `json:"principal"`
	Role      string   `json:"role,omitempty"`
	Delegate  string   `json:"delegate,omitempty"`
	Kinds     []string `json:"kinds,omitempty"`
	Expires   string   `json:"expires,omitempty"`
	From      uint64   `json:"from_lamport"`
	To        uint64   `json:"to_lamport,omitempty"`
}

// IdentitiesAt returns the identities that were in force at a Lamport time and had not
// expired at the time now (contract.TimeFormat). If now is empty, expiry is not checked.
func (s *State) IdentitiesAt(lamport uint64, now string) []Identity {
	return slices.DeleteFunc(s.Identities(), func(i Identity) bool {
		return !span{i.From, i.To, i.Expires}.at(lamport, now)
	})
}

// Identities returns every identity, sorted by the Lamport time at which each began. It
// includes principals' earlier states, and entries that have ended or expired, but of the
// reports of a person's groups only the last one.
func (s *State) Identities() []Identity {
	out := append(s.People.identities(), s.Delegations.identities()...)
	out = append(append(out, s.authorities()...), s.Members.identities()...)
	out = append(out, s.Passkeys.identities()...)
	slices.SortFunc(out, func(a, b Identity) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Principal, b.Principal), cmp.Compare(a.Role, b.Role), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Delegate, b.Delegate))
	})
	return out
}

func (p *People) identities() []Identity {
	out := []Identity{}
	for name, lives := range p.principals {
		for i, l := range lives {
			x := Identity{Kind: "principal", Principal: name, Type: l.kind, Suspended: l.suspended, From: l.from}
			if i+1 < len(lives) {
				x.To = lives[i+1].from
			}
			out = append(out, x)
		}
	}
	for principal, roles := range p.roles {
		for role, spans := range roles {
			for _, x := range spans {
				out = append(out, Identity{Kind: "role", Principal: principal, Role: role, Expires: x.expires, From: x.from, To: x.to})
			}
		}
	}
	return out
}

func (x *Delegations) identities() []Identity {
	var out []Identity
	for id, d := range x.given {
		out = append(out, Identity{Kind: "delegation", ID: id, Principal: d.Delegator, Delegate: d.Delegate, Kinds: d.Kinds, Expires: d.Expires, From: d.from, To: d.to})
	}
	return out
}

// authorityKinds lists the kinds of identities that authorities returns. dumpAuthorities
// writes their lines of the dump, which have other members than those of other kinds.
var authorityKinds = []string{"consent", "session", "revocation"}

// authorities returns revocations, consents and session grants, including those that
// have ended, in no particular order.
func (s *State) authorities() []Identity {
	out := slices.Concat(s.Tokens.list, s.Keys.past, s.Sessions.past)
	for _, c := range s.Keys.consents {
		out = append(out, c.identity(0))
	}
	for session, to := range s.Sessions.grants {
		for p, g := range to {
			out = append(out, g.identity(session, p))
		}
	}
	return out
}

// dumpIdentities appends the lines of the identities of all kinds except authorityKinds.
func (s *State) dumpIdentities(b []byte) []byte {
	for _, i := range s.Identities() {
		if slices.Contains(authorityKinds, i.Kind) {
			continue
		}
		w := canon.Object(b)
		w.Str("delegate", i.Delegate)
		w.Str("expires", i.Expires)
		w.Str("from", fmt.Sprint(i.From))
		w.Str("id", i.ID)
		w.Strs("kinds", i.Kinds)
		if i.Name != "" {
			w.Str("name", i.Name)
		}
		w.Str("principal", i.Principal)
		w.Str("role", i.Role)
		w.Str("suspended", fmt.Sprint(i.Suspended))
		w.Str("to", fmt.Sprint(i.To))
		w.Str("type", i.Type)
		b = append(w.End(), '\n')
	}
	return b
}

// dumpAuthorities appends the sorted lines of consents, session grants and
// revocations.
func (s *State) dumpAuthorities(b []byte) []byte {
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
		w.Str("to", fmt.Sprint(i.To))
		lines = append(lines, string(w.End()))
	}
	slices.Sort(lines)
	for _, l := range lines {
		b = append(append(b, l...), '\n')
	}
	return b
}
