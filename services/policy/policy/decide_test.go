package policy

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// TestDecidedOnce shows that a proposal has one decision, even if it is delivered again,
// also to another instance, or if an append or its acknowledgement is lost.
func TestDecidedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		a := l.join("policy-1")
		allowed := func(want int) {
			t.Helper()
			if got := l.of(contract.EventAllowed); len(got) != want {
				t.Fatalf("%d calls are allowed, want %d", len(got), want)
			}
		}
		d := l.propose("echo", nil)
		if err := a.decider.take(ctx, d); err != nil {
			t.Fatal(err)
		}
		allowed(1)
		for range 2 { // the proposal is delivered again
			d.tries++
			if err := a.decider.take(ctx, d); err != nil {
				t.Fatal(err)
			}
		}
		d.tries = 0
		if err := l.join("policy-2").decider.take(ctx, d); err != nil {
			t.Fatal(err)
		}
		allowed(1)

		d = l.propose("echo", nil) // the append fails
		a.faults.failBefore(once(1, "allowed_"))
		if err := a.decider.take(ctx, d); !errors.Is(err, errDown) {
			t.Fatal(err)
		}
		allowed(1)
		d.tries++
		if err := a.decider.take(ctx, d); err != nil {
			t.Fatal(err)
		}
		allowed(2)

		d = l.propose("echo", nil) // the acknowledgement of the append is lost
		a.faults.failAfter(once(1, "allowed_"))
		if err := a.decider.take(ctx, d); !errors.Is(err, errDown) {
			t.Fatal(err)
		}
		d.tries++
		if err := a.decider.take(ctx, d); err != nil {
			t.Fatal(err)
		}
		allowed(3)
		var rec contract.Allowed
		if err := contract.Decode(l.of(contract.EventAllowed)[2].Data, &rec); err != nil || rec.Decision.Intent == nil || rec.Decision.Intent.Executor != "session-runner" {
			t.Errorf("%+v, %v", rec.Decision, err)
		}
	})
}

// TestTwoInstances shows that two instances with the same proposal record one
// decision, even if they decide differently.
func TestTwoInstances(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		a, b := l.join("policy-1"), l.join("policy-2")
		l.put("policy", events.PrincipalSuspendedName, "identity", &events.PrincipalSuspended{Principal: "alice", Reason: "x"}, nil)
		a.follow() // b has not applied the suspension yet
		for _, order := range [][2]*member{{a, b}, {b, a}} {
			d := l.propose("echo", nil)
			d.stored = time.Time{}.Add(time.Hour) // reported as a first delivery, and stored after the connection was made, so the ledger is not searched for a decision
			for _, m := range order {
				if err := m.decider.take(ctx, d); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := len(l.of(contract.EventAllowed)) + len(l.of(contract.EventEffectRecorded)); n != 2 {
			t.Errorf("two proposals came to %d decisions", n)
		}
		if status, reason := l.outcome("c-1"); status != contract.Denied || reason != contract.ReasonPrincipalSuspended {
			t.Error(status, reason)
		}
		if status, _ := l.outcome("c-2"); status != "" {
			t.Error("the call is allowed and ended:", status)
		}
	})
}

// TestDenials shows why several calls are denied, that each denial has a receipt, and
// that the receipts of a session form a chain, even if two instances record them.
func TestDenials(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		a, b := l.join("policy-1"), l.join("policy-2")
		foreign := func(e *contract.Event, _ *contract.Call) { e.Session = contract.SessionID("t", "bob", "s-his") }
		for i, c := range []struct {
			tool   string
			change func(*contract.Event, *contract.Call)
			want   string
		}{
			{"rm", nil, contract.ReasonPolicyViolation},
			{"nosuch", nil, contract.ReasonUnknownTool},
			{"echo", func(_ *contract.Event, c *contract.Call) { c.Scopes = nil }, contract.ReasonMissingRequirement},
			{"echo", func(_ *contract.Event, c *contract.Call) {
				c.Args = contract.NewContent(make([]byte, contract.SaltSize), []byte(`{"m":1}`), "application/json")
			}, contract.ReasonArgsUnknownField},
			{"echo", func(_ *contract.Event, c *contract.Call) { c.Args.Store = contract.StoreObject; c.Args.Text = "" }, contract.ReasonArgsUnavailable},
			{"echo", func(_ *contract.Event, c *contract.Call) {
				c.Args = contract.NewContent(make([]byte, contract.SaltSize), []byte(strings.Repeat("[", 5000)), "application/json")
			}, contract.ReasonArgsUnavailable},
			{"echo", func(e *contract.Event, _ *contract.Call) { e.Tenant = "u" }, contract.ReasonTenantIsolation},
			{"echo", func(_ *contract.Event, c *contract.Call) { c.Parent, c.ParentSession = "c-9", "s-9" }, contract.ReasonProvenanceFailure},
			{"echo", foreign, contract.ReasonIdentityIsolationViolation},
		} {
			m := []*member{a, b}[i%2]
			d := l.propose(c.tool, c.change)
			if err := m.decider.take(ctx, d); err != nil {
				t.Fatalf("%s: %v", c.want, err)
			}
			if status, reason := l.outcome(l.callOf(d)); status != contract.Denied || reason != c.want {
				t.Errorf("%s is %s for %s, want %s", c.tool, status, reason, c.want)
			}
		}
		var prev string
		links := 0
		for _, e := range l.of(contract.EventEffectRecorded) {
			var rec contract.Recorded
			if err := contract.Decode(e.Data, &rec); err != nil {
				t.Fatal(err)
			}
			if e.Tenant != "t" || e.Session != contract.SessionID("t", "alice", "s-mine") {
				continue
			}
			if prev != "" && rec.Receipt.Prev != prev {
				t.Errorf("the receipt of %s does not follow the one before it", e.CallID)
			}
			prev = contract.Digest(&rec.Receipt)
			links++
		}
		if links < 5 {
			t.Errorf("the chain has %d receipts", links)
		}
		if got := l.of(contract.EventAllowed); len(got) != 0 {
			t.Error("allowed:", got[0].CallID)
		}
	})
}

