package policy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/approval"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// process takes one proposal to its decision and acks it.
func (s *Service) process(ctx context.Context, m jetstream.Msg) {
	err := s.propose(ctx, m)
	if err == nil {
		_ = m.Ack()
		return
	}
	s.env.Log.Warn("proposal handed back", "subject", m.Subject(), "err", err)
	_ = m.Nak()
}

// proposal is a call on its way to a decision.
type proposal struct {
	event   *contract.Event
	call    contract.Call
	facts   guard.Facts
	args    []byte    // nil: cannot be read
	model   *llm.Args // what the args say, where they are a request's to a model
	retries uint64
	seq     uint64 // of the proposal; 0 where votes have resolved it

	again    bool   // not the first try: labels are read from the ledger
	guess    bool   // labels are what this instance knew
	labelled uint64 // sequence of the event that gave the session its labels
}

// key is the message id under which the decision on a proposal is appended,
// whatever its verdict: of two deliveries that are decided at the same time and
// differently, one is recorded. What people resolve is decided a second time.
func (p *proposal) key() string {
	if p.facts.Resolution != "" {
		return "resolved:" + p.call.ID
	}
	return "decided:" + p.call.ID
}

func (s *Service) propose(ctx context.Context, m jetstream.Msg) error {
	md, err := m.Metadata()
	if err != nil {
		return err
	}
	p := proposal{retries: md.NumDelivered - 1, seq: md.Sequence.Stream}
	if p.event, err = eventlog.Open(eventlog.Entry{Seq: md.Sequence.Stream, Subject: m.Subject(), Data: m.Data()}); err == nil {
		err = contract.Decode(p.event.Data, &p.call)
	}
	if err != nil || p.call.ID != p.event.CallID || p.event.ID != "p-"+p.call.ID {
		s.env.Log.Error("not a proposal", "subject", m.Subject(), "seq", md.Sequence.Stream, "err", err)
		return nil
	}
	s.env.Emit.See(p.event.Lamport)
	span := s.env.Tracer.Start(p.event.TraceCtx, "decide "+p.call.Kind, trace.SpanKindConsumer, attribute.String("binnacle.call.id", p.call.ID))
	defer span.End()
	// A server that died may have forgotten that it delivered this before, so what
	// is older than the connection is looked up too.
	if p.retries > 0 || md.Timestamp.Before(s.env.Conn.Made().Add(clockSkew)) {
		if done, err := s.answered(ctx, p.event, p.seq, contract.EventEscalated); err != nil || done {
			if done {
				s.budget.release(ctx, p.event, p.seq)
			}
			return err
		}
		p.again = true
	}
	for {
		if err = s.gather(ctx, &p); err == nil {
			err = s.decide(ctx, &p)
		}
		if !errors.Is(err, errMoved) || p.again {
			return err
		}
		p.again = true
	}
}

// clockSkew is how far the server's clock may be ahead of ours.
const clockSkew = time.Second

