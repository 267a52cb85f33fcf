package govern

import (
	"errors"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// Sessions holds the grants by which principals may make calls in the sessions of other
// principals, including grants that have ended. The zero value is empty.
type Sessions struct {
	grants map[string]map[string]sessionGrant // grants by session and principal
	past   []Identity                         // grants that were revoked or replaced
}

// sessionGrant is a grant, the owner who gave it, and the time for which it is in
// force.
type sessionGrant struct {
	owner string
	span
}

// identity returns the grant to a principal for a session as an Identity.
func (g *sessionGrant) identity(session, principal string) Identity {
	return Identity{Kind: "session", ID: session, Principal: g.owner, Delegate: principal, Expires: g.expires, From: g.from, To: g.to}
}

func (x *Sessions) grant(d *events.SessionGranted, lamport uint64) {
	x.end(d.Session, d.Principal, lamport)
	if x.grants == nil {
		x.grants = map[string]map[string]sessionGrant{}
	}
	if x.grants[d.Session] == nil {
		x.grants[d.Session] = map[string]sessionGrant{}
	}
	x.grants[d.Session][d.Principal] = sessionGrant{d.Owner, span{from: lamport, expires: d.Expires}}
}

// end ends the grant to a principal for a session, if there is one.
func (x *Sessions) end(session, principal string, lamport uint64) {
	if g, ok := x.grants[session][principal]; ok {
		g.to = lamport
		x.past = append(x.past, g.identity(session, principal))
		delete(x.grants[session], principal)
	}
}

// endOf ends every grant that an owner gave.
func (x *Sessions) endOf(owner string, lamport uint64) {
	for session, to := range x.grants {
		for principal, g := range to {
			if g.owner == owner {
				x.end(session, principal, lamport)
			}
		}
	}
}

// grantedBy returns the owner whose grant to the principal for the session is in force
// at now, or "".
func (x *Sessions) grantedBy(session, principal, now string) string {
	if g, ok := x.grants[session][principal]; ok && g.holds(now) {
		return g.owner
	}
	return ""
}

type grantSessionArgs struct {
	Session   string `json:"session"`
	Principal string `json:"principal"`
	TTLMS     int64  `json:"ttl_ms"`
}

// grantSession returns the event that lets another principal make calls in one of the
// caller's sessions for a time. The grant replaces an earlier one to the principal for
// the session.
func grantSession(_ *State, c *Caller, a *grantSessionArgs) (Fact, error) {
	switch err := lasts(a.TTLMS, MaxDelegation); {
	case err != nil:
		return none, err
	case !owns(c, a.Session):
		return none, errors.New("session: not found among the caller's")
	case a.Principal == c.Actor:
		return none, errors.New("principal: is the caller itself")
	}
	return Fact{events.SessionGrantedName, &events.SessionGranted{Expires: c.until(a.TTLMS), Owner: c.Actor, Principal: a.Principal, Session: a.Session}}, nil
}

// owns reports whether the caller owns a session. A derived id proves its owner;
// for the session of a release before 0.5, the caller's Owns reads the ledger.
func owns(c *Caller, session string) bool {
	if contract.DerivedSession(session) {
		return contract.OwnsSession(c.Tenant, c.Actor, session)
	}
	return c.Owns != nil && c.Owns(session)
}

type revokeSessionArgs struct {
	Session   string `json:"session"`
	Principal string `json:"principal"`
}

// revokeSession returns the event that ends a grant which the caller gave.
func revokeSession(s *State, c *Caller, a *revokeSessionArgs) (Fact, error) {
	if g, ok := s.Sessions.grants[a.Session][a.Principal]; !ok || g.owner != c.Actor {
		return none, errors.New("session: not granted to that principal by the caller")
	}
	return Fact{events.SessionGrantRevokedName, &events.SessionGrantRevoked{Principal: a.Principal, Session: a.Session}}, nil
}
