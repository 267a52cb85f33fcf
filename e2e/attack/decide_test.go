package attack

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// handed is the response of the decision-only API to a request for an intent.
type handed struct {
	CallID     string `json:"call_id"`
	Session    string `json:"session_id"`
	IntentID   string `json:"intent_id"`
	ArgsDigest string `json:"args_digest"`
	Before     bool   `json:"handed_out_before"`
}

// decideAs requests an intent for tool.noop with the given token, and returns the
// response. The outcome must be reported within the given time. decideAs sets the session
// in header, which may be nil.
func decideAs(t *testing.T, m *harness.Mesh, token, session string, within time.Duration, header map[string]string) handed {
	t.Helper()
	if header == nil {
		header = map[string]string{}
	}
	header["X-Binnacle-Session"] = session
	r, err := m.As(token).DoHeader(context.Background(), "POST", "/api/v1/decide", fmt.Sprintf(`{"kind":"tool.noop","tool":"noop","args":{"n":1},"report_within_ms":%d}`, within.Milliseconds()), header)
	if err != nil || r.Status != 200 {
		t.Fatalf("%v %+v %s", err, r, r.Body)
	}
	var h handed
	r.JSON(t, &h)
	return h
}

func (h handed) path() string { return "/api/v1/intents/" + h.IntentID + "/outcome" }

func (h handed) outcome(status string) string {
	return fmt.Sprintf(`{"args_digest":%q,"status":%q}`, h.ArgsDigest, status)
}

// effects returns the outcomes of a call that are on the ledger.
func effects(t *testing.T, m *harness.Mesh, h handed) (out []contract.Recorded) {
	t.Helper()
	for _, e := range eventsOf(t, m, h.Session) {
		var rec contract.Recorded
		if e.Name == "effect_recorded" && e.CallID == h.CallID {
			if err := contract.Decode(e.Data, &rec); err != nil {
				t.Fatal(err)
			}
			out = append(out, rec)
		}
	}
	return out
}

