package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
)

// request is a request that a gateway received.
type request struct {
	path   string
	header http.Header
	body   map[string]any
}

// gateway is a transport that responds to each request with the next answer, and after the
// last one with a decision that allows.
type gateway struct {
	answers  []func() (status int, body string, err error)
	requests []request
}

const allow = `{"call_id":"c1","intent_id":"i1","args_digest":"d1"}`

// reply returns an answer with a status and a body.
func reply(status int, body string) func() (int, string, error) {
	return func() (int, string, error) { return status, body, nil }
}

// away is the answer of a gateway that cannot be reached.
func away() (int, string, error) { return 0, "", errors.New("refused") }

var errSilent = errors.New("no response")

// silent is the answer of a gateway that accepts requests and never responds.
func silent() (int, string, error) { return 0, "", errSilent }

// refuse returns an answer with the given status and the error of a denied call.
func refuse(status int) func() (int, string, error) {
	return reply(status, `{"error":{"message":"m","code":"denied","reason_code":"DENY_X","receipt_id":"r1"}}`)
}

func (g *gateway) RoundTrip(r *http.Request) (*http.Response, error) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	req := request{path: r.URL.Path, header: r.Header.Clone()}
	if err := json.Unmarshal(b, &req.body); err != nil {
		return nil, err
	}
	g.requests = append(g.requests, req)
	status, body := http.StatusOK, allow
	if len(g.answers) > 0 {
		answer := g.answers[0]
		g.answers = g.answers[1:]
		if status, body, err = answer(); errors.Is(err, errSilent) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		if err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: status, Status: fmt.Sprint(status), Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}}, nil
}

// paths returns the paths of the requests without their common prefix.
func (g *gateway) paths() (out []string) {
	for _, r := range g.requests {
		out = append(out, strings.TrimPrefix(r.path, "/api/v1/"))
	}
	return out
}

// newRunner returns a runner, its gateway and the folder in which its agent works.
func newRunner(t *testing.T, answers ...func() (int, string, error)) (*Runner, *gateway, string) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(root, "home", "work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		t.Fatal(err)
	}
	g := &gateway{answers: answers}
	mesh := &Mesh{URL: "http://mesh.test", Token: func() (string, error) { return "tok", nil }, Client: &http.Client{Transport: g}}
	return &Runner{Mesh: mesh, State: filepath.Join(root, "state"), ReportWithin: time.Hour, Home: filepath.Join(root, "home")}, g, work
}

// hookDocument returns a document of Claude Code about an event. more adds members or replaces
// those of the default.
func hookDocument(t *testing.T, event, cwd string, more map[string]any) []byte {
	t.Helper()
	doc := map[string]any{"hook_event_name": event, "session_id": "s/1", "cwd": cwd, "tool_name": "Bash", "tool_use_id": "u1", "tool_input": map[string]any{"command": "ls"}}
	for name, v := range more {
		doc[name] = v
	}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// files returns the number of files in a folder of the runner's state.
func files(t *testing.T, r *Runner, folder string) int {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(r.State, folder))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return len(list)
}

