package decide_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/handout"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

const (
	path    = "/api/v1/decide"
	request = `{"kind":"tool.a","args":{"text":"x"},"report_within_ms":60000}`
)

// lender is a decide.Lender that claims and closes calls on a mesh's ledger, without
// signatures.
type lender struct {
	m        *edgetest.Mesh
	err      error // error of HandOut; nil: HandOut claims the call
	withheld error
	late     bool
	claimed  map[string]bool
	closed   map[string]bool
	last     *handout.Report // the last one that Close received
}

func (l *lender) HandOut(_ context.Context, e *contract.Event, _ *contract.Allowed) error {
	if l.err != nil {
		return l.err
	}
	if l.claimed[e.CallID] {
		return handout.ErrClaimed
	}
	l.claimed[e.CallID] = true
	l.m.Record("gateway", contract.EventEffectStarted, e.Session, []byte("{}"), e)
	return nil
}

func (l *lender) Withholds() error { return l.withheld }

func (l *lender) Close(_ context.Context, started *contract.Event, a *contract.Allowed, r *handout.Report) (contract.Effect, bool, error) {
	eff := contract.Effect{CallID: a.Call.ID, AttestedBy: contract.Caller, Status: r.Status, ErrorCode: r.ErrorCode, ErrorMessage: r.ErrorMessage, Usage: r.Usage}
	l.last = r
	if l.closed[a.Call.ID] {
		return eff, false, outcome.ErrSuperseded
	}
	l.closed[a.Call.ID] = true
	rec := contract.Recorded{Effect: eff, Output: r.Output}
	if l.late {
		rec.Effect.AttestedBy, rec.Effect.Status, rec.Output = "", contract.Unknown, nil
	}
	rec.Receipt.ID, rec.Receipt.CallID = contract.IDReceipt+a.Call.ID, a.Call.ID
	l.m.Record("gateway", contract.EventEffectRecorded, started.Session, contract.Bytes(&rec), started)
	return eff, l.late, nil
}

func newMesh(t *testing.T) (*edgetest.Mesh, *lender) {
	l := &lender{claimed: map[string]bool{}, closed: map[string]bool{}}
	l.m = edgetest.NewWith(t, gateway.Config{}, l, "tool.a")
	l.m.Execute = func(c *edgetest.Call) { c.Allow() }
	return l.m, l
}

// TestDecide checks the response, its time, and whether the call is claimed, for each
// decision on a call that its caller executes and for errors of the claim. Without a
// signing key the request is rejected.
func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		execute func(c *edgetest.Call)
		handOut error
		status  int
		code    string
		took    time.Duration
	}{
		"allowed":              {func(c *edgetest.Call) { c.Allow() }, nil, 200, "", 0},
		"denied":               {func(c *edgetest.Call) { c.Deny(contract.ReasonPolicyViolation) }, nil, 403, "denied", 0},
		"waits for people":     {func(c *edgetest.Call) { c.Escalate() }, nil, http.StatusAccepted, "", 95 * time.Second},
		"approved in time":     {func(c *edgetest.Call) { c.Escalate(); go func() { time.Sleep(time.Second); c.Allow() }() }, nil, 200, "", time.Second},
		"no decision":          {func(*edgetest.Call) {}, nil, http.StatusGatewayTimeout, "outcome_pending", 95 * time.Second},
		"frozen":               {func(c *edgetest.Call) { c.Allow() }, handout.ErrFrozen, 503, "system_frozen", 0},
		"expired":              {func(c *edgetest.Call) { c.Allow() }, guard.ErrExpired, 503, "intent_expired", 0},
		"could not be claimed": {func(c *edgetest.Call) { c.Allow() }, fmt.Errorf("no quorum"), 503, "unavailable", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, l := newMesh(t)
				m.Execute, l.err = c.execute, c.handOut
				began := time.Now()
				r := m.Do("POST", path, m.Token("alice", token.Decide), request)
				if r.Code != c.status || r.Error() != c.code || time.Since(began) != c.took {
					t.Fatalf("%d %s after %s: %s", r.Code, r.Error(), time.Since(began), r.Body)
				}
				call := r.Header().Get("X-Binnacle-Call-Id")
				if c.status == 200 && (r.Doc["intent_id"] != contract.IDIntent+call || r.Doc["handed_out_before"] != false || r.Doc["report"] != "/api/v1/intents/"+contract.IDIntent+call+"/outcome") {
					t.Error(r.Body)
				}
				if c.status == 200 != l.claimed[call] {
					t.Error("claimed:", l.claimed[call])
				}
			})
		})
	}
	m := edgetest.New(t, gateway.Config{}, "tool.a")
	if r := m.Do("POST", path, m.Token("alice", token.Decide), request); r.Error() != "signing_key_missing" {
		t.Error("without a signing key:", r.Body)
	}
}

