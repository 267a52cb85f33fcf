package outcome_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// executor is the service that the intents in these tests name.
const executor = "session-runner"

// event returns an event of a call in session s-1, with an id of its own.
func event(service, name, target, call string, data []byte) *contract.Event {
	return &contract.Event{ID: emit.NewID(contract.IDEvent), Source: service + "/" + service + "-1", Name: name, Target: target, Version: contract.VersionOf(name), Key: "s-1", Tenant: "t",
		Actor: "alice", Client: "-", Session: "s-1", CallID: call, Origin: "gw1", Time: contract.Time(time.Now()), Lamport: 1, Data: data}
}

// put appends an event and returns its sequence.
func put(t *testing.T, log eventlog.Log, e *contract.Event) uint64 {
	t.Helper()
	seq, _, err := eventlog.AppendEvent(t.Context(), log, e)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func recorder(m *emit.Emitter) *outcome.Recorder {
	seed := sha256.Sum256([]byte(executor))
	k, err := sign.NewKey(seed[:])
	if err != nil {
		panic(err)
	}
	return &outcome.Recorder{Emit: m, Key: func() *sign.Key { return k }, Service: executor}
}

func emitter(log eventlog.Log) *emit.Emitter {
	return &emit.Emitter{Log: log, Tenant: "t", Source: executor + "/" + executor + "-1", Now: time.Now}
}

// end records an outcome of a call with the given status.
func end(t *testing.T, r *outcome.Recorder, claim *contract.Event, call, status string) error {
	t.Helper()
	var d contract.Decision
	d.CallID, d.ID, d.Session, d.Tenant, d.Verdict, d.Facts = call, "d-"+call, claim.Session, claim.Tenant, contract.Allow, contract.Raw(`{}`)
	d.Intent = new(contract.ExecutionIntent)
	d.Intent.Executor = executor
	return r.Record(t.Context(), claim, &d, false, contract.Effect{CallID: call, Status: status, Ended: contract.Time(time.Now())}, nil)
}

func record(t *testing.T, r *outcome.Recorder, claim *contract.Event, call string) {
	t.Helper()
	if err := end(t, r, claim, call, contract.Succeeded); err != nil {
		t.Fatal(err)
	}
}

// TestLook shows that a call's history contains only events of its executor and of
// policy.
func TestLook(t *testing.T) {
	type put struct{ service, name string }
	claim, expiry, ended := contract.EventEffectStarted, contract.EventStartExpired, contract.EventEffectRecorded
	for _, c := range []struct {
		name     string
		events   []put
		by       string // service that recorded the claim or the expiry; empty: there is neither
		recorded bool
	}{
		{"nothing", nil, "", false},
		{"claimed", []put{{executor, claim}}, executor, false},
		{"expired", []put{{"policy", expiry}}, "policy", false},
		{"ended by its executor", []put{{executor, claim}, {executor, ended}}, executor, true},
		{"ended by policy", []put{{"policy", expiry}, {"policy", ended}}, "policy", true},
		{"denied", []put{{"policy", ended}}, "", true},
		{"claimed by another service", []put{{"judge", claim}}, "", false},
		{"claimed by policy", []put{{"policy", claim}}, "", false},
		{"expired by its executor", []put{{executor, expiry}}, "", false},
		{"ended by another service", []put{{executor, claim}, {"judge", ended}}, executor, false},
		{"another service is first", []put{{"judge", claim}, {executor, claim}, {"judge", ended}, {executor, ended}}, executor, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := &memlog.Log{}
			for _, e := range c.events {
				for _, call := range []string{"c-other", "c-1"} {
					if _, _, err := eventlog.AppendEvent(t.Context(), log, event(e.service, e.name, "", call, []byte(`{}`))); err != nil {
						t.Fatal(err)
					}
				}
			}
			h, err := outcome.Call{Tenant: "t", Session: "s-1", ID: "c-1", Executor: executor}.Look(t.Context(), log, 1)
			if err != nil || h.Service() != c.by || h.Recorded != c.recorded {
				t.Errorf("claimed by %q, recorded %v, %v; want %q, %v", h.Service(), h.Recorded, err, c.by, c.recorded)
			}
		})
	}
}