// TestBefore checks the proposal before a tool, and that the tool runs only if the mesh allows it
// and the permit for the report is stored.
func TestBefore(t *testing.T) {
	r, g, work := newRunner(t)
	if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil)); a != (Answer{}) {
		t.Errorf("%+v", a)
	}
	req := g.requests[0]
	h := req.header
	if req.path != "/api/v1/decide" || req.body["kind"] != "client.shell" || req.body["tool"] != "client.shell" || req.body["report_within_ms"] != 3600000.0 || req.body["args"].(map[string]any)["command"] != "ls" ||
		h.Get("X-Binnacle-Session") != "s-claude-code-s_1" || h.Get("Prefer") != "respond-async" || h.Get("Authorization") != "Bearer tok" || h.Get("X-Binnacle-Timeout") != "10" || !strings.HasPrefix(h.Get("Idempotency-Key"), "sha256:") {
		t.Errorf("%+v", req)
	}
	if files(t, r, "permits") != 1 {
		t.Error("no permit")
	}
	for name, doc := range map[string][]byte{ // the key depends on the session, the call and the input
		"same":      hookDocument(t, "PreToolUse", work, nil),
		"input":     hookDocument(t, "PreToolUse", work, map[string]any{"tool_input": map[string]any{"command": "pwd"}}),
		"call":      hookDocument(t, "PreToolUse", work, map[string]any{"tool_use_id": "u2"}),
		"a session": hookDocument(t, "PreToolUse", work, map[string]any{"session_id": "s2"}),
	} {
		r.Handle(t.Context(), "claude-code", doc)
		if key := g.requests[len(g.requests)-1].header.Get("Idempotency-Key"); (key == h.Get("Idempotency-Key")) != (name == "same") {
			t.Errorf("%s: key %s", name, key)
		}
	}
	for name, c := range map[string]struct {
		answer func() (int, string, error)
		want   string
	}{
		"denied":        {refuse(403), "denied by policy: DENY_X: m (receipt r1)"},
		"denied once":   {reply(403, `{"error":{"message":"denied by policy: DENY_X: m","reason_code":"DENY_X"}}`), "denied by policy: DENY_X: m"},
		"invalid input": {reply(400, `{"error":{"message":"invalid input: SCHEMA_VIOLATION: m","code":"invalid_input","reason_code":"SCHEMA_VIOLATION","receipt_id":"r3"}}`), "invalid input: SCHEMA_VIOLATION: m (receipt r3)"},
		"rejected":      {reply(400, `{"error":{"message":"m"}}`), "rejected by the mesh: m"},
		"no scope":      {reply(401, `{"error":{"message":"m","receipt_id":"r2"}}`), "rejected by the mesh: m (receipt r2)"},
		"away":          {away, "denied, because there is no decision: the mesh cannot be reached at http://mesh.test; `binnacle up` runs one"},
		"throttled":     {refuse(429), "denied, because there is no decision: the mesh cannot be reached: m"},
		"failing":       {refuse(500), "denied, because there is no decision: the mesh cannot be reached: m"},
		"starting":      {refuse(503), "denied, because there is no decision: the mesh cannot be reached: m"},
		"another site":  {reply(404, "<html>"), "denied, because there is no decision: the mesh cannot be reached: it answered 404"},
		"other JSON":    {reply(404, "{}"), "denied, because there is no decision: the mesh cannot be reached: it answered 404"},
		"redirected":    {reply(304, ""), "denied, because there is no decision: the mesh cannot be reached: it answered 304"},
		"not JSON":      {reply(200, "<html>"), "denied, because there is no decision: the mesh cannot be reached: its response is not JSON"},
		"without ids":   {reply(200, "{}"), "denied, because there is no decision: the mesh cannot be reached: the response has no call and intent; check that the address is a mesh's"},
		"no intent":     {reply(200, `{"call_id":"c1"}`), "denied, because there is no decision: the mesh cannot be reached: the response has no call and intent; check that the address is a mesh's"},
		"pending no id": {reply(202, `{}`), "denied, because there is no decision: the mesh cannot be reached: the response has no call and intent; check that the address is a mesh's"},
		"pending":       {reply(202, `{"call_id":"c1"}`), "the call waits for approval as c1: a person grants it with `binnacle approvals grant c1 --reason WHY`; then try again"},
	} {
		r, _, work := newRunner(t, c.answer)
		var got struct {
			Output struct {
				Decision string `json:"permissionDecision"`
				Reason   string `json:"permissionDecisionReason"`
			} `json:"hookSpecificOutput"`
		}
		a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil))
		if err := json.Unmarshal([]byte(a.Stdout), &got); err != nil || got.Output.Decision != "deny" || got.Output.Reason != c.want {
			t.Errorf("%s: %+v %v", name, got, err)
		}
		if files(t, r, "permits") != 0 {
			t.Errorf("%s: a permit", name)
		}
	}
	r, _, work = newRunner(t)
	if err := saveJSON(filepath.Join(r.State, "permits"), nil); err != nil {
		t.Fatal(err)
	}
	if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil)); !strings.Contains(a.Stdout, `"deny"`) || !strings.Contains(a.Stdout, "the outcome could not be reported later") {
		t.Errorf("%+v", a)
	}
	r, g, work = newRunner(t)
	r.Mesh.Token = func() (string, error) { return "", errors.New("log in first") }
	if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil)); !strings.Contains(a.Stdout, "log in first") || len(g.requests) > 0 {
		t.Errorf("%+v", a)
	}
}