// TestTakeUp checks that the intent of a call that is approved later can be requested by
// the call's id, but only by the caller that proposed the call. A repeated hand-out is
// marked as such. No hand-out takes place while the mesh is frozen, or after the
// outcome.
func TestTakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, l := newMesh(t)
		var c *edgetest.Call
		m.Execute = func(x *edgetest.Call) { c = x; x.Escalate() }
		alice := m.Token("alice", token.Decide)
		r := m.Do("POST", path, alice, request, "Prefer: respond-async")
		if r.Code != http.StatusAccepted {
			t.Fatal(r.Body)
		}
		again := `{"call_id":"` + c.ID + `"}`
		if r := m.Do("POST", path, alice, again, "Prefer: respond-async"); r.Code != http.StatusAccepted {
			t.Error("before it is approved:", r.Code, r.Body)
		}
		if r := m.Do("POST", path, m.Token("bob", token.Decide), again); r.Code != http.StatusNotFound {
			t.Error("another's call:", r.Body)
		}
		c.Allow()
		if r := m.Do("POST", path, alice, again); r.Code != 200 || r.Doc["handed_out_before"] != false {
			t.Error("approved:", r.Body)
		}
		if r := m.Do("POST", path, alice, again); r.Code != 200 || r.Doc["handed_out_before"] != true {
			t.Error("a second time:", r.Body)
		}
		l.withheld = handout.ErrFrozen
		if r := m.Do("POST", path, alice, again); r.Error() != "system_frozen" {
			t.Error("frozen:", r.Body)
		}
		l.withheld = nil
		if r := m.Do("POST", "/api/v1/intents/"+contract.IDIntent+c.ID+"/outcome", alice, `{"args_digest":"`+c.Call.Args.Commitment+`","status":"succeeded"}`); r.Code != 200 {
			t.Error("its report:", r.Body)
		}
		if r := m.Do("POST", path, alice, again); r.Error() != "intent_used" {
			t.Error("after its outcome:", r.Body)
		}
	})
}

// TestSameKey checks that the same request under an Idempotency-Key is the same call,
// and that a different one under that key is rejected.
func TestSameKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := newMesh(t)
		alice := m.Token("alice", token.Decide)
		const key = "Idempotency-Key: k1"
		a, b := m.Do("POST", path, alice, request, key), m.Do("POST", path, alice, request, key)
		if a.Doc["intent_id"] != b.Doc["intent_id"] || a.Doc["handed_out_before"] != false || b.Doc["handed_out_before"] != true {
			t.Error(a.Body, b.Body)
		}
		if r := m.Do("POST", path, alice, strings.Replace(request, "60000", "70000", 1), key); r.Error() != "idempotency_conflict" {
			t.Error(r.Body)
		}
	})
}

