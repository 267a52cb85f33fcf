package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/history"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// crashHistory is the number of events on the ledger when a crash test begins.
var crashHistory = flag.Int("history", 300_000, "number of events on the ledger when a crash test begins")

// behind returns the options of a mesh with a history of crashHistory events in 1,000
// sessions. start starts the mesh on which the history is based.
func behind(t *testing.T, start func(testing.TB, harness.Options) *harness.Mesh) harness.Options {
	o := harness.Options{Noop: true, Dir: t.TempDir(), Within: 3 * time.Minute}
	m := start(t, o)
	if out, err := m.CLI("call", "noop", `{"n":1}`, "--session", "s-pattern"); err != nil {
		t.Fatal(out, err)
	}
	m.StopAll()
	began := time.Now()
	if _, err := history.Write(t.Context(), o.Dir, history.Shape{Events: *crashHistory, Sessions: 1000}); err != nil {
		t.Fatal(err)
	}
	t.Logf("wrote %d events in %v", *crashHistory, time.Since(began).Round(time.Second))
	return o
}

// crashOn starts a mesh with a history of crashHistory events for a crash test.
func crashOn(t *testing.T, start func(testing.TB, harness.Options) *harness.Mesh) *crash {
	c := &crash{t: t, m: start(t, behind(t, start)), acked: map[string]string{}}
	l := c.ledger()
	defer l.Conn.Close()
	last, err := l.Last(t.Context(), "evt.>")
	if err != nil {
		t.Fatal(err)
	}
	c.from = last.Seq + 1
	return c
}

// crash is the state of one crash test: the mesh, and the responses that callers have
// received.
type crash struct {
	t    *testing.T
	m    *harness.Mesh
	from uint64 // sequence of the first entry of the ledger after the history

	mu     sync.Mutex
	acked  map[string]string // status that the caller received, by call id; empty if it received the outcome as an error
	sent   int
	unsure int // number of calls whose caller did not receive an outcome
}

// TestCrash kills every service and NATS at random moments under load, and then some of
// them at steps of single calls, on a ledger with a long history. It checks that
// afterwards no acknowledged call is missing, every call has exactly one outcome, and
// the ledger verifies.
func TestCrash(t *testing.T) {
	c := crashOn(t, harness.Processes)
	// A pack that uses a secret makes vault-broker part of its calls.
	if r, err := c.m.Do(t.Context(), "POST", "/api/v1/secrets", "", `{"name":"demo-api-key","value":"crash-test-secret"}`); err != nil || r.Status != 200 {
		t.Fatal(err, r)
	}
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for w := range 32 {
		callers.Go(func() { c.caller(ctx, w) })
	}
	victims := append([]string{"nats"}, harness.Services...)
	for round := range 2 {
		for _, v := range victims {
			time.Sleep(time.Duration(300+rand.IntN(700)) * time.Millisecond)
			c.m.Kill(v)
			time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
			c.m.Restart(v)
			if v == "gateway" || v == "nats" || round == 0 {
				time.Sleep(1500 * time.Millisecond)
			}
		}
	}
	time.Sleep(3 * time.Second)
	stop()
	callers.Wait()
	c.m.WaitReady()
	c.steps()
	c.settle()
	c.check()
}

// caller makes calls of several kinds until ctx is done, with pauses that leave some time of
// two processors for what starts again.
func (c *crash) caller(ctx context.Context, w int) {
	session := fmt.Sprintf("s-crash-%d", w%16)
	for n := 0; ctx.Err() == nil; n++ {
		path, body := "/api/v1/packs/noop", fmt.Sprintf(`{"w":%d,"n":%d}`, w, n)
		switch n % 8 {
		case 3:
			path, body = "/v1/chat/completions", `{"model":"demo/echo","messages":[{"role":"user","content":"hold fast"}]}`
		case 5:
			path = "/api/v1/packs/no-such-pack"
		case 7:
			if w < 4 {
				path, body = "/api/v1/packs/cmd.secretlen", "{}"
			}
		}
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), 100*time.Second)
		if c.one(try, path, session, body) == 503 {
			time.Sleep(100 * time.Millisecond) // shorter than Retry-After, which is at least a second
		}
		cancel()
		time.Sleep(30 * time.Millisecond)
	}
}

