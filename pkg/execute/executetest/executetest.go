// Package executetest runs the executors of services over a ledger in memory, for tests in
// bubbles of testing/synctest: a Stage holds the ledger and the calls that policy has allowed on
// it, a Ledger can end its instance or refuse appends, and Work is delivered as a durable consumer
// delivers it.
package executetest

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
)

// Names of the tenant and of the session of every call on a Stage.
const (
	Tenant  = "t"
	Session = "s-1"
)

// Timeout is the time from the proposal of a call on a Stage to its deadline.
const Timeout = time.Minute

// Stage is a ledger in memory on which policy allows calls.
type Stage struct {
	Log *memlog.Log
	Key *sign.Key // signing key of policy and of every executor

	t *testing.T
}

// New returns a stage with an empty ledger.
func New(t *testing.T) *Stage {
	t.Helper()
	key, err := sign.NewKey(make([]byte, ed25519.SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	return &Stage{Log: &memlog.Log{}, Key: key, t: t}
}

// By returns the emitter of an instance of a service, which appends to the ledger directly.
func (s *Stage) By(service, instance string) *emit.Emitter {
	return &emit.Emitter{Log: s.Log, Tenant: Tenant, Source: service + "/" + instance, Now: time.Now}
}

// KeyAt returns the public key of s.Key for every key id.
func (s *Stage) KeyAt(string, string, string, uint64) ([]byte, error) { return s.Key.Public(), nil }

// Env returns the environment of a new instance of a service, and the ledger to which the
// instance appends. The environment has neither a connection nor an inbox, so contents must be
// small enough for an event.
func (s *Stage) Env(service, instance string) (*run.Env, *Ledger) {
	l := &Ledger{Log: s.Log}
	m := s.By(service, instance)
	m.Log = l
	return &run.Env{Service: service, Instance: instance, Emit: m, Blobs: &blob.Store{}, Log: slog.New(slog.DiscardHandler),
		Tracer: &tracing.Tracer{}, Metrics: run.NewMetrics().Instance(service, instance)}, l
}

// Executor makes x, which a service has made for an environment of Env, independent of a server:
// it signs with s.Key and accepts the decisions of s, and every tenant exists. It returns x.
func (s *Stage) Executor(x *execute.Executor) *execute.Executor {
	x.Recorder = &outcome.Recorder{Emit: x.Emit, Key: func() *sign.Key { return s.Key }, Service: x.Service}
	x.Keys, x.Tenants, x.Changed, x.Cell = s.KeyAt, nil, nil, nil
	return x
}

// Work is a stored event that a consumer delivers.
type Work struct {
	Event *contract.Event
	Seq   uint64
	Tries uint64 // number of deliveries so far

	s    *Stage
	data []byte
}

// Allow appends the event by which policy allows a call of a tool with JSON arguments, and
// returns it as the work of the tool's executor. The ceilings of the decision permit the tool's
// sandbox. change, if not nil, changes the call before the decision. The test fails if the call
// is not allowed.
func (s *Stage) Allow(tool contract.Tool, id, args string, change func(*contract.Call)) *Work {
	s.t.Helper()
	content, _ := blob.Refer([]byte(args), "application/json")
	now := time.Now()
	call := contract.Call{ID: id, Kind: tool.Kind, Tool: tool.Tool, Args: content, Scopes: []string{}, Deadline: contract.Time(now.Add(Timeout))}
	if change != nil {
		change(&call)
	}
	ceilings := guard.Ceilings{StartWindowMS: Timeout.Milliseconds(), MaxCents: 1}
	if tool.Sandbox != nil {
		ceilings.Sandbox = *tool.Sandbox
	}
	facts := guard.Facts{Actor: "alice", ArgsDigest: call.Args.Commitment, CatalogDigest: "c", Client: "-", Deadline: call.Deadline, Kind: tool.Kind, Now: contract.Time(now),
		Proposed: contract.Time(now), Proposer: "gateway", Scopes: []string{}, Session: Session, Tenant: Tenant, Tool: tool.Tool, ToolDigest: contract.Digest(&tool)}
	a := contract.Allowed{Call: call, Decision: guard.Decide(guard.Inputs{CallID: id, Facts: facts, Tool: &tool, P1: guard.Answer{Verdict: contract.Allow, Reason: "RULE"}, P0: &ceilings, Lamport: 1}, s.Key)}
	if a.Decision.Verdict != contract.Allow {
		s.t.Fatal(a.Decision.ReasonCode)
	}
	m := s.By("policy", "policy-1")
	e := m.New(contract.EventAllowed, Session, contract.Bytes(&a), nil)
	e.Session, e.CallID, e.Actor, e.Client, e.Origin, e.Target = Session, id, "alice", "-", "gw1", tool.Executor
	return s.Work(e)
}

// Work appends an event and returns it as the work of a consumer.
func (s *Stage) Work(e *contract.Event) *Work {
	s.t.Helper()
	seq, data, err := eventlog.AppendEvent(s.t.Context(), s.Log, e)
	if err != nil {
		s.t.Fatal(err)
	}
	return &Work{Event: e, Seq: seq, s: s, data: data}
}

// Deliver delivers the work once, in a goroutine of its own, and waits until that ends. It returns
// "ack", "nak" or "term", as process responded, with the delay of a nak, or "" if the instance
// ended before it responded.
func (w *Work) Deliver(process func(context.Context, *consumer.Delivery)) (settled string, delay time.Duration) {
	w.s.t.Helper()
	w.Tries++
	m := &logtest.Message{To: w.Event.Subject(), Body: w.data, Seq: w.Seq, Tries: w.Tries}
	d, err := consumer.NewDelivery(m, []string{bus.EveryEvent})
	if err != nil {
		w.s.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended) // also if the instance ends, which ends the goroutine
		process(w.s.t.Context(), d)
	}()
	<-ended
	return m.Settled, m.Delay
}

// Finish delivers the work until the response is not "nak", with the delay of each nak between two
// deliveries, and returns the last response.
func (w *Work) Finish(process func(context.Context, *consumer.Delivery)) string {
	w.s.t.Helper()
	for {
		settled, delay := w.Deliver(process)
		if settled != "nak" {
			return settled
		}
		time.Sleep(delay)
	}
}

// Outcome returns the recorded outcome of a call, or the zero value if there is none.
func (s *Stage) Outcome(call string) (rec contract.Recorded) {
	s.t.Helper()
	for _, e := range s.events(call) {
		if e.Name == contract.EventEffectRecorded {
			if err := contract.Decode(e.Data, &rec); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return rec
}

// Output returns the recorded output of a call, or "" if there is none.
func (s *Stage) Output(call string) string {
	s.t.Helper()
	rec := s.Outcome(call)
	if rec.Output == nil {
		return ""
	}
	b, err := (&blob.Store{}).Open(s.t.Context(), rec.Output)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// History returns the names of the events of a call, in order and separated by spaces, without
// the event that allows it. Each outcome is followed by its status, and by its error code if
// it has one, as in effect_recorded:failed:internal.
func (s *Stage) History(call string) string {
	s.t.Helper()
	var out []string
	for _, e := range s.events(call) {
		name := e.Name
		if name == contract.EventAllowed {
			continue
		}
		if name == contract.EventEffectRecorded {
			var rec contract.Recorded
			if err := contract.Decode(e.Data, &rec); err != nil {
				s.t.Fatal(err)
			}
			name = strings.TrimSuffix(strings.Join([]string{name, rec.Effect.Status, rec.Effect.ErrorCode}, ":"), ":")
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

// events returns the events of a call.
func (s *Stage) events(call string) (out []*contract.Event) {
	s.t.Helper()
	for en, err := range s.Log.Scan(s.t.Context(), bus.EveryEvent, 1) {
		if err != nil {
			s.t.Fatal(err)
		}
		e, err := eventlog.Open(en, bus.EveryEvent)
		if err != nil {
			s.t.Fatal(err)
		}
		if e.CallID == call {
			out = append(out, e)
		}
	}
	return out
}
