package hook

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
)

const (
	pendingOne = `{"call_id":"c1"}`
	ofOther    = `{"call_id":"c9","intent_id":"i9","args_digest":"d9"}`
)

// TestGrantedLater checks that the next attempt of the model, whose tool call has another id, uses
// the call that waits for approval, once, and that an attempt with another input, session, subagent,
// tool, folder, principal, mesh or client does not use it.
func TestGrantedLater(t *testing.T) {
	r, g, work := newRunner(t, reply(202, pendingOne), reply(202, pendingOne))
	handle := func(id string, more map[string]any) Answer {
		t.Helper()
		doc := map[string]any{"tool_use_id": id}
		for k, v := range more {
			doc[k] = v
		}
		return r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, doc))
	}
	last := func() request { return g.requests[len(g.requests)-1] }
	for _, id := range []string{"u1", "u2"} {
		if a := handle(id, nil); !strings.Contains(a.Stdout, "waits for approval as c1") {
			t.Errorf("%s: %+v", id, a)
		}
	}
	if q := last(); len(g.requests) != 2 || len(q.body) != 1 || q.body["call_id"] != "c1" || q.header.Get("Idempotency-Key") != "" {
		t.Errorf("the second attempt: %+v", q)
	}
	sub := filepath.Join(work, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string]map[string]any{
		"input":    {"tool_input": map[string]any{"command": "ls -a"}},
		"session":  {"session_id": "s2"},
		"subagent": {"agent_id": "a2"},
		"tool":     {"tool_name": "Shell"},
		"folder":   {"cwd": sub},
	} {
		if a := handle("x-"+name, more); a != (Answer{}) || last().body["kind"] != "client.shell" {
			t.Errorf("another %s: %+v %v", name, a, last().body)
		}
	}
	for name, other := range map[string]*Runner{
		"principal": {Mesh: &Mesh{URL: r.Mesh.URL, Token: func() (string, error) { return "tok2", nil }, Client: r.Mesh.Client}, State: r.State, Home: r.Home},
		"mesh":      {Mesh: &Mesh{URL: "http://other.test", Token: r.Mesh.Token, Client: r.Mesh.Client}, State: r.State, Home: r.Home},
	} {
		if other.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, map[string]any{"tool_use_id": name})); last().body["kind"] != "client.shell" {
			t.Errorf("another %s: %v", name, last().body)
		}
	}
	if r.Handle(t.Context(), "codex", hookDocument(t, "PreToolUse", work, map[string]any{"tool_use_id": "x"})); last().body["kind"] != "client.shell" {
		t.Errorf("another client: %v", last().body)
	}
	if a := handle("u3", nil); a != (Answer{}) || last().body["call_id"] != "c1" || files(t, r, "waiting") != 0 {
		t.Errorf("granted: %+v %v", a, last().body)
	}
	if _, err := loadPermit(permitPath(r.State, "claude-code", &Event{Session: "s/1", CallID: "u3"})); err != nil {
		t.Error(err)
	}
	first := g.requests[0].header.Get("Idempotency-Key")
	for _, id := range []string{"u4", "u1"} { // u1 has proposed the call that u3 has used
		if a := handle(id, nil); a != (Answer{}) || last().body["kind"] != "client.shell" || last().header.Get("Idempotency-Key") == first {
			t.Errorf("%s: used twice: %+v %+v", id, a, last())
		}
	}
}

// TestTakeUp checks what the next attempt does after several responses about the call that waits for
// approval: it uses the call, leaves it waiting, is denied, or proposes another call.
func TestTakeUp(t *testing.T) {
	failed := func(status int, code string) func() (int, string, error) {
		return reply(status, `{"error":{"message":"m","code":"`+code+`"}}`)
	}
	for name, c := range map[string]struct {
		answer  func() (int, string, error)
		want    string // in the answer
		kept    int
		another bool // another call is proposed
	}{
		"granted":        {reply(200, allow), "", 0, false},
		"waits":          {reply(202, pendingOne), "waits for approval as c1", 1, false},
		"refused":        {refuse(403), "DENY_X", 0, false},
		"handed out":     {reply(200, `{"call_id":"c1","intent_id":"i1","args_digest":"d1","handed_out_before":true}`), "", 0, true},
		"used":           {failed(409, "intent_used"), "", 0, true},
		"unknown":        {failed(404, "not_found"), "", 0, true},
		"expired":        {failed(503, "intent_expired"), "", 0, true},
		"ended":          {failed(500, "outcome_unknown"), "", 0, true},
		"away":           {away, "there is no decision", 1, false},
		"no ledger":      {failed(503, "ledger_unavailable"), "there is no decision", 1, false},
		"unavailable":    {failed(503, "unavailable"), "there is no decision", 1, false},
		"undecided":      {failed(504, "outcome_pending"), "there is no decision", 1, false},
		"no token":       {failed(401, "x"), "rejected by the mesh", 1, false},
		"suspended":      {failed(403, "principal_suspended"), "rejected by the mesh", 1, false},
		"throttled":      {failed(429, "x"), "there is no decision", 1, false},
		"not a document": {reply(502, "<html>"), "there is no decision", 1, false},
	} {
		r, g, work := newRunner(t, reply(202, pendingOne), c.answer, reply(200, ofOther))
		r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil))
		a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, map[string]any{"tool_use_id": "u2"}))
		if c.want == "" && a != (Answer{}) || !strings.Contains(a.Stdout, c.want) {
			t.Errorf("%s: %+v", name, a)
		}
		if files(t, r, "waiting") != c.kept || (len(g.requests) == 3) != c.another {
			t.Errorf("%s: %d waiting, %q", name, files(t, r, "waiting"), g.paths())
		}
		if p, err := loadPermit(permitPath(r.State, "claude-code", &Event{Session: "s/1", CallID: "u2"})); c.want == "" && (err != nil || (p.IntentID == "i9") != c.another) {
			t.Errorf("%s: %+v %v", name, p, err)
		}
	}
}

