package policy

import (
	"context"
	"errors"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// The label that the system itself attaches.
const labelSecret = "secret" // output of a tool that received a secret

// labels tracks data classes through sessions. A session's labels are the
// union of what its calls can have brought in, and are recorded before the
// call that brings them is allowed; so whatever is proposed because of its
// output finds them on the ledger. Nothing removes a label.
//
// A call is first decided with the labels that this instance knows of, and is
// allowed with the expectation that the ledger holds no others: a read before
// each decision would cost a round trip. Where the expectation fails, the labels
// are read and the call is decided again.
type labels struct {
	*instance
	known cache[labelled] // by tenant and session
}

// labelled is a session's labels and the event that says so; the zero value: it
// has none.
type labelled struct {
	labels []string
	seq    uint64
}

// errMoved says that the session has other labels than the decision rests on, or
// its reservation other accounts.
var errMoved = errors.New("the session was labelled meanwhile")

// reaching returns the labels of everything that can have caused a call: of its
// session, of the session it is nested in, and of what came with it.
func (l *labels) reaching(ctx context.Context, p *proposal) ([]string, error) {
	e, c := p.event, &p.call
	out := slices.Clone(c.Labels)
	if !l.state.Labelled() {
		return union(out), nil
	}
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

// last returns what this instance knows of a session.
func (l *labels) last(tenant, session string) labelled {
	have, _ := l.known.get(tenant + "." + session)
	return have
}

// confirm returns errMoved where the labels of a proposal are not those on the ledger.
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

// spread records what an allowed call brings into its session, and into the
// session it is nested in, which sees its output too.
func (l *labels) spread(ctx context.Context, p *proposal, t *contract.Tool) error {
	brings := append(slices.Clone(t.Labels), p.facts.Labels...)
	if stack.Tainting(t) {
		brings = append(brings, labelSecret)
	}
	if len(brings) == 0 {
		return nil
	}
	l.state.MarkLabelled()
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

// add records that a session has labels, beside those that it has.
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
			e.Session, e.CallID = "", "" // the other session's evidence knows nothing of this call
		}
		b, err := e.Encode()
		if err != nil {
			return err
		}
		seq, err := l.emit.Log.AppendExpect(ctx, e.Subject(), e.ID, b, labelFilter(p.event.Tenant, session), have.seq)
		if err == nil {
			l.known.put(p.event.Tenant+"."+session, labelled{all, seq})
			if session == p.event.Session && have.seq == p.labelled {
				p.labelled = seq // by ourselves, behind the facts
			}
			return nil
		}
		if !errors.Is(err, eventlog.ErrConflict) {
			return err
		}
	}
}

// labelFilter selects the events that label a session.
func labelFilter(tenant, session string) string {
	return bus.Filter{Tenant: tenant, Service: "policy", Event: events.SessionLabelledName, Key: session}.String()
}

// of reads a session's labels from the ledger itself: the view could lag behind
// what the caller has already seen.
func (l *labels) of(ctx context.Context, tenant, session string) (have labelled, err error) {
	if !l.state.Labelled() {
		return have, nil
	}
	en, err := l.emit.Log.Last(ctx, labelFilter(tenant, session))
	if errors.Is(err, eventlog.ErrNotFound) {
		return have, nil
	}
	if err != nil {
		return have, err
	}
	e, err := eventlog.Open(en)
	if err != nil {
		return have, err
	}
	var d events.SessionLabelled
	if err := contract.Decode(e.Data, &d); err != nil {
		return have, err
	}
	have = labelled{d.Labels, en.Seq}
	l.known.put(tenant+"."+session, have)
	return have, nil
}

// union sorts a list and removes what it holds twice. It changes the list.
func union(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}