func (c *crash) one(ctx context.Context, path, session, body string) (status int) {
	r, err := c.m.Do(ctx, "POST", path, session, body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	if err != nil || r.Status == 0 {
		c.unsure++
		time.Sleep(20 * time.Millisecond)
		return 0
	}
	id := r.Header.Get("X-Binnacle-Call-Id")
	switch {
	case r.Status == 200:
		c.acked[id] = contract.Succeeded
	case r.Status == 403:
		c.acked[id] = contract.Denied
	default:
		var doc struct {
			Error struct {
				CallID    string `json:"call_id"`
				ReceiptID string `json:"receipt_id"`
				Code      string `json:"code"`
			} `json:"error"`
		}
		_ = json.Unmarshal(r.Body, &doc)
		if doc.Error.ReceiptID != "" && doc.Error.Code != "outcome_pending" {
			c.acked[doc.Error.CallID] = "" // the caller received an outcome
		} else {
			c.unsure++
		}
	}
	return r.Status
}

// steps kills a process at each of several steps of a call: it makes the call, waits for
// the event that precedes the step, kills the process and restarts it. If freeze is set,
// the process is stopped by SIGSTOP before the call is made, so that it cannot execute
// the step before it is killed.
func (c *crash) steps() {
	type step struct {
		name, victim, path, body string
		event                    string // event to wait for before the kill
		freeze                   bool   // stop the victim with SIGSTOP before the call is made
	}
	for _, s := range []step{
		{"proposed, policy dies before deciding", "policy", "/api/v1/packs/noop", "{}", "call_proposed", true},
		{"allowed, executor dies before starting", "session-runner", "/api/v1/packs/noop", "{}", "allowed", true},
		{"started, executor dies in the effect", "session-runner", "/api/v1/packs/cmd.spin", `{"how":"nap"}`, "effect_started", false},
		{"secret requested, broker dies before releasing", "vault-broker", "/api/v1/packs/cmd.secretlen", "{}", "secret_requested", true},
		{"allowed, llm-router dies before starting", "llm-router", "/v1/chat/completions", `{"model":"demo/echo","messages":[{"role":"user","content":"x"}]}`, "allowed", true},
		{"recorded, gateway dies before answering", "gateway", "/api/v1/packs/cmd.spin", `{"how":"nap"}`, "effect_started", false},
		{"started, NATS dies in the effect", "nats", "/api/v1/packs/cmd.spin", `{"how":"nap"}`, "effect_started", false},
		{"recorded, audit dies before indexing", "audit", "/api/v1/packs/noop", "{}", "effect_recorded", true},
	} {
		session := "s-step-" + fmt.Sprint(rand.Uint32())
		if s.freeze {
			c.m.Signal(s.victim, syscall.SIGSTOP)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
			defer cancel()
			c.one(ctx, s.path, session, s.body)
		}()
		c.await(session, s.event)
		c.m.Kill(s.victim)
		time.Sleep(200 * time.Millisecond)
		c.m.Restart(s.victim)
		<-done
		c.m.WaitReady()
		c.t.Log("step done:", s.name)
	}
}

// ledger returns the event log, read as the provisioning identity, which can read every
// stream.
func (c *crash) ledger() eventlog.JetStream {
	return eventlog.JetStream{Conn: c.m.Connect(c.t, "provision")}
}

// await waits until the session with this name has an event with the given name on the
// ledger. It fails the test after a minute.
func (c *crash) await(session, event string) {
	l := c.ledger()
	defer l.Conn.Close()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		for en, err := range l.Scan(c.t.Context(), "evt.*.*.*.*."+harness.SessionID("admin", session), c.from) {
			if err != nil {
				break
			}
			if e, err := eventlog.Open(en, eventlog.Every); err == nil && e.Name == event {
				return
			}
		}
	}
	c.t.Fatalf("no %s in session %s", event, session)
}

