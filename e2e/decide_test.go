package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// intent is the response of the decision-only API: an intent that the caller executes
// itself.
type intent struct {
	CallID     string `json:"call_id"`
	Session    string `json:"session_id"`
	IntentID   string `json:"intent_id"`
	ArgsDigest string `json:"args_digest"`
	Before     bool   `json:"handed_out_before"`
}

func (x intent) report(t *testing.T, m *harness.Mesh, more string) *harness.Response {
	t.Helper()
	r, err := m.Do(context.Background(), "POST", "/api/v1/intents/"+x.IntentID+"/outcome", "", fmt.Sprintf(`{"args_digest":%q,"status":"succeeded"%s}`, x.ArgsDigest, more))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func handOut(t *testing.T, m *harness.Mesh, session string, within time.Duration, header map[string]string) intent {
	t.Helper()
	h := map[string]string{"X-Binnacle-Session": session}
	for k, v := range header {
		h[k] = v
	}
	r, err := m.DoHeader(context.Background(), "POST", "/api/v1/decide", fmt.Sprintf(`{"kind":"tool.noop","tool":"noop","args":{"n":1},"report_within_ms":%d}`, within.Milliseconds()), h)
	if err != nil || r.Status != 200 {
		t.Fatalf("%v %+v", err, r)
	}
	var x intent
	r.JSON(t, &x)
	return x
}

// stateOf returns the status of a call, as the API returns it to the call's caller.
func stateOf(t *testing.T, m *harness.Mesh, call string) (status string) {
	t.Helper()
	r, err := m.Do(context.Background(), "GET", "/api/v1/calls/"+call, "", "")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Status string }
	r.JSON(t, &doc)
	return doc.Status
}