// gather collects the facts of a call. None of them is taken from its args.
func (s *Service) gather(ctx context.Context, p *proposal) error {
	e, c := p.event, &p.call
	now := s.env.Emit.Now()
	p.facts = guard.Facts{Actor: e.Actor, ArgsDigest: c.Args.Commitment, Client: e.Client, Deadline: c.Deadline, Delegation: c.Delegation, Kind: c.Kind,
		Now: contract.Time(now), OnBehalfOf: c.OnBehalfOf, Parent: c.Parent, ReportWithin: c.ReportWithin, Proposed: e.Time, Proposer: e.Service(), Scopes: c.Scopes,
		Requested: c.Requested, Session: e.Session, SessionName: c.SessionName, Tenant: e.Tenant, Tool: c.Tool}
	f := &p.facts
	if e.Tenant != s.env.Tenant {
		f.MeshTenant = s.env.Tenant
		return nil // nothing of this mesh is looked up for another's tenant
	}
	s.state.govern(f, now)
	f.Revoked = s.state.revoked(c.Token, e.Actor, e.Time)
	if c.Parent != "" {
		var err error
		if f.ParentLive, err = s.parentLive(ctx, e, c); err != nil {
			return err
		}
	}
	var err error
	if f.SessionOwner, err = s.stranger(ctx, e, f.Now); err != nil {
		return err
	}
	if f.Labels, err = s.labels.reaching(ctx, p); err != nil {
		return err
	}
	if p.args, err = s.env.Blobs.Open(ctx, &c.Args); err != nil && !errors.Is(err, contract.ErrErased) {
		s.env.Log.Warn("args unreadable", "call", c.ID, "err", err)
	}
	if err := canon.CheckDepth(p.args); err != nil {
		s.env.Log.Error("args refused", "call", c.ID, "err", err)
		p.args = nil // decided as unreadable
	}
	model := ""
	if p.model = stack.LLMArgs(c.Kind, p.args); p.model != nil {
		model = p.model.Model
	}
	if len(f.Labels) > 0 && p.model != nil {
		f.Accepts = s.state.accepts(model)
	}
	f.Key = s.state.key(e.Client, e.Actor, c.Kind, f.Now, model)
	switch c.Kind {
	case kindVote:
		f.Unverified = !s.verifies(p.args)
	case govern.KindRegister:
		f.DualControl = s.state.dualControl(p.args, e.Actor, now)
	}
	return nil
}

// parentLive reports whether the service that proposes a nested call is executing
// its parent, for the same actor. The actor is the one that policy permitted the
// parent for: a claim alone proves nothing, since any service can record one.
func (s *Service) parentLive(ctx context.Context, e *contract.Event, c *contract.Call) (bool, error) {
	h, err := execute.Look(ctx, s.env.Emit.Log, e.Tenant, c.ParentSession, c.Parent, e.Service(), 1)
	if err != nil || h.Service() != e.Service() || h.Recorded {
		return false, err
	}
	for en, err := range s.env.Emit.Log.Scan(ctx, "evt."+e.Tenant+".policy.*.allowed_"+e.Service()+"."+c.ParentSession, 1) {
		if err != nil {
			return false, err
		}
		if a, err := eventlog.Open(en); err == nil && a.CallID == c.Parent {
			return a.Actor == e.Actor, nil
		}
	}
	return false, nil
}

// stranger is the owner of a proposal's session, "-" where nobody can say who that
// is, or "" where the actor is the owner or has a grant of the owner's. A derived
// id tells its owner; a session of a release before 0.5 belongs to the actor of its
// first proposal, which never changes.
func (s *Service) stranger(ctx context.Context, e *contract.Event, now string) (string, error) {
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
	by := s.state.grantedBy(e.Session, e.Actor, now)
	switch {
	case owns(e.Actor), by != "" && owns(by):
		return "", nil
	case owns(first):
		return first, nil
	}
	return "-", nil
}

// opener is the actor of a session's first proposal; none, where it has none.
func (s *Service) opener(ctx context.Context, tenant, session, none string) (string, error) {
	k := tenant + "." + session
	if v, ok := s.owners.Load(k); ok {
		return v.(string), nil
	}
	for en, err := range s.env.Emit.Log.Scan(ctx, "evt."+tenant+".*.*.call_proposed."+session, 1) {
		if err != nil {
			return "", err
		}
		first, err := eventlog.Open(en)
		if err != nil {
			continue
		}
		s.owners.put(k, first.Actor)
		return first.Actor, nil
	}
	return none, nil
}

// cache is a bounded map; it is dropped whole when full.
type cache struct {
	sync.Map
	mu sync.Mutex
	n  int
}

const maxCached = 16384

func (c *cache) put(k string, v any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n++; c.n > maxCached {
		c.Clear()
		c.n = 1
	}
	c.Store(k, v)
}

