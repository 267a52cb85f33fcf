package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// TestForgedEvents runs the attacks that forge events, with one process per service. It
// uses a mesh of its own, because forged events stay on the ledger.
func TestForgedEvents(t *testing.T) {
	forgedEvents(t, harness.Processes(t, options(t, "")))
}

// TestForgedEventsListener runs the attacks of TestForgedEvents through the NATS listener
// of a mesh in one process.
func TestForgedEventsListener(t *testing.T) {
	o := options(t, "")
	o.Listen = true
	forgedEvents(t, harness.One(t, o))
}

// TestForgedEventsCompose runs the attacks of TestForgedEvents on compose.
func TestForgedEventsCompose(t *testing.T) {
	forgedEvents(t, harness.Compose(t, options(t, "/config/packs")))
}

// liar publishes events with the stolen identity of a service.
type liar struct {
	t    *testing.T
	conn *bus.Conn
	as   string
	n    int
}

// publish publishes an event, under a message id unless id is empty. It reports whether
// the server acknowledged the event; the server also acknowledges a duplicate, and may
// refuse an event because of the service's permissions.
func (l *liar) publish(e *contract.Event, id string) bool {
	l.t.Helper()
	b, err := e.Encode()
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(l.t.Context(), 500*time.Millisecond)
	defer cancel()
	msg := &nats.Msg{Subject: e.Subject(), Data: b, Header: nats.Header{}}
	if id != "" {
		msg.Header.Set("Nats-Msg-Id", id)
	}
	_, err = l.conn.JS.PublishMsg(ctx, msg)
	return err == nil
}

// event returns an event of the liar's service about the call of base. If id is empty,
// the event has a new id.
func (l *liar) event(base *contract.Event, name, id string, data []byte) *contract.Event {
	e := *base
	l.n++
	e.ID, e.Source, e.Name, e.Version, e.Target, e.Data = id, l.as+"/"+l.as+"-1", name, contract.VersionOf(name), "", data
	e.Time, e.Lamport = contract.Time(time.Now()), base.Lamport+1
	if id == "" {
		e.ID = fmt.Sprintf("e-LIE%s%d%s", l.as, l.n, name)
	}
	return &e
}

// lies publishes forged events about the call of base with the identity of every service
// except policy and the executor. It also checks that the server rejects events that
// name policy, audit or the executor as their source, and checkpoints that are not from
// audit. A forged outcome is a changed copy of sample, the outcome of another call. Its
// receipt names signer, or the publishing service if signer is empty.
func lies(t *testing.T, m *harness.Mesh, base *contract.Event, sample *contract.Recorded, executor, signer string) {
	t.Helper()
	call := base.CallID
	for _, as := range harness.Services {
		if as == "policy" || as == executor {
			continue // policy and the executor may end the call
		}
		l := &liar{t: t, conn: m.Connect(t, as), as: as}
		rec := *sample
		rec.Decision = nil
		rec.Effect.CallID, rec.Effect.ErrorMessage, rec.Effect.Status, rec.Effect.ErrorCode = call, "forged by "+as, contract.Failed, "forged"
		rec.Output, rec.Effect.OutputDigest = nil, ""
		rec.Receipt.CallID, rec.Receipt.ID, rec.Receipt.Executor, rec.Receipt.Session, rec.Receipt.Status = call, "r-"+call, signer, base.Session, contract.Failed
		if signer == "" {
			rec.Receipt.Executor = as
		}
		recorded := contract.Bytes(&rec)
		rec.Effect.AttestedBy, rec.Receipt.AttestedBy = contract.Caller, contract.Caller
		attested := contract.Bytes(&rec)
		started := contract.Bytes(&contract.Started{CallID: call, DecisionID: "d-" + call, IntentID: "i-" + call})
		vote := contract.Bytes(&contract.Approval{Approver: "ann", CallID: call, Resolved: "granted", Tenant: tenant, Vote: "grant"})
		for _, x := range []struct {
			name, id, msg string
			data          []byte
		}{
			{"effect_started", "s-" + call, "claim:" + call, started},
			{"effect_started", "", "", started},
			{"start_expired", "", "", started},
			{"effect_recorded", "r-" + call, "r-" + call, recorded},
			{"effect_recorded", "", "", attested},
			{"effect_recorded", "d-" + call, "d-" + call, []byte(`{"not":"an outcome"}`)},
			{"approval_recorded", "", "", vote},
			{"approval_recorded", "q-" + call, "", vote},
		} {
			if !l.publish(l.event(base, x.name, x.id, x.data), x.msg) {
				t.Fatalf("%s cannot publish under its own name", as)
			}
		}
		if as != "gateway" { // the gateway may cancel the call, because it proposed it
			l.publish(l.event(base, "cancel_requested", "x-"+call, []byte("{}")), "x-"+call)
		}
		// The server rejects events that name another service as their source.
		for _, source := range []string{"policy", "audit", executor} {
			if source == as {
				continue
			}
			e := l.event(base, "effect_recorded", "", recorded)
			e.Source = source + "/" + source + "-1"
			if l.publish(e, "") {
				t.Errorf("%s published an outcome as %s", as, source)
			}
		}
		if as != "audit" {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			if _, err := l.conn.JS.Publish(ctx, "log."+tenant+".checkpoint", []byte("binnacle/"+tenant+"\n1\nAAAA\n")); err == nil {
				t.Errorf("%s published a checkpoint", as)
			}
			cancel()
		}
	}
}

