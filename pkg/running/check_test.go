package running

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

const runner = "session-runner"

// decided returns the decision by which policy allows a call of the tenant t in the
// session s-1 to the session-runner.
func decided(t *testing.T, call string, key *sign.Key) *contract.Allowed {
	t.Helper()
	now := time.Now()
	box := contract.Sandbox{CPUMillis: 1, MemoryMiB: 1, OutputBytes: 1, Pids: 1, Tier: "process", WallMS: 1}
	tool := contract.Tool{Executor: runner, Kind: "tool.cmd.x", Tool: "cmd.x", Sandbox: &box}
	a := &contract.Allowed{Call: contract.Call{ID: call, Kind: tool.Kind, Tool: tool.Tool, Args: contract.Content{Commitment: "sha256:x"}}}
	a.Decision = guard.Decide(guard.Inputs{CallID: call, Tool: &tool, P0: &guard.Ceilings{Sandbox: box, StartWindowMS: 60_000}, P1: guard.Answer{Verdict: contract.Allow, Reason: "RULE_X"}, Lamport: 1,
		Facts: guard.Facts{Tenant: "t", Session: "s-1", Actor: "a", Kind: tool.Kind, Tool: tool.Tool, ArgsDigest: "sha256:x", Proposer: "gateway", Proposed: contract.Time(now), Now: contract.Time(now), Deadline: contract.Time(now.Add(time.Minute))}}, key)
	if a.Decision.Verdict != contract.Allow {
		t.Fatal(a.Decision.ReasonCode)
	}
	return a
}

// world has a ledger on which policy has allowed the calls c-1 and c-2.
type world struct {
	*session
	key      *sign.Key
	decision map[string]*contract.Allowed
	at       map[string]uint64
}

func newWorld(t *testing.T) *world {
	key, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{newSession(t, &memlog.Log{}), key, map[string]*contract.Allowed{}, map[string]uint64{}}
	for _, call := range []string{"c-1", "c-2"} {
		w.decision[call] = decided(t, call, key)
		_, w.at[call] = w.put(w.policy, contract.EventAllowed, runner, call, contract.Bytes(w.decision[call]))
	}
	return w
}

// checker returns a Checker over log with the given tenants, whose clock is ahead by later.
func (w *world) checker(log eventlog.Log, known tenants, later time.Duration) *Checker {
	return New(log, func(string, string, string, uint64) ([]byte, error) { return w.key.Public(), nil }, known, func() time.Time { return time.Now().Add(later) }, nil)
}

// by returns the emitter of an instance of the session-runner.
func (w *world) by(instance string) *emit.Emitter {
	return &emit.Emitter{Log: w.log, Tenant: "t", Source: runner + "/" + instance, Now: time.Now}
}

// request returns a request of the session-runner for a call.
func (w *world) request(call string) *contract.Event {
	e := w.by("session-runner-1").New(contract.EventSecretRequested, "s-1", []byte(`{}`), nil)
	e.Session, e.CallID = "s-1", call
	return e
}

// TestCheck checks that a request is refused, and for which reason, if no running call of
// the requester covers it, or if its tenant is suspended or does not exist. An expired
// intent is no reason.
func TestCheck(t *testing.T) {
	w := newWorld(t)
	here := tenants{"t": true}
	same := func(a *contract.Allowed) *contract.Allowed { return a }
	check := func(what, call, executor, instance, want string, c *Checker, change func(*contract.Allowed) *contract.Allowed) {
		t.Helper()
		got, err := c.Check(t.Context(), w.request(call), change(decoded(t, w.decision[call])), w.at[call], executor, instance)
		if err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", what, got, err, want)
		}
	}
	live := w.checker(w.log, here, 0)
	first := runner + "/session-runner-1"
	check("not claimed", "c-1", runner, "", NotRunning, live, same)
	w.put(w.by("session-runner-1"), contract.EventEffectStarted, "", "c-1", []byte(`{}`))
	w.put(w.policy, contract.EventStartExpired, "", "c-2", []byte(`{}`))
	for range 2 { // the second time, the history of c-1 is cached
		check("at any instance", "c-1", runner, "", "", live, same)
		check("at the instance", "c-1", runner, first, "", live, same)
		check("at another instance", "c-1", runner, runner+"/session-runner-2", NotRunning, live, same)
		check("expired by policy", "c-2", runner, "", NotRunning, live, same)
		check("without a decision", "c-1", runner, "", NoDecision, live, func(*contract.Allowed) *contract.Allowed { return nil })
		check("of another executor", "c-1", "judge", "", NotCovered, live, same)
		check("with another decision", "c-1", runner, "", NotCovered, live, func(a *contract.Allowed) *contract.Allowed {
			a.Decision.ReasonCode = "RULE_Y"
			return a
		})
		check("after the window", "c-1", runner, "", "", w.checker(w.log, here, time.Hour), same)
		check("of a suspended tenant", "c-1", runner, "", "tenant t is suspended", w.checker(w.log, tenants{"t": false}, 0), same)
		check("of no tenant", "c-1", runner, "", "tenant t does not exist", w.checker(w.log, tenants{}, 0), same)
	}
	w.put(w.by("session-runner-1"), contract.EventEffectRecorded, "", "c-1", []byte(`{}`))
	for range 2 {
		check("after the outcome", "c-1", runner, first, NotRunning, live, same)
		check("after the outcome, read anew", "c-1", runner, first, NotRunning, w.checker(w.log, here, 0), same)
	}
}

