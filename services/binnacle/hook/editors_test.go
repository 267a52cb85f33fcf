package hook

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
)

// TestEditors checks the events of documents of Cursor and VS Code, and the answers to
// them: a denial, an answer without an objection, and a permission that replaces prompts.
func TestEditors(t *testing.T) {
	const shellInput = `"tool_input":{"command":"ls","working_directory":"/w/sub"},"tool_use_id":"c"`
	for _, c := range []struct {
		client, doc string
		phase       Phase
		tool, kind  string
		denied      string // part of the answer to a denial
		silent      string // answer to an allowed tool
		allowed     string // part of the answer that replaces prompts
	}{
		{"cursor", `{"hook_event_name":"preToolUse","conversation_id":"s","workspace_roots":["/w"],"tool_name":"Shell",` + shellInput + `}`, Before, "Shell", clientkind.Shell,
			`"permission":"deny"`, "{}\n", `"permission":"allow"`},
		{"cursor", `{"hook_event_name":"preToolUse","conversation_id":"s","cwd":"/w","tool_name":"MCP:tickets:add","tool_input":{},"tool_use_id":"c"}`, Before, "mcp__tickets__add", "client.mcp.tickets.add",
			`"agent_message":"r"`, "{}\n", `"permission":"allow"`},
		{"cursor", `{"hook_event_name":"preToolUse","conversation_id":"s","cwd":"/w","tool_name":"Delete","tool_input":{"file_path":"x"},"tool_use_id":"c"}`, Before, "Delete", clientkind.Other, `"permission":"deny"`, "{}\n", `"permission":"allow"`},
		{"cursor", `{"hook_event_name":"postToolUse","conversation_id":"s","cwd":"/w","tool_name":"Shell",` + shellInput + `,"tool_output":"x"}`, After, "Shell", clientkind.Shell, "{}", "{}\n", "{}"},
		{"cursor", `{"hook_event_name":"beforeSubmitPrompt","conversation_id":"s","workspace_roots":["/w"],"prompt":"p"}`, Session, "", "", "{}", "{}\n", "{}"},
		{"vscode", `{"hookEventName":"PreToolUse","sessionId":"s","cwd":"/w","tool_name":"run_in_terminal","tool_input":{"command":"ls"},"tool_use_id":"c"}`, Before, "run_in_terminal", clientkind.Shell,
			`"permissionDecision":"deny"`, "", `"permissionDecision":"allow"`},
		{"vscode", `{"hook_event_name":"PreToolUse","session_id":"s","cwd":"/w","tool_name":"editFiles","tool_input":{"files":["x"]},"tool_use_id":"c"}`, Before, "editFiles", clientkind.Other, `"permissionDecision":"deny"`, "", `"permissionDecision":"allow"`},
		{"vscode", `{"hookEventName":"PostToolUse","sessionId":"s","cwd":"/w","tool_name":"create_file","tool_input":{"filePath":"x"},"tool_use_id":"c","tool_response":"ok"}`, After, "create_file", clientkind.FileWrite, "", "", ""},
	} {
		client, err := ClientOf(c.client)
		if err != nil {
			t.Fatal(err)
		}
		e, err := client.Parse([]byte(c.doc))
		if err != nil || e.Phase != c.phase || e.Session != "s" || e.Tool != c.tool || e.CWD != "/w" {
			t.Errorf("%s: %+v %v", c.doc, e, err)
			continue
		}
		if c.kind != "" {
			act := (&Runner{Home: "/home"}).place(c.client, e).Normalise(e.Tool, e.Input)
			if cwd, _ := act.Args["cwd"].(string); act.Kind != c.kind || strings.Contains(c.doc, "working_directory") != (cwd == "/w/sub") {
				t.Errorf("%s: %s %v", c.doc, act.Kind, act.Args)
			}
		}
		for _, a := range []struct {
			v       Verdict
			replace bool
			want    string
		}{{Verdict{Reason: "r"}, false, c.denied}, {Verdict{Allowed: true}, true, c.allowed}} {
			got := client.Answer(e, a.v, a.replace)
			if !strings.Contains(got.Stdout, a.want) || got.Exit != 0 || got.Stdout != "" && !json.Valid([]byte(got.Stdout)) {
				t.Errorf("%s: %+v, want %s", c.doc, got, a.want)
			}
		}
		if got := client.Answer(e, Verdict{Allowed: true}, false); got.Stdout != c.silent {
			t.Errorf("%s: %q, want %q", c.doc, got.Stdout, c.silent)
		}
	}
	for name, doc := range map[string]string{"cursor": `{"hook_event_name":"preToolUse","conversation_id":"s","cwd":"/w","tool_name":"Shell"}`, "vscode": `{"hookEventName":"PreToolUse","sessionId":"s","cwd":"/w","tool_use_id":"c"}`} {
		client, err := ClientOf(name)
		if err != nil {
			t.Fatal(err)
		}
		if e, err := client.Parse([]byte(doc)); err == nil {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