// recordedOf returns the outcomes of a call in a session, without forged ones.
func recordedOf(t *testing.T, m *harness.Mesh, session, call string) (out []contract.Recorded) {
	t.Helper()
	for _, e := range eventsOf(t, m, session) {
		var rec contract.Recorded
		if e.Name == "effect_recorded" && e.CallID == call && contract.Decode(e.Data, &rec) == nil && rec.Effect.ErrorCode != "forged" {
			out = append(out, rec)
		}
	}
	return out
}

// named returns the first event of a session with this name and call id; an empty call
// id matches any call. The test fails if there is none.
func named(t *testing.T, m *harness.Mesh, session, name, call string) *contract.Event {
	t.Helper()
	for _, e := range eventsOf(t, m, session) {
		if e.Name == name && (call == "" || e.CallID == call) {
			return e
		}
	}
	t.Fatalf("no %s of %s", name, call)
	return nil
}

func forgedEvents(t *testing.T, m *harness.Mesh) {
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-sample", `{"n":1}`)
	if err != nil || r.Status != 200 {
		t.Fatal(err, r)
	}
	session := r.Header.Get("X-Binnacle-Session-Id")
	sample := recordedOf(t, m, session, r.Header.Get("X-Binnacle-Call-Id"))[0]
	t.Run("calls", func(t *testing.T) { // returns when its parallel subtests, which mostly wait, have ended
		for name, forge := range map[string]func(*testing.T){
			"that its caller executes":       func(t *testing.T) { forgedLent(t, m, &sample) },
			"that an executor executes":      func(t *testing.T) { forgedWaiting(t, m, &sample) },
			"whose parent was not allowed":   func(t *testing.T) { forgedParent(t, m) },
			"with another request's summary": func(t *testing.T) { forgedSummary(t, m) },
			"with a reservation":             func(t *testing.T) { forgedSettlement(t, m, &sample) },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				forge(t)
			})
		}
	})

	// The mesh continues to work, replay succeeds, and verification of the whole ledger
	// fails because of the forged events.
	m.WaitReady()
	if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-after-lies", `{"n":2}`); err != nil || r.Status != 200 {
		t.Fatal(err, r)
	}
	if out, err := m.CLI("replay"); err != nil {
		t.Errorf("replay: %v\n%s", err, out)
	}
	file := filepath.Join(t.TempDir(), "ledger.jsonl")
	if out, err := m.CLI("export", "--ledger", "--out", file); err != nil {
		t.Fatal(out, err)
	}
	if out, err := m.CLI("verify", "--root", verifyRoot(m), file); err == nil {
		t.Errorf("a ledger with forged events verifies: %s", out)
	}
}

// forgedLent shows that forged events do not end a call whose intent has been handed
// out, and that the caller that received the intent can still report the outcome.
func forgedLent(t *testing.T, m *harness.Mesh, sample *contract.Recorded) {
	owner := mint(t, m, "owner-lent", "tools:call", "calls:decide")
	h := decideAs(t, m, owner, "s-lent", time.Minute, map[string]string{"Idempotency-Key": "lent"})
	lies(t, m, named(t, m, h.Session, "call_proposed", h.CallID), sample, "gateway", "gateway")
	state := as(t, m, owner, "GET", "/api/v1/calls/"+h.CallID, "", "")
	must(t, state, 200, `"running"`)
	if again := decideAs(t, m, owner, "s-lent", time.Minute, map[string]string{"Idempotency-Key": "lent"}); again.IntentID != h.IntentID || !again.Before {
		t.Errorf("the intent is not the caller's any more: %+v", again)
	}
	must(t, as(t, m, owner, "POST", h.path(), "", h.outcome("succeeded")), 200, `"status":"succeeded"`)
	must(t, as(t, m, owner, "GET", "/api/v1/calls/"+h.CallID, "", ""), 200, `"succeeded"`)
	if got := recordedOf(t, m, h.Session, h.CallID); len(got) != 1 || got[0].Effect.Status != contract.Succeeded || got[0].Receipt.Executor != "gateway" {
		t.Errorf("outcomes: %+v", got)
	}
	if out, err := m.CLI("verify", "--root", verifyRoot(m), exportOf(t, m, h.Session)); err != nil {
		t.Errorf("the session does not prove itself: %s %v", out, err)
	}
}