// TestNoProposals shows that deliveries that are not proposals are terminated and that
// nothing is appended.
func TestNoProposals(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		a := l.join("policy-1")
		before := l.log.Size()
		l.propose("echo", nil)
		good, err := l.log.Get(ctx, before+1)
		if err != nil {
			t.Fatal(err)
		}
		l.propose("echo", func(e *contract.Event, _ *contract.Call) { e.ID = "p-other" })
		other, err := l.log.Get(ctx, before+2)
		if err != nil {
			t.Fatal(err)
		}
		for name, m := range map[string]*logtest.Message{
			"noise":   {To: good.Subject, Body: []byte("noise")},
			"subject": {To: "evt.t.judge.-.call_proposed.s-1", Body: good.Data},
			"no call": {To: other.Subject, Body: other.Data},
		} {
			m.Seq, m.Tries = good.Seq, 1
			d, err := consumer.NewDelivery(m, decideWork.Filters)
			if err != nil {
				t.Fatal(err)
			}
			if a.consume("proposal", 0, a.decider.take)(ctx, d); m.Settled != "term" {
				t.Errorf("%s: %q", name, m.Settled)
			}
		}
		if l.log.Size() != before+2 {
			t.Error("something was recorded")
		}
	})
}

// TestLabelsGuessed shows that an instance with outdated labels decides again when the
// append is rejected, that the labels of a call's output are recorded before the call is
// allowed, that a label is recorded once for a session, and that labels of a request are
// recorded too.
func TestLabelsGuessed(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		a, b := l.join("policy-1"), l.join("policy-2")
		if err := b.decider.take(ctx, l.propose("e4", nil)); err != nil { // no session has labels yet
			t.Fatal(err)
		}
		if err := a.decider.take(ctx, l.propose("fetch", nil)); err != nil {
			t.Fatal(err)
		}
		labelled, allowed := l.of(events.SessionLabelledName), l.of(contract.EventAllowed)
		if len(labelled) != 1 || len(allowed) != 2 || labelled[0].Lamport > allowed[1].Lamport {
			t.Fatalf("%d labelled, %d allowed", len(labelled), len(allowed))
		}
		d := l.propose("e4", nil)
		d.stored = time.Time{}.Add(time.Hour)
		if err := b.decider.take(ctx, d); err != nil {
			t.Fatal(err)
		}
		if status, reason := l.outcome(l.callOf(d)); status != contract.Denied || reason != contract.ReasonTaintedInputHighRiskDeny {
			t.Errorf("the label was not seen: %q %q", status, reason)
		}
		if err := a.decider.take(ctx, l.propose("fetch", nil)); err != nil || len(l.of(events.SessionLabelledName)) != 1 {
			t.Errorf("the same label is recorded twice: %v", err)
		}
		nested := l.propose("echo", func(e *contract.Event, c *contract.Call) { c.Labels = []string{"user_file"} })
		if err := a.decider.take(ctx, nested); err != nil || len(l.of(events.SessionLabelledName)) != 2 {
			t.Errorf("what came with the call is not recorded: %v", err)
		}
	})
}