// TestClaim shows that only one of several concurrent claims and expiries of a call is stored, even
// if their message id is taken by an entry that is no claim of the call: one of another service, of
// another tenant, of another call, or another event.
func TestClaim(t *testing.T) {
	foreign := event(executor, contract.EventEffectStarted, "", "c-1", []byte(`{}`))
	foreign.Tenant = "u"
	for name, e := range map[string]*contract.Event{
		"no other entry":     nil,
		"by another service": event("judge", contract.EventEffectStarted, "", "c-1", []byte(`{}`)),
		"of another tenant":  foreign,
		"of another call":    event(executor, contract.EventEffectStarted, "", "c-2", []byte(`{}`)),
		"another event":      event(executor, contract.EventEffectRecorded, "", "c-1", []byte(`{}`)),
	} {
		t.Run(name, func(t *testing.T) {
			log := &memlog.Log{}
			if e != nil {
				b, err := e.Encode()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := log.Append(t.Context(), e.Subject(), "claim:c-1", b); err != nil {
					t.Fatal(err)
				}
			}
			var mu sync.Mutex
			var won, lost int
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					e := event(executor, contract.EventEffectStarted, "", "c-1", fmt.Appendf(nil, `{"n":%d}`, i))
					if i%4 == 0 {
						e = event("policy", contract.EventStartExpired, "", "c-1", fmt.Appendf(nil, `{"n":%d}`, i))
					}
					err := outcome.Claim(t.Context(), log, e, executor)
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil:
						won++
					case errors.Is(err, eventlog.ErrIDConflict):
						lost++
					default:
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if won != 1 || lost != 7 {
				t.Errorf("%d claims won and %d lost", won, lost)
			}
		})
	}
}

// TestRecord shows that the receipts of two instances form one chain, even if a cached
// tip is stale or the chain contains an invalid entry, and that a call has one outcome.
func TestRecord(t *testing.T) {
	log := &memlog.Log{}
	m := emitter(log)
	instances := []*outcome.Recorder{recorder(m), recorder(m)}
	for i := range 6 {
		call := fmt.Sprint("c-", i)
		claim := event(executor, contract.EventEffectStarted, "", call, []byte(`{}`))
		record(t, instances[i%2], claim, call)
		if err := end(t, instances[(i+1)%2], claim, call, contract.Failed); !errors.Is(err, outcome.ErrSuperseded) {
			t.Errorf("a second outcome of %s: %v", call, err)
		}
		if i == 3 { // an invalid entry in the chain does not break it
			put(t, log, event("judge", contract.EventEffectRecorded, "", "c-forged", []byte(`{}`)))
		}
	}
	tip, n := receipt.Genesis("t", "s-1"), 0
	for en, err := range log.Scan(t.Context(), bus.ChainFilter("t", "s-1"), 1) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil || e.CallID == "c-forged" {
			continue
		}
		var rec contract.Recorded
		if err := contract.Decode(e.Data, &rec); err != nil {
			t.Fatal(err)
		}
		if rec.Effect.Status != contract.Succeeded || rec.Receipt.CallID != fmt.Sprint("c-", n) {
			t.Errorf("outcome %d is %s of %s", n, rec.Effect.Status, rec.Receipt.CallID)
		}
		if err := receipt.CheckLink(tip, &rec.Receipt); err != nil {
			t.Errorf("outcome %d: %v", n, err)
		}
		tip = receipt.TipOf(&rec.Receipt)
		n++
	}
	if n != 6 {
		t.Errorf("%d outcomes", n)
	}
}