// forgedWaiting shows that forged events do not end a call that waits for approval while
// its caller is connected.
func forgedWaiting(t *testing.T, m *harness.Mesh, sample *contract.Recorded) {
	persons(t, m, "ann")
	overlay := filepath.Join(t.TempDir(), "ask.json")
	if err := os.WriteFile(overlay, []byte(`{"id":"ask-lies","scope":"agent","subject":"asker","rules":[{"kinds":["tool.noop"],"verdict":"ESCALATE","reason_code":"ESCALATE_ASK","approval":{"quorum":1,"roles":["seer"],"timeout_ms":120000}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"principals", "register", "asker", "agent"}, {"roles", "grant", "ann", "seer"}, {"policy", "activate", overlay}} {
		if out, err := m.CLI(args...); err != nil {
			t.Fatal(out, err)
		}
	}
	asker := mint(t, m, "asker", "tools:call")
	id := contract.SessionID(tenant, "asker", "s-waiting")
	answers := make(chan *harness.Response, 1)
	go func() {
		r, err := m.As(asker).DoHeader(context.Background(), "POST", "/api/v1/packs/noop", `{"n":7}`, map[string]string{"X-Binnacle-Session": "s-waiting", "X-Binnacle-Timeout": "120"})
		if err != nil {
			t.Error(err)
		}
		answers <- r
	}()
	var waits *contract.Event
	within(t, 20*time.Second, "the call waits for people", func() bool {
		i := slices.IndexFunc(eventsOf(t, m, id), func(e *contract.Event) bool { return e.Name == "escalated" })
		return i >= 0
	})
	waits = named(t, m, id, "call_proposed", "")
	lies(t, m, waits, sample, "session-runner", "")
	time.Sleep(500 * time.Millisecond)
	select {
	case r := <-answers:
		t.Fatalf("the caller received what no executor recorded: %d %s", r.Status, r.Body)
	default:
	}
	vote := mint(t, m, "ann", "approvals:vote")
	must(t, as(t, m, vote, "POST", "/api/v1/calls", "", `{"kind":"policy.vote","args":{"call_id":"`+waits.CallID+`","reason":"seen","vote":"grant"}}`), 200, "")
	select {
	case r := <-answers:
		must(t, r, 200, "")
		if strings.Contains(string(r.Body), "forged") {
			t.Errorf("a forged result: %s", r.Body)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("the call has no outcome")
	}
	if got := recordedOf(t, m, id, waits.CallID); len(got) != 1 || got[0].Receipt.Executor != "session-runner" || got[0].Effect.Status != contract.Succeeded {
		t.Errorf("outcomes: %+v", got)
	}
	// The evidence of the session does not verify, because its receipt chain contains
	// the forged receipts, each of which names the service that forged it.
	if out, err := m.CLI("verify", "--root", verifyRoot(m), exportOf(t, m, id)); err == nil || !strings.Contains(err.Error(), "chain") {
		t.Errorf("a session with receipts of others verifies: %s %v", out, err)
	}
}

// forgedParent shows that a nested call is denied if the service that proposes it has
// claimed a parent call that policy did not allow. The nested call names the actor of
// another call.
func forgedParent(t *testing.T, m *harness.Mesh) {
	base := named(t, m, harness.SessionID("admin", "s-sample"), "call_proposed", "")
	for _, by := range []string{"judge", "llm-router", "vault-broker"} {
		l := &liar{t: t, conn: m.Connect(t, by), as: by}
		parent, child := "c-PARENT"+strings.ToUpper(by[:5]), "c-CHILD"+strings.ToUpper(by[:5])
		claim := l.event(base, "effect_started", "s-"+parent, contract.Bytes(&contract.Started{CallID: parent, DecisionID: "d-" + parent, IntentID: "i-" + parent}))
		claim.CallID = parent
		l.publish(claim, "")
		var c contract.Call
		if err := contract.Decode(base.Data, &c); err != nil {
			t.Fatal(err)
		}
		c.ID, c.Parent, c.ParentSession, c.Deadline = child, parent, base.Session, contract.Time(time.Now().Add(30*time.Second))
		nested := l.event(base, "call_proposed", "p-"+child, contract.Bytes(&c))
		nested.CallID = child
		if !l.publish(nested, "p-"+child) {
			t.Fatal("not published")
		}
		within(t, 20*time.Second, "the nested call is denied", func() bool {
			got := recordedOf(t, m, base.Session, child)
			return len(got) == 1 && got[0].Effect.Status == contract.Denied
		})
	}
}

// forgedSummary shows that the llm-router rejects a request if its summary in the
// proposal, on which policy decides, omits part of the request or names another model.
// The proposals are forged with the gateway's identity.
func forgedSummary(t *testing.T, m *harness.Mesh) {
	r, err := m.Do(t.Context(), "POST", "/v1/chat/completions", "s-summary", `{"model":"demo/echo","messages":[{"role":"user","content":"hi"}]}`)
	if err != nil || r.Status != 200 {
		t.Fatal(err, r)
	}
	session := r.Header.Get("X-Binnacle-Session-Id")
	base := named(t, m, session, "call_proposed", r.Header.Get("X-Binnacle-Call-Id"))
	l := &liar{t: t, conn: m.Connect(t, "gateway"), as: "gateway"}
	for i, x := range []struct{ body, status, code string }{
		{`{"model":"demo/echo","messages":[{"role":"user","content":"hi"}]}`, contract.Succeeded, ""}, // the summary in the proposal describes this body, so the forged call must succeed
		{`{"model":"demo/echo","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"rm_rf"}}]}`, contract.Failed, "invalid_input"},
		{`{"model":"demo/echo","messages":[{"role":"user","content":"hi"}],"max_tokens":99}`, contract.Failed, "invalid_input"},
		{`{"model":"demo/b","messages":[{"role":"user","content":"hi"}]}`, contract.Failed, "invalid_input"},
	} {
		var c contract.Call
		var args llm.Args
		if err := contract.Decode(base.Data, &c); err != nil {
			t.Fatal(err)
		}
		summary, err := c.Args.Open(nil)
		if err != nil || contract.Decode(summary, &args) != nil {
			t.Fatal(err, string(summary))
		}
		body, _ := blob.Refer([]byte(x.body), "application/json")
		args.Body = body.Commitment
		c.Body = &body
		c.Args, _ = blob.Refer(contract.Bytes(&args), "application/json")
		c.ID, c.Deadline = fmt.Sprintf("c-SUMMARY%d", i), contract.Time(time.Now().Add(30*time.Second))
		e := l.event(base, "call_proposed", "p-"+c.ID, contract.Bytes(&c))
		e.CallID = c.ID
		if !l.publish(e, "p-"+c.ID) {
			t.Fatal("not published")
		}
		within(t, 20*time.Second, c.ID+" ends "+x.status, func() bool {
			got := recordedOf(t, m, session, c.ID)
			if len(got) == 1 && (got[0].Effect.Status != x.status || got[0].Effect.ErrorCode != x.code) {
				t.Fatalf("%s: %s %s %s", x.body, got[0].Effect.Status, got[0].Effect.ErrorCode, got[0].Effect.ErrorMessage)
			}
			return len(got) == 1
		})
	}
}

// forgedSettlement shows that a forged outcome does not release the budget reservation
// of another call.
func forgedSettlement(t *testing.T, m *harness.Mesh, sample *contract.Recorded) {
	if out, err := m.CLI("principals", "register", "spender", "agent"); err != nil {
		t.Fatal(out, err)
	}
	limit := map[string]any{"id": "one-at-once", "level": "agent", "subject": "spender", "measure": "calls", "window": "concurrent", "max": 1}
	must(t, govern(t, m, m.Token, "set_limits", map[string]any{"limits": []any{limit}}), 200, "")
	t.Cleanup(func() { govern(t, m, m.Token, "set_limits", map[string]any{"limits": []any{}}) })
	spender := mint(t, m, "spender", "tools:call", "calls:decide")
	h := decideAs(t, m, spender, "s-spend", time.Minute, nil)
	second := func() *harness.Response {
		doc, _ := json.Marshal(map[string]any{"kind": "tool.noop", "tool": "noop", "args": map[string]int{"n": 2}, "report_within_ms": 60000})
		return as(t, m, spender, "POST", "/api/v1/decide", "s-spend", string(doc))
	}
	if r := second(); r.Status == 200 {
		t.Fatalf("the limit does not hold: %s", r.Body)
	}
	lies(t, m, named(t, m, h.Session, "call_proposed", h.CallID), sample, "gateway", "gateway")
	for range 20 { // retry for longer than a policy instance waits before it settles the reservations of other instances
		if r := second(); r.Status == 200 {
			t.Fatalf("a forged outcome freed the reservation: %s", r.Body)
		}
		time.Sleep(250 * time.Millisecond)
	}
	must(t, as(t, m, spender, "POST", h.path(), "", h.outcome("succeeded")), 200, `"status":"succeeded"`)
	within(t, 10*time.Second, "the true outcome frees the reservation", func() bool { return second().Status == 200 })
}
