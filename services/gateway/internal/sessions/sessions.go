// Package sessions resolves the names that callers give their sessions to session ids.
package sessions

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Session headers. In requests, Header contains the caller's name for a session, or a
// session id. In responses, it contains the name if the caller gave one, or else the id,
// and IDHeader contains the id.
const (
	Header   = "X-Binnacle-Session"
	IDHeader = "X-Binnacle-Session-Id"
)

// Session is the session that a call belongs to.
type Session struct {
	ID        string
	Name      string // the caller's name for the session; empty if it gave none, or gave the id
	Requested string // digest of the requested id, if the caller may not use it; ID is then the caller's session for refused calls
}

// Called returns the caller's name for the session, or else its id.
func (x Session) Called() string {
	if x.Name != "" {
		return x.Name
	}
	return x.ID
}

// Check returns an error (400) if v, the value of param in a request, is not a valid
// name or id of a session.
func Check(param, v string) error {
	if !strings.HasPrefix(v, contract.IDSession) || !contract.Token(v) || len(v) < 3 || len(v) > 100 {
		return apierr.BadRequest(param, "a session is named by \"s-\" and up to 98 of [A-Za-z0-9_-]")
	}
	return nil
}

// Grants reports which principals may use which sessions. auth.Authority implements it.
type Grants interface {
	// Lent reports whether a session grant allows a principal to make calls in a session
	// at the time now.
	Lent(tenant, session, principal string, now time.Time) bool
}

// Resolver finds sessions by their names and ids. Its exported fields are set before its
// first use; it is safe for concurrent use.
type Resolver struct {
	Ledger eventlog.Log
	Grants Grants

	released released
}

// Of returns the session that the header of a request names, or a new one if the header
// is absent. If the header contains the id of a session that the caller may not use, Of
// returns the caller's session for refused calls. The error is 400 for a malformed
// header, and 503 if the ledger cannot be read.
func (s *Resolver) Of(ctx context.Context, who *auth.Caller, h http.Header) (Session, error) {
	v := h.Get(Header)
	if v == "" {
		return Session{ID: contract.SessionID(who.Tenant, who.Actor, rand.Text())}, nil
	}
	if err := Check(Header, v); err != nil {
		return Session{}, err
	}
	return s.resolve(ctx, who, v)
}

// resolve returns the session of a call for the caller's name or id v. If v has the form
// of a derived session id, v is an id: the call is in that session if the session is the
// caller's own or granted to the caller, and otherwise in the caller's session for
// refused calls, whether the session v exists or not. Any other v is a name, unless the
// caller owns a session with the id v from a release before 0.5. The error is 503 if the
// ledger cannot be read.
func (s *Resolver) resolve(ctx context.Context, who *auth.Caller, v string) (Session, error) {
	t := who.Tenant
	if contract.DerivedSession(v) {
		if contract.OwnsSession(t, who.Actor, v) || s.Grants.Lent(t, v, who.Actor, time.Now()) {
			return Session{ID: v}, nil
		}
		return Session{ID: contract.SessionID(t, who.Actor, contract.SessionRefused), Requested: sign.Digest([]byte(v))}, nil
	}
	owner, err := s.released.owner(ctx, s.Ledger, t, v)
	if err != nil {
		return Session{}, apierr.Unavailable("the ledger does not respond: " + err.Error())
	}
	if owner == who.Actor {
		return Session{ID: v}, nil
	}
	return Session{ID: contract.SessionID(t, who.Actor, v), Name: v}, nil
}

// QueriedBy calls Queried with the principal in the query parameter owner.
func (s *Resolver) QueriedBy(c echo.Context, who *auth.Caller, v string) (string, error) {
	return s.Queried(c.Request().Context(), who, v, c.QueryParam("owner"))
}

// Queried returns the id of the session that a reader of the ledger names v. If v is a
// derived session id or not a valid name, Queried returns v. Otherwise v is the name
// that the principal owner, or the reader if owner is empty, gave the session. A session
// with the id v from a release before 0.5 takes precedence if that principal owns it, or
// if owner is empty and the reader has no session with the name v. The error is 503 if
// the ledger cannot be read.
func (s *Resolver) Queried(ctx context.Context, who *auth.Caller, v, owner string) (string, error) {
	if contract.DerivedSession(v) || Check("session", v) != nil {
		return v, nil
	}
	if owner != "" {
		who = &auth.Caller{Tenant: who.Tenant, Actor: owner}
	}
	own := contract.SessionID(who.Tenant, who.Actor, v)
	first, err := s.released.owner(ctx, s.Ledger, who.Tenant, v)
	switch {
	case err != nil:
		return "", apierr.Unavailable("the ledger does not respond: " + err.Error())
	case first == who.Actor:
		return v, nil
	case first == "" || owner != "":
		return own, nil
	}
	// v is another principal's session from a release before 0.5. A session to which the
	// reader itself gave that name takes precedence.
	for _, err := range s.Ledger.Scan(ctx, proposalsOf(who.Tenant, own), 1) {
		if err != nil {
			return "", apierr.Unavailable("the ledger does not respond: " + err.Error())
		}
		return own, nil
	}
	return v, nil
}

