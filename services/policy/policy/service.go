// Package policy decides every call. It reads proposals, decides with the
// policies and the catalog in force, and records either the allowed event,
// which is the executor's work item, or the denial with its receipt.
package policy

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// Config is the policy service's configuration.
type Config struct {
	P0File  string   // signed ceilings, made by `binnacle init`
	P1Files []string // Rego files; empty = the default bundle
	Limit   int      // decisions at once; 0 = 32
}

// Service implements run.Service.
type Service struct {
	Config

	env      *run.Env
	recorder *execute.Recorder
	state    State
	pending  pending
}

var (
	decideWork   = bus.Work{Name: "decide", Filters: []string{"evt.*.*.*.call_proposed.>"}, AckWait: 10 * time.Second, MaxAckPending: 4096}
	stateReader  = bus.Reader{Name: "state", Stream: bus.Events, Filters: append([]string{"evt.*.policy.*.policy_activated.>", "evt.*.audit.*.ledger_truncated.>"}, catalog.Filters...)}
	startsReader = bus.Reader{Name: "starts", Stream: bus.Events, Filters: startsFilters()}
)

func startsFilters() []string {
	f := []string{"evt.*.*.*.effect_started.>"}
	for _, x := range bus.Executors {
		f = append(f, bus.AllowedFilter(x))
	}
	return f
}

// Declaration implements run.Service.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: "policy", Slots: 8, Work: []bus.Work{decideWork}, Readers: []bus.Reader{stateReader, startsReader}}
}

// Run implements run.Service.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	s.env, s.recorder = env, env.Recorder()
	if err := s.activate(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	view := follow.New(env.Conn, env.Instance, stateReader, s.applyState)
	starts := follow.New(env.Conn, env.Instance, startsReader, s.pending.apply)
	starts.Batch = 5000
	env.ReportFollower("policy.state", view)
	env.ReportFollower("policy.starts", starts)
	env.ReportWork(decideWork.Consumer("policy"))
	env.Box.Serve("view", func(_ context.Context, _ json.RawMessage, reply func(any) error) error {
		return reply(map[string]any{"name": "policy.catalog", "position": view.Position(), "dump": string(s.state.Catalog.Dump())})
	})
	g.Go(func() error { return view.Run(ctx, 1) })
	g.Go(func() error { return starts.Run(ctx, 1) })
	g.Go(func() error { return s.sweep(ctx, starts) })
	g.Go(func() error {
		select {
		case <-view.Ready():
		case <-ctx.Done():
			return nil
		}
		ready()
		limit := s.Limit
		if limit == 0 {
			limit = 32
		}
		return execute.Consume(ctx, env.Conn, decideWork.Consumer("policy"), limit, decideWork.AckWait, s.process)
	})
	return g.Wait()
}

//go:embed default.rego
var defaultRego string

// activate records the configured policies where they are not in force yet.
func (s *Service) activate(ctx context.Context) error {
	p0, err := os.ReadFile(s.P0File)
	if err != nil {
		return fmt.Errorf("policy: p0 ceilings: %w; `binnacle init` makes them", err)
	}
	if _, err := s.openP0(p0); err != nil {
		return err
	}
	b := rego.Bundle{Modules: map[string]string{"default.rego": defaultRego}}
	if len(s.P1Files) > 0 {
		b.Modules = map[string]string{}
		for _, f := range s.P1Files {
			body, err := os.ReadFile(f)
			if err != nil {
				return fmt.Errorf("policy: p1 bundle: %w", err)
			}
			b.Modules[f] = string(body)
		}
	}
	raw, err := json.Marshal(b)
	if err != nil {
		return err
	}
	p1, err := canon.Transform(nil, raw)
	if err != nil {
		return err
	}
	if _, err := rego.Compile(ctx, p1); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if err := s.activateLayer(ctx, "p0", p0); err != nil {
		return err
	}
	return s.activateLayer(ctx, "p1", p1)
}

func (s *Service) activateLayer(ctx context.Context, layer string, body []byte) error {
	digest := sign.Digest(body)
	content, err := s.env.Blobs.Commit(ctx, body, "application/json")
	if err != nil {
		return err
	}
	key := "policy-" + layer
	_, err = handle.Do(ctx, s.env.Emit.Log, bus.AggregateFilter(s.env.Tenant, "policy", key), func(h []*contract.Event) (*contract.Event, error) {
		if n := len(h); n > 0 {
			var last contract.Activated
			if err := contract.Decode(h[n-1].Data, &last); err == nil && last.Digest == digest {
				return nil, nil
			}
		}
		return s.env.Emit.New("policy_activated", key, contract.Bytes(&contract.Activated{Bundle: content, Digest: digest, Layer: layer}), nil), nil
	})
	return err
}

func (s *Service) openP0(doc []byte) (*guard.Ceilings, error) {
	root, ok := s.env.Trust.Current("provision", contract.UseRoot)
	if !ok {
		return nil, errors.New("policy: the root key is not published")
	}
	return openP0(doc, root)
}