// decide decides a call and records what came of it: allowed, escalated, or
// denied with its receipt.
func (s *Service) decide(ctx context.Context, p *proposal) error {
	eval := s.state.evaluate(ctx, stack.Call{ID: p.call.ID, IdemKey: p.call.IdemKey, Facts: p.facts, Args: p.args})
	v := eval.Verdict()
	reserved := certain
	if v.Verdict == contract.Allow {
		var err error
		if reserved, err = s.reserve(ctx, p, &eval); err != nil {
			return err
		}
		v = eval.Verdict()
	}
	if v.Verdict == contract.Allow {
		if err := s.labels.spread(ctx, p, eval.Tool()); err != nil {
			return err
		}
	} else if err := s.labels.stands(ctx, p); err != nil {
		return err
	}
	d := eval.Decide(s.env.Emit.Tick(), s.env.SignKey())
	var ev *contract.Event
	switch d.Verdict {
	case contract.Allow:
		ev = s.env.Emit.New(contract.EventAllowed, p.event.Session, contract.Bytes(&contract.Allowed{Call: p.call, Decision: d}), p.event)
		ev.Target = d.Intent.Executor
	case contract.Escalate:
		ev = s.env.Emit.New(contract.EventEscalated, p.event.Session, contract.Bytes(&contract.Escalated{Call: p.call, Decision: d,
			Expires: contract.Time(approval.Expiry(v.Approvals, s.env.Emit.Now())), Rules: v.Approvals}), p.event)
	default:
		eff := contract.Effect{CallID: p.call.ID, EffectType: p.call.Kind, Ended: s.env.Emit.Time(), ErrorCode: "denied", ErrorMessage: d.ReasonCode,
			InputDigest: p.call.Args.Commitment, Instance: s.env.Instance, Status: contract.Denied, Tool: p.call.Tool}
		if b := eval.Facts().Budget; b != nil && b.RetryAt != "" {
			eff.ErrorMessage += "; the window ends at " + b.RetryAt
		}
		err := s.recorder.RecordUnder(ctx, p.key(), p.event, &d, true, eff, nil)
		if errors.Is(err, execute.ErrSuperseded) {
			return nil
		}
		return err
	}
	ev.ID = d.ID
	b, err := ev.Encode()
	if err != nil {
		return err
	}
	if err := reserved(); err != nil { // it took as long as the signature
		return err
	}
	own := func(e *contract.Event) bool { return e.Service() == "policy" && e.CallID == ev.CallID }
	_, err = eventlog.Contend(ctx, s.env.Emit.Log, p.key(), own, func(id string) (uint64, error) {
		if d.Verdict == contract.Allow && p.guess {
			return s.env.Emit.Log.AppendExpect(ctx, ev.Subject(), id, b, labelFilter(p.event.Tenant, p.event.Session), p.labelled)
		}
		return s.env.Emit.Log.Append(ctx, ev.Subject(), id, b)
	})
	switch {
	case errors.Is(err, eventlog.ErrIDConflict):
		s.budget.release(ctx, p.event, p.seq)
		return nil // decided by the delivery before this one
	case errors.Is(err, eventlog.ErrConflict):
		return errMoved
	}
	return err
}

// maxBudgetTries is how often a reservation is tried before the call is
// denied: a book that cannot be written allows nothing.
const maxBudgetTries = 3