// TestWait checks how long a hook waits for people, and that a client that can ask its user
// does so at once.
func TestWait(t *testing.T) {
	const pending = `{"call_id":"c1"}`
	slow := func(status int, body string) func() (int, string, error) {
		return func() (int, string, error) {
			time.Sleep(59 * time.Second)
			return status, body, nil
		}
	}
	for name, c := range map[string]struct {
		client   string
		wait     time.Duration
		ask      bool
		answers  []func() (int, string, error)
		want     string // in the answer
		timeouts []string
	}{
		"no wait":          {"claude-code", 0, false, []func() (int, string, error){reply(202, pending)}, `"deny"`, []string{"10"}},
		"short":            {"claude-code", time.Second - 1, false, []func() (int, string, error){reply(202, pending)}, `"deny"`, []string{"10"}},
		"granted":          {"claude-code", time.Second, false, []func() (int, string, error){reply(202, pending), reply(200, allow)}, "", []string{"10", "1"}},
		"granted later":    {"claude-code", 2 * time.Minute, false, []func() (int, string, error){reply(202, pending), slow(202, pending), reply(200, allow)}, "", []string{"10", "60", "60"}},
		"not granted":      {"claude-code", 100500 * time.Millisecond, false, []func() (int, string, error){reply(202, pending), slow(202, pending), slow(202, pending)}, `"deny"`, []string{"10", "60", "41"}},
		"denied then":      {"claude-code", time.Minute, false, []func() (int, string, error){reply(202, pending), refuse(403)}, `DENY_X`, []string{"10", "60"}},
		"asks":             {"claude-code", time.Minute, true, []func() (int, string, error){reply(202, pending)}, `"ask"`, []string{"10"}},
		"cannot ask":       {"codex", time.Minute, true, []func() (int, string, error){reply(202, pending), reply(200, allow)}, "", []string{"10", "60"}},
		"does not have to": {"claude-code", time.Minute, true, []func() (int, string, error){reply(200, allow)}, "", []string{"10"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, g, work := newRunner(t, c.answers...)
			r.Wait, r.Ask = c.wait, c.ask
			a := r.Handle(t.Context(), c.client, hookDocument(t, "PreToolUse", work, nil))
			if c.want == "" && a != (Answer{}) || !strings.Contains(a.Stdout, c.want) {
				t.Errorf("%s: %+v", name, a)
			}
			var timeouts []string
			for i, q := range g.requests {
				timeouts = append(timeouts, q.header.Get("X-Binnacle-Timeout"))
				if again := reflect.DeepEqual(q.body, map[string]any{"call_id": "c1"}); again != (i > 0) {
					t.Errorf("%s: request %d: %v", name, i, q.body)
				}
			}
			if !reflect.DeepEqual(timeouts, c.timeouts) {
				t.Errorf("%s: timeouts %q, want %q", name, timeouts, c.timeouts)
			}
		})
	}
}

// TestWaitSilent checks that a hook denies before the timeout that install sets, if the mesh accepts
// a request and never responds: the first one, one while people must approve the call, or one of a
// later attempt.
func TestWaitSilent(t *testing.T) {
	const pending, used = `{"call_id":"c1"}`, `{"error":{"message":"m","code":"intent_used"}}`
	late := func(after time.Duration, status int, body string) func() (int, string, error) {
		return func() (int, string, error) {
			time.Sleep(after)
			return status, body, nil
		}
	}
	for name, c := range map[string]struct {
		attempts int
		wait     time.Duration
		answers  []func() (int, string, error)
		requests int // of the last attempt
	}{
		"at once":        {1, 0, []func() (int, string, error){silent}, 1},
		"before people":  {1, 5 * time.Minute, []func() (int, string, error){silent}, 1},
		"while waiting":  {1, 5 * time.Minute, []func() (int, string, error){reply(202, pending), late(59*time.Second, 202, pending), silent}, 3},
		"at the end":     {1, time.Minute, []func() (int, string, error){reply(202, pending), late(58*time.Second, 202, pending), silent}, 3},
		"second attempt": {2, 0, []func() (int, string, error){reply(202, pending), silent}, 1},
		"another call":   {2, 0, []func() (int, string, error){reply(202, pending), late(14*time.Second, 409, used), silent}, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, g, work := newRunner(t, c.answers...)
			for attempt := range c.attempts {
				if attempt == c.attempts-1 {
					r.Wait = c.wait
				}
				before, start := len(g.requests), time.Now()
				a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, map[string]any{"tool_use_id": fmt.Sprint("u", attempt)}))
				if took := time.Since(start); !strings.Contains(a.Stdout, `"deny"`) || took >= Timeout(r.Wait) {
					t.Errorf("%s: %s of %s: %+v", name, took, Timeout(r.Wait), a)
				}
				if n := len(g.requests) - before; attempt == c.attempts-1 && n != c.requests {
					t.Errorf("%s: %d requests, want %d", name, n, c.requests)
				}
			}
		})
	}
}

