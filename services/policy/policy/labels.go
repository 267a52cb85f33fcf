package policy

import (
	"context"
	"errors"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// The label that the system itself attaches.
const labelSecret = "secret" // output of a tool that received a secret

// labels follows data classes through sessions. A session's labels are the
// union of what its calls can have brought in, and are recorded before the
// call that brings them is allowed; so whatever is proposed because of its
// output finds them on the ledger. Nothing takes a label away.
//
// A call is first decided with the labels that this instance knows of, and is
// allowed with the expectation that the ledger holds no others: asking before
// each decision would cost a round trip. Whoever guessed wrong reads.
type labels struct {
	env *run.Env
	st  *State

	known cache // by tenant and session: labelled
}

// labelled is a session's labels and the event that says so; the zero value: it
// has none.
type labelled struct {
	labels []string
	seq    uint64
}

// errMoved: the session has other labels than the decision rests on.
var errMoved = errors.New("the session was labelled meanwhile")

// reaching is the labels of everything that can have caused a call: of its
// session, of the session it is nested in, and of what came with it.
func (l *labels) reaching(ctx context.Context, p *proposal) ([]string, error) {
	e, c := p.event, &p.call
	out := slices.Clone(c.Labels)
	if !l.st.labelled() {
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

// last is what this instance knows of a session.
func (l *labels) last(tenant, session string) labelled {
	v, _ := l.known.Load(tenant + "." + session)
	have, _ := v.(labelled)
	return have
}

// stands reports whether the labels of a proposal are those on the ledger.
func (l *labels) stands(ctx context.Context, p *proposal) error {
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
	if tainting(t) {
		brings = append(brings, labelSecret)
	}
	if len(brings) == 0 {
		return nil
	}
	l.st.markLabelled()
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

// tainting reports whether a secret reaches the tool itself. One that is granted
// by a pattern stays with the executor.
func tainting(t *contract.Tool) bool {
	return slices.ContainsFunc(t.Secrets, func(g contract.SecretGrant) bool { return !g.Pattern() })
}

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
		e := l.env.Emit.New(events.SessionLabelledName, session, contract.Bytes(&events.SessionLabelled{CallID: p.call.ID, Labels: all, Session: session}), p.event)
		if session != p.event.Session {
			e.Session, e.CallID = "", "" // the other session's evidence knows nothing of this call
		}
		b, err := e.Encode()
		if err != nil {
			return err
		}
		seq, err := l.env.Emit.Log.AppendExpect(ctx, e.Subject(), e.ID, b, labelFilter(p.event.Tenant, session), have.seq)
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

func labelFilter(tenant, session string) string {
	return "evt." + tenant + ".policy.*." + events.SessionLabelledName + "." + session
}

// of reads a session's labels from the ledger itself: a view could lag behind
// what the caller has already seen.
func (l *labels) of(ctx context.Context, tenant, session string) (have labelled, err error) {
	if !l.st.labelled() {
		return have, nil
	}
	en, err := l.env.Emit.Log.Last(ctx, labelFilter(tenant, session))
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

func union(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}
