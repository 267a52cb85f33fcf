package policy

import (
	"context"
	"errors"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/lru"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// The label that policy itself attaches.
const labelSecret = "secret" // label of the output of a tool that received a secret

// labels tracks the classes of data in sessions. The labels of a session are the
// union of those that its calls can have added. They are recorded before the call
// that adds them is allowed, so that they are on the ledger before the output of
// that call can cause another call. Labels are never removed.
//
// To save a round trip, a call is usually first decided with the labels in this
// instance's cache, and an ALLOW is then appended with the expected sequence of their
// event. If the append is rejected, the labels are read and the call is decided again.
type labels struct {
	*instance
	known *lru.Cache[labelled] // labels by "tenant.session"
}

// labelled holds the labels of a session and the sequence of the event that recorded
// them. The zero value means no labels.
type labelled struct {
	labels []string
	seq    uint64
}

// errMoved is returned if the facts of a decision no longer match the ledger: the session
// has newer labels than those in the facts, the allotment from which the call's amounts
// are drawn was closed, or the cell was opened. The call is then decided again.
var errMoved = errors.New("the ledger has changed since the facts of the decision were collected")

// reaching returns the labels of all data that can have caused a call: of its session,
// of its parent's session, and of the request itself. Those of its session come from the
// cache unless p.again is set. It sets guess and labelled of p.
func (l *labels) reaching(ctx context.Context, p *proposal) ([]string, error) {
	e, c := p.event, &p.call
	out := slices.Clone(c.Labels)
	var own labelled
	if p.guess = !p.again; p.guess {
		own = l.last(e.Tenant, e.Session)
	} else {
		var err error
		if own, err = l.of(ctx, e.Tenant, e.Session); err != nil {
			return nil, err
		}
	}
	p.labelled = own.seq
	out = append(out, own.labels...)
	if c.Parent != "" && c.ParentSession != e.Session {
		above, err := l.of(ctx, e.Tenant, c.ParentSession)
		if err != nil {
			return nil, err
		}
		out = append(out, above.labels...)
	}
	return union(out), nil
}

// last returns the labels of a session in this instance's cache, or the zero value if
// the session is not cached.
func (l *labels) last(tenant, session string) labelled {
	have, _ := l.known.Get(tenant + "." + session)
	return have
}

// confirm returns errMoved if the facts of a proposal were collected with cached labels
// of its session and the ledger has other labels.
func (l *labels) confirm(ctx context.Context, p *proposal) error {
	if !p.guess {
		return nil
	}
	have, err := l.of(ctx, p.event.Tenant, p.event.Session)
	if err == nil && have.seq != p.labelled {
		err = errMoved
	}
	return err
}

// spread records the labels that an allowed call adds to its session and to its parent's
// session, which also receives the output.
func (l *labels) spread(ctx context.Context, p *proposal, t *contract.Tool) error {
	brings := append(slices.Clone(t.Labels), p.facts.Labels...)
	if stack.Tainting(t) {
		brings = append(brings, labelSecret)
	}
	if len(brings) == 0 {
		return nil
	}
	sessions := []string{p.event.Session}
	if p.call.Parent != "" && p.call.ParentSession != p.event.Session {
		sessions = append(sessions, p.call.ParentSession)
	}
	for _, session := range sessions {
		if err := l.add(ctx, p, session, brings); err != nil {
			return err
		}
	}
	return nil
}

// add adds the labels in brings to those of a session. It records nothing if the session
// has all of them.
func (l *labels) add(ctx context.Context, p *proposal, session string, brings []string) error {
	for {
		have, err := l.of(ctx, p.event.Tenant, session)
		if err != nil {
			return err
		}
		all := union(append(slices.Clone(have.labels), brings...))
		if len(all) == len(have.labels) {
			return nil
		}
		e := l.emit.New(events.SessionLabelledName, session, contract.Bytes(&events.SessionLabelled{CallID: p.call.ID, Labels: all, Session: session}), p.event)
		if session != p.event.Session {
			e.Session, e.CallID = "", "" // the event belongs to the other session, whose evidence must not refer to this call
		}
		b, err := e.Encode()
		if err != nil {
			return err
		}
		seq, err := l.emit.Log.AppendExpect(ctx, e.Subject(), e.ID, b, labelFilter(p.event.Tenant, session), have.seq)
		if err == nil {
			l.known.Put(p.event.Tenant+"."+session, labelled{all, seq})
			if session == p.event.Session && have.seq == p.labelled {
				p.labelled = seq // add itself recorded the event at seq, for this call, so it must not count as a change of the labels since the facts were collected
			}
			return nil
		}
		if !errors.Is(err, eventlog.ErrConflict) {
			return err
		}
	}
}

// labelFilter returns the filter for the events that label a session.
func labelFilter(tenant, session string) string {
	return bus.Filter{Tenant: tenant, Service: services.Policy, Event: events.SessionLabelledName, Key: session}.String()
}

// of reads a session's labels from the ledger and caches them. The cache alone may lack
// the labels of data that the caller has received already. of returns the zero value if
// the session has none.
func (l *labels) of(ctx context.Context, tenant, session string) (have labelled, err error) {
	en, err := l.emit.Log.Last(ctx, labelFilter(tenant, session))
	if errors.Is(err, eventlog.ErrNotFound) {
		return have, nil
	}
	if err != nil {
		return have, err
	}
	e, err := eventlog.Open(en, labelFilter(tenant, session))
	if err != nil {
		return have, err
	}
	var d events.SessionLabelled
	if err := contract.Decode(e.Data, &d); err != nil {
		return have, err
	}
	have = labelled{d.Labels, en.Seq}
	l.known.Put(tenant+"."+session, have)
	return have, nil
}

// union sorts a list in place and removes duplicates.
func union(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}
