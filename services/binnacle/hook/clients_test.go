package hook

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestParse checks the events in documents of Claude Code, Codex, OpenCode and Gemini CLI.
func TestParse(t *testing.T) {
	const common = `"session_id":"s","cwd":"/w","transcript_path":"/t"`
	tool := common + `,"tool_name":"Bash","tool_use_id":"c","tool_input":{"a":1}`
	base := Event{Session: "s", CWD: "/w", Transcript: "/t"}
	call := base
	call.Tool, call.CallID, call.Input = "Bash", "c", json.RawMessage(`{"a":1}`)
	with := func(e Event, set func(*Event)) *Event { set(&e); return &e }
	for _, c := range []struct {
		client, doc string
		want        *Event
	}{
		{"claude-code", `{"hook_event_name":"PreToolUse",` + tool + `}`, with(call, func(e *Event) { e.Phase, e.Name = Before, "PreToolUse" })},
		{"codex", `{"hook_event_name":"PostToolUse",` + tool + `,"tool_response":"r","error":"e"}`, with(call, func(e *Event) { e.Phase, e.Name, e.Response = After, "PostToolUse", json.RawMessage(`"r"`) })},
		{"claude-code", `{"hook_event_name":"PostToolUseFailure",` + tool + `,"error":"e"}`, with(call, func(e *Event) {
			e.Phase, e.Name, e.Failed, e.Response = After, "PostToolUseFailure", true, json.RawMessage(`"e"`)
		})},
		{"claude-code", `{"hook_event_name":"PostToolUseFailure",` + tool + `,"tool_response":"r","error":"e"}`, with(call, func(e *Event) {
			e.Phase, e.Name, e.Failed, e.Response = After, "PostToolUseFailure", true, json.RawMessage(`"r"`)
		})},
		{"opencode", `{"hook_event_name":"PreToolUse",` + tool + `,"agent_id":"a"}`, with(call, func(e *Event) { e.Phase, e.Name, e.Subagent = Before, "PreToolUse", "a" })},
		{"claude-code", `{"hook_event_name":"UserPromptSubmit","prompt":"p",` + common + `}`, with(base, func(e *Event) { e.Phase, e.Name, e.Prompt = Session, "UserPromptSubmit", "p" })},
		{"codex", `{"hook_event_name":"SubagentStop","agent_id":"a","agent_transcript_path":"/a",` + common + `}`, with(base, func(e *Event) {
			e.Phase, e.Name, e.Subagent, e.Transcript = Session, "SubagentStop", "a", "/a"
		})},
		{"codex", `{"hook_event_name":"SubagentStop","agent_id":"a","agent_transcript_path":null,` + common + `}`, with(base, func(e *Event) { e.Phase, e.Name, e.Subagent = Session, "SubagentStop", "a" })},
		{"claude-code", `{"hook_event_name":"Unheard",` + common + `}`, with(base, func(e *Event) { e.Phase, e.Name = Ignored, "Unheard" })},
		{"gemini-cli", `{"hook_event_name":"BeforeTool",` + tool + `}`, with(call, func(e *Event) { e.Phase, e.Name = Before, "BeforeTool" })},
		{"gemini-cli", `{"hook_event_name":"AfterTool",` + strings.Replace(tool, `"tool_use_id":"c",`, "", 1) + `}`, with(call, func(e *Event) {
			e.Phase, e.Name, e.CallID, e.NoID = After, "AfterTool", (&Event{Input: []byte(`{"a":1}`)}).inputDigest(), true
		})},
		{"gemini-cli", `{"hook_event_name":"AfterTool",` + strings.Replace(tool, "Bash", "mcp_a_b_c", 1) + `,"tool_response":{"error":"e"},"mcp_context":{"server_name":"a_b","tool_name":"c"}}`, with(call, func(e *Event) {
			e.Phase, e.Name, e.Tool, e.Failed, e.Response = After, "AfterTool", "mcp__a_b__c", true, json.RawMessage(`{"error":"e"}`)
		})},
		{"gemini-cli", `{"hook_event_name":"PreToolUse",` + tool + `}`, with(call, func(e *Event) { e.Phase, e.Name = Ignored, "PreToolUse" })},
	} {
		client, err := ClientOf(c.client)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := client.Parse([]byte(c.doc)); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s %s\ngot  %+v %v\nwant %+v", c.client, c.doc, got, err, c.want)
		}
	}
}