// TestForeignReceipt shows that an outcome whose receipt names another service, call, session or
// tenant than the event is skipped: the next receipt follows the one before it.
func TestForeignReceipt(t *testing.T) {
	for name, change := range map[string]func(*contract.Receipt){
		"executor": func(x *contract.Receipt) { x.Executor = "judge" },
		"call":     func(x *contract.Receipt) { x.CallID = "c-2" },
		"session":  func(x *contract.Receipt) { x.Session = "s-2" },
		"tenant":   func(x *contract.Receipt) { x.Tenant = "u" },
	} {
		log := &memlog.Log{}
		m := emitter(log)
		for _, call := range []string{"c-y", "c-0"} {
			record(t, recorder(m), event(executor, contract.EventEffectStarted, "", call, []byte(`{}`)), call)
		}
		en, err := log.Last(t.Context(), bus.ChainFilter("t", "s-1"))
		if err != nil {
			t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			t.Fatal(err)
		}
		var rec contract.Recorded
		if err := contract.Decode(e.Data, &rec); err != nil {
			t.Fatal(err)
		}
		tip := receipt.TipOf(&rec.Receipt)
		rec.Receipt.CallID = "c-x"
		change(&rec.Receipt)
		put(t, log, event(executor, contract.EventEffectRecorded, "", "c-x", contract.Bytes(&rec)))
		record(t, recorder(m), event(executor, contract.EventEffectStarted, "", "c-1", []byte(`{}`)), "c-1")
		if en, err = log.Last(t.Context(), bus.ChainFilter("t", "s-1")); err != nil {
			t.Fatal(err)
		}
		if e, err = eventlog.Open(en, eventlog.Every); err == nil {
			err = contract.Decode(e.Data, &rec)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := receipt.CheckLink(tip, &rec.Receipt); err != nil {
			t.Errorf("a receipt of another %s is the tip: %v", name, err)
		}
	}
}

// TestTakenOutcome shows which entries under the message id of an outcome end
// the call: an event of policy about it, and an outcome by its executor. If
// any other entry has that id, the outcome is stored nevertheless.
func TestTakenOutcome(t *testing.T) {
	foreign := event(executor, contract.EventEffectRecorded, "", "c-1", []byte(`{}`))
	foreign.Tenant = "u"
	for name, c := range map[string]struct {
		e    *contract.Event
		want error
	}{
		"by the executor":    {event(executor, contract.EventEffectRecorded, "", "c-1", []byte(`{}`)), outcome.ErrSuperseded},
		"by policy":          {event("policy", "escalated", "", "c-1", []byte(`{}`)), outcome.ErrSuperseded},
		"by another service": {event("judge", contract.EventEffectRecorded, "", "c-1", []byte(`{}`)), nil},
		"of another call":    {event(executor, contract.EventEffectRecorded, "", "c-2", []byte(`{}`)), nil},
		"of another tenant":  {foreign, nil},
		"policy, other call": {event("policy", "escalated", "", "c-2", []byte(`{}`)), nil},
		"another event":      {event(executor, contract.EventEffectStarted, "", "c-1", []byte(`{}`)), nil},
	} {
		log := &memlog.Log{}
		b, err := c.e.Encode()
		if err == nil {
			_, err = log.Append(t.Context(), c.e.Subject(), receipt.ID("c-1"), b)
		}
		if err != nil {
			t.Fatal(err)
		}
		claim := event(executor, contract.EventEffectStarted, "", "c-1", []byte(`{}`))
		if err := end(t, recorder(emitter(log)), claim, "c-1", contract.Succeeded); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestUnderWay shows that a call is under way if and only if another instance of the
// service claimed it recently.
func TestUnderWay(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name   string
		source string
		age    time.Duration
		want   bool
	}{
		{"another instance, just now", executor + "/" + executor + "-2", time.Second, true},
		{"another instance whose clock is ahead", executor + "/" + executor + "-2", -time.Second, true},
		{"another instance, long ago", executor + "/" + executor + "-2", outcome.Redelivery, false},
		{"this instance", executor + "/" + executor + "-1", time.Second, false},
		{"policy", "policy/policy-1", time.Second, false},
	} {
		e := event(executor, contract.EventEffectStarted, "", "c-1", []byte(`{}`))
		e.Source, e.Time = c.source, contract.Time(now.Add(-c.age))
		h := outcome.History{Claim: e}
		if got := h.UnderWay(executor, executor+"-1", now); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if h := (outcome.History{}); h.UnderWay(executor, executor+"-1", now) {
		t.Error("an unclaimed call is under way")
	}
}

// TestOver checks that an executor has nothing left to do for a call with an outcome, and
// for one that policy expired, which policy ends.
func TestOver(t *testing.T) {
	of := func(source string) *contract.Event { return &contract.Event{Source: source} }
	for _, c := range []struct {
		name string
		h    outcome.History
		want bool
	}{
		{"no history", outcome.History{}, false},
		{"claimed by the executor", outcome.History{Claim: of("judge/judge-2")}, false},
		{"expired by policy", outcome.History{Claim: of("policy/policy-1")}, true},
		{"recorded", outcome.History{Claim: of("judge/judge-1"), Recorded: true}, true},
		{"recorded without a claim", outcome.History{Recorded: true}, true},
	} {
		if got := c.h.Over("judge"); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
