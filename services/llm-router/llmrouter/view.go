package llmrouter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/usage"
)

// attemptsReader reads the events from which the view llm.usage is built, and the events
// about cached responses in the object store.
var attemptsReader = bus.Reader{Name: "attempts", Stream: bus.Events, Filters: bus.Filters(llm.Executor, events.AttemptFinishedName, events.ResponseCachedName, events.ResponseDeletedName),
	Cover: bus.Filter{Service: llm.Executor}.String()}

// Usage is the view llm.usage: attempts and the owners of stored responses. Both the
// running service and replay use it. The zero value is empty. The methods other than
// LoadSnapshot are safe for concurrent use.
type Usage struct {
	mu    sync.Mutex
	state usage.State
	last  uint64 // sequence of the last entry that the state includes; only the live view sets it
}

// Apply adds an attempt or the deletion of a response to the view, and ignores other
// events. It returns an error if it cannot decode the event or parse its time.
func (u *Usage) Apply(e *contract.Event) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state.Apply(e)
}

// applyAt applies the event at the sequence seq of the ledger, as Apply does, and
// records seq as the last sequence applied.
func (u *Usage) applyAt(seq uint64, e *contract.Event) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last = seq
	return u.state.Apply(e)
}

// answer returns the stored response of a tenant with an id, or the zero Answer if there
// is none. If Deleted is set, the other fields are zero.
func (u *Usage) answer(tenant, id string) usage.Answer {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state.Answer(tenant, id)
}

// item returns the response of a tenant that contains the item with an id, or the zero
// Answer if there is none. If Deleted is set, the other fields are zero.
func (u *Usage) item(tenant, id string) usage.Answer {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state.Item(tenant, id)
}

// Digest returns the SHA-256 of the view's dump, as "sha256:" and hexadecimal digits.
// Views at the same position have the same digest.
func (u *Usage) Digest() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	sum := sha256.Sum256(u.state.Dump())
	return "sha256:" + hex.EncodeToString(sum[:])
}

// answer updates the view to the end of the ledger and then returns the result of
// Usage.answer. An attempt is on the ledger before the outcome of its call, so the view
// contains each response that a caller has received in full. If the ledger cannot be
// read, it returns the error, and the Answer may be outdated.
func (s *Service) answer(ctx context.Context, tenant, id string) (usage.Answer, error) {
	err := s.view.Poll(ctx)
	return s.usage.answer(tenant, id), err
}

// serveUsage registers the queries that read the view, and the health of the view. It
// sets s.view to the follower that updates the view and the cache, and returns it. The
// caller must run the follower.
func (s *Service) serveUsage(env *run.Env) *follow.Follower {
	view := follow.New(env.Conn, env.Instance, attemptsReader, func(en eventlog.Entry) error {
		e, err := eventlog.Open(en, attemptsReader.Filters...)
		if err != nil {
			env.Log.Error("ledger entry refused", "seq", en.Seq, "err", err)
			return nil
		}
		env.Emit.See(e.Lamport)
		if e.Name == events.ResponseCachedName {
			return s.applyCached(e)
		}
		return s.usage.applyAt(en.Seq, e)
	})
	view.Every, s.view = 500*time.Millisecond, view
	env.ReportFollower("llm.usage", view, nil)
	s.usage.serve(&rpc.Server{Transport: env.Transport, View: view, Fresh: view.Poll})
	return view
}

// serve registers the queries that read the view. Their responses include every event
// that was on the ledger when the query was received. A query about attempts or stored
// responses covers the tenant of the query; a query of the cell about attempts covers
// all tenants.
func (u *Usage) serve(server *rpc.Server) {
	rpc.Serve(server, query.ViewQuery, func(context.Context, *query.ViewRequest) (query.ViewDump, error) {
		for { // repeat if the view advanced while the digest was computed
			at := server.View.Position()
			digest := u.Digest()
			if server.View.Position() == at {
				return query.ViewDump{Name: "llm.usage", Position: at, Dump: digest}, nil
			}
		}
	})
	rpc.Serve(server, events.StatsQuery, func(ctx context.Context, q *events.StatsRequest) ([]events.ModelStats, error) {
		from, to, err := window(q.From, q.To)
		if err != nil {
			return nil, err
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		return u.state.Stats(counted(ctx), from, to), nil
	})
	rpc.Serve(server, events.SpendQuery, func(ctx context.Context, q *events.SpendRequest) ([]events.Spend, error) {
		from, to, err := window(q.From, q.To)
		if err != nil {
			return nil, err
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		rows, err := u.state.Spend(counted(ctx), from, to, q.By)
		if err != nil {
			return nil, &rpc.Error{Code: contract.CodeInvalidInput, Param: "by", Message: err.Error()}
		}
		return rows, nil
	})
	rpc.Serve(server, events.StoredResponseQuery, func(ctx context.Context, q *events.StoredResponseRequest) (events.StoredResponse, error) {
		a := u.answer(transient.Tenant(ctx), q.ID)
		return events.StoredResponse{Call: a.Call, Actor: a.Actor, Deleted: a.Deleted, Tokens: a.Tokens}, nil
	})
}

// counted returns the tenant whose attempts a query counts: the tenant of the query or,
// if that is the cell's tenant, "" for all tenants.
func counted(ctx context.Context) string {
	if t := transient.Tenant(ctx); t != contract.CellTenant {
		return t
	}
	return ""
}

// window parses the bounds of a query's time window, which are times of RFC 3339. An
// empty bound is returned as the zero time. For a malformed bound, the error has the
// code invalid_input and names the bound.
func window(from, to string) (a, b time.Time, err error) {
	for _, x := range []struct {
		name, value string
		at          *time.Time
	}{{"from", from, &a}, {"to", to, &b}} {
		if x.value == "" {
			continue
		}
		if *x.at, err = time.Parse(time.RFC3339, x.value); err != nil {
			return a, b, &rpc.Error{Code: contract.CodeInvalidInput, Param: x.name, Message: x.name + ": want a time of RFC 3339"}
		}
	}
	return a, b, nil
}