// settle waits until every proposed call has an outcome, for at most 100 seconds; policy
// expires the calls that have not started.
func (c *crash) settle() {
	l := c.ledger()
	defer l.Conn.Close()
	for end := time.Now().Add(100 * time.Second); ; time.Sleep(time.Second) {
		proposed, recorded := c.count(l)
		if len(proposed) == len(recorded) {
			return
		}
		if time.Now().After(end) {
			for id := range proposed {
				if recorded[id] == 0 {
					c.t.Errorf("call %s has no outcome", id)
				}
			}
			return
		}
	}
}

func (c *crash) count(l eventlog.Log) (proposed map[string]bool, recorded map[string]int) {
	proposed, recorded = map[string]bool{}, map[string]int{}
	for en, err := range l.Scan(c.t.Context(), "evt.>", c.from) {
		if err != nil {
			c.t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			c.t.Fatalf("ledger entry %d: %v", en.Seq, err)
		}
		switch e.Name {
		case "call_proposed":
			proposed[e.CallID] = true
		case "effect_recorded":
			recorded[e.CallID]++
		}
	}
	return proposed, recorded
}

// check compares the responses that callers received with the ledger, verifies an export
// of the ledger, runs replay, and checks that enough calls were acknowledged.
func (c *crash) check() {
	l := c.ledger()
	defer l.Conn.Close()
	status := map[string]string{}
	outcomes := map[string]int{}
	var twice atomic.Int32
	for en, err := range l.Scan(c.t.Context(), "evt.*.*.*.effect_recorded.>", c.from) {
		if err != nil {
			c.t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			c.t.Fatal(err)
		}
		var r contract.Recorded
		if err := contract.Decode(e.Data, &r); err != nil {
			c.t.Fatal(err)
		}
		if status[e.CallID] != "" {
			twice.Add(1)
			c.t.Errorf("call %s has two outcomes", e.CallID)
		}
		status[e.CallID] = r.Effect.Status
		outcomes[r.Effect.Status]++
	}
	missing, differ := 0, 0
	for id, got := range c.acked {
		switch {
		case status[id] == "":
			missing++
			c.t.Errorf("call %s was acknowledged and is not on the ledger", id)
		case got != "" && got != status[id]:
			differ++
			c.t.Errorf("call %s: the caller received %s, the ledger holds %s", id, got, status[id])
		}
	}
	c.m.WaitReady()
	file := filepath.Join(c.t.TempDir(), "ledger.jsonl")
	if _, err := c.m.CLI("export", "--ledger", "--out", file); err != nil {
		c.t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		c.t.Fatal(err)
	}
	root, err := os.ReadFile(filepath.Join(c.m.Dir, "root.kid"))
	if err != nil {
		c.t.Fatal(err)
	}
	rep, err := evidence.VerifyLedger(b, string(root[:len(root)-1]))
	if err != nil {
		c.t.Fatalf("the ledger does not verify: %v", err)
	}
	if out, err := c.m.CLI("replay"); err != nil {
		c.t.Errorf("replay: %v\n%s", err, out)
	}
	fmt.Printf("crash test: %d calls sent, %d acknowledged, %d without an answer; outcomes %v; acknowledged and missing %d, with another status %d, two outcomes %d; ledger of %d events verified, %d receipts, %d open\n",
		c.sent, len(c.acked), c.unsure, outcomes, missing, differ, twice.Load(), rep.TreeSize, rep.Receipts, rep.Open)
	// On an idle machine, the mesh acknowledges several thousand calls. On a machine that also
	// runs other tests, restarts are slow, so that the NATS server is down for much of the
	// time.
	const least = 30
	if len(c.acked) < least {
		c.t.Errorf("only %d calls were acknowledged; the load was no load", len(c.acked))
	}
}