// TestAfter checks the reports of tools that ran: with the permitted input, with another
// one, or without success. The output and the contents of files are part of a report only with
// Content, and the contents only if nothing but the tool changed the file.
func TestAfter(t *testing.T) {
	in := map[string]any{"file_path": "f", "content": "new"}
	digest := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return action.Digest(b)
	}
	input := digest(map[string]any{"content": "new", "file_path": "f"})
	for name, c := range map[string]struct {
		before  string // content of the file before, none if empty
		after   map[string]any
		event   string
		content bool
		want    map[string]any
	}{
		"succeeded": {"", map[string]any{"tool_response": "r"}, "PostToolUse", false, map[string]any{"status": "succeeded", "output": map[string]any{
			"input_digest": input, "output_digest": digest("r"), "bytes": 3.0, "files": []any{map[string]any{"path": "f", "after": action.Digest([]byte("new")), "stated": true}}}}},
		"content": {"old", map[string]any{"tool_response": "r"}, "PostToolUse", true, map[string]any{"status": "succeeded", "output": map[string]any{
			"input_digest": input, "output_digest": digest("r"), "bytes": 3.0, "content": "r", "files": []any{map[string]any{"path": "f", "before": action.Digest([]byte("old")), "after": action.Digest([]byte("new")), "stated": true, "before_text": "old", "after_text": "new"}}}}},
		"changed by something else": {"old", map[string]any{"tool_input": map[string]any{"file_path": "f", "content": "other"}, "tool_response": "r"}, "PostToolUse", true, map[string]any{"status": "succeeded", "output": map[string]any{
			"input_digest": digest(map[string]any{"content": "other", "file_path": "f"}), "output_digest": digest("r"), "bytes": 3.0, "content": "r", "files": []any{map[string]any{"path": "f", "before": action.Digest([]byte("old")), "after": action.Digest([]byte("new")), "stated": false}}}}},
		"no file": {"", map[string]any{"tool_name": "Bash", "tool_input": map[string]any{"command": "ls"}, "tool_response": "r"}, "PostToolUse", false, map[string]any{"status": "succeeded", "output": map[string]any{
			"input_digest": digest(map[string]any{"command": "ls"}), "output_digest": digest("r"), "bytes": 3.0}}},
		"failed": {"", map[string]any{"error": "e"}, "PostToolUseFailure", true, map[string]any{"status": "failed", "error_code": "agent_tool_failed", "error_message": "the tool failed; its error has the digest " + digest("e"), "output": map[string]any{
			"input_digest": input, "output_digest": digest("e"), "bytes": 3.0, "content": "e", "files": []any{map[string]any{"path": "f", "after": action.Digest([]byte("new")), "stated": true, "before_text": "", "after_text": "new"}}}}},
		"other input": {"", map[string]any{"tool_input": map[string]any{"file_path": "g"}}, "PostToolUse", true, map[string]any{"status": "failed", "error_code": "executed_other_args", "error_message": "the input that ran has the digest " + digest(map[string]any{"file_path": "g"}) + ", permitted was " + input}},
	} {
		r, g, work := newRunner(t)
		r.Content = c.content
		file := filepath.Join(work, "f")
		if c.before != "" {
			if err := os.WriteFile(file, []byte(c.before), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		more := map[string]any{"tool_name": "Write", "tool_input": in}
		switch name {
		case "no file":
			more = c.after
		case "changed by something else":
			more["tool_input"] = c.after["tool_input"]
		}
		if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, more)); a != (Answer{}) {
			t.Fatalf("%+v", a)
		}
		if err := os.WriteFile(file, []byte("new"), 0o600); err != nil {
			t.Fatal(err)
		}
		for k, v := range c.after {
			more[k] = v
		}
		if a := r.Handle(t.Context(), "claude-code", hookDocument(t, c.event, work, more)); a != (Answer{}) {
			t.Errorf("%s: %+v", name, a)
		}
		got := g.requests[1]
		c.want["args_digest"] = "d1"
		if out, ok := got.body["output"].(map[string]any); ok && out["files"] != nil {
			f := out["files"].([]any)[0].(map[string]any)
			f["path"] = strings.TrimPrefix(f["path"].(string), work+"/")
		}
		if output, ok := got.body["output"]; ok {
			b, err := json.Marshal(output)
			if err != nil {
				t.Fatal(err)
			}
			for _, tool := range clientkind.Tools("llm-router") {
				if err := new(toolschema.Checker).Output("d", &tool, b); err != nil {
					t.Errorf("%s: the gateway would refuse it for %s: %v", name, tool.Kind, err)
				}
			}
		}
		if got.path != "/api/v1/intents/i1/outcome" || !reflect.DeepEqual(got.body, c.want) {
			t.Errorf("%s: %s\ngot  %v\nwant %v", name, got.path, got.body, c.want)
		}
		if len(g.requests) != 2 || files(t, r, "permits")+files(t, r, "outcomes") != 0 {
			t.Errorf("%s: %q, %d permits, %d outcomes", name, g.paths(), files(t, r, "permits"), files(t, r, "outcomes"))
		}
	}
}