// reserve sets aside what an otherwise allowed call may use, and says so in its
// facts; certain returns once that is on the ledger. The calls that govern the
// mesh are not counted: a full account must not keep people from changing its
// limit.
func (s *Service) reserve(ctx context.Context, p *proposal, eval *stack.Evaluation) (reserved func() error, err error) {
	limits := s.state.limits()
	if len(limits) == 0 || eval.Tool().Executor == "policy" {
		return certain, nil
	}
	r := limit.Request{CallID: p.call.ID, Facts: eval.Facts(), Amounts: estimate(eval.Tool(), p.model, s.state.price, s.state.sends()), Force: eval.Facts().Resolution == "granted"}
	if r.Amounts.USDMicros < 0 {
		r.Amounts.USDMicros = 0
		for i := range limits {
			if accs := limits[i].Accounts(eval.Facts()); limits[i].Measure == "usd_micros" && len(accs) > 0 && !r.Force {
				eval.Charge(&guard.BudgetFact{Accounts: accs, Amounts: r.Amounts, Refused: contract.ReasonPriceUnknown})
				return certain, nil
			}
		}
	}
	b, final, err := s.budget.reserve(ctx, r, executorOf(eval.Tool(), eval.Facts()))
	if err == nil && p.retries > 0 { // something failed before: not a step without certainty
		b, err = final()
	}
	switch {
	case err == nil:
		if len(b.Accounts) > 0 { // else no limit speaks of this call
			eval.Charge(&b)
		}
		if p.retries > 0 {
			return certain, nil
		}
		return func() error {
			now, err := final()
			if err == nil && (now.Refused != "" || !slices.Equal(now.Accounts, b.Accounts)) {
				err = errMoved
			}
			return err
		}, nil
	case p.retries < maxBudgetTries:
		return nil, err
	}
	eval.Charge(&guard.BudgetFact{Accounts: []string{}, Amounts: r.Amounts, Refused: contract.ReasonBudgetError})
	return certain, nil
}

// executorOf is the service that the intent of an allowed call names.
func executorOf(t *contract.Tool, f *guard.Facts) string {
	if f.ReportWithin > 0 {
		return contract.CallerExecutor
	}
	return t.Executor
}

// certain is a reservation that nothing has to be waited for.
func certain() error { return nil }

// estimate is the most that a call can use, by its tool's document and args. It
// costs -1 where nobody knows the model's price. A request goes to each model that
// may answer it at most sends times.
func estimate(t *contract.Tool, q *llm.Args, price func(model string) (llmrouter.ModelPrice, bool), sends int64) contract.Amounts {
	a := contract.Amounts{}
	if t.Reserve != nil {
		a = *t.Reserve
	}
	a.Calls, a.Risk = 1, guard.RiskPoints(t.Class)
	if t.Sandbox != nil && a.ComputeMillis == 0 {
		a.ComputeMillis = t.Sandbox.WallMS * t.Sandbox.CPUMillis / 1000
	}
	if t.Kind == llm.Models && a.EgressBytes == 0 {
		a.EgressBytes = llm.ModelsEgress
	}
	if q != nil && a.Tokens == 0 {
		a.USDMicros = -1
		m, ok := price(q.Model)
		in, out := q.Most(llm.Limits{Context: m.Context, Image: m.ImageTokens, Output: m.MaxOutput})
		attempts := max(m.Attempts, 1)
		if a.EgressBytes == 0 {
			a.EgressBytes = q.Egress(attempts * max(sends, 1))
		}
		a.Tokens = (in + out) * attempts
		if ok && !m.Unpriced { // each attempt is rounded up by itself
			a.USDMicros = (in*m.Input+out*m.Output+999_999)/1_000_000 + attempts - 1
		}
	}
	return a
}

// answered looks whether an earlier delivery of the proposal got its answer;
// also names events that count as one beside the decision.
func (s *Service) answered(ctx context.Context, e *contract.Event, seq uint64, also ...string) (bool, error) {
	for en, err := range s.env.Emit.Log.Scan(ctx, "evt."+e.Tenant+".policy.*.*."+e.Session, seq) {
		if err != nil {
			return false, err
		}
		a, err := eventlog.Open(en)
		if err == nil && a.CallID == e.CallID && (a.Name == contract.EventAllowed || a.Name == contract.EventEffectRecorded || slices.Contains(also, a.Name)) {
			return true, nil
		}
	}
	return false, nil
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