// applyState folds catalog and policy events into the state in force.
func (s *Service) applyState(en eventlog.Entry) error {
	e, err := eventlog.Open(en)
	if err != nil {
		s.env.Log.Error("ledger entry refused", "seq", en.Seq, "err", err)
		return nil
	}
	s.env.Emit.See(e.Lamport)
	switch e.Name {
	case "ledger_truncated":
		s.env.Log.Error("audit misses history: every call is denied until the ledger is recovered")
		s.state.truncated.Store(true)
		return nil
	case "policy_activated":
	default:
		return s.state.Apply(e)
	}
	var a contract.Activated
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	body, err := s.env.Blobs.Open(context.Background(), &a.Bundle)
	if err != nil {
		return fmt.Errorf("policy %s cannot be read: %w", a.Digest, err)
	}
	root, _ := s.env.Trust.Current("provision", contract.UseRoot)
	return s.state.Activate(context.Background(), a.Layer, a.Digest, body, root)
}

// pending is the view of allowed calls that have not started. It sees every
// call of the mesh, nearly all of which start at once, so it reads no more
// than the call's id until a call has waited for a while.
type pending struct {
	mu    sync.Mutex
	calls map[string]waiting
}

type waiting struct {
	entry eventlog.Entry
	since time.Time
}

func (p *pending) apply(en eventlog.Entry) error {
	id := contract.PeekCallID(en.Data)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = map[string]waiting{}
	}
	if strings.Contains(en.Subject, ".effect_started.") {
		delete(p.calls, id)
		return nil
	}
	en.Data = bytes.Clone(en.Data)
	p.calls[id] = waiting{en, time.Now()}
	return nil
}

// expired takes out the calls whose window was over at now.
func (p *pending) expired(now time.Time) []*contract.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*contract.Event
	for id, w := range p.calls {
		if time.Since(w.since) < time.Second {
			continue
		}
		e, expires, err := readAllowed(w.entry)
		switch {
		case err != nil:
			delete(p.calls, id) // not a decision; the executor refuses it too
		case now.After(expires):
			out = append(out, e)
			delete(p.calls, id)
		}
	}
	return out
}

func readAllowed(en eventlog.Entry) (*contract.Event, time.Time, error) {
	e, err := eventlog.Open(en)
	if err != nil {
		return nil, time.Time{}, err
	}
	var a contract.Allowed
	if err := contract.Decode(e.Data, &a); err != nil {
		return nil, time.Time{}, err
	}
	if a.Decision.Intent == nil {
		return nil, time.Time{}, errors.New("allowed without an intent")
	}
	t, err := contract.ParseTime(a.Decision.Intent.Expires)
	return e, t, err
}

// sweepGrace is how long after its window an unstarted call is expired; it
// covers clock differences between services.
const sweepGrace = 2 * time.Second

func (s *Service) sweep(ctx context.Context, starts *follow.Follower) error {
	select {
	case <-starts.Ready():
	case <-ctx.Done():
		return nil
	}
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		for _, e := range s.pending.expired(s.env.Emit.Now().Add(-sweepGrace)) {
			if err := s.expire(ctx, e); err != nil {
				s.env.Log.Warn("expiry not recorded, will be tried again", "call", e.CallID, "err", err)
				_ = s.pending.put(e)
			}
		}
	}
}

func (p *pending) put(e *contract.Event) error {
	b, err := e.Encode()
	if err != nil {
		return err
	}
	return p.apply(eventlog.Entry{Subject: e.Subject(), Data: b})
}

// expire claims an allowed call that never started, so that it never will,
// and records that it expired.
func (s *Service) expire(ctx context.Context, e *contract.Event) error {
	var a contract.Allowed
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	d := &a.Decision
	claim := s.env.Emit.New("start_expired", e.Session, contract.Bytes(&contract.Started{CallID: d.CallID, DecisionID: d.ID, IntentID: d.Intent.ID}), e)
	claim.ID = "s-" + d.CallID
	b, err := claim.Encode()
	if err != nil {
		return err
	}
	h, err := execute.Look(ctx, s.env.Emit.Log, e.Tenant, e.Session, e.CallID, 1)
	if err != nil || h.Recorded {
		return err
	}
	if h.ClaimedBy == "" {
		if _, err = s.env.Emit.Log.Append(ctx, claim.Subject(), "claim:"+d.CallID, b); errors.Is(err, eventlog.ErrIDConflict) {
			return nil // the executor, or another instance of ours, was first
		} else if err != nil {
			return err
		}
	} else if h.Service() != "policy" {
		return nil
	}
	now := s.env.Emit.Time()
	eff := contract.Effect{CallID: d.CallID, EffectType: d.Kind, Ended: now, ErrorCode: "intent_expired",
		ErrorMessage: "no executor started the call within its window", InputDigest: d.ArgsDigest, Instance: s.env.Instance,
		Status: contract.Expired, Tool: d.Tool}
	err = s.recorder.Record(ctx, claim, d, false, eff, nil)
	if errors.Is(err, execute.ErrSuperseded) {
		return nil
	}
	return err
}
