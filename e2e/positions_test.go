package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/history"
)

// TestLostPositions shows that no work is lost when the server loses the positions of
// all consumers, three times under load: every call has one outcome, a claimed intent
// can be reported, a call that waits for approval is allowed by a vote, and the ledger
// verifies.
func TestLostPositions(t *testing.T) {
	c := &crash{t: t, m: harness.Processes(t, harness.Options{Noop: true}), from: 1, acked: map[string]string{}}
	m := c.m
	if r, err := m.Do(t.Context(), "POST", "/api/v1/secrets", "", `{"name":"demo-api-key","value":"crash-test-secret"}`); err != nil || r.Status != 200 {
		t.Fatal(err, r)
	}
	lent := handOut(t, m, "s-lent", time.Hour, nil)
	cli(t, m, "roles", "grant", "ann", "approver")
	cli(t, m, "principals", "register", "ann", "person")
	cli(t, m, "policy", "activate", write(t, "ask.json", `{"id":"ask","scope":"agent","subject":"admin","rules":[{"kinds":["tool.cmd.spin"],"verdict":"ESCALATE","reason_code":"APPROVAL_REQUIRED"}]}`))
	r, err := m.DoHeader(context.Background(), "POST", "/api/v1/decide", `{"kind":"tool.cmd.spin","tool":"cmd.spin","args":{"how":"nap"},"report_within_ms":60000}`, map[string]string{"Prefer": "respond-async"})
	var waiting intent
	if err != nil || r.Status != 202 || json.Unmarshal(r.Body, &waiting) != nil {
		t.Fatalf("%v %d %s", err, r.Status, r.Body)
	}
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for w := range 16 {
		callers.Go(func() { c.caller(ctx, w) })
	}
	for range 3 {
		time.Sleep(2 * time.Second)
		eventually(t, "the server stores consumers", time.Minute, func() bool { return len(m.Positions()) > 0 })
		m.Kill("nats")
		m.LosePositions()
		m.Restart("nats")
	}
	time.Sleep(3 * time.Second)
	stop()
	callers.Wait()
	m.WaitReady()
	if r := lent.report(t, m, ""); r.Status != 200 {
		t.Errorf("the claimed intent cannot be reported: %d %s", r.Status, r.Body)
	}
	if out, err := m.As(m.TokenFor("ann", "approvals:vote")).CLI("approvals", "grant", waiting.CallID, "--reason", "seen"); err != nil {
		t.Fatal(out, err)
	}
	eventually(t, "the approved call is handed out", 10*time.Second, func() bool {
		r, err := m.DoHeader(context.Background(), "POST", "/api/v1/decide", `{"call_id":"`+waiting.CallID+`"}`, map[string]string{"Prefer": "respond-async"})
		return err == nil && r.Status == 200 && json.Unmarshal(r.Body, &waiting) == nil && waiting.IntentID != ""
	})
	if r := waiting.report(t, m, ""); r.Status != 200 {
		t.Errorf("the approved intent cannot be reported: %d %s", r.Status, r.Body)
	}
	c.settle()
	c.check()
	if n := strings.Count(m.Log(), "positions of work consumers are lost"); n < 3 {
		t.Errorf("positions were restored %d times, want 3", n)
	}
}

// TestLostPositionsBehindHistory shows that a mesh whose server has lost all positions
// starts within 30 s on a ledger of 10,000 calls, and that after one more call the
// ledger has grown by at most 50 events. It would grow more if completed work were
// delivered again.
func TestLostPositionsBehindHistory(t *testing.T) {
	o := harness.Options{Noop: true, Dir: t.TempDir(), Within: 30 * time.Second}
	m := harness.One(t, o)
	if out, err := m.CLI("call", "noop", `{"n":1}`, "--session", "s-pattern"); err != nil {
		t.Fatal(out, err)
	}
	m.StopAll()
	if _, err := history.Write(t.Context(), o.Dir, history.Shape{Events: 40_000, Sessions: 10}); err != nil {
		t.Fatal(err)
	}
	length := func(m *harness.Mesh) int {
		out := filepath.Join(t.TempDir(), "ledger.jsonl")
		cli(t, m, "export", "--ledger", "--out", out)
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(b, []byte("\n"))
	}
	m = harness.One(t, o)
	before := length(m)
	m.StopAll()
	m.LosePositions()
	m = harness.One(t, o)
	if out, err := m.CLI("call", "noop", `{"n":1}`, "--session", history.SessionName(3)); err != nil {
		t.Fatal(out, err)
	}
	time.Sleep(time.Second)
	if after := length(m); after > before+50 {
		t.Errorf("%d lines of the ledger's export before the positions were lost, %d after one more call", before, after)
	}
	proves(t, m)
}