// TestLongOutput checks that the report of a tool with a long output is not longer than the mesh
// accepts: it has the digest of the output and not its content.
func TestLongOutput(t *testing.T) {
	r, g, work := newRunner(t)
	r.Content = true
	response := strings.Repeat("<", 3<<20) // JSON in HTML has six bytes for each
	r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil))
	doc := bytes.ReplaceAll(hookDocument(t, "PostToolUse", work, map[string]any{"tool_response": response}), []byte(`\u003c`), []byte("<"))
	if a := r.Handle(t.Context(), "claude-code", doc); len(doc) > MaxDocument || a != (Answer{}) {
		t.Errorf("%+v", a)
	}
	b, err := json.Marshal(g.requests[1].body)
	if err != nil {
		t.Fatal(err)
	}
	output, _ := g.requests[1].body["output"].(map[string]any)
	if len(b) > 16<<20 || output["content"] != nil || output["bytes"] != float64(len(response)+2) || output["output_digest"] != action.Digest([]byte(`"`+response+`"`)) {
		t.Errorf("the report has %d bytes, content %t", len(b), output["content"] != nil)
	}
}

// TestOutcomes checks that a report is stored and sent later if the mesh does not respond or
// responds with 503, that a report which the mesh rejects is removed and the rejection shown, and
// that a malformed stored report is an error once, after which the others are sent.
func TestOutcomes(t *testing.T) {
	r, g, work := newRunner(t, reply(200, `{"call_id":"c1","intent_id":"i1","args_digest":"d1"}`), away, reply(200, `{"call_id":"c2","intent_id":"i2","args_digest":"d2"}`), refuse(503))
	for i, id := range []string{"u1", "u2"} {
		more := map[string]any{"tool_use_id": id}
		r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, more))
		if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PostToolUse", work, more)); !strings.Contains(a.Stderr, "binnacle: the mesh cannot be reached") || a.Exit != 0 || a.Stdout != "" {
			t.Errorf("%+v", a)
		}
		if files(t, r, "permits") != 0 || files(t, r, "outcomes") != i+1 {
			t.Errorf("%d permits, %d outcomes", files(t, r, "permits"), files(t, r, "outcomes"))
		}
	}
	for name, text := range map[string]string{"outcomes/.new-1": "{", "outcomes/x.txt": "{"} {
		if err := os.WriteFile(filepath.Join(r.State, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g.requests, g.answers = nil, []func() (int, string, error){reply(200, allow), reply(200, `{}`), refuse(404), reply(200, `{}`)}
	a := r.Handle(t.Context(), "claude-code", hookDocument(t, "Stop", work, nil))
	if !strings.Contains(a.Stderr, "denied by policy: DENY_X: m (receipt r1)") || len(g.requests) != 4 || files(t, r, "outcomes") != 2 {
		t.Errorf("%+v %q %d outcomes", a, g.paths(), files(t, r, "outcomes"))
	}
	if err := os.WriteFile(filepath.Join(r.State, "outcomes", "x.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.keep(&Outcome{IntentID: "i3"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(r.State, "outcomes", nameOf("i3")), filepath.Join(r.State, "outcomes", "y.json")); err != nil {
		t.Fatal(err)
	}
	g.requests = nil
	if err := r.flush(t.Context()); err == nil || len(g.requests) != 1 || files(t, r, "outcomes") != 3 {
		t.Errorf("a malformed outcome before another: %v, %d requests, %d files", err, len(g.requests), files(t, r, "outcomes"))
	}
	if err := r.flush(t.Context()); err != nil || len(g.requests) != 1 {
		t.Errorf("a malformed outcome again: %v", err)
	}
	r, _, _ = newRunner(t)
	if err := r.flush(t.Context()); err != nil {
		t.Error(err)
	}
	if err := os.MkdirAll(r.State, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.State, "outcomes"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.flush(t.Context()); err == nil {
		t.Error("a file in place of the folder is accepted")
	}
}

// TestReport checks that an outcome has its output, also that of a tool that failed.
func TestReport(t *testing.T) {
	out := map[string]any{"a": 1.0}
	for _, c := range []struct {
		status string
		output map[string]any
		want   map[string]any
	}{
		{contract.Succeeded, out, map[string]any{"args_digest": "d", "status": contract.Succeeded, "output": out}},
		{contract.Succeeded, nil, map[string]any{"args_digest": "d", "status": contract.Succeeded}},
		{contract.Failed, out, map[string]any{"args_digest": "d", "status": contract.Failed, "output": out}},
	} {
		r, g, _ := newRunner(t)
		err := r.Mesh.Report(t.Context(), &Outcome{IntentID: "i/1", ArgsDigest: "d", Status: c.status, Output: c.output})
		if err != nil || !reflect.DeepEqual(g.requests[0].body, c.want) || g.requests[0].path != "/api/v1/intents/i/1/outcome" {
			t.Errorf("%s %v: %v %v", c.status, c.output, err, g.requests)
		}
	}
}

// TestWithoutDecision checks that a tool that ran without a permit is recorded as an event
// of the session.
func TestWithoutDecision(t *testing.T) {
	r, g, work := newRunner(t)
	a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PostToolUse", work, nil))
	if a.Stderr != "binnacle: tool Bash ran without a decision\n" || a.Exit != 0 || !reflect.DeepEqual(g.paths(), []string{"decide", "intents/i1/outcome"}) {
		t.Errorf("%+v %q", a, g.paths())
	}
	args, _ := g.requests[0].body["args"].(map[string]any)
	if g.requests[0].body["kind"] != "client.session" || args["event"] != "ran_without_decision" || args["transcript_digest"] != action.Digest([]byte(`{"command":"ls"}`)) {
		t.Errorf("%v", g.requests[0].body)
	}
	p := permitPath(r.State, "claude-code", &Event{Session: "s/1", CallID: "u1"})
	if err := os.MkdirAll(p, 0o700); err != nil {
		t.Fatal(err)
	}
	if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PostToolUse", work, nil)); !strings.Contains(a.Stderr, "is a directory") || len(g.requests) != 2 {
		t.Errorf("%+v", a)
	}
}

// TestSessionEvents checks the events of a session that are recorded, with the digest of the prompt
// and, when the session, a turn or a subagent ends, that of the transcript.
func TestSessionEvents(t *testing.T) {
	transcript := action.Digest([]byte("log"))
	for event, want := range map[string]any{"SessionStart": nil, "UserPromptSubmit": nil, "SubagentStart": nil, "SessionEnd": transcript, "Stop": transcript, "SubagentStop": transcript} {
		r, g, work := newRunner(t)
		file := filepath.Join(work, "log")
		if err := os.WriteFile(file, []byte("log"), 0o600); err != nil {
			t.Fatal(err)
		}
		a := r.Handle(t.Context(), "claude-code", hookDocument(t, event, work, map[string]any{"transcript_path": file, "prompt": "p"}))
		args, _ := g.requests[0].body["args"].(map[string]any)
		if a != (Answer{}) || args["event"] != event || args["transcript_digest"] != want || args["prompt_digest"] != action.Digest([]byte("p")) || g.requests[0].body["report_within_ms"] != 60000.0 {
			t.Errorf("%s: %+v %v", event, a, args)
		}
		if got := g.requests[1]; got.path != "/api/v1/intents/i1/outcome" || got.body["status"] != contract.Succeeded || got.body["args_digest"] != "d1" {
			t.Errorf("%s: %+v", event, got)
		}
		r.Handle(t.Context(), "claude-code", hookDocument(t, event, work, nil))
		if args, _ := g.requests[2].body["args"].(map[string]any); args["transcript_digest"] != nil {
			t.Errorf("%s without a transcript: %v", event, args)
		}
		if g.requests[0].header.Get("Idempotency-Key") == g.requests[2].header.Get("Idempotency-Key") {
			t.Errorf("%s: two events have one key", event)
		}
	}
	for _, answer := range []func() (int, string, error){refuse(403), away, reply(202, `{"call_id":"c1"}`)} {
		r, g, work := newRunner(t, answer)
		a := r.Handle(t.Context(), "claude-code", hookDocument(t, "Stop", work, nil))
		if len(g.requests) != 1 || a.Exit != 0 || a.Stdout != "" {
			t.Errorf("%+v %q", a, g.paths())
		}
	}
	r, g, work := newRunner(t)
	if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "Unheard", work, nil)); a != (Answer{}) || len(g.requests) > 0 {
		t.Errorf("%+v %q", a, g.paths())
	}
}

// TestCheck checks that Check records an event, and returns the error of the mesh.
func TestCheck(t *testing.T) {
	r, g, _ := newRunner(t)
	if err := r.Check(t.Context(), "codex"); err != nil || len(g.requests) != 2 || g.requests[0].header.Get("X-Binnacle-Session") != "s-codex-doctor" {
		t.Error(err, g.requests)
	}
	r, _, _ = newRunner(t, away)
	if err := r.Check(t.Context(), "codex"); !errors.Is(err, ErrAway) {
		t.Error(err)
	}
	r, _, _ = newRunner(t, refuse(403))
	var refused *Refusal
	if err := r.Check(t.Context(), "codex"); !errors.As(err, &refused) || refused.Code != "denied" {
		t.Error(err)
	}
}

// TestMalformed checks that a hook which cannot do its work has an exit status with which
// the clients do not run the tool.
func TestMalformed(t *testing.T) {
	r, g, _ := newRunner(t)
	for _, c := range []struct{ client, doc, want string }{
		{"nosuch", "{}", `client "nosuch" is not known`},
		{"codex", "{", "the hook's document"},
		{"codex", strings.Repeat("[", 10000) + strings.Repeat("]", 10000), "the hook's document"},
		{"codex", `{"hook_event_name":"PreToolUse"}`, "session_id"},
	} {
		if a := r.Handle(t.Context(), c.client, []byte(c.doc)); a.Exit != 2 || a.Stdout != "" || !strings.HasPrefix(a.Stderr, "binnacle: ") || !strings.Contains(a.Stderr, c.want) {
			t.Errorf("%s %.40s: %+v", c.client, c.doc, a)
		}
	}
	if len(g.requests) > 0 {
		t.Errorf("%q", g.paths())
	}
}

// TestPlace checks that the workspace is the closest folder with a repository, up to the
// home folder.
func TestPlace(t *testing.T) {
	for name, c := range map[string]struct{ repository, cwd, home, want string }{
		"in the current folder": {"a/b", "a/b", "", "a/b"},
		"above":                 {"a", "a/b/c", "", "a"},
		"none":                  {"", "a/b", "", "a/b"},
		"in the home folder":    {"a", "a/b", "a", "a"},
		"above the home folder": {"", "a/b/c", "a/b", "a/b/c"},
		"outside":               {"", "a/b", "c", "a/b"},
	} {
		root, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		repository := c.repository
		if name == "above the home folder" {
			repository = "a"
		}
		for _, dir := range []string{c.cwd, filepath.Join(repository, ".git")} {
			if repository == "" && dir == ".git" {
				continue
			}
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(root, filepath.Join(root, "link")); err != nil {
			t.Fatal(err)
		}
		r := &Runner{Home: filepath.Join(root, c.home)}
		p := r.place("codex", &Event{CWD: filepath.Join(root, "link", c.cwd), Subagent: "sub"})
		if p.Workspace != filepath.Join(root, c.want) || p.CWD != filepath.Join(root, c.cwd) || p.Agent != "codex" || p.Subagent != "sub" || p.Home != r.Home {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// TestNames checks the names of sessions, that inputs with the same canonical JSON have one digest,
// and that different calls have different permits.
func TestNames(t *testing.T) {
	if got := sessionName("codex", "azAZ09-_ /é{`@[:"); got != "s-codex-azAZ09-_________" {
		t.Error(got)
	}
	a, b := &Event{Input: []byte(`{"a": 1, "b":2}`)}, &Event{Input: []byte(`{"b":2,"a":1.0}`)}
	if a.inputDigest() != b.inputDigest() || a.inputDigest() != action.Digest([]byte(`{"a":1,"b":2}`)) {
		t.Error(a.inputDigest(), b.inputDigest())
	}
	if e := (&Event{Input: []byte("{")}); e.inputDigest() != action.Digest([]byte("{")) {
		t.Error(e.inputDigest())
	}
	permits := map[string]bool{}
	r := &Runner{State: "/s"}
	for _, e := range []*Event{{Session: "a", CallID: "b"}, {Session: "a", CallID: "c"}, {Session: "ab", CallID: "c"}} {
		permits[permitPath(r.State, "codex", e)], permits[permitPath(r.State, "opencode", e)] = true, true
	}
	if len(permits) != 6 {
		t.Error(permits)
	}
}

// TestReadDocument checks the maximum size of a document.
func TestReadDocument(t *testing.T) {
	long := strings.Repeat(" ", MaxDocument-2)
	for _, c := range []struct {
		in, want string
		fails    bool
	}{{"", "", false}, {" {}\n", "{}", false}, {long + "{}", "{}", false}, {long + "{} ", "", true}} {
		b, err := ReadDocument(strings.NewReader(c.in))
		if (err != nil) != c.fails || !c.fails && string(b) != c.want {
			t.Errorf("%d bytes: %.10q %v", len(c.in), b, err)
		}
	}
}

// TestState checks that saveJSON stores a document in a file that only its owner can access, and
// leaves no temporary file if it fails; and the results of fileDigest and loadPermit for files that
// are missing or of another kind.
func TestState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	path := filepath.Join(dir, "a.json")
	if err := saveJSON(path, 1); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "b.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := saveJSON(filepath.Join(dir, "b.json"), 1); err == nil {
		t.Error("a folder was replaced")
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
		t.Errorf("%v %v", list, err)
	}
	if err := saveJSON(filepath.Join(path, "c.json"), 1); err == nil {
		t.Error("a file was used as a folder")
	}
	if err := saveJSON(path, func() {}); err == nil {
		t.Error("a function was stored")
	}
	for name, want := range map[string]string{path: action.Digest([]byte("1")), dir: "", filepath.Join(dir, "none"): "", "/dev/null": ""} {
		if got := fileDigest(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if _, err := loadPermit(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Error(err)
	}
	if _, err := loadPermit(path); err == nil {
		t.Error("a number is a permit")
	}
}

// TestPermitsWithoutEnd checks that the permit of a tool whose end no hook reported is removed some
// days later, with the contents in it, and not before.
func TestPermitsWithoutEnd(t *testing.T) {
	r, _, work := newRunner(t)
	for _, id := range []string{"u1", "u2"} {
		r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, map[string]any{"tool_use_id": id}))
	}
	old := permitPath(r.State, "claude-code", &Event{Session: "s/1", CallID: "u1"})
	long := time.Now().Add(-30 * 24 * time.Hour)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "SessionStart", work, nil)); a != (Answer{}) {
		t.Errorf("%+v", a)
	}
	if _, err := os.Stat(old); !os.IsNotExist(err) || files(t, r, "permits") != 1 {
		t.Errorf("%v, %d permits", err, files(t, r, "permits"))
	}
}

// TestCancelled checks that a hook whose context ends has no decision.
func TestCancelled(t *testing.T) {
	r, _, work := newRunner(t, func() (int, string, error) { return 0, "", context.Canceled })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if a := r.Handle(ctx, "claude-code", hookDocument(t, "PreToolUse", work, nil)); !strings.Contains(a.Stdout, "there is no decision") {
		t.Errorf("%+v", a)
	}
}
