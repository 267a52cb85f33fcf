package policy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// gather collects the facts of a call, reads its args, and sets p.state. For a call of a
// tenant that does not exist, it collects only the facts that the proposal contains, the
// time, and MeshTenant.
func (d *decider) gather(ctx context.Context, p *proposal) (err error) {
	e, c := p.event, &p.call
	now := d.emit.Now()
	p.facts = guard.Facts{Actor: e.Actor, ArgsDigest: c.Args.Commitment, Client: e.Client, Deadline: c.Deadline, Delegation: c.Delegation, Kind: c.Kind,
		Now: contract.Time(now), OnBehalfOf: c.OnBehalfOf, Parent: c.Parent, ReportWithin: c.ReportWithin, Proposed: e.Time, Proposer: e.Service(), Scopes: c.Scopes,
		Requested: c.Requested, Session: e.Session, SessionName: c.SessionName, Tenant: e.Tenant, Tool: c.Tool}
	f := &p.facts
	if p.state, err = d.known(ctx, e.Tenant); err != nil {
		return err
	}
	if p.state == nil {
		f.MeshTenant = d.states.Cell()
		p.state = d.states.OfCell() // the call is decided with its documents, and denied because MeshTenant is set
		return nil
	}
	p.state.Read(func(v *state.View) {
		v.AddFacts(f, now)
		f.Revoked = v.People.Tokens.Revoked(c.Token, e.Actor, e.Time)
		p.early = v.Alone() && guard.GovernsCell(f.Kind)
	})
	p.again = p.again || p.early // the append of the ALLOW expects that the cell is not opened, and can expect nothing of the labels
	if c.Parent != "" {
		if f.ParentLive, err = d.parentLive(ctx, p); err != nil {
			return err
		}
	}
	if f.SessionOwner, err = d.sessions.foreignOwner(ctx, e, f.Now); err != nil {
		return err
	}
	if f.Labels, err = d.labels.reaching(ctx, p); err != nil {
		return err
	}
	p.state.AddSecrets(f)
	p.args = d.readArgs(ctx, e.Tenant, c)
	d.gatherByArgs(p, now)
	return nil
}

// readArgs returns the args of a call of a tenant, or nil if they cannot be read or are
// nested too deeply; the call is then denied for that reason.
func (d *decider) readArgs(ctx context.Context, tenant string, c *contract.Call) []byte {
	args, err := d.contents(tenant).Open(ctx, &c.Args)
	if err != nil && !errors.Is(err, contract.ErrErased) {
		d.log.Warn("args unreadable", "call", c.ID, "err", err)
	}
	if err := canon.CheckDepth(args); err != nil {
		d.log.Error("args refused", "call", c.ID, "err", err)
		return nil
	}
	return args
}

// gatherByArgs decodes a request to a model into p.model and adds the facts that depend on
// values in the args: which labels the requested model may receive, if the call has labels; the
// state of the virtual key, which may exclude that model; whether a ballot's signature verifies;
// whether the call changes ceilings outside of an opened cell; and whether a registration, also that
// of a passkey, or an invitation requires a second person.
func (d *decider) gatherByArgs(p *proposal, now time.Time) {
	f := &p.facts
	model := ""
	if p.model = stack.LLMArgs(f.Kind, p.args); p.model != nil {
		model = p.model.Model
	}
	p.state.Read(func(v *state.View) {
		if len(f.Labels) > 0 && p.model != nil {
			f.Accepts = v.Accepts(model)
		}
		f.Key = v.Key(f, model)
		if slices.Contains([]string{kindActivate, kindRollback}, f.Kind) && v.Outside() {
			var a changeArgs
			f.OutsideCell = json.Unmarshal(p.args, &a) == nil && a.Layer == "p0"
		}
		if f.Kind == govern.KindRegister {
			f.DualControl = v.People.People.DualControl(p.args, f.Actor, now)
		}
		if f.Kind == govern.KindInvite || f.Kind == govern.KindRegisterPasskey {
			f.DualControl = v.People.People.SecondPerson(f.Actor, now)
		}
	})
	if f.Kind == kindVote {
		f.Unverified = !d.ballots.verifies(p.event, p.args)
	}
}

// parentLive reports whether the service that proposes a nested call is executing
// the parent call, and policy has allowed the parent call for the same actor. A claim
// alone is no proof that a service executes a call, because any service can record one.
func (d *decider) parentLive(ctx context.Context, p *proposal) (bool, error) {
	e := p.event
	parent := outcome.Call{Tenant: e.Tenant, Session: p.call.ParentSession, ID: p.call.Parent, Executor: e.Service()}
	k := parent.Tenant + "." + parent.Session + "." + parent.ID + "." + parent.Executor
	seen, known := d.parents.Get(k)
	if !known {
		allowed, seq, err := parent.Allowed(ctx, d.emit.Log, p.seq)
		if errors.Is(err, eventlog.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		h, err := parent.Look(ctx, d.emit.Log, seq)
		if err != nil || h.Service() != e.Service() || h.Recorded {
			return false, err
		}
		seen = liveParent{allowed.Actor, h.Next}
	} else {
		ended, next, err := parent.Ended(ctx, d.emit.Log, seen.next)
		if err != nil || ended {
			return false, err
		}
		seen.next = next
	}
	d.parents.Put(k, seen)
	return seen.actor == e.Actor, nil
}

// liveParent is the cached state of a call that was executing when it was last looked
// up. If a call is the parent of many calls, only the events of its session since the
// last lookup are read for each of them.
type liveParent struct {
	actor string // actor for whom policy allowed the call
	next  uint64 // the call has no outcome before this sequence
}