var _ = register("12.30 forged reports of what callers execute", func(t *testing.T, m *harness.Mesh) {
	owner, thief := mint(t, m, "owner-1230", "tools:call", "calls:decide"), mint(t, m, "thief-1230", "tools:call", "calls:decide", "policy:admin")
	h := decideAs(t, m, owner, "s-1230", time.Minute, nil)
	// The gateway refuses a report by another caller, by another client of the same
	// actor, without the scope calls:decide, with another digest or none, with a status
	// that callers may not report, with negative usage, with an unknown member, and
	// under ids that name no intent of the caller.
	must(t, as(t, m, thief, "POST", h.path(), "", h.outcome("succeeded")), 404, "not_found")
	other, err := m.CLI("token", "create", "--actor", "owner-1230", "--client", "other", "--scope", "tools:call", "--scope", "calls:decide")
	if err != nil {
		t.Fatal(err)
	}
	must(t, as(t, m, strings.TrimSpace(other), "POST", h.path(), "", h.outcome("succeeded")), 404, "not_found")
	must(t, as(t, m, mint(t, m, "owner-1230", "tools:call"), "POST", h.path(), "", h.outcome("succeeded")), 403, "calls:decide")
	must(t, as(t, m, owner, "POST", h.path(), "", `{"args_digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000","status":"succeeded"}`), 409, "args_digest_mismatch")
	must(t, as(t, m, owner, "POST", h.path(), "", `{"status":"succeeded"}`), 409, "args_digest_mismatch")
	for _, status := range []string{"unknown", "expired", "denied", "dead_lettered", "", "SUCCEEDED"} {
		must(t, as(t, m, owner, "POST", h.path(), "", h.outcome(status)), 400, "status")
	}
	must(t, as(t, m, owner, "POST", h.path(), "", fmt.Sprintf(`{"args_digest":%q,"status":"succeeded","usage":{"cents":-5}}`, h.ArgsDigest)), 400, "usage")
	must(t, as(t, m, owner, "POST", h.path(), "", fmt.Sprintf(`{"args_digest":%q,"status":"succeeded","attested_by":"session-runner"}`, h.ArgsDigest)), 400, "unknown member")
	for _, id := range []string{"i-c-NOSUCH", h.CallID, "d-" + h.CallID, "i-", strings.Repeat("i-", 500)} {
		must(t, as(t, m, owner, "POST", "/api/v1/intents/"+id+"/outcome", "", h.outcome("succeeded")), 404, "not_found")
	}
	// No caller can report an outcome for an intent that was issued to an executor.
	r := as(t, m, owner, "POST", "/api/v1/packs/noop", "s-1230-run", `{"n":1}`)
	must(t, r, 200, "")
	ran := handed{IntentID: "i-" + r.Header.Get("X-Binnacle-Call-Id"), ArgsDigest: h.ArgsDigest}
	must(t, as(t, m, owner, "POST", ran.path(), "", ran.outcome("failed")), 404, "not_found")
	if got := effects(t, m, h); len(got) != 0 {
		t.Fatalf("%d outcomes of attacks", len(got))
	}
	// Sixteen concurrent, contradictory reports result in exactly one outcome.
	var wg sync.WaitGroup
	var mu sync.Mutex
	said := map[string]int{}
	for i := range 16 {
		wg.Go(func() {
			status := []string{"succeeded", "failed"}[i%2]
			r := as(t, m, owner, "POST", h.path(), "", h.outcome(status))
			mu.Lock()
			defer mu.Unlock()
			said[fmt.Sprint(status, r.Status)]++
		})
	}
	wg.Wait()
	got := effects(t, m, h)
	if len(got) != 1 || got[0].Receipt.AttestedBy != contract.Caller || got[0].Effect.AttestedBy != contract.Caller || got[0].Receipt.Executor != "gateway" {
		t.Fatalf("%+v", got)
	}
	lost := map[string]string{"succeeded": "failed", "failed": "succeeded"}[got[0].Effect.Status]
	if said[lost+"200"] != 0 || said[got[0].Effect.Status+"200"] != 8 || said[lost+"409"] != 8 {
		t.Errorf("the outcome is %s, and the reports had %v", got[0].Effect.Status, said)
	}
	if _, err := m.CLI("verify", "--root", verifyRoot(m), exportOf(t, m, h.Session)); err != nil {
		t.Error(err)
	}
})

