package calls_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// reporting makes the session-runner of m claim each call at once and report a tenth more of its
// progress for each second of the call; in the fourth second it does not respond. The call
// succeeds after the given time, or fails after its absolute value if it is negative.
func reporting(t *testing.T, m *edgetest.Mesh, after time.Duration) {
	var began time.Time
	m.Answers = map[string]any{edgetest.Executor + " call_progress": func(args json.RawMessage) (any, error) {
		s := int(time.Since(began) / time.Second)
		if s == 3 {
			return nil, errors.New("the instance does not respond")
		}
		return map[string]any{"percent": s * 10, "message": "step " + string(rune('0'+s)), "reported": s > 0}, nil
	}}
	m.Execute = func(c *edgetest.Call) {
		began = time.Now()
		m.Record(edgetest.Executor, contract.EventEffectStarted, c.Proposal.Session, []byte("{}"), c.Allow())
		go func() {
			if after < 0 {
				time.Sleep(-after)
				c.Fail(contract.Failed, contract.CodeHandlerFailed, "exit 7")
				return
			}
			time.Sleep(after)
			c.Succeed([]byte(`{"text":"hi"}`))
		}()
	}
}

// events returns the events of a response, each as its name and data.
func events(r *edgetest.Response) (out []string) {
	for e := range strings.SplitSeq(strings.TrimSuffix(r.Body.String(), "\n\n"), "\n\n") {
		out = append(out, strings.NewReplacer("event: ", "", "\ndata: ", " ").Replace(e))
	}
	return out
}

// TestProgressOfCall shows that a caller that accepts server-sent events receives the progress of
// a call, and its result or error as the last event; that a call which ends within a second, and
// every call of a caller that does not accept them, has an ordinary response; and that the
// progress is queried once a second.
func TestProgressOfCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.echo")
		alice, sse := m.Token("alice", token.Tools), "Accept: text/event-stream"
		reporting(t, m, 4500*time.Millisecond)
		m.Queried()
		r := m.Do("POST", path, alice, echo, sse)
		got := events(r)
		if r.Code != http.StatusOK || r.Header().Get("Content-Type") != "text/event-stream" || r.Header().Get("X-Binnacle-Call-Id") == "" || len(got) != 4 {
			t.Fatal(r.Code, r.Header(), got)
		}
		for i, want := range []string{`"progress":{"percent":10,"message":"step 1"}`, `"progress":{"percent":20,`, `"progress":{"percent":40,`, `"output":{"text":"hi"}`} {
			if name := map[bool]string{false: "state ", true: "result "}[i == 3]; !strings.HasPrefix(got[i], name) || !strings.Contains(got[i], want) {
				t.Errorf("event %d: %s", i, got[i])
			}
		}
		asked := strings.Join(m.Queried(), ";")
		if strings.Count(asked, "call_progress") != 4 {
			t.Error(asked)
		}
		if r := m.Do("POST", path, alice, echo); r.Code != http.StatusOK || r.Doc["output"] == nil || strings.Contains(strings.Join(m.Queried(), ";"), "call_progress") {
			t.Error("without server-sent events:", r.Code, r.Body)
		}
		reporting(t, m, -2500*time.Millisecond)
		if got := events(m.Do("POST", path, alice, echo, sse)); len(got) != 3 || !strings.HasPrefix(got[2], `error {"error":{`) || !strings.Contains(got[2], `"code":"handler_failed"`) {
			t.Error("a failed call:", got)
		}
		reporting(t, m, 500*time.Millisecond)
		if r := m.Do("POST", path, alice, echo, sse); r.Header().Get("Content-Type") != "application/json" || r.Doc["output"] == nil {
			t.Error("a short call:", r.Header(), r.Body)
		}
		reporting(t, m, -500*time.Millisecond)
		if r := m.Do("POST", path, alice, echo, sse); r.Code != http.StatusBadGateway || r.Error() != "handler_failed" {
			t.Error("a short call that fails:", r.Code, r.Body)
		}
	})
}

