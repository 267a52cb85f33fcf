package policy

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/schema"
)

var checker schema.Checker

// State is what decisions are made with: catalog and policies in force. It is
// built by folding ledger events, live and in replay alike.
type State struct {
	Catalog catalog.Catalog

	mu       sync.RWMutex
	p0       *guard.Ceilings
	engine   *rego.Engine
	policies contract.PolicyDigests

	truncated atomic.Bool // audit found the ledger shorter than it was

	// Everything that ever was in force, by digest, for replay; filled only
	// where Keep is set.
	Keep    bool
	p0s     map[string]*guard.Ceilings
	engines map[string]*rego.Engine
	tools   map[string]*contract.Tool
}

// Apply folds one catalog event in.
func (st *State) Apply(e *contract.Event) error {
	if st.Keep && e.Name == "tool_registered" {
		var t contract.Tool
		if err := contract.Decode(e.Data, &t); err != nil {
			return err
		}
		if st.tools == nil {
			st.tools = map[string]*contract.Tool{}
		}
		st.tools[contract.Digest(&t)] = &t
	}
	return st.Catalog.Apply(e)
}

func openP0(doc []byte, root contract.TrustKey) (*guard.Ceilings, error) {
	public, err := base64.StdEncoding.DecodeString(root.PublicKey)
	if err != nil {
		return nil, err
	}
	return guard.OpenP0(doc, root.KID, public)
}

// Activate puts a layer in force.
func (st *State) Activate(ctx context.Context, layer, digest string, body []byte, root contract.TrustKey) error {
	switch layer {
	case "p0":
		c, err := openP0(body, root)
		if err != nil {
			return err
		}
		st.mu.Lock()
		st.p0, st.policies.P0 = c, digest
		if st.Keep {
			if st.p0s == nil {
				st.p0s = map[string]*guard.Ceilings{}
			}
			st.p0s[digest] = c
		}
		st.mu.Unlock()
	case "p1":
		e, err := rego.Compile(ctx, body)
		if err != nil {
			return err
		}
		st.mu.Lock()
		st.engine, st.policies.P1 = e, digest
		if st.Keep {
			if st.engines == nil {
				st.engines = map[string]*rego.Engine{}
			}
			st.engines[digest] = e
		}
		st.mu.Unlock()
	default:
		return fmt.Errorf("policy layer %q is unknown", layer)
	}
	return nil
}

// inputs gathers what guard.Decide looks at. args nil means they cannot be
// read. It is pure but for the engine, which is deterministic.
func (st *State) inputs(ctx context.Context, callID, idem string, f guard.Facts, args []byte) guard.Inputs {
	st.mu.RLock()
	p0, engine, policies := st.p0, st.engine, st.policies
	st.mu.RUnlock()
	tool, digest := st.Catalog.Lookup(f.Kind)
	if tool != nil && tool.Tool != f.Tool {
		tool, digest = nil, "none"
	}
	f.ToolDigest, f.CatalogDigest = digest, st.Catalog.Digest()
	in := guard.Inputs{CallID: callID, IdemKey: idem, Facts: f, Tool: tool, P0: p0, Policies: policies}
	st.answer(ctx, &in, engine, args)
	return in
}

// answer fills in what schema and bundle say.
func (st *State) answer(ctx context.Context, in *guard.Inputs, engine *rego.Engine, args []byte) {
	switch {
	case in.Tool == nil:
	case args == nil:
		in.Schema = guard.Answer{Verdict: contract.Deny, Reason: schema.Unavailable}
	default:
		if reason := checker.Check(in.Facts.ToolDigest, in.Tool.InputSchema, args); reason != "" {
			in.Schema = guard.Answer{Verdict: contract.Deny, Reason: reason}
		} else if engine != nil {
			in.P1 = engine.Answer(ctx, &in.Facts, args)
		}
	}
}

// process takes one proposal to its decision and acks it.
func (s *Service) process(ctx context.Context, m jetstream.Msg) {
	err := s.decide(ctx, m)
	if err == nil {
		_ = m.Ack()
		return
	}
	s.env.Log.Warn("proposal handed back", "subject", m.Subject(), "err", err)
	_ = m.Nak()
}