var _ = register("12.30 intents used again", func(t *testing.T, m *harness.Mesh) {
	owner, thief := mint(t, m, "owner-1231", "tools:call", "calls:decide"), mint(t, m, "thief-1231", "tools:call", "calls:decide")
	key := map[string]string{"Idempotency-Key": "again-1231"}
	h := decideAs(t, m, owner, "s-1231", 3*time.Second, key)
	// The same idempotency key returns the same intent, marked as handed out before; the
	// effect starts once.
	again := decideAs(t, m, owner, "s-1231", 3*time.Second, key)
	if again.IntentID != h.IntentID || h.Before || !again.Before {
		t.Errorf("%+v %+v", h, again)
	}
	// If another caller uses the same idempotency key, a new call results; if it uses
	// the call id, the response is 404.
	if x := decideAs(t, m, thief, "s-1231", time.Minute, map[string]string{"Idempotency-Key": "again-1231"}); x.IntentID == h.IntentID {
		t.Error("an intent for two callers")
	}
	must(t, as(t, m, thief, "POST", "/api/v1/decide", "", `{"call_id":"`+h.CallID+`"}`), 404, "not_found")
	// A caller cannot itself execute governing calls or calls of the kinds vault.put,
	// judge.score and llm.chat. The time for its report must not be negative or more
	// than a day.
	for _, kind := range []string{"policy.freeze", "vault.put", "judge.score", "llm.chat"} {
		token := m.Token
		if kind == "policy.freeze" {
			token = m.OperatorToken
		}
		r := as(t, m, token, "POST", "/api/v1/decide", "", `{"kind":"`+kind+`","tool":"`+kind+`","args":{"reason":"x"},"report_within_ms":1000}`)
		must(t, r, 403, "CALLER_EXECUTION_REFUSED")
	}
	must(t, as(t, m, owner, "POST", "/api/v1/decide", "", `{"kind":"tool.noop","tool":"noop","args":{},"report_within_ms":86400001}`), 400, "report_within_ms")
	must(t, as(t, m, owner, "POST", "/api/v1/decide", "", `{"kind":"tool.noop","tool":"noop","args":{},"report_within_ms":-1}`), 400, "report_within_ms")
	// Without a report, the gateway records the status unknown; a late report does not
	// change the outcome.
	within(t, 20*time.Second, "the call ends when its report is due", func() bool { return len(effects(t, m, h)) == 1 })
	must(t, as(t, m, owner, "POST", h.path(), "", h.outcome("succeeded")), 200, `"status":"unknown"`)
	must(t, as(t, m, owner, "POST", h.path(), "", h.outcome("failed")), 409, "outcome_conflict")
	got := effects(t, m, h)
	if len(got) != 1 || got[0].Effect.Status != contract.Unknown || got[0].Receipt.AttestedBy != "" || got[0].Receipt.Executor != "gateway" {
		t.Fatalf("%+v", got)
	}
	started, late := 0, 0
	for _, e := range eventsOf(t, m, h.Session) {
		if e.CallID == h.CallID && e.Name == "effect_started" {
			started++
		}
		if e.CallID == h.CallID && e.Name == "outcome_reported" {
			late++
		}
	}
	if started != 1 || late != 1 {
		t.Errorf("started %d times, %d late reports", started, late)
	}
	// After the call has ended, its idempotency key returns no intent.
	r, err := m.As(owner).DoHeader(context.Background(), "POST", "/api/v1/decide", `{"kind":"tool.noop","tool":"noop","args":{"n":1},"report_within_ms":3000}`,
		map[string]string{"Idempotency-Key": "again-1231", "X-Binnacle-Session": "s-1231"})
	if err != nil || r.Status == 200 {
		t.Errorf("an intent of a call that has ended: %v %s", err, r.Body)
	}
	if _, err := m.CLI("verify", "--root", verifyRoot(m), exportOf(t, m, h.Session)); err != nil {
		t.Error(err)
	}
})

var _ = register("12.31 policies that name nothing", func(t *testing.T, m *harness.Mesh) {
	for name, c := range map[string]struct{ doc, want string }{
		"kind":    {`{"id":"x-1231","scope":"agent","subject":"admin","rules":[{"kinds":["tool.noopp"],"reason_code":"DENY_X","verdict":"DENY"}]}`, "/rules/0/kinds/0"},
		"agent":   {`{"id":"x-1231","scope":"agent","subject":"no-such-agent-1231","rules":[{"kinds":["tool.noop"],"reason_code":"DENY_X","verdict":"DENY"}]}`, "/subject"},
		"role":    {`{"id":"x-1231","scope":"agent","subject":"admin","rules":[{"approval":{"quorum":1,"roles":["no-such-role-1231"],"timeout_ms":1000},"kinds":["tool.noop"],"reason_code":"ESCALATE_X","verdict":"ESCALATE"}]}`, "/rules/0/approval/roles/0"},
		"tenant":  {`{"id":"x-1231","scope":"tenant","subject":"umbrella","rules":[{"kinds":["tool.rm*"],"reason_code":"DENY_X","verdict":"DENY"}]}`, "/subject"},
		"expired": {`{"expires":"2020-01-01T00:00:00.000Z","id":"x-1231","scope":"agent","subject":"admin","rules":[{"kinds":["tool.noop"],"reason_code":"DENY_X","verdict":"DENY"}]}`, "/expires"},
	} {
		r := govern(t, m, m.Token, "activate", map[string]any{"layer": "p2", "name": "x-1231", "document": c.doc})
		if r.Status != 400 || !strings.Contains(string(r.Body), c.want) {
			t.Errorf("%s: %d %s", name, r.Status, r.Body)
		}
	}
	must(t, govern(t, m, m.Token, "set_limits", map[string]any{"limits": []map[string]any{{"id": "x", "level": "agent", "subject": "no-such-agent-1231", "measure": "calls", "window": "day", "max": 1}}}), 400, "/limits/0/subject")
})

