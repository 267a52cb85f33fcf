// Package policy decides every call. It reads proposals, decides with the
// policies and the catalog in force, and records either the allowed event,
// which is the executor's work item, or the denial with its receipt.
package policy

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// Config is the policy service's configuration.
type Config struct {
	P0File  string   // signed ceilings, made by `binnacle init` or `binnacle trust sign`
	P1Files []string // bundles (.tar.gz), or Rego files, which together replace the built-in bundle; empty = the built-in one
	Limit   int      // decisions at once; 0 = 32
}

// Service implements run.Service.
type Service struct {
	Config

	env       *run.Env
	recorder  *execute.Recorder
	state     State
	labels    labels
	budget    *book
	unstarted Unstarted
	owners    cache                           // of sessions
	seen      atomic.Uint64                   // lamport of the newest event in state
	view      atomic.Pointer[follow.Follower] // of state; nil while the configuration is put in force

	mu         sync.Mutex
	freezeAcks map[string][]string // by freeze
}

var (
	decideWork  = bus.Work{Name: "decide", Filters: []string{"evt.*.*.*.call_proposed.>"}, AckWait: 10 * time.Second, MaxAckPending: 4096}
	stateReader = bus.Reader{Name: "state", Stream: bus.Events, Filters: append(append([]string{
		"evt.*.audit.*.ledger_truncated.>", "evt.*.provision.*.log_epoch_opened.>", "evt.*.*.*.freeze_acknowledged.>", "evt.*.llm-router.*." + llmrouter.PricesPublishedName + ".>",
		"evt.*.llm-router.*." + llmrouter.DataAcceptedName + ".>",
	}, ownEvents("policy_activated", "escalated", "approval_recorded", events.SessionLabelledName,
		events.PrincipalRegisteredName, events.PrincipalSuspendedName, events.RoleGrantedName, events.RoleRevokedName,
		events.DelegationGrantedName, events.DelegationRevokedName, events.LimitsSetName, events.MeshFrozenName, events.MeshUnfrozenName,
		events.BreakGlassOpenedName, events.BreakGlassReviewedName, events.VirtualKeyCreatedName, events.VirtualKeyRevokedName,
		events.TokenRevokedName, events.PrincipalResumedName, events.VirtualKeyConsentedName, events.VirtualKeyConsentWithdrawnName,
		events.SessionGrantedName, events.SessionGrantRevokedName)...), catalog.Filters...)}
	startsReader = bus.Reader{Name: "starts", Stream: bus.Events, Filters: startsFilters()}
)

func ownEvents(names ...string) []string {
	for i, n := range names {
		names[i] = "evt.*.policy.*." + n + ".>"
	}
	return names
}

func startsFilters() []string {
	f := []string{"evt.*.*.*.effect_started.>", "evt.*.policy.*.start_expired.>"}
	for _, x := range bus.Executors {
		f = append(f, bus.AllowedFilter(x))
	}
	return f
}

// Declaration implements run.Service.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: "policy", Slots: 8, Work: []bus.Work{decideWork, settleWork, bus.ExecutorWork("policy")},
		Readers: []bus.Reader{stateReader, startsReader, outcomesReader, execute.Control}}
}

// Run implements run.Service.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	s.env, s.recorder = env, env.Recorder()
	s.state.Keys = env.Trust.At
	s.state.Open = func(c *contract.Content) ([]byte, error) { return env.Blobs.Open(context.Background(), c) }
	s.labels.env, s.labels.st = env, &s.state
	s.budget = newBook(env, s.state.limits)
	s.freezeAcks = map[string][]string{}
	if err := catalog.Register(ctx, env.Emit, "policy", tools); err != nil {
		return err
	}
	if err := s.configure(ctx); err != nil {
		return err
	}
	if err := s.bootstrap(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	view := follow.New(env.Conn, env.Instance, stateReader, s.applyState)
	s.view.Store(view)
	starts := follow.New(env.Conn, env.Instance, startsReader, s.unstarted.Apply)
	starts.Batch, starts.Every = 5000, 500*time.Millisecond
	env.ReportFollower("policy.state", view)
	env.ReportFollower("policy.starts", starts)
	env.ReportWork(decideWork.Consumer("policy"))
	s.serve(view)
	g.Go(func() error { return view.Run(ctx, 1) })
	g.Go(func() error { return starts.Run(ctx, 1) })
	g.Go(func() error { return s.sweep(ctx, starts) })
	g.Go(func() error {
		select {
		case <-view.Ready():
		case <-ctx.Done():
			return nil
		}
		// The book is written until the last that is being decided has ended.
		writing, stop := context.WithCancel(context.WithoutCancel(ctx))
		g.Go(func() error { return s.budget.run(writing, ctx) })
		g.Go(func() error { return s.budget.follow(ctx) })
		defer stop()
		work, ctx := errgroup.WithContext(ctx)
		work.Go(func() error { return env.Executor(16, tools, s.handle).Run(ctx) })
		work.Go(func() error { s.timeouts(ctx); return nil })
		work.Go(func() error {
			return execute.Consume(ctx, env.Conn, settleWork.Consumer("policy"), 8, settleWork.AckWait, s.settle)
		})
		ready()
		limit := s.Limit
		if limit == 0 {
			limit = 32
		}
		work.Go(func() error {
			return execute.Consume(ctx, env.Conn, decideWork.Consumer("policy"), limit, decideWork.AckWait, s.process)
		})
		return work.Wait()
	})
	return g.Wait()
}

