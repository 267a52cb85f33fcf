package hook

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
)

// cursor is Cursor, whose documents name the conversation instead of the session, and whose
// answer is a permission. An answer without one leaves the tool to Cursor's own rules.
type cursor struct{}

type cursorDocument struct {
	claudeDocument
	Conversation string          `json:"conversation_id"`
	Roots        []string        `json:"workspace_roots"`
	Output       json.RawMessage `json:"tool_output"`
	Failure      json.RawMessage `json:"error_message"`
}

var cursorPhases = map[string]Phase{"preToolUse": Before, "postToolUse": After, "postToolUseFailure": After, "sessionStart": Session, "sessionEnd": Session, "beforeSubmitPrompt": Session}

// Parse implements Client.
func (cursor) Parse(doc []byte) (*Event, error) {
	var d cursorDocument
	if err := json.Unmarshal(doc, &d); err != nil {
		return nil, fmt.Errorf("the hook's document is not JSON: %w", err)
	}
	e := &Event{Phase: cursorPhases[d.Event], Name: d.Event, Session: cmp.Or(d.Conversation, d.Session), CallID: d.CallID, Tool: d.Tool, Input: d.Input, Response: d.Output,
		Failed: d.Event == "postToolUseFailure", CWD: d.CWD, Transcript: d.Transcript, Prompt: d.Prompt}
	if e.Failed {
		e.Response = d.Failure
	}
	if e.CWD == "" && len(d.Roots) > 0 {
		e.CWD = d.Roots[0]
	}
	if server, tool, ok := strings.Cut(strings.TrimPrefix(e.Tool, "MCP:"), ":"); ok && strings.HasPrefix(e.Tool, "MCP:") {
		e.Tool = "mcp__" + server + "__" + tool
	}
	return e, e.check()
}

// Asks implements Client.
func (cursor) Asks() bool { return false }

// Answer implements Client.
func (cursor) Answer(e *Event, v Verdict, replacePrompts bool) Answer {
	switch {
	case e.Phase != Before, v.Allowed && !replacePrompts:
		return document(map[string]any{})
	case v.Allowed:
		return document(map[string]any{"permission": "allow"})
	}
	return document(map[string]any{"permission": "deny", "user_message": v.Reason, "agent_message": v.Reason})
}

// vscode is VS Code, whose documents are those of Claude Code, except that some of its
// versions write the names of two members in camel case.
type vscode struct{}

// Parse implements Client.
func (vscode) Parse(doc []byte) (*Event, error) {
	var d struct {
		claudeDocument
		SessionID string `json:"sessionId"`
		EventName string `json:"hookEventName"`
	}
	if err := json.Unmarshal(doc, &d); err != nil {
		return nil, fmt.Errorf("the hook's document is not JSON: %w", err)
	}
	name := cmp.Or(d.Event, d.EventName)
	e := &Event{Phase: claudePhases[name], Name: name, Session: cmp.Or(d.Session, d.SessionID), CallID: d.CallID, Tool: d.Tool, Input: d.Input, Response: d.Response,
		CWD: d.CWD, Transcript: d.Transcript, Subagent: d.Agent, Prompt: d.Prompt}
	return e, e.check()
}

// Asks implements Client.
func (vscode) Asks() bool { return true }

// Answer implements Client.
func (vscode) Answer(e *Event, v Verdict, replacePrompts bool) Answer {
	return claude{asks: true}.Answer(e, v, replacePrompts)
}
