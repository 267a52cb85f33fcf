package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestHostileRequests sends up to 10,000 random requests. Each must result in an outcome
// or a typed error, whose status is 503 or 504 if it is 500 or above. Afterwards the
// mesh must serve calls, and the ledger must verify.
func TestHostileRequests(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	kinds := []string{"tool.noop", "tool.nоop", "tool.noop\u200b", "TOOL.NOOP", "tool.*", "tool.", ".", "policy.freeze ", "policy.vote", "policy.activate", "llm.chat", "vault.put", "judge.score",
		"lab.run", "tool." + strings.Repeat("x", 200), "tool.a/b", "tool.a.>", "evt.default.policy.-.allowed_policy.x", "", "\x00", "\xff\xfe"}
	bodies := []string{`{}`, `{"n":1}`, `{"n":1,"n":2}`, `{"n":` + strings.Repeat("9", 400) + `}`, `{"n":1e999}`, strings.Repeat(`{"a":`, 3000) + `1` + strings.Repeat(`}`, 3000), `[1]`, `null`, `{"a":"\ud800"}`, "{\"a\":\"\xff\"}", `{"a`, ``,
		`{"reason":"x","call_id":"c-1","vote":"grant","kid":"k-0","sig":"AAAA"}`, `{"layer":"p0","document":"{}"}`, `{"_trust":"TRUSTED","labels":[]}`, strings.Repeat("[", 100000)}
	headers := []string{"X-Binnacle-Session", "X-Binnacle-Timeout", "X-Binnacle-On-Behalf-Of", "X-Binnacle-Delegation", "Idempotency-Key", "Traceparent", "Prefer"}
	values := []string{"", "s-1", "s-x.y", "s-" + strings.Repeat("y", 200), "-1", "1", "alice", "g-1", "respond-async", "00-zz", "s-*", "s->"}
	var sent, broken atomic.Int64
	var wg sync.WaitGroup
	for w := range 32 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 7))
			for n := sent.Add(1); n <= 10_000; n = sent.Add(1) {
				path, body := "/api/v1/calls", bodies[r.IntN(len(bodies))]
				switch r.IntN(4) {
				case 0:
					path = "/api/v1/packs/noop"
				case 1:
					path = "/v1/chat/completions"
				default:
					body = fmt.Sprintf(`{"kind":%q,"args":%s}`, kinds[r.IntN(len(kinds))], body)
				}
				h := map[string]string{"X-Binnacle-Timeout": "20"}
				for range r.IntN(3) {
					h[headers[r.IntN(len(headers))]] = values[r.IntN(len(values))]
				}
				resp, err := m.DoHeader(t.Context(), "POST", path, body, h)
				if err != nil {
					if strings.Contains(err.Error(), "invalid header") {
						continue
					}
					t.Error(err)
					return
				}
				if resp.Status >= 500 && resp.Status != 503 && resp.Status != 504 || resp.Status >= 400 && !strings.Contains(string(resp.Body), `"code"`) {
					if broken.Add(1) < 10 {
						t.Errorf("%d for %s %.100s %v: %.300s", resp.Status, path, body, h, resp.Body)
					}
				}
			}
		})
	}
	wg.Wait()
	if broken.Load() > 0 {
		t.Fatalf("%d answers without a typed error", broken.Load())
	}
	m.WaitReady()
	if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-well", `{}`); err != nil || r.Status != 200 {
		t.Fatal(err, r)
	}
	proves(t, m)
}