//go:embed default.rego
var defaultRego []byte

// DefaultBundle is the P1 bundle of a fresh mesh.
func DefaultBundle() ([]byte, error) {
	return rego.Build(map[string][]byte{"default.rego": defaultRego}, "", nil)
}

// nameDefault is the bundle that the configuration speaks for. It comes last.
const (
	nameDefault       = "default"
	precedenceDefault = 1000
)

// configure records the configured policies, where the configuration says
// something else than it said last. What is configured needs no signature of
// its own: whoever can change the files can change the program.
func (s *Service) configure(ctx context.Context) error {
	p0, err := os.ReadFile(s.P0File)
	if err != nil {
		return fmt.Errorf("policy: p0 ceilings: %w; `binnacle init` makes them", err)
	}
	put := func(layer, name string, precedence int64, body []byte) error {
		_, _, err := s.activate(ctx, nil, &contract.Activated{Layer: layer, Name: name, Precedence: precedence, Source: "config"}, body, false)
		if err != nil {
			return fmt.Errorf("policy: %s %s: %w", layer, name, err)
		}
		return nil
	}
	if err := put("p0", "", 0, p0); err != nil {
		return err
	}
	files := map[string][]byte{"default.rego": defaultRego}
	var n int64
	for _, f := range s.P1Files {
		body, err := os.ReadFile(f)
		if err != nil {
			return fmt.Errorf("policy: p1 bundle: %w", err)
		}
		if name, ok := strings.CutSuffix(filepath.Base(f), ".tar.gz"); ok {
			n++
			if err := put("p1", name, 100+n, body); err != nil {
				return err
			}
			continue
		}
		delete(files, "default.rego")
		files["config/"+filepath.Base(f)] = body
	}
	b, err := rego.Build(files, "", nil)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if err := put("p1", nameDefault, precedenceDefault, b); err != nil {
		return err
	}
	return s.retireUnnamed(ctx)
}

// keyUnnamed is the aggregate in which release 0.1 put its one bundle in force,
// without a name.
const keyUnnamed = "policy-p1"

// retireUnnamed takes that bundle out of force. It would speak before all others,
// and knows nothing of what they decide.
func (s *Service) retireUnnamed(ctx context.Context) error {
	_, err := handle.Do(ctx, s.env.Emit.Log, bus.AggregateFilter(s.env.Tenant, "policy", keyUnnamed), func(h []*contract.Event) (*contract.Event, error) {
		history, err := activations(h)
		if err != nil {
			return nil, err
		}
		now, _ := inForce(history, "p1", "")
		if now == nil {
			return nil, nil
		}
		act := contract.Activated{Bundle: now.Bundle, Digest: now.Digest, Layer: "p1", Precedence: now.Precedence, Retired: true, Source: "config"}
		return s.fact("policy_activated", keyUnnamed, contract.Bytes(&act), nil), nil
	})
	if err != nil {
		return fmt.Errorf("policy: the bundle of release 0.1: %w", err)
	}
	return nil
}

// bootstrap registers the administrator of a new mesh, or of one that a release
// before 0.5 left, as a person, where people have not said what it is: else nobody
// could vote, or register who can. Any number of instances may do so at once.
func (s *Service) bootstrap(ctx context.Context) error {
	_, err := handle.Do(ctx, s.env.Emit.Log, bus.AggregateFilter(s.env.Tenant, "policy", govern.KeyIdentity), func(h []*contract.Event) (*contract.Event, error) {
		st, err := folded(h)
		if err != nil {
			return nil, err
		}
		first := govern.Bootstrap(st)
		if first == nil {
			return nil, nil
		}
		return s.fact(events.PrincipalRegisteredName, govern.KeyIdentity, contract.Bytes(first), nil), nil
	})
	if err != nil {
		return fmt.Errorf("policy: the administrator is not registered: %w", err)
	}
	return nil
}

// applyState folds one event into the state in force. A policy that cannot be
// read stops the service: deciding with another one would be worse.
func (s *Service) applyState(en eventlog.Entry) error {
	e, err := eventlog.Open(en)
	if err != nil {
		s.env.Log.Error("ledger entry refused", "seq", en.Seq, "err", err)
		return nil
	}
	s.env.Emit.See(e.Lamport)
	defer func() { s.seen.Store(max(s.seen.Load(), e.Lamport)) }()
	switch e.Name {
	case "ledger_truncated":
		s.env.Log.Error("audit misses history: every call is denied until the ledger is recovered")
	case "freeze_acknowledged":
		var a contract.FreezeAck
		if err := contract.Decode(e.Data, &a); err != nil {
			return nil
		}
		s.mu.Lock()
		s.freezeAcks[a.FreezeID] = append(s.freezeAcks[a.FreezeID], a.Instance)
		s.mu.Unlock()
		return nil
	}
	return s.state.Apply(e)
}

// acks lists who acknowledged a freeze.
func (s *Service) acks(id string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.freezeAcks[id])
}
