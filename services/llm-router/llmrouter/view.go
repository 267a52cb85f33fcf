package llmrouter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/usage"
)

var attemptsReader = bus.Reader{Name: "attempts", Stream: bus.Events, Filters: bus.Filters(llm.Executor, events.AttemptFinishedName, events.ResponseCachedName, events.ResponseDeletedName)}

// Usage is the view of attempts, also for replay.
type Usage struct {
	mu    sync.Mutex
	state usage.State
}

// Apply folds one event in.
func (u *Usage) Apply(e *contract.Event) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state.Apply(e)
}

func (u *Usage) answer(id string) usage.Answer {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state.Answer(id)
}

func (u *Usage) item(id string) usage.Answer {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state.Item(id)
}

// Digest is the SHA-256 of the view's canonical form.
func (u *Usage) Digest() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	sum := sha256.Sum256(u.state.Dump())
	return "sha256:" + hex.EncodeToString(sum[:])
}

// window is the part of a question that says of which time.
type window struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	By   []string  `json:"by"`
}

// answer finds what was answered under an id. An attempt lies on the ledger
// before its call's outcome.
func (s *Service) answer(ctx context.Context, id string) (usage.Answer, error) {
	err := s.view.Poll(ctx)
	return s.usage.answer(id), err
}

// serveUsage answers what models did and cost.
func (s *Service) serveUsage(env *run.Env) *follow.Follower {
	view := follow.New(env.Conn, env.Instance, attemptsReader, func(en eventlog.Entry) error {
		e, err := eventlog.Open(en)
		if err != nil {
			env.Log.Error("ledger entry refused", "seq", en.Seq, "err", err)
			return nil
		}
		env.Emit.See(e.Lamport)
		if e.Name == events.ResponseCachedName {
			return s.applyCached(e)
		}
		return s.usage.Apply(e)
	})
	view.Every, s.view = 500*time.Millisecond, view
	env.ReportFollower("llm.usage", view)
	serve := func(verb string, h transient.Handler) { // answers hold all that was on the ledger when they were asked
		env.Box.Serve(verb, func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
			if err := view.Poll(ctx); err != nil {
				return err
			}
			return h(ctx, raw, reply)
		})
	}
	serve("view", func(_ context.Context, _ json.RawMessage, reply func(any) error) error {
		for { // position and digest together or not at all
			at := view.Position()
			digest := s.usage.Digest()
			if view.Position() == at {
				return reply(map[string]any{"name": "llm.usage", "position": at, "dump": digest})
			}
		}
	})
	serve("stats", func(_ context.Context, raw json.RawMessage, reply func(any) error) error {
		var q window
		if err := json.Unmarshal(raw, &q); err != nil {
			return err
		}
		s.usage.mu.Lock()
		defer s.usage.mu.Unlock()
		return reply(s.usage.state.Stats(q.From, q.To))
	})
	serve("spend", func(_ context.Context, raw json.RawMessage, reply func(any) error) error {
		var q window
		if err := json.Unmarshal(raw, &q); err != nil {
			return err
		}
		s.usage.mu.Lock()
		defer s.usage.mu.Unlock()
		rows, err := s.usage.state.Spend(q.From, q.To, q.By)
		if err != nil {
			return err
		}
		return reply(rows)
	})
	env.Box.Serve("stored_response", func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		var q struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(raw, &q); err != nil {
			return err
		}
		a, err := s.answer(ctx, q.ID)
		if err != nil {
			return err
		}
		return reply(llm.StoredResponse{Call: a.Call, Actor: a.Actor, Deleted: a.Deleted, Tokens: a.Tokens})
	})
	return view
}