// TestMissing checks that a document without a member that its event requires is an error
// that names the member.
func TestMissing(t *testing.T) {
	members := map[string]string{"session_id": "s", "cwd": "/w", "tool_name": "Bash", "tool_use_id": "c"}
	for _, c := range []struct {
		client, event string
		required      []string
	}{
		{"claude-code", "PreToolUse", []string{"hook_event_name", "session_id", "cwd", "tool_name", "tool_use_id"}},
		{"claude-code", "PostToolUse", []string{"hook_event_name", "session_id", "cwd", "tool_name", "tool_use_id"}},
		{"codex", "SessionStart", []string{"hook_event_name", "session_id", "cwd"}},
		{"gemini-cli", "BeforeTool", []string{"hook_event_name", "session_id", "cwd", "tool_name"}},
	} {
		for _, without := range append([]string{"hook_event_name", "tool_name", "tool_use_id"}, c.required...) {
			doc := map[string]string{"hook_event_name": c.event}
			for name, v := range members {
				doc[name] = v
			}
			delete(doc, without)
			b, err := json.Marshal(doc)
			if err != nil {
				t.Fatal(err)
			}
			client, err := ClientOf(c.client)
			if err != nil {
				t.Fatal(err)
			}
			_, err = client.Parse(b)
			if slices.Contains(c.required, without) != (err != nil && strings.Contains(err.Error(), without+";")) {
				t.Errorf("%s %s without %s: %v", c.client, c.event, without, err)
			}
		}
	}
	for name, client := range clients {
		if _, err := client.Parse([]byte("{")); err == nil || !strings.Contains(err.Error(), "is not JSON") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ClientOf("x"); err == nil || !strings.Contains(err.Error(), "claude-code, codex, cursor, gemini-cli, opencode, vscode") {
		t.Error(err)
	}
}

// TestAnswers checks the answers for Claude Code, Codex, OpenCode and Gemini CLI to a decision: the
// mesh permits a tool instead of the client's user only with replacePrompts, and a client that
// cannot prompt its user denies.
func TestAnswers(t *testing.T) {
	claude := func(decision, reason string) string {
		return `{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"` + decision + `","permissionDecisionReason":"` + reason + `"}}` + "\n"
	}
	allowed, denied, ask := Verdict{Allowed: true}, Verdict{Reason: "r"}, Verdict{Ask: true, Reason: "r"}
	const permit, deny = `{"permit":true}` + "\n", `{"permit":false,"reason":"r"}` + "\n"
	for _, c := range []struct {
		client  string
		phase   Phase
		verdict Verdict
		replace bool
		want    string
	}{
		{"claude-code", Before, allowed, false, ""},
		{"claude-code", Before, allowed, true, claude("allow", "")},
		{"claude-code", Before, denied, false, claude("deny", "r")},
		{"claude-code", Before, denied, true, claude("deny", "r")},
		{"claude-code", Before, ask, false, claude("ask", "r")},
		{"claude-code", After, denied, true, ""},
		{"claude-code", Session, allowed, true, ""},
		{"codex", Before, allowed, true, ""},
		{"codex", Before, ask, false, claude("deny", "r")},
		{"opencode", Before, allowed, false, permit},
		{"opencode", Before, denied, false, deny},
		{"opencode", Before, ask, false, deny},
		{"opencode", After, denied, false, permit},
		{"gemini-cli", Before, allowed, false, ""},
		{"gemini-cli", Before, allowed, true, `{"decision":"allow"}` + "\n"},
		{"gemini-cli", Before, denied, false, `{"decision":"deny","reason":"r"}` + "\n"},
		{"gemini-cli", Before, ask, true, `{"decision":"deny","reason":"r"}` + "\n"},
		{"gemini-cli", After, denied, true, ""},
		{"gemini-cli", After, allowed, true, ""},
	} {
		got := clients[c.client].Answer(&Event{Phase: c.phase, Name: "PreToolUse"}, c.verdict, c.replace)
		if got != (Answer{Stdout: c.want}) {
			t.Errorf("%s %v %+v %v: %+v, want %s", c.client, c.phase, c.verdict, c.replace, got, c.want)
		}
	}
	for name, want := range map[string]bool{"claude-code": true, "codex": false, "opencode": false, "gemini-cli": false} {
		if clients[name].Asks() != want {
			t.Errorf("%s asks: %v", name, !want)
		}
	}
}

// TestLimits checks that the limits of a client begin with the one of all clients, that they state
// whether the client cannot ask its user, and that the caller may change them.
func TestLimits(t *testing.T) {
	for _, name := range Clients() {
		got := Limits(name)
		if len(got) != 1+len(limits[name]) || len(got) < 2 || got[0] != commonLimit {
			t.Errorf("%s: %q", name, got)
		}
		if all := strings.Join(got, "\n"); clients[name].Asks() == (strings.Contains(all, "cannot ask its user") || strings.Contains(all, "no hook asks its user")) {
			t.Errorf("%s asks: %t, but the limits are %q", name, clients[name].Asks(), got)
		}
		got[1] = "x"
		if Limits(name)[1] == "x" {
			t.Errorf("%s: the limits changed", name)
		}
	}
}