// TestCallersExecute shows that the outcome of an intent from one gateway can be reported to
// another, even if the first has been killed or all processes were started again. If no report
// arrives in time, the call gets the outcome unknown, even if the gateway that issued the
// intent was killed or restarted. The intent of an approved call can be fetched.
func TestCallersExecute(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	second := m.As(m.Token)
	second.Addr = m.StartGateway("gateway-b")

	x := handOut(t, m, "s-two", time.Minute, nil)
	if r := x.report(t, second, ""); r.Status != 200 || !strings.Contains(string(r.Body), `"attested_by":"caller"`) {
		t.Fatalf("reported to the other gateway: %d %s", r.Status, r.Body)
	}
	if r := x.report(t, m, ""); r.Status != 200 || !strings.Contains(string(r.Body), `"repeated":true`) {
		t.Fatalf("reported again: %d %s", r.Status, r.Body)
	}
	key := map[string]string{"Idempotency-Key": "two"}
	a, b := handOut(t, m, "s-two", time.Minute, key), handOut(t, second, "s-two", time.Minute, key)
	if a.IntentID != b.IntentID || a.Before || !b.Before {
		t.Errorf("one key at two gateways: %+v %+v", a, b)
	}

	// A gateway is killed before the report of one of its intents, and before the
	// deadline of another.
	kept, lost := handOut(t, second, "s-dies", time.Minute, nil), handOut(t, second, "s-dies", 3*time.Second, nil)
	m.Kill("gateway-b")
	if r := kept.report(t, m, ""); r.Status != 200 || strings.Contains(string(r.Body), `"late":true`) {
		t.Errorf("reported after the gateway died: %d %s", r.Status, r.Body)
	}
	eventually(t, "the other gateway ends the call", 30*time.Second, func() bool { return stateOf(t, m, lost.CallID) == "unknown" })

	// All services and the NATS server are started again before the deadline.
	over := handOut(t, m, "s-restart", 4*time.Second, nil)
	still := handOut(t, m, "s-restart", 5*time.Minute, nil)
	for _, name := range m.Names() {
		if name != "gateway-b" {
			m.Restart(name)
		}
	}
	m.WaitReady()
	eventually(t, "a deadline outlives a restart", 60*time.Second, func() bool { return stateOf(t, m, over.CallID) == "unknown" })
	if r := still.report(t, m, ""); r.Status != 200 || !strings.Contains(string(r.Body), `"status":"succeeded"`) {
		t.Errorf("reported after a restart: %d %s", r.Status, r.Body)
	}

	// The intent of an escalated call is available only after the approval.
	cli(t, m, "roles", "grant", "ann", "approver")
	cli(t, m, "principals", "register", "ann", "person")
	cli(t, m, "policy", "activate", write(t, "ask.json", `{"id":"ask","scope":"agent","subject":"admin","rules":[{"kinds":["tool.noop"],"verdict":"ESCALATE","reason_code":"APPROVAL_REQUIRED"}]}`))
	r, err := m.DoHeader(context.Background(), "POST", "/api/v1/decide", `{"kind":"tool.noop","tool":"noop","args":{},"report_within_ms":60000}`, map[string]string{"Prefer": "respond-async"})
	var waiting intent
	if err != nil || r.Status != 202 || json.Unmarshal(r.Body, &waiting) != nil {
		t.Fatalf("%v %d %s", err, r.Status, r.Body)
	}
	again := func() *harness.Response {
		r, err := m.DoHeader(context.Background(), "POST", "/api/v1/decide", `{"call_id":"`+waiting.CallID+`"}`, map[string]string{"Prefer": "respond-async"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := again(); r.Status != 202 {
		t.Errorf("taken up before people agreed: %d %s", r.Status, r.Body)
	}
	if out, err := m.As(m.TokenFor("ann", "approvals:vote")).CLI("approvals", "grant", waiting.CallID, "--reason", "seen"); err != nil {
		t.Fatal(out, err)
	}
	eventually(t, "the approved call is handed out", 10*time.Second, func() bool {
		r := again()
		return r.Status == 200 && json.Unmarshal(r.Body, &waiting) == nil && waiting.IntentID != ""
	})
	if r := waiting.report(t, m, ""); r.Status != 200 {
		t.Errorf("%d %s", r.Status, r.Body)
	}
	for _, s := range []string{x.Session, kept.Session, over.Session, waiting.Session} {
		pack := t.TempDir() + "/p.tar"
		cli(t, m, "export", "--session", s, "--out", pack)
		if out := cli(t, m, "verify", pack); !strings.Contains(out, "attested") {
			t.Error(out)
		}
	}
	cli(t, m, "replay")
}

// TestDecideBehindHistory shows that after 10,000 calls in the same session, and after all
// processes were started again, a decision and its report take at most about twice the time
// that they take on an empty ledger, and so does the explanation of an older call. An older
// intent is still found, its outcome can be reported, and a second report is accepted as a
// repetition.
func TestDecideBehindHistory(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	const session = "s-long"
	round := func() time.Duration {
		var took []time.Duration
		for range 40 {
			began := time.Now()
			x := handOut(t, m, session, time.Minute, nil)
			if r := x.report(t, m, ""); r.Status != 200 {
				t.Fatalf("%d %s", r.Status, r.Body)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	ended := handOut(t, m, session, time.Minute, nil)
	ended.report(t, m, "")
	explain := func() time.Duration {
		var took []time.Duration
		for range 20 {
			began := time.Now()
			if r, err := m.Do(t.Context(), "GET", "/api/v1/calls/"+ended.CallID+"/explanation", "", ""); err != nil || !strings.Contains(string(r.Body), `"layer":"p1"`) {
				t.Fatalf("%v %+v", err, r)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	key := map[string]string{"Idempotency-Key": "before the history"}
	old := handOut(t, m, session, time.Hour, key)
	round() // warm up
	empty := round()
	explain() // warm up
	emptyExplained := explain()

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1250 {
				if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", session, "{}"); err != nil || r.Status != 200 {
					t.Errorf("%v %+v", err, r)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, name := range m.Names() {
		m.Restart(name)
	}
	m.WaitReady()
	round() // warm up
	most := 2*empty + 5*time.Millisecond
	long := round()
	for range 10 { // other load on the machine slows some rounds, but a history would slow all of them
		if long <= most {
			break
		}
		long = round()
	}
	t.Logf("decide and report, median: %s on an empty ledger, %s behind 10,000 calls of the session", empty, long)
	if long > most {
		t.Errorf("decide and report took %s on an empty ledger and %s behind a history", empty, long)
	}
	explained := explain()
	for n := 0; explained > 2*emptyExplained+5*time.Millisecond && n < 10; n++ {
		explained = explain()
	}
	t.Logf("explanation of a call, median: %s on an empty ledger, %s behind 10,000 calls of the session", emptyExplained, explained)
	if explained > 2*emptyExplained+5*time.Millisecond {
		t.Errorf("an explanation took %s on an empty ledger and %s behind a history", emptyExplained, explained)
	}
	if again := handOut(t, m, session, time.Hour, key); again.IntentID != old.IntentID || !again.Before {
		t.Errorf("the same key gave %+v, first %+v", again, old)
	}
	if r := old.report(t, m, ""); r.Status != 200 || !strings.Contains(string(r.Body), `"status":"succeeded"`) {
		t.Errorf("the old intent's report: %d %s", r.Status, r.Body)
	}
	if r := old.report(t, m, ""); r.Status != 200 || !strings.Contains(string(r.Body), `"repeated":true`) {
		t.Errorf("reported again: %d %s", r.Status, r.Body)
	}
	proves(t, m)
}