// decoded returns a copy of a decision as a reader of the ledger has it.
func decoded(t *testing.T, a *contract.Allowed) *contract.Allowed {
	t.Helper()
	var out contract.Allowed
	if err := contract.Decode(contract.Bytes(a), &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

var errDown = errors.New("the ledger does not respond")

// down is a log that does not respond.
type down struct{ eventlog.Log }

func (down) Get(context.Context, uint64) (eventlog.Entry, error) { return eventlog.Entry{}, errDown }

func (down) Last(context.Context, string) (eventlog.Entry, error) {
	return eventlog.Entry{}, errDown
}

func (down) Scan(context.Context, string, uint64) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) { yield(eventlog.Entry{}, errDown) }
}

// TestRead checks that Allowed and Find return only the decision on the request's call, and nil
// without an error if there is none or its data are malformed. Allowed does not return a
// decision at or after the request. If the ledger does not respond, Allowed, Find and Check
// return the ledger's error.
func TestRead(t *testing.T) {
	w := newWorld(t)
	_, damaged := w.put(w.policy, contract.EventAllowed, runner, "c-3", []byte(`{}`))
	_, malformed := w.put(w.policy, contract.EventAllowed, runner, "c-4", []byte(`{"call":1}`))
	partial := append(bytes.TrimSuffix(contract.Bytes(decided(t, "c-6", w.key)), []byte("}")), `,"unknown":1}`...)
	_, unknown := w.put(w.policy, contract.EventAllowed, runner, "c-6", partial)
	c := w.checker(w.log, tenants{"t": true}, 0)
	for _, x := range []struct {
		call    string
		at, seq uint64
		found   bool
	}{
		{"c-1", w.at["c-1"], w.at["c-1"] + 1, true}, {"c-1", w.at["c-1"], w.at["c-1"], false}, {"c-1", 0, 9, false}, {"c-1", 99, 100, false},
		{"c-1", w.at["c-2"], 9, false}, {"c-2", w.at["c-2"], 9, true}, {"c-3", damaged, 9, false}, {"c-4", malformed, 9, false}, {"c-6", unknown, 9, false},
	} {
		a, err := c.Allowed(t.Context(), w.request(x.call), runner, x.at, x.seq)
		if err != nil || (a != nil) != x.found || a != nil && a.Call.ID != x.call {
			t.Errorf("%s at %d, requested at %d: %v %v", x.call, x.at, x.seq, a, err)
		}
	}
	for call, want := range map[string]uint64{"c-1": w.at["c-1"], "c-2": w.at["c-2"], "c-5": 0} {
		a, at, err := c.Find(t.Context(), w.request(call), runner, 9)
		if err != nil || at != want || (a != nil) != (want > 0) || a != nil && a.Call.ID != call {
			t.Errorf("%s: %v at %d, %v", call, a, at, err)
		}
	}
	if a, _, err := c.Find(t.Context(), w.request("c-3"), runner, 9); a != nil || err != nil {
		t.Errorf("an event without a decision: %v %v", a, err)
	}
	c = w.checker(down{w.log}, tenants{"t": true}, 0)
	e := w.request("c-1")
	if a, err := c.Allowed(t.Context(), e, runner, w.at["c-1"], 9); a != nil || !errors.Is(err, errDown) {
		t.Errorf("Allowed: %v %v", a, err)
	}
	if a, _, err := c.Find(t.Context(), e, runner, 9); a != nil || !errors.Is(err, errDown) {
		t.Errorf("Find: %v %v", a, err)
	}
	if why, err := c.Check(t.Context(), e, w.decision["c-1"], w.at["c-1"], runner, ""); why != "" || !errors.Is(err, errDown) {
		t.Errorf("Check: %q %v", why, err)
	}
}

// TestUnended checks that a call counts as unended for its executor and tenant only, from its decision
// to its outcome, also if its intent has expired, and not if the decision is not policy's.
func TestUnended(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	unended := func(c *Checker, tenant string, at uint64, executors ...string) bool {
		t.Helper()
		a, err := c.Unended(ctx, tenant, at, executors...)
		if err != nil {
			t.Fatal(err)
		}
		return a != nil
	}
	c := w.checker(w.log, nil, 0)
	at := w.at["c-1"]
	for what, x := range map[string]struct {
		tenant    string
		at        uint64
		executors []string
		want      bool
	}{"its executor": {"t", at, []string{runner}, true}, "one of two": {"t", at, []string{"work", runner}, true}, "another executor": {"t", at, []string{"work"}, false}, "another tenant": {"u", at, []string{runner}, false},
		"no event": {"t", 99, []string{runner}, false}, "no sequence": {"t", 0, []string{runner}, false}} {
		if got := unended(c, x.tenant, x.at, x.executors...); got != x.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	if !unended(w.checker(w.log, nil, time.Hour), "t", at, runner) {
		t.Error("an expired intent makes a difference")
	}
	other, err := sign.NewKey(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	_, forged := w.put(w.policy, contract.EventAllowed, runner, "c-3", contract.Bytes(decided(t, "c-3", other)))
	if unended(c, "t", forged, runner) {
		t.Error("a decision with another signature")
	}
	_, claim := w.put(w.by(runner+"-1"), contract.EventEffectStarted, "", "c-1", []byte(`{}`))
	if unended(c, "t", claim, runner) || !unended(c, "t", at, runner) {
		t.Error("after the claim")
	}
	w.put(w.by(runner+"-1"), contract.EventEffectRecorded, "", "c-1", []byte(`{}`))
	if unended(c, "t", at, runner) || !unended(c, "t", w.at["c-2"], runner) {
		t.Error("after the outcome")
	}
}
