package gateway

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

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Session headers. The first holds, in requests, the caller's name for a session,
// or an id; in responses what the caller gave, or else the id. The second holds
// the id.
const (
	sessionHeader   = "X-Binnacle-Session"
	sessionIDHeader = "X-Binnacle-Session-Id"
)

// session is where a call belongs.
type session struct {
	id        string
	name      string // the caller's own; empty where it gave none, or the id
	requested string // digest of an id that the caller may not use; id is then its session of refusals
}

// called is how the caller calls the session.
func (x session) called() string {
	if x.name != "" {
		return x.name
	}
	return x.id
}

func checkSession(param, v string) error {
	if !strings.HasPrefix(v, "s-") || !contract.Token(v) || len(v) < 3 || len(v) > 100 {
		return badRequest(param, "a session is named by \"s-\" and up to 98 of [A-Za-z0-9_-]")
	}
	return nil
}

// sessionOf is the session that a request names, or a new one.
func (s *Service) sessionOf(ctx context.Context, who *caller, h http.Header) (session, error) {
	v := h.Get(sessionHeader)
	if v == "" {
		return session{id: contract.SessionID(s.env.Tenant, who.actor, rand.Text())}, nil
	}
	if err := checkSession(sessionHeader, v); err != nil {
		return session{}, err
	}
	return s.resolve(ctx, who, v)
}

// resolve finds the session that a caller of a call means. A derived id is always
// an id: the caller's own, one granted to it, or refused, whether it exists or not.
// Anything else is a name, unless the caller owns a session of that id which a
// release before 0.5 left.
func (s *Service) resolve(ctx context.Context, who *caller, v string) (session, error) {
	t := s.env.Tenant
	if contract.DerivedSession(v) {
		if contract.OwnsSession(t, who.actor, v) || s.authority.lent(t, v, who.actor, time.Now()) {
			return session{id: v}, nil
		}
		return session{id: contract.SessionID(t, who.actor, contract.SessionRefused), requested: sign.Digest([]byte(v))}, nil
	}
	owner, err := s.released.owner(ctx, s.env.Emit.Log, t, v)
	if err != nil {
		return session{}, unavailable("the ledger does not answer: " + err.Error())
	}
	if owner == who.actor {
		return session{id: v}, nil
	}
	return session{id: contract.SessionID(t, who.actor, v), name: v}, nil
}

// sessionQueried finds the session that a query of a reader of the ledger means; the query's
// owner says whose name it is, where it is not the reader's own.
func (s *Service) sessionQueried(c echo.Context, who *caller, v string) (string, error) {
	return s.queried(c.Request().Context(), who, v, c.QueryParam("owner"))
}

// queried finds the session that a reader of the ledger means: by its id, or by
// the name that owner, or without one the reader, has for it. What is no session's
// name is returned as it is.
func (s *Service) queried(ctx context.Context, who *caller, v, owner string) (string, error) {
	if contract.DerivedSession(v) || checkSession("session", v) != nil {
		return v, nil
	}
	if owner != "" {
		who = &caller{actor: owner}
	}
	own := contract.SessionID(s.env.Tenant, who.actor, v)
	first, err := s.released.owner(ctx, s.env.Emit.Log, s.env.Tenant, v)
	switch {
	case err != nil:
		return "", unavailable("the ledger does not answer: " + err.Error())
	case first == who.actor:
		return v, nil
	case first == "" || owner != "":
		return own, nil
	}
	// Somebody else's of a release before; the reader's own of that name comes first.
	for _, err := range s.env.Emit.Log.Scan(ctx, proposalsOf(s.env.Tenant, own), 1) {
		if err != nil {
			return "", unavailable("the ledger does not answer: " + err.Error())
		}
		return own, nil
	}
	return v, nil
}

// inArgs resolves the sessions that the args of some kinds name: what a judge is
// to read, and what is granted.
func (s *Service) inArgs(ctx context.Context, who *caller, kind string, args []byte, at *session) ([]byte, error) {
	judged := kind == "judge.score"
	if !judged && kind != "policy.grant_session" && kind != "policy.revoke_session" {
		return args, nil
	}
	var doc map[string]json.RawMessage
	var named string
	if json.Unmarshal(args, &doc) != nil || json.Unmarshal(doc["session"], &named) != nil || checkSession("session", named) != nil {
		return args, nil // the tool's schema refuses it
	}
	var id string
	var err error
	if judged && slices.Contains(who.scopes, token.Audit) {
		id, err = s.queried(ctx, who, named, "")
	} else {
		var x session
		x, err = s.resolve(ctx, who, named)
		if id = x.id; x.requested != "" && judged {
			id, *at = named, session{id: x.id, requested: x.requested}
		} else if x.requested != "" {
			id = named // not the caller's to grant: policy refuses it
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

// into places a call in a session.
func (x session) into(r *propose.Request) {
	r.Session, r.SessionName, r.Requested = x.id, x.name, x.requested
}

func proposalsOf(tenant, session string) string {
	return "evt." + tenant + ".*.*.call_proposed." + session
}

// released knows the sessions that releases before 0.5 left, whose ids were names.
// No more of them are made, so what it found holds for good. A ledger whose first
// proposal has a derived session has none.
type released struct {
	mu     sync.Mutex
	none   bool
	owners map[string]string // by session; "" where there is none
}

const maxReleased = 16384

// owner is the actor of the first proposal of a session of that id, or "".
func (r *released) owner(ctx context.Context, log eventlog.Log, tenant, id string) (string, error) {
	r.mu.Lock()
	owner, known := r.owners[id]
	known = known || r.none
	first := r.owners == nil
	r.mu.Unlock()
	if known {
		return owner, nil
	}
	if first {
		if err := r.look(ctx, log, tenant); err != nil || r.isNone() {
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
		r.owners = map[string]string{}
	}
	r.owners[id] = owner
	return owner, nil
}

// look finds out whether the ledger began with derived sessions.
func (r *released) look(ctx context.Context, log eventlog.Log, tenant string) error {
	e, err := firstOf(ctx, log, proposalsOf(tenant, ">"))
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.none = e == nil || contract.DerivedSession(e.Session)
	return nil
}

func (r *released) isNone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.none
}

func firstOf(ctx context.Context, log eventlog.Log, filter string) (*contract.Event, error) {
	for en, err := range log.Scan(ctx, filter, 1) {
		if err != nil {
			return nil, err
		}
		if e, err := eventlog.Open(en); err == nil {
			return e, nil
		}
	}
	return nil, nil
}