// InArgs replaces names of sessions by ids in the args of the kinds that refer to
// sessions: judge.score, policy.grant_session and policy.revoke_session. It returns args
// of other kinds, and args without a valid session, unchanged. If the caller may not
// read the session of a judgement, InArgs sets at to the caller's session for refused
// calls. The error is 503 if the ledger cannot be read.
func (s *Resolver) InArgs(ctx context.Context, who *auth.Caller, kind string, args []byte, at *Session) ([]byte, error) {
	judged := kind == "judge.score"
	if !judged && kind != "policy.grant_session" && kind != "policy.revoke_session" {
		return args, nil
	}
	var doc map[string]json.RawMessage
	var named string
	if json.Unmarshal(args, &doc) != nil || json.Unmarshal(doc["session"], &named) != nil || Check("session", named) != nil {
		return args, nil // the args name no valid session, so policy denies the call or its executor rejects it
	}
	var id string
	var err error
	if judged && slices.Contains(who.Scopes, token.Audit) {
		id, err = s.Queried(ctx, who, named, "")
	} else {
		var x Session
		x, err = s.resolve(ctx, who, named)
		if id = x.ID; x.Requested != "" && judged {
			id, *at = named, Session{ID: x.ID, Requested: x.Requested}
		} else if x.Requested != "" {
			id = named // the session is not the caller's, so policy denies the call
		}
	}
	if err != nil {
		return nil, err
	}
	if doc["session"], err = json.Marshal(id); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	return canon.Transform(nil, raw)
}

// Into sets the session of a proposal.
func (x Session) Into(r *propose.Request) {
	r.Session, r.SessionName, r.Requested = x.ID, x.Name, x.Requested
}

// proposalsOf returns the subject filter of the proposals in a session, or in all
// sessions if session is empty.
func proposalsOf(tenant, session string) string {
	return bus.Filter{Tenant: tenant, Event: contract.EventCallProposed, Key: session}.String()
}

// released finds the sessions from releases before 0.5, whose ids are the names that
// callers gave them. No such session is created any more, so results are cached without
// expiry. If a tenant has no proposal, or its first one has a derived session id, it has
// no such sessions. It is safe for concurrent use.
type released struct {
	mu     sync.Mutex
	none   map[string]bool  // by tenant: true if it has no such sessions; absent until look has searched
	owners map[named]string // "" if no such session exists
}

// named is the id of a session of a tenant.
type named struct{ tenant, id string }

// maxReleased is the maximum size of the cache of owners, which is cleared when it is
// full.
const maxReleased = 16384

// owner returns the actor of the first proposal in the session from a release before 0.5
// with the given id, or "" if there is no such session.
func (r *released) owner(ctx context.Context, log eventlog.Log, tenant, id string) (string, error) {
	r.mu.Lock()
	owner, known := r.owners[named{tenant, id}]
	none, looked := r.none[tenant]
	r.mu.Unlock()
	if known || none {
		return owner, nil
	}
	if !looked {
		if none, err := r.look(ctx, log, tenant); err != nil || none {
			return "", err
		}
	}
	e, err := firstOf(ctx, log, proposalsOf(tenant, id))
	if err != nil {
		return "", err
	}
	if e != nil {
		owner = e.Actor
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owners == nil || len(r.owners) >= maxReleased {
		r.owners = map[named]string{}
	}
	r.owners[named{tenant, id}] = owner
	return owner, nil
}

// look sets none for a tenant and returns its value.
func (r *released) look(ctx context.Context, log eventlog.Log, tenant string) (none bool, err error) {
	e, err := firstOf(ctx, log, proposalsOf(tenant, ""))
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.none == nil {
		r.none = map[string]bool{}
	}
	r.none[tenant] = e == nil || contract.DerivedSession(e.Session)
	return r.none[tenant], nil
}

// firstOf returns the first valid event on the ledger that matches filter, or nil if
// there is none.
func firstOf(ctx context.Context, log eventlog.Log, filter string) (*contract.Event, error) {
	for en, err := range log.Scan(ctx, filter, 1) {
		if err != nil {
			return nil, err
		}
		if e, err := eventlog.Open(en, filter); err == nil {
			return e, nil
		}
	}
	return nil, nil
}