var _ = register("12.30 forged journals of hooks", func(t *testing.T, m *harness.Mesh) {
	owner, other := mint(t, m, "owner-1233", "tools:call", "calls:decide"), mint(t, m, "other-1233", "tools:call", "calls:decide")
	reader := mint(t, m, "reader-1233", "tools:call")
	h := decideAs(t, m, owner, "s-1233", time.Minute, nil)
	entry := func(members string) string {
		return `{"action":"sha256:x","content":{"agent":"a","event":"SessionStart","workspace":"/"},"journal":"j-1233","number":1,"observed_at":"2026-01-01T00:00:00.000Z","phase":"began","kind":"client.session"` + members + "}"
	}
	send := func(token, body string) *harness.Response {
		return as(t, m, token, "POST", "/api/v1/observations", h.Session, body)
	}
	// An entry cannot name a verdict, a decision, a call, an intent, a receipt, a principal or a
	// tenant, be of a kind that a service executes, have a status that only policy or an
	// executor records, or have content of another form.
	for _, members := range []string{`,"verdict":"ALLOW"`, `,"decision_id":"d-` + h.CallID + `"`, `,"call_id":"` + h.CallID + `"`, `,"intent_id":"` + h.IntentID + `"`, `,"receipt_id":"r-x"`, `,"actor":"owner-1233"`, `,"tenant":"other"`} {
		must(t, send(owner, entry(members)), 400, "invalid_input")
	}
	for _, change := range [][2]string{{`"client.session"`, `"policy.freeze"`}, {`"client.session"`, `"tool.noop"`}, {`"began"`, `"ended","status":"denied"`}, {`"event":"SessionStart"`, `"approved":true`}} {
		must(t, send(owner, strings.Replace(entry(""), change[0], change[1], 1)), 400, "invalid_input")
	}
	must(t, send(reader, entry("")), 403, "scope_missing")
	must(t, send(owner, entry("")), 200, `"repeated":false`)
	must(t, send(owner, entry("")), 200, `"repeated":true`)
	must(t, send(owner, strings.Replace(entry(""), "SessionStart", "Stop", 1)), 409, "conflict")
	must(t, send(owner, strings.Replace(entry(""), "sha256:x", "sha256:y", 1)), 409, "conflict")
	// An entry of another principal for this session is accepted, but not stored in this
	// session, although its journal has the same id.
	must(t, send(other, entry("")), 200, `"repeated":false`)
	observed, ended := 0, 0
	for _, e := range eventsOf(t, m, h.Session) {
		switch e.Name {
		case contract.EventActionObserved:
			observed++
			if e.Actor != "owner-1233" || e.CallID != "" {
				t.Errorf("%+v", e)
			}
		case contract.EventEffectRecorded:
			ended++
		}
	}
	if observed != 1 || ended != 0 {
		t.Errorf("%d observations, %d outcomes", observed, ended)
	}
	must(t, as(t, m, owner, "POST", h.path(), "", h.outcome("succeeded")), 200, `"status":"succeeded"`)
	if _, err := m.CLI("verify", "--root", verifyRoot(m), exportOf(t, m, h.Session)); err != nil {
		t.Error(err)
	}
})

// verifyRoot returns the path of the file with the mesh's trusted root, or "" if the
// mesh's environment does not name one.
func verifyRoot(m *harness.Mesh) string {
	for _, v := range m.Env() {
		if file, ok := strings.CutPrefix(v, "BINNACLE_ROOT="); ok {
			return file
		}
	}
	return ""
}

func exportOf(t *testing.T, m *harness.Mesh, session string) string {
	t.Helper()
	f := t.TempDir() + "/p.tar"
	if out, err := m.CLI("export", "--session", session, "--out", f); err != nil {
		t.Fatal(out, err)
	}
	return f
}