func (s *Service) decide(ctx context.Context, m jetstream.Msg) error {
	md, err := m.Metadata()
	if err != nil {
		return err
	}
	e, err := eventlog.Open(eventlog.Entry{Seq: md.Sequence.Stream, Subject: m.Subject(), Data: m.Data()})
	if err != nil {
		s.env.Log.Error("not a proposal", "subject", m.Subject(), "seq", md.Sequence.Stream, "err", err)
		return nil
	}
	var c contract.Call
	if err := contract.Decode(e.Data, &c); err != nil || c.ID != e.CallID || e.ID != "p-"+c.ID {
		s.env.Log.Error("not a proposal", "subject", m.Subject(), "seq", md.Sequence.Stream, "err", err)
		return nil
	}
	s.env.Emit.See(e.Lamport)
	if md.NumDelivered > 1 {
		if done, err := s.decided(ctx, e, md.Sequence.Stream); err != nil || done {
			return err
		}
	}
	f := guard.Facts{Actor: e.Actor, ArgsDigest: c.Args.Commitment, Client: e.Client, Deadline: c.Deadline, Kind: c.Kind,
		Now: s.env.Emit.Time(), Parent: c.Parent, Proposed: e.Time, Proposer: e.Service(), Scopes: c.Scopes,
		Session: e.Session, Tenant: e.Tenant, Tool: c.Tool, Truncated: s.state.truncated.Load()}
	if c.Parent != "" {
		h, err := execute.Look(ctx, s.env.Emit.Log, e.Tenant, c.ParentSession, c.Parent, 1)
		if err != nil {
			return err
		}
		f.ParentLive = h.ClaimedBy != "" && !h.Recorded && h.Actor == e.Actor && h.Service() == e.Service()
	}
	args, err := s.env.Blobs.Open(ctx, &c.Args)
	if err != nil && !errors.Is(err, contract.ErrErased) {
		s.env.Log.Warn("args unreadable", "call", c.ID, "err", err)
	}
	in := s.state.inputs(ctx, c.ID, c.IdemKey, f, args)
	in.Lamport = s.env.Emit.Tick()
	d := guard.Decide(in, s.env.Key)
	if d.Verdict == contract.Allow {
		ev := s.env.Emit.New("allowed", e.Session, contract.Bytes(&contract.Allowed{Call: c, Decision: d}), e)
		ev.ID, ev.Target = d.ID, d.Intent.Executor
		_, err := s.env.Emit.Append(ctx, ev)
		if errors.Is(err, eventlog.ErrIDConflict) {
			return nil // decided by the delivery before this one
		}
		return err
	}
	now := s.env.Emit.Time()
	eff := contract.Effect{CallID: c.ID, EffectType: c.Kind, Ended: now, ErrorCode: "denied", ErrorMessage: d.ReasonCode,
		InputDigest: c.Args.Commitment, Instance: s.env.Instance, Status: contract.Denied, Tool: c.Tool}
	err = s.recorder.Record(ctx, e, &d, true, eff, nil)
	if errors.Is(err, execute.ErrSuperseded) {
		return nil
	}
	return err
}

// decided looks whether an earlier delivery of the proposal got its answer.
func (s *Service) decided(ctx context.Context, e *contract.Event, seq uint64) (bool, error) {
	for en, err := range s.env.Emit.Log.Scan(ctx, "evt."+e.Tenant+".policy.*.*."+e.Session, seq) {
		if err != nil {
			return false, err
		}
		if a, err := eventlog.Open(en); err == nil && a.CallID == e.CallID {
			return true, nil
		}
	}
	return false, nil
}

// Redecide computes a recorded decision again, with the tool document and the
// policies it names. Keep must have been set before they were applied.
func (st *State) Redecide(ctx context.Context, d *contract.Decision, args []byte) (verdict, reason, hash string, err error) {
	in := guard.Inputs{CallID: d.CallID, Policies: d.Policies, P0: st.p0s[d.Policies.P0]}
	if err := contract.Decode(d.Facts, &in.Facts); err != nil {
		return "", "", "", err
	}
	engine := st.engines[d.Policies.P1]
	if in.P0 == nil || engine == nil {
		return "", "", "", errors.New("a policy it names was never activated")
	}
	if in.Facts.ToolDigest != "none" {
		if in.Tool = st.tools[in.Facts.ToolDigest]; in.Tool == nil {
			return "", "", "", errors.New("the tool document it names was never registered")
		}
	}
	st.answer(ctx, &in, engine, args)
	verdict, reason, hash = guard.Redecide(in)
	return verdict, reason, hash, nil
}