// TestForgedIntents publishes, with the stolen identities of policy and of a gateway,
// repeated and forged intents and a proposal for another tenant. It checks that no call
// starts twice, that no forged call starts, that the call of the other tenant is denied,
// and that verification of the ledger fails.
func TestForgedIntents(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	for i := range 2 {
		if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-forge", fmt.Sprintf(`{"n":%d}`, i)); err != nil || r.Status != 200 {
			t.Fatal(err, r)
		}
	}
	var proposal *contract.Event
	var allowed []*contract.Event
	for _, e := range ledger(t, m) {
		switch {
		case e.Name == "call_proposed" && e.Session == harness.SessionID("admin", "s-forge"):
			proposal = e
		case e.Name == "allowed" && e.Session == harness.SessionID("admin", "s-forge"):
			allowed = append(allowed, e)
		}
	}
	put := func(c *bus.Conn, e *contract.Event) {
		t.Helper()
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := c.JS.PublishMsg(ctx, &nats.Msg{Subject: e.Subject(), Data: b}); err != nil {
			t.Fatal(err)
		}
	}
	policy, gateway := m.Connect(t, "policy"), m.Connect(t, "gateway")

	// Publish the same intent again, without a message id.
	put(policy, allowed[0])
	// Publish the intent in another tenant, and in another session.
	other := *allowed[0]
	other.ID, other.Tenant = "d-tenant", "other"
	put(policy, &other)
	other = *allowed[0]
	other.ID, other.Session, other.Key = "d-session", "s-else", "s-else"
	put(policy, &other)
	// Publish a decision for a call that was never proposed, with the signature of
	// another decision.
	var a, b contract.Allowed
	if err := contract.Decode(allowed[0].Data, &a); err != nil {
		t.Fatal(err)
	}
	if err := contract.Decode(allowed[1].Data, &b); err != nil {
		t.Fatal(err)
	}
	a.Decision.Sig = b.Decision.Sig
	a.Call.ID, a.Decision.CallID, a.Decision.Intent.CallID = "c-FORGED", "c-FORGED", "c-FORGED"
	other = *allowed[0]
	other.ID, other.CallID, other.Data = "d-c-FORGED", "c-FORGED", contract.Bytes(&a)
	put(policy, &other)
	// Publish a proposal for a tenant that is not the mesh's.
	foreign := *proposal
	var c contract.Call
	if err := contract.Decode(proposal.Data, &c); err != nil {
		t.Fatal(err)
	}
	c.ID = "c-FOREIGN"
	foreign.ID, foreign.CallID, foreign.Tenant, foreign.Data = "p-c-FOREIGN", "c-FOREIGN", "other", contract.Bytes(&c)
	foreign.Time, c.Deadline = contract.Time(time.Now()), contract.Time(time.Now().Add(time.Minute))
	foreign.Data = contract.Bytes(&c)
	put(gateway, &foreign)

	time.Sleep(4 * time.Second) // time for the eight deliveries of an event that does not verify
	starts := map[string]int{}
	denied := false
	for _, e := range ledger(t, m) {
		if e.Name == "effect_started" {
			starts[e.CallID]++
			if e.Tenant != "default" || e.Session == "s-else" || e.CallID == "c-FORGED" || e.CallID == "c-FOREIGN" {
				t.Errorf("started: %+v", e)
			}
		}
		denied = denied || e.Name == "effect_recorded" && e.CallID == "c-FOREIGN" && e.Tenant == "other" && strings.Contains(string(e.Data), contract.ReasonTenantIsolation)
	}
	for call, n := range starts {
		if n != 1 {
			t.Errorf("call %s started %d times", call, n)
		}
	}
	if !denied {
		t.Error("the foreign tenant's call has no denial")
	}
	m.WaitReady()
	if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-forge", `{"n":9}`); err != nil || r.Status != 200 {
		t.Fatal(err, r)
	}
	// Verification of the ledger fails, and the error contains the id of a decision.
	out := filepath.Join(t.TempDir(), "ledger.jsonl")
	cli(t, m, "export", "--ledger", "--out", out)
	if s, err := m.CLI("verify", out); err == nil || !strings.Contains(err.Error(), "d-") {
		t.Errorf("a ledger with forged intents verifies: %s %v", s, err)
	}
}

// TestIdempotency shows that a retry with the same idempotency key does not execute the
// call again, even if both requests are concurrent, and that other arguments with the same
// key are rejected. A retry of a denied call is decided again.
func TestIdempotency(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	do := func(key, body string) *harness.Response {
		r, err := m.DoHeader(t.Context(), "POST", "/api/v1/packs/noop", body, map[string]string{"Idempotency-Key": key, "X-Binnacle-Session": "s-idem"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var ids sync.Map
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			r := do("once", `{"n":1}`)
			if r.Status != 200 {
				t.Errorf("%d %s", r.Status, r.Body)
			}
			ids.Store(r.Header.Get("X-Binnacle-Call-Id"), true)
		})
	}
	wg.Wait()
	do("once", `{"n":1}`)
	n := 0
	ids.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d calls", n)
	}
	if r := do("once", `{"n":2}`); r.Status != 409 || !strings.Contains(string(r.Body), "idempotency_conflict") {
		t.Errorf("%d %s", r.Status, r.Body)
	}
	if r := do("twice", `{"n":1}`); r.Status != 200 || r.Header.Get("X-Binnacle-Call-Id") == "" {
		t.Errorf("%d %s", r.Status, r.Body)
	}
	// A denied call was not started, so a retry of it is decided again.
	o := write(t, "o.json", `{"id":"idem","scope":"session","subject":"s-idem","rules":[{"kinds":["tool.*"],"verdict":"DENY","reason_code":"DENY_NOW"}]}`)
	cli(t, m, "policy", "activate", o)
	if r := do("later", `{"n":1}`); r.Status != 403 {
		t.Errorf("%d %s", r.Status, r.Body)
	}
	cli(t, m, "policy", "retire", "p2", "idem")
	for range 2 {
		if r := do("later", `{"n":1}`); r.Status != 200 {
			t.Errorf("%d %s", r.Status, r.Body)
		}
	}
	// A kind with characters that encoding/json escapes for HTML is rejected, and a
	// retry with the same idempotency key has the same result.
	for range 2 {
		r, err := m.DoHeader(t.Context(), "POST", "/api/v1/calls", `{"kind":"tool.a.>&<","args":{}}`, map[string]string{"Idempotency-Key": "signs"})
		if err != nil || r.Status != 400 || !strings.Contains(string(r.Body), "ENVELOPE_INVALID") {
			t.Errorf("%v %s", err, r.Body)
		}
	}
	starts := 0
	for _, e := range ledger(t, m) {
		if e.Name == "effect_started" && e.Session == harness.SessionID("admin", "s-idem") {
			starts++
		}
	}
	if starts != 3 {
		t.Errorf("%d effects for three keys", starts)
	}
	proves(t, m)
}
