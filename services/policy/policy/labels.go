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
type labels struct {
	env *run.Env
	st  *State
}

// reaching is the labels of everything that can have caused a call: of its
// session, of the session it is nested in, and of what came with it.
func (l *labels) reaching(ctx context.Context, e *contract.Event, c *contract.Call) ([]string, error) {
	out := slices.Clone(c.Labels)
	own, _, err := l.of(ctx, e.Tenant, e.Session)
	if err != nil {
		return nil, err
	}
	out = append(out, own...)
	if c.Parent != "" && c.ParentSession != e.Session {
		above, _, err := l.of(ctx, e.Tenant, c.ParentSession)
		if err != nil {
			return nil, err
		}
		out = append(out, above...)
	}
	return union(out), nil
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
		have, seq, err := l.of(ctx, p.event.Tenant, session)
		if err != nil {
			return err
		}
		all := union(append(slices.Clone(have), brings...))
		if len(all) == len(have) {
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
		_, err = l.env.Emit.Log.AppendExpect(ctx, e.Subject(), e.ID, b, labelFilter(p.event.Tenant, session), seq)
		if err == nil {
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
func (l *labels) of(ctx context.Context, tenant, session string) ([]string, uint64, error) {
	if !l.st.labelled() {
		return nil, 0, nil
	}
	en, err := l.env.Emit.Log.Last(ctx, labelFilter(tenant, session))
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	e, err := eventlog.Open(en)
	if err != nil {
		return nil, 0, err
	}
	var d events.SessionLabelled
	if err := contract.Decode(e.Data, &d); err != nil {
		return nil, 0, err
	}
	return d.Labels, en.Seq, nil
}

func union(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}