// TestApprovalKept checks that an attempt whose permit or spent key cannot be
// stored is denied without a request, and that the next attempt uses the approval.
func TestApprovalKept(t *testing.T) {
	for _, folder := range []string{"permits", "spent"} {
		r, g, work := newRunner(t, reply(202, pendingOne), reply(200, allow))
		handle := func(id string) Answer {
			return r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, map[string]any{"tool_use_id": id}))
		}
		handle("u1")
		path := filepath.Join(r.State, folder)
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil { // no file can be written in it
			t.Fatal(err)
		}
		if a := handle("u2"); !strings.Contains(a.Stdout, `"deny"`) || len(g.requests) != 1 || files(t, r, "waiting") != 1 {
			t.Errorf("%s: %+v, %q, %d waiting", folder, a, g.paths(), files(t, r, "waiting"))
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if a := handle("u3"); a != (Answer{}) || len(g.requests) != 2 || g.requests[1].body["call_id"] != "c1" {
			t.Errorf("%s: %+v, %q", folder, a, g.paths())
		}
		if files(t, r, "permits") != 1 || files(t, r, "spent") != 1 || files(t, r, "waiting") != 0 {
			t.Errorf("%s: %d permits, %d spent, %d waiting", folder, files(t, r, "permits"), files(t, r, "spent"), files(t, r, "waiting"))
		}
	}
}

// TestReserved checks that a permit fits in the space that is reserved for it, and that no file
// remains if it is not stored.
func TestReserved(t *testing.T) {
	r, _, work := newRunner(t)
	file := filepath.Join(work, "f")
	if err := os.WriteFile(file, []byte(strings.Repeat("say \"x\"\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	act := r.place("claude-code", &Event{CWD: work}).Normalise("Write", []byte(`{"file_path":"f","content":"new"}`))
	digest := strings.Repeat("d", 71)
	doc, err := json.Marshal(&permit{IntentID: strings.Repeat("i", 64), ArgsDigest: digest, Input: digest, Files: filesBefore(act, true)})
	if size := permitSize(act, true); err != nil || len(act.Files) != 1 || len(doc) > size || len(doc) < 8000 {
		t.Errorf("%d bytes for %d files, reserved %d, %v", len(doc), len(act.Files), size, err)
	}
	for name, doc := range map[string]any{"dropped": nil, "not JSON": func() {}, "not renamed": "x"} {
		path := filepath.Join(r.State, "permits", "p.json")
		room, err := reserve(path, 10)
		if err != nil {
			t.Fatal(err)
		}
		if name == "not renamed" {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if doc != nil && room.save(doc) == nil {
			t.Errorf("%s: stored", name)
		}
		if err := errors.Join(room.drop(), os.RemoveAll(path)); err != nil || files(t, r, "permits") != 0 {
			t.Errorf("%s: %v, %d files", name, err, files(t, r, "permits"))
		}
	}
}

// TestTakeUpWaits checks that the next attempt waits for the approval as well, and that it proposes
// another call if a concurrent attempt uses the call meanwhile.
func TestTakeUpWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *Runner
		r, g, work := newRunner(t, reply(202, pendingOne), reply(202, pendingOne), func() (int, string, error) {
			if err := os.RemoveAll(filepath.Join(r.State, "waiting")); err != nil { // another attempt uses the call
				t.Error(err)
			}
			time.Sleep(20 * time.Second)
			return 200, allow, nil
		}, reply(200, ofOther))
		r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil))
		r.Wait = 40 * time.Second
		a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, map[string]any{"tool_use_id": "u2"}))
		p, err := loadPermit(permitPath(r.State, "claude-code", &Event{Session: "s/1", CallID: "u2"}))
		if a != (Answer{}) || err != nil || p.IntentID != "i9" || g.requests[2].header.Get("X-Binnacle-Timeout") != "40" {
			t.Errorf("%+v %+v %v", a, p, err)
		}
	})
}