// TestQueuePosition shows that a caller that accepts server-sent events receives the position at
// which its call waits for a sandbox, again when the call no longer waits, and nothing while the
// instance that has the call does not respond; and that the state of the call has the position.
func TestQueuePosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.echo")
		alice := m.Token("alice", token.Tools)
		reporting(t, m, 5500*time.Millisecond)
		began := time.Now()
		m.Answers[edgetest.Executor+" call_progress"] = func(json.RawMessage) (any, error) {
			s := int(time.Since(began) / time.Second)
			if s == 2 {
				return nil, errors.New("the instance does not respond")
			}
			return map[string]any{"queued": map[bool]int{true: 3}[s < 4]}, nil
		}
		go func() {
			time.Sleep(1500 * time.Millisecond)
			for en := range m.Ledger.Log.Scan(t.Context(), bus.Filter{Event: contract.EventEffectStarted}.String(), 1) {
				if r := m.Do("GET", path+"/"+contract.PeekCallID(en.Data), alice, ""); r.Doc["queue_position"] != 3.0 || r.Doc["progress"] != nil {
					t.Error("the state:", r.Body)
				}
			}
		}()
		got := events(m.Do("POST", path, alice, echo, "Accept: text/event-stream"))
		if len(got) != 3 || !strings.Contains(got[0], `"queue_position":3`) || strings.Contains(got[1], "queue_position") || !strings.HasPrefix(got[2], "result ") {
			t.Error(got)
		}
	})
}

// TestProgressOfJob shows that the state of a running call has its progress, as a document and as
// a stream that ends with the outcome, for its caller only, that the stream has comments while
// nothing changes, and that it queries audit at its beginning only.
func TestProgressOfJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.echo")
		alice, bob, sse := m.Token("alice", token.Tools), m.Token("bob", token.Tools), "Accept: text/event-stream"
		reporting(t, m, 60*time.Second)
		id, _ := m.Do("POST", path, alice, echo, "Prefer: respond-async", sse).Doc["call_id"].(string)
		if p, _ := m.Do("GET", path+"/"+id, alice, "").Doc["progress"].(map[string]any); p["percent"] != 10.0 {
			t.Error("the state:", p)
		}
		if r := m.Do("GET", path+"/"+id, bob, "", sse); r.Code != http.StatusNotFound {
			t.Error("of another caller:", r.Code, r.Body)
		}
		if r := m.Do("GET", path+"/c-none", alice, "", sse); r.Code != http.StatusNotFound {
			t.Error("an unknown call:", r.Code, r.Body)
		}
		fixed := func(json.RawMessage) (any, error) { return map[string]any{"percent": 50, "reported": true}, nil }
		m.Answers[edgetest.Executor+" call_progress"] = fixed
		began := time.Now()
		m.Queried()
		got := events(m.Do("GET", path+"/"+id, alice, "", sse))
		if all := strings.Join(m.Queried(), ";"); strings.Count(all, "audit") != 2 || strings.Count(all, "call_progress") < 10 {
			t.Error("queries:", all)
		}
		if len(got) < 4 || !strings.Contains(got[0], `"percent":50`) || got[1] != ":" || !strings.Contains(got[len(got)-1], `"status":"succeeded"`) || time.Since(began) > time.Minute {
			t.Error(time.Since(began), got)
		}
		if got := events(m.Do("GET", path+"/"+id, alice, "", sse)); len(got) != 1 || !strings.Contains(got[0], `"output":{"text":"hi"}`) || strings.Contains(got[0], "progress") {
			t.Error("after the end:", got)
		}
	})
}

// TestStatesOfCall shows that a stream of the states of a call has an event for each change, also
// for those that the gateway's reader does not receive, and ends when the outcome is recorded.
func TestStatesOfCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.echo")
		alice := m.Token("alice", token.Tools)
		calls := make(chan *edgetest.Call, 1)
		m.Execute = func(c *edgetest.Call) { calls <- c }
		id, _ := m.Do("POST", path, alice, echo, "Prefer: respond-async").Doc["call_id"].(string)
		c := <-calls
		go func() {
			time.Sleep(2300 * time.Millisecond)
			c.Escalate()
			time.Sleep(2300 * time.Millisecond)
			allowed := c.Allow()
			time.Sleep(2300 * time.Millisecond)
			m.Record(edgetest.Executor, contract.EventEffectStarted, c.Proposal.Session, []byte("{}"), allowed)
			time.Sleep(2300 * time.Millisecond)
			c.Succeed([]byte(`{"text":"hi"}`))
		}()
		began := time.Now()
		got := events(m.Do("GET", path+"/"+id, alice, "", "Accept: text/event-stream"))
		if took := time.Since(began); took != 9200*time.Millisecond || len(got) != 5 {
			t.Fatal(took, got)
		}
		for i, status := range []string{"proposed", "pending_approval", "allowed", "running", "succeeded"} {
			if !strings.Contains(got[i], `"status":"`+status+`"`) {
				t.Errorf("event %d: %s, want the status %s", i, got[i], status)
			}
		}
	})
}