// TestReport checks that an intent has one outcome: an equal report is a repetition of
// the first one, a different one is rejected, and a late one is recorded as a separate
// event. It also checks that a report is rejected if its path names no intent, or if it
// is of another caller, names other args, or has an output that does not match the
// tool's schema.
func TestReport(t *testing.T) {
	m, l := newMesh(t)
	alice := m.Token("alice", token.Decide)
	permit := func() (at, digest string) {
		r := m.Do("POST", path, alice, request)
		at, _ = r.Doc["report"].(string)
		digest, _ = r.Doc["args_digest"].(string)
		return at, digest
	}
	report := func(who, at, digest, rest string) *edgetest.Response {
		return m.Do("POST", at, who, `{"args_digest":"`+digest+`",`+rest+`}`)
	}
	const done = `"status":"succeeded","output":{"text":"y"},"usage":{"cents":3}`
	at, digest := permit()
	if r := report(alice, at, "sha256:other", done); r.Error() != "args_digest_mismatch" {
		t.Error("other args:", r.Body)
	}
	if r := report(alice, at, digest, `"status":"succeeded","output":{"text":7}`); r.Param() != "/output" {
		t.Error("an output that breaks the tool's schema:", r.Body)
	}
	if r := report(m.Token("bob", token.Decide), at, digest, done); r.Code != http.StatusNotFound {
		t.Error("another's intent:", r.Body)
	}
	if r := report(alice, "/api/v1/intents/c-1/outcome", digest, done); r.Code != http.StatusNotFound {
		t.Error("no intent's id:", r.Body)
	}
	if r := report(alice, at, digest, done); r.Code != 200 || r.Doc["status"] != contract.Succeeded || r.Doc["attested_by"] != contract.Caller || r.Doc["repeated"] != false {
		t.Error("the report:", r.Body)
	}
	if r := report(alice, at, digest, done); r.Code != 200 || r.Doc["repeated"] != true {
		t.Error("the same again:", r.Body)
	}
	for _, other := range []string{`"status":"failed","error_code":"x"`, `"status":"succeeded","output":{"text":"z"},"usage":{"cents":3}`, `"status":"succeeded","output":{"text":"y"}`, `"status":"succeeded","usage":{"cents":3}`} {
		if r := report(alice, at, digest, other); r.Error() != "outcome_conflict" {
			t.Error("another one:", other, r.Body)
		}
	}
	l.late = true
	at, digest = permit()
	for i, want := range []bool{false, true} {
		if r := report(alice, at, digest, done); r.Code != 200 || r.Doc["late"] != true || r.Doc["status"] != contract.Unknown || r.Doc["repeated"] != want {
			t.Error("late report", i, r.Body)
		}
	}
	if r := report(alice, at, digest, `"status":"failed","error_code":"x"`); r.Error() != "outcome_conflict" {
		t.Error("another late one:", r.Body)
	}
	var facts []string
	for en := range m.Ledger.Scan(t.Context(), "evt.*.gateway.*."+contract.EventOutcomeReported+".>", 1) {
		var e struct{ ID string }
		if err := json.Unmarshal(en.Data, &e); err != nil {
			t.Fatal(err)
		}
		facts = append(facts, e.ID)
	}
	if len(facts) != 1 || !strings.HasPrefix(facts[0], contract.IDOutcome) {
		t.Error("facts", facts)
	}
}

// contentKeys provides one content key.
type contentKeys struct{}

func (contentKeys) Current(context.Context, string, string) (string, []byte, error) {
	return "k1", make([]byte, 32), nil
}

func (contentKeys) Key(context.Context, string, string) ([]byte, error) { return make([]byte, 32), nil }

// TestReportCapture checks, for each capture mode, whether the stored output of a coding agent's
// tool has its text and is encrypted, and that the same report is accepted again in mode plain.
func TestReportCapture(t *testing.T) {
	const full, bare = `{"text":"SECRET"}`, `{}` // the output schema of the test's tools permits text alone
	for mode, want := range map[string]string{llm.CapturePlain: full, llm.CaptureEncrypted: full, llm.CaptureHashed: bare, llm.CaptureOff: bare} {
		l := &lender{claimed: map[string]bool{}, closed: map[string]bool{}}
		l.m = edgetest.NewWith(t, gateway.Config{}, l, clientkind.Shell)
		l.m.Execute = func(c *edgetest.Call) { c.Allow() }
		l.m.Blobs.Keys = contentKeys{}
		l.m.Service.Reload(&config.Config{Gateway: config.Gateway{Capture: mode}})
		alice := l.m.Token("alice", token.Decide)
		permit := l.m.Do("POST", path, alice, strings.Replace(request, "tool.a", clientkind.Shell, 1))
		at, _ := permit.Doc["report"].(string)
		report := fmt.Sprintf(`{"args_digest":%q,"status":"succeeded","output":%s}`, permit.Doc["args_digest"], full)
		if r := l.m.Do("POST", at, alice, report); r.Code != 200 || r.Doc["repeated"] != false {
			t.Fatal(mode, permit.Body, r.Body)
		}
		if got, err := l.m.Blobs.Open(t.Context(), l.last.Output); err != nil || string(got) != want || (l.last.Output.Encryption != nil) != (mode == llm.CaptureEncrypted) {
			t.Errorf("%s: %s %v, want %s", mode, got, err, want)
		}
		l.m.Service.Reload(&config.Config{Gateway: config.Gateway{Capture: llm.CapturePlain}})
		if r := l.m.Do("POST", at, alice, report); r.Code != 200 || r.Doc["repeated"] != true {
			t.Error(mode, "the same again:", r.Body)
		}
	}
}
