package policy

import (
	"context"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/lru"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// sessions determines the owners of sessions.
type sessions struct {
	*instance
	openers *lru.Cache[string] // actor of a session's first proposal, by TENANT.SESSION
}

// foreignOwner returns "" if the actor of a proposal owns its session or has a grant of
// the owner. Otherwise it returns the owner, or "-" if the owner is unknown. Whether an
// actor owns a session with a derived id follows from the id. A session of a release
// before 0.5 belongs to the actor of its first proposal, which never changes and is
// therefore cached; before that proposal it belongs to every actor.
func (s *sessions) foreignOwner(ctx context.Context, e *contract.Event, now string) (string, error) {
	derived := contract.DerivedSession(e.Session)
	if contract.OwnsSession(e.Tenant, e.Actor, e.Session) {
		return "", nil
	}
	first, err := s.opener(ctx, e.Tenant, e.Session, e.Actor)
	if err != nil {
		return "", err
	}
	owns := func(who string) bool {
		if derived {
			return contract.OwnsSession(e.Tenant, who, e.Session)
		}
		return who == first
	}
	var by string
	s.states.Of(e.Tenant).Read(func(v *state.View) { by = v.People.GrantedBy(e.Session, e.Actor, now) })
	switch {
	case owns(e.Actor), by != "" && owns(by):
		return "", nil
	case owns(first):
		return first, nil
	}
	return "-", nil
}

// opener returns the actor of a session's first proposal, or the argument none if the
// session has no proposal.
func (s *sessions) opener(ctx context.Context, tenant, session, none string) (string, error) {
	k := tenant + "." + session
	if who, ok := s.openers.Get(k); ok {
		return who, nil
	}
	for en, err := range s.emit.Log.Scan(ctx, proposals(tenant, session), 1) {
		if err != nil {
			return "", err
		}
		first, err := eventlog.Open(en, proposals(tenant, session))
		if err != nil {
			continue
		}
		s.openers.Put(k, first.Actor)
		return first.Actor, nil
	}
	return none, nil
}

// opened reports whether a session of a tenant has a proposal, for the
// consistency check of a policy document. It returns false if the id is malformed or the
// ledger cannot be read within lookFor; in the second case the document could in general
// not be activated either, because its activation is an event on the ledger.
func (s *sessions) opened(tenant, session string) bool {
	if !contract.Token(session) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookFor)
	defer cancel()
	for _, err := range s.emit.Log.Scan(ctx, proposals(tenant, session), 1) {
		return err == nil
	}
	return false
}

// proposals returns the filter for the proposals of a session.
func proposals(tenant, session string) string {
	return bus.Filter{Tenant: tenant, Event: contract.EventCallProposed, Key: session}.String()
}

// lookFor is the timeout for looking up one name, and for waiting until the state is
// current.
const lookFor = 2 * time.Second