// TestFirstLabel shows that the first label of a mesh, which comes with a request and
// which no tool declares, is among the facts of the session's next call and of a nested
// call in another session, even if the instance that decides these calls has not applied
// the label's event.
func TestFirstLabel(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := plain(t, nil)
		a, b := l.join("policy-1"), l.join("policy-2")
		if err := a.decider.take(ctx, l.propose("echo", func(_ *contract.Event, c *contract.Call) { c.Labels = []string{"web"} })); err != nil {
			t.Fatal(err)
		}
		for name, change := range map[string]func(*contract.Event, *contract.Call){
			"the same session": nil,
			"a nested call": func(e *contract.Event, c *contract.Call) {
				c.Parent, c.ParentSession = "c-1", e.Session
				e.Session, c.SessionName = contract.SessionID("t", "alice", "s-other"), "s-other"
			},
		} {
			d := l.propose("e4", change)
			d.stored = time.Time{}.Add(time.Hour) // a first delivery, for which the ledger is not searched for a decision
			if err := b.decider.take(ctx, d); err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(l.of(contract.EventEffectRecorded), func(e *contract.Event) bool { return e.CallID == l.callOf(d) })
			if i < 0 {
				t.Fatalf("%s: not denied", name)
			}
			var rec contract.Recorded
			if err := contract.Decode(l.of(contract.EventEffectRecorded)[i].Data, &rec); err != nil || !strings.Contains(string(rec.Decision.Facts), `"labels":["web"]`) {
				t.Errorf("%s: decided without the label: %s %v", name, rec.Decision.Facts, err)
			}
		}
		if len(l.of(contract.EventAllowed)) != 1 {
			t.Error("a call was allowed without the label")
		}
	})
}

// TestNestedCalls shows that a service may propose a call that is nested in one of its
// own, for the same actor, once the outer call has started, but not before that and not
// for another actor.
func TestNestedCalls(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		a := l.join("policy-1")
		parent := l.propose("echo", nil)
		if err := a.decider.take(ctx, parent); err != nil {
			t.Fatal(err)
		}
		nested := func(actor string) string {
			d := l.propose("echo", func(e *contract.Event, c *contract.Call) {
				c.Parent, c.ParentSession = l.callOf(parent), e.Session
				e.Source, e.Origin, e.Actor = "session-runner/session-runner-1", "session-runner-1", actor
			})
			if err := a.decider.take(ctx, d); err != nil {
				t.Fatal(err)
			}
			_, reason := l.outcome(l.callOf(d))
			return reason
		}
		if got := nested("alice"); got != contract.ReasonProvenanceFailure {
			t.Error("before the parent has started:", got)
		}
		allowed := l.of(contract.EventAllowed)[0]
		l.put("session-runner", contract.EventEffectStarted, allowed.Session, &contract.Started{CallID: allowed.CallID}, allowed)
		if got := nested("alice"); got != "" {
			t.Error("while the parent runs:", got)
		}
		if got := nested("mallory"); got == "" {
			t.Error("for another actor it is allowed")
		}
		l.put("session-runner", contract.EventEffectRecorded, allowed.Session, &contract.Recorded{Effect: contract.Effect{CallID: allowed.CallID, Status: contract.Succeeded}}, allowed)
	})
}

// TestSessionsOfOthers shows who may make calls in a session, with and without a grant,
// and which sessions have a proposal.
func TestSessionsOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		a := l.join("policy-1")
		owner := func(actor, session string) string {
			t.Helper()
			who, err := a.decider.sessions.foreignOwner(ctx, &contract.Event{Tenant: "t", Session: session, Actor: actor}, contract.Time(time.Now()))
			if err != nil {
				t.Fatal(err)
			}
			return who
		}
		mine := contract.SessionID("t", "alice", "s-mine")
		l.propose("echo", nil)
		l.propose("echo", func(e *contract.Event, c *contract.Call) { e.Session, e.Actor = "s-old", "bob" })
		for _, c := range []struct{ actor, session, want string }{
			{"alice", mine, ""}, {"bob", mine, "alice"}, {"bob", "s-old", ""}, {"alice", "s-old", "bob"}, {"alice", "s-new", ""},
			{"alice", contract.SessionID("t", "carol", "s-x"), "-"},
		} {
			if got := owner(c.actor, c.session); got != c.want {
				t.Errorf("%s in %s: %q, want %q", c.actor, c.session, got, c.want)
			}
		}
		l.put("policy", events.SessionGrantedName, "identity", &events.SessionGranted{Owner: "alice", Principal: "bob", Session: mine, Expires: contract.Time(time.Now().Add(time.Hour))}, nil)
		a.follow()
		if got := owner("bob", mine); got != "" {
			t.Error("a grant does not hold:", got)
		}
		opened := func(session string) bool { return a.decider.sessions.opened("t", session) }
		if !opened("s-old") || opened("s-none") || opened("no token") || a.decider.sessions.opened("u", "s-old") {
			t.Error("which sessions have calls is wrong")
		}
	})
}