// TestWithoutID checks that a client that gives tool calls no ids can call a tool with the same
// input again: after the first call has ended, after it was denied, and if its outcome is not
// reported yet; and that a repetition of a hook has the same call.
func TestWithoutID(t *testing.T) {
	used := reply(409, `{"error":{"message":"m","code":"intent_used"}}`)
	repeated := reply(200, `{"call_id":"c1","intent_id":"i1","args_digest":"d1","handed_out_before":true}`)
	for name, c := range map[string]struct {
		client, between string
		answers         []func() (int, string, error)
		proposals       int
		same            bool // the last proposal has the key of the first one
		allowed         bool
	}{
		"ended":         {"gemini-cli", "AfterTool", []func() (int, string, error){reply(200, allow), reply(200, `{}`), used, reply(200, ofOther)}, 3, false, true},
		"unreported":    {"gemini-cli", "AfterTool", []func() (int, string, error){reply(200, allow), away, repeated, reply(200, ofOther)}, 3, false, true},
		"denied":        {"gemini-cli", "", []func() (int, string, error){refuse(403), reply(200, ofOther)}, 2, false, true},
		"hook repeated": {"gemini-cli", "", []func() (int, string, error){reply(200, allow), repeated}, 2, true, true},
		"with an id":    {"claude-code", "PostToolUse", []func() (int, string, error){reply(200, allow), reply(200, `{}`), used}, 2, true, false},
	} {
		r, g, work := newRunner(t, c.answers...)
		before, more := "BeforeTool", map[string]any{"tool_use_id": nil, "tool_name": "run_shell_command"}
		if c.client == "claude-code" {
			before, more = "PreToolUse", nil
		}
		r.Handle(t.Context(), c.client, hookDocument(t, before, work, more))
		if c.between != "" {
			r.Handle(t.Context(), c.client, hookDocument(t, c.between, work, more))
		}
		a := r.Handle(t.Context(), c.client, hookDocument(t, before, work, more))
		var keys []string
		for _, q := range g.requests {
			if k := q.header.Get("Idempotency-Key"); k != "" {
				keys = append(keys, k)
			}
		}
		if (a == Answer{}) != c.allowed || len(keys) != c.proposals || (keys[0] == keys[len(keys)-1]) != c.same {
			t.Errorf("%s: %+v, keys %q", name, a, keys)
		}
	}
}

// TestWaitingState checks that a malformed file of a waiting call is replaced, that one that cannot
// be written denies the tool, and that old ones are removed.
func TestWaitingState(t *testing.T) {
	r, g, work := newRunner(t, reply(202, pendingOne), reply(202, `{"call_id":"c2"}`))
	doc := hookDocument(t, "PreToolUse", work, nil)
	r.Handle(t.Context(), "claude-code", doc)
	names, err := filepath.Glob(filepath.Join(r.State, "waiting", "*"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	if err := os.WriteFile(names[0], []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if a := r.Handle(t.Context(), "claude-code", doc); !strings.Contains(a.Stdout, "as c2") || g.requests[1].body["kind"] != "client.shell" {
		t.Errorf("%+v", a)
	}
	var w waiting
	if b, err := os.ReadFile(names[0]); err != nil || json.Unmarshal(b, &w) != nil || w.CallID != "c2" {
		t.Errorf("%+v %v", w, err)
	}
	long := time.Now().Add(-30 * 24 * time.Hour)
	if err := os.Chtimes(names[0], long, long); err != nil {
		t.Fatal(err)
	}
	if err := (&approvals{r.Mesh, r.State}).spend("k"); err != nil {
		t.Fatal(err)
	}
	if err := r.sweep(); err != nil || files(t, r, "waiting") != 0 || files(t, r, "spent") != 1 {
		t.Errorf("%v, %d waiting, %d spent", err, files(t, r, "waiting"), files(t, r, "spent"))
	}
	r, g, work = newRunner(t, reply(202, pendingOne))
	if err := os.MkdirAll(r.State, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.State, "waiting"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil)); !strings.Contains(a.Stdout, `"deny"`) || len(g.requests) > 0 {
		t.Errorf("%+v %q", a, g.paths())
	}
}

// TestWaitingKilled checks that a call is stored before the hook waits for its approval: if the hook
// is killed meanwhile, the next attempt of the model uses the call.
func TestWaitingKilled(t *testing.T) {
	killed, kill := context.WithCancel(t.Context())
	var r *Runner
	r, g, work := newRunner(t, reply(202, pendingOne), func() (int, string, error) {
		if files(t, r, "waiting") != 1 {
			t.Error("the call is not stored")
		}
		kill()
		return silent()
	})
	r.Wait = time.Minute
	if a := r.Handle(killed, "claude-code", hookDocument(t, "PreToolUse", work, nil)); !strings.Contains(a.Stdout, `"deny"`) {
		t.Errorf("%+v", a)
	}
	if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, map[string]any{"tool_use_id": "u2"})); a != (Answer{}) || len(g.requests) != 3 || g.requests[2].body["call_id"] != "c1" {
		t.Errorf("%+v %q", a, g.paths())
	}
	r, g, work = newRunner(t, reply(202, pendingOne), reply(500, `{"error":{"message":"m","code":"outcome_unknown"}}`))
	r.Wait = time.Minute
	if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil)); !strings.Contains(a.Stdout, "the call c1 has ended") || len(g.requests) != 2 || files(t, r, "waiting") != 0 {
		t.Errorf("%+v %q", a, g.paths())
	}
}

