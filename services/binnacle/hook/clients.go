package hook

import (
	"encoding/json"
	"fmt"
)

// claude implements Client for Claude Code, and for Codex, whose hooks have the same documents.
// Codex supports neither the answer that prompts its user nor the one that permits a tool.
type claude struct{ asks bool }

type claudeDocument struct {
	Session    string          `json:"session_id"`
	Transcript string          `json:"transcript_path"`
	CWD        string          `json:"cwd"`
	Event      string          `json:"hook_event_name"`
	Tool       string          `json:"tool_name"`
	Input      json.RawMessage `json:"tool_input"`
	Response   json.RawMessage `json:"tool_response"`
	Error      json.RawMessage `json:"error"`
	CallID     string          `json:"tool_use_id"`
	Agent      string          `json:"agent_id"`
	AgentLog   string          `json:"agent_transcript_path"`
	Prompt     string          `json:"prompt"`
}

var claudePhases = map[string]Phase{
	"PreToolUse": Before, "PermissionRequest": Again, "PostToolUse": After, "PostToolUseFailure": After,
	"SessionStart": Session, "SessionEnd": Session, "UserPromptSubmit": Session, "SubagentStart": Session, "SubagentStop": Session, "Stop": Session,
}

// Parse implements Client.
func (claude) Parse(doc []byte) (*Event, error) {
	var d claudeDocument
	if err := json.Unmarshal(doc, &d); err != nil {
		return nil, fmt.Errorf("the hook's document is not JSON: %w", err)
	}
	e := &Event{Phase: claudePhases[d.Event], Name: d.Event, Session: d.Session, CallID: d.CallID, Tool: d.Tool, Input: d.Input, Response: d.Response,
		Failed: d.Event == "PostToolUseFailure", CWD: d.CWD, Transcript: d.Transcript, Subagent: d.Agent, Prompt: d.Prompt}
	if e.Failed && len(e.Response) == 0 {
		e.Response = d.Error
	}
	if e.Name == "SubagentStop" && d.AgentLog != "" {
		e.Transcript = d.AgentLog
	}
	if e.Phase == Again {
		e.CallID, e.NoID = e.inputDigest(), true
	}
	return e, e.check()
}

// check returns an error if the event lacks a member that its phase requires. The error
// names the first such member.
func (e *Event) check() error {
	required := []struct{ name, value string }{{"hook_event_name", e.Name}, {"session_id", e.Session}, {"cwd", e.CWD}}
	if e.Phase == Before || e.Phase == Again || e.Phase == After {
		required = append(required, []struct{ name, value string }{{"tool_name", e.Tool}, {"tool_use_id", e.CallID}}...)
	}
	for _, r := range required {
		if r.value == "" {
			return fmt.Errorf("the hook's document has no member %s; this version of the client is not supported", r.name)
		}
	}
	return nil
}

// Asks implements Client.
func (c claude) Asks() bool { return c.asks }

// Answer implements Client.
func (c claude) Answer(e *Event, v Verdict, replacePrompts bool) Answer {
	decision := "deny"
	switch {
	case e.Phase == Again && !v.Allowed && !(v.Ask && c.asks):
		return document(map[string]any{"hookSpecificOutput": map[string]any{"hookEventName": e.Name, "decision": map[string]string{"behavior": decision, "message": v.Reason}}})
	case e.Phase != Before:
		return Answer{}
	case v.Allowed && replacePrompts && c.asks:
		decision = "allow"
	case v.Allowed:
		return Answer{}
	case v.Ask && c.asks:
		decision = "ask"
	}
	return document(map[string]any{"hookSpecificOutput": map[string]string{"hookEventName": e.Name, "permissionDecision": decision, "permissionDecisionReason": v.Reason}})
}

func document(doc any) Answer {
	b, err := json.Marshal(doc)
	if err != nil {
		return Broken(err.Error())
	}
	return Answer{Stdout: string(b) + "\n"}
}

// openCode is OpenCode, in which our plugin passes documents in the form of Claude Code, and denies
// the tool unless the answer has the member permit with the value true.
type openCode struct{}

// Parse implements Client.
func (openCode) Parse(doc []byte) (*Event, error) {
	return claude{}.Parse(doc)
}

// Asks implements Client.
func (openCode) Asks() bool { return false }

// Answer implements Client.
func (openCode) Answer(e *Event, v Verdict, _ bool) Answer {
	if e.Phase != Before || v.Allowed {
		return document(map[string]any{"permit": true})
	}
	return document(map[string]any{"permit": false, "reason": v.Reason})
}

// gemini is Gemini CLI, whose documents differ from those of Claude Code in the names of the events,
// of the tools of MCP servers, and in the answer. Its documents have no id of the tool call, so the
// digest of the input takes its place.
type gemini struct{}

type geminiDocument struct {
	claudeDocument
	MCP *struct {
		Server string `json:"server_name"`
		Tool   string `json:"tool_name"`
	} `json:"mcp_context"`
}

var geminiPhases = map[string]Phase{"BeforeTool": Before, "AfterTool": After, "SessionStart": Session, "SessionEnd": Session, "BeforeAgent": Session}

// Parse implements Client.
func (gemini) Parse(doc []byte) (*Event, error) {
	var d geminiDocument
	if err := json.Unmarshal(doc, &d); err != nil {
		return nil, fmt.Errorf("the hook's document is not JSON: %w", err)
	}
	var response struct{ Error json.RawMessage }
	_ = json.Unmarshal(d.Response, &response) // another response is not that of a failure
	if d.MCP != nil {
		d.Tool = "mcp__" + d.MCP.Server + "__" + d.MCP.Tool
	}
	e := &Event{Phase: geminiPhases[d.Event], Name: d.Event, Session: d.Session, CallID: d.CallID, Tool: d.Tool, Input: d.Input, Response: d.Response,
		Failed: len(response.Error) > 0 && string(response.Error) != "null", CWD: d.CWD, Transcript: d.Transcript, Prompt: d.Prompt}
	if e.CallID == "" {
		e.CallID, e.NoID = e.inputDigest(), true
	}
	return e, e.check()
}

// Asks implements Client.
func (gemini) Asks() bool { return false }

// Answer implements Client.
func (gemini) Answer(e *Event, v Verdict, replacePrompts bool) Answer {
	switch {
	case e.Phase != Before || v.Allowed && !replacePrompts:
		return Answer{}
	case v.Allowed:
		return document(map[string]any{"decision": "allow"})
	}
	return document(map[string]any{"decision": "deny", "reason": v.Reason})
}
