package hook

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// again returns a document of Claude Code about an event Again, which has no id of the tool call.
func again(t *testing.T, cwd, command string) []byte {
	t.Helper()
	doc := hookDocument(t, "PermissionRequest", cwd, map[string]any{"tool_input": map[string]any{"command": command}})
	return []byte(strings.Replace(string(doc), `"tool_use_id":"u1"`, `"permission_suggestions":[]`, 1))
}

// TestAgain checks that policy decides on the input of an event Again exactly if no hook before it has
// permitted that input within repeatWithin, that a denial is in the form of the event, and that the
// outcomes are those of both calls: the one with the original input was cancelled.
func TestAgain(t *testing.T) {
	const second = `{"call_id":"c2","intent_id":"i2","args_digest":"d2"}`
	denied := `{"hookSpecificOutput":{"decision":{"behavior":"deny","message":"denied by policy: DENY_X: m (receipt r1)"},"hookEventName":"PermissionRequest"}}` + "\n"
	ran := func(command string) map[string]any {
		return map[string]any{"tool_input": map[string]any{"command": command}, "tool_response": "r"}
	}
	r, g, work := newRunner(t, reply(200, allow))
	if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil)); a != (Answer{}) {
		t.Fatalf("%+v", a)
	}
	if a := r.Handle(t.Context(), "claude-code", again(t, work, "ls")); a != (Answer{}) || len(g.requests) != 1 {
		t.Errorf("the permitted input: %+v %q", a, g.paths())
	}
	before := time.Now().Add(-2 * repeatWithin)
	if err := os.Chtimes(permitPath(r.State, "claude-code", &Event{Session: "s/1", CallID: "u1"}), before, before); err != nil {
		t.Fatal(err)
	}
	g.answers = append(g.answers, refuse(403), refuse(403), reply(200, second))
	if a := r.Handle(t.Context(), "claude-code", again(t, work, "ls")); a.Stdout != denied {
		t.Errorf("the input of an old permit: %+v", a)
	}
	if a := r.Handle(t.Context(), "claude-code", again(t, work, "cat x")); a.Stdout != denied {
		t.Errorf("a denied input: %+v", a)
	}
	if a := r.Handle(t.Context(), "claude-code", again(t, work, "cat y")); a != (Answer{}) {
		t.Errorf("an input that policy allows: %+v", a)
	}
	if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PostToolUse", work, ran("cat y"))); a != (Answer{}) {
		t.Errorf("after the tool: %+v", a)
	}
	reports := map[string]any{}
	for _, req := range g.requests {
		if id, ok := strings.CutPrefix(req.path, "/api/v1/intents/"); ok {
			reports[id] = req.body["status"]
		}
	}
	if len(reports) != 2 || reports["i1/outcome"] != contract.Cancelled || reports["i2/outcome"] != contract.Succeeded || files(t, r, "permits") != 0 {
		t.Errorf("reports %v, %d permits", reports, files(t, r, "permits"))
	}

	// Another input than that of any permit is an alarm, also after an event Again.
	r, g, work = newRunner(t, reply(200, allow), reply(200, second))
	r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, nil))
	r.Handle(t.Context(), "claude-code", again(t, work, "cat y"))
	r.Handle(t.Context(), "claude-code", hookDocument(t, "PostToolUse", work, ran("cat z")))
	if last := g.requests[len(g.requests)-1]; last.body["error_code"] != contract.CodeExecutedOtherArgs {
		t.Errorf("%+v", last)
	}
}

// TestAgainUndecided checks an event Again for which people must approve the call, with and without
// a client that asks its user, and one while the mesh is away, with and without Watch.
func TestAgainUndecided(t *testing.T) {
	const pending = `{"call_id":"c9"}`
	for name, c := range map[string]struct {
		ask, watch bool
		answer     func() (int, string, error)
		denied     string // part of the denial; "" = none
	}{
		"a person": {false, false, reply(202, pending), "waits for approval as c9"}, "the client's user": {true, false, reply(202, pending), ""},
		"away": {false, false, away, "there is no decision"}, "watched": {false, true, away, ""},
	} {
		r, _, work := newRunner(t, c.answer)
		r.Ask, r.Watch = c.ask, c.watch
		a := r.Handle(t.Context(), "claude-code", again(t, work, "make"))
		if !strings.Contains(a.Stdout, c.denied) || (c.denied == "") != (a == Answer{}) {
			t.Errorf("%s: %+v", name, a)
		}
		if want := c.denied == ""; (files(t, r, "permits") == 1) != want {
			t.Errorf("%s: %d permits", name, files(t, r, "permits"))
		}
	}
}