// TestAwaitAway checks that a hook that waits for people repeats requests that the mesh does not
// answer, and denies the tool, also with Watch, if it does not return within some seconds.
func TestAwaitAway(t *testing.T) {
	failing := reply(503, `{"error":{"message":"m","code":"unavailable"}}`)
	for name, c := range map[string]struct {
		away int
		want string
	}{"returns": {attempts, ""}, "stays away": {attempts + 1, "the call c1 waits for approval"}} {
		synctest.Test(t, func(t *testing.T) {
			answers := []func() (int, string, error){reply(202, pendingOne), failing}
			for range c.away - 1 {
				answers = append(answers, away)
			}
			r, _, work := newRunner(t, answers...)
			r.Wait, r.Watch = time.Minute, true
			start := time.Now()
			a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil))
			if took := time.Since(start); c.want == "" && a != (Answer{}) || !strings.Contains(a.Stdout, c.want) || took > 11*time.Second {
				t.Errorf("%s: %+v after %s", name, a, took)
			}
		})
	}
}

// TestPermitNotStored checks that a tool whose permit cannot be stored is denied, and that the
// outcome of its call says so.
func TestPermitNotStored(t *testing.T) {
	var r *Runner
	r, g, work := newRunner(t, func() (int, string, error) {
		if err := os.Mkdir(permitPath(r.State, "claude-code", &Event{Session: "s/1", CallID: "u1"}), 0o700); err != nil {
			t.Error(err)
		}
		return 200, allow, nil
	})
	if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil)); !strings.Contains(a.Stdout, `"deny"`) || len(g.requests) != 2 || g.requests[1].body["status"] != contract.Failed {
		t.Errorf("%+v %+v", a, g.requests)
	}
}

// TestAfterAsk checks that a tool that ran after its client has asked its user is recorded with the
// escalated call, which no other tool call uses; and that an answer for an earlier run of the hook
// is not used.
func TestAfterAsk(t *testing.T) {
	r, g, work := newRunner(t, reply(202, pendingOne))
	r.Ask, r.Wait = true, time.Minute
	handle := func(event, id string) Answer {
		return r.Handle(t.Context(), "claude-code", hookDocument(t, event, work, map[string]any{"tool_use_id": id, "tool_response": "out"}))
	}
	if a := handle("PreToolUse", "u1"); !strings.Contains(a.Stdout, `"ask"`) || files(t, r, "waiting") != 1 {
		t.Errorf("%+v", a)
	}
	if a := handle("PostToolUse", "u1"); a != (Answer{}) || len(g.requests) != 3 || files(t, r, "waiting")+files(t, r, "permits") != 0 {
		t.Errorf("%+v %q", a, g.paths())
	}
	args, _ := g.requests[1].body["args"].(map[string]any)
	if g.requests[1].body["kind"] != "client.session" || args["event"] != "ran_after_client_ask" || args["call_id"] != "c1" || args["input_digest"] != action.Digest([]byte(`{"command":"ls"}`)) || args["output_digest"] != action.Digest([]byte(`"out"`)) {
		t.Errorf("%v", g.requests[1].body)
	}
	b, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range clientkind.Tools("llm-router") {
		if tool.Kind == clientkind.Session {
			if bad := new(toolschema.Checker).Input("d", &tool, b); bad != "" {
				t.Error("policy would refuse it:", bad)
			}
		}
	}
	g.answers = []func() (int, string, error){reply(202, `{"call_id":"c2"}`), refuse(403)}
	handle("PreToolUse", "u2")
	if last := g.requests[3]; last.body["kind"] != "client.shell" {
		t.Errorf("the next tool call: %v", last.body)
	}
	if a := handle("PreToolUse", "u2"); !strings.Contains(a.Stdout, `"deny"`) || files(t, r, "permits") != 0 {
		t.Errorf("%+v", a)
	}
}
