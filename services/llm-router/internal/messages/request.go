// Package messages implements Anthropic's messages API for a server and for a client.
// Source: https://docs.anthropic.com/en/api/messages
package messages

import (
	"encoding/json"
	"fmt"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/claude"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

type source struct {
	Type      string `json:"type"` // base64, url, file, text
	MediaType string `json:"media_type,omitempty"`
	Data      string `json:"data,omitempty"`
	URL       string `json:"url,omitempty"`
	FileID    string `json:"file_id,omitempty"`
}

type block struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Source    *source         `json:"source,omitempty"`
	Title     string          `json:"title,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   json.RawMessage `json:"content,omitempty"`
	IsError   bool            `json:"is_error,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature *string         `json:"signature,omitempty"`
	Data      string          `json:"data,omitempty"` // content of a block redacted_thinking
	Cache     json.RawMessage `json:"cache_control,omitempty"`
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type tool struct {
	Type        string          `json:"type,omitempty"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"input_schema,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
	Cache       json.RawMessage `json:"cache_control,omitempty"`
}

// body holds the members of a request that need conversion.
type body struct {
	system json.RawMessage
	msgs   []message
	tools  []json.RawMessage
	choice *struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Disabled *bool  `json:"disable_parallel_tool_use"`
	}
	thinking struct {
		Type   string `json:"type"`
		Budget int64  `json:"budget_tokens"`
	}
	meta struct {
		User string `json:"user_id"`
	}
	output struct {
		Effort string  `json:"effort"`
		Format *format `json:"format"`
	}
	format *format // member output_format, which output_config.format replaced
}

type format struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"schema"`
}

// ParseRequest decodes a request. An error about a member begins with its path, as in
// "messages[0].role: ". Members that ParseRequest does not decode are in Extra.
func ParseRequest(doc []byte) (*ir.Request, error) {
	m, err := ir.Split(doc)
	if err != nil {
		return nil, err
	}
	r := &ir.Request{}
	var b body
	if err := m.TakeAll("model", &r.Model, "stream", &r.Stream, "system", &b.system, "messages", &b.msgs, "tools", &b.tools, "tool_choice", &b.choice, "max_tokens", &r.MaxTokens,
		"temperature", &r.Temperature, "top_p", &r.TopP, "top_k", &r.TopK, "stop_sequences", &r.Stop, "thinking", &b.thinking, "metadata", &b.meta,
		"output_config", &b.output, "output_format", &b.format); err != nil {
		return nil, err
	}
	r.User, r.ThinkingBudget, r.Effort = b.meta.User, b.thinking.Budget, b.output.Effort
	if b.output.Format != nil {
		b.format = b.output.Format
	}
	if f := b.format; f != nil {
		r.Format = &ir.Format{Type: f.Type, Name: "answer", Schema: f.Schema}
	}
	if r.Messages, err = b.messages(); err != nil {
		return nil, err
	}
	if r.Tools, err = b.toolDefs(); err != nil {
		return nil, err
	}
	b.choose(r)
	r.Extra = m
	return r, nil
}

// messages returns the system prompt, if any, followed by the messages.
func (b *body) messages() (out []ir.Message, err error) {
	if parts, err := parseContent(b.system); err != nil {
		return nil, ir.Misfit("system", err)
	} else if len(parts) > 0 {
		out = append(out, ir.Message{Role: ir.System, Parts: parts})
	}
	for i, x := range b.msgs {
		parts, err := parseContent(x.Content)
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		if x.Role != ir.User && x.Role != ir.Assistant && x.Role != ir.System {
			return nil, fmt.Errorf("messages[%d].role: %q is unknown", i, x.Role)
		}
		out = append(out, ir.Message{Role: x.Role, Parts: parts})
	}
	return out, nil
}

// toolDefs returns the tools. A tool with a type other than custom is defined by
// Anthropic, and other APIs have no equivalent; for such a tool, Hosted is the tool as
// the caller wrote it.
func (b *body) toolDefs() (out []ir.ToolDef, err error) {
	for i, raw := range b.tools {
		var t tool
		if err := json.Unmarshal(raw, &t); err != nil {
			return nil, ir.Misfit(fmt.Sprintf("tools[%d]", i), err)
		}
		d := ir.ToolDef{Name: t.Name, Description: t.Description, Schema: t.Schema, Strict: t.Strict, Cache: t.Cache}
		if t.Type != "" && t.Type != "custom" {
			d.Hosted = raw
		}
		out = append(out, d)
	}
	return out, nil
}

// choose sets r.Choice and r.Parallel from tool_choice.
func (b *body) choose(r *ir.Request) {
	c := b.choice
	if c == nil {
		return
	}
	r.Choice = &ir.Choice{Mode: c.Type, Name: c.Name}
	if c.Type == "any" {
		r.Choice.Mode = "required"
	}
	if c.Disabled != nil {
		parallel := !*c.Disabled
		r.Parallel = &parallel
	}
}

func parseContent(raw json.RawMessage) ([]ir.Part, error) { return ir.Content(raw, parseBlock) }

func str(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// parseBlock decodes a block of content. Its errors begin with the invalid member. An
// error wraps ir.ErrUnknownType if the type of the block, or of a block within a tool
// result, is unknown.
func parseBlock(b *block) (ir.Part, error) {
	p := ir.Part{Type: ir.Text, Text: str(b.Text), Cache: b.Cache}
	switch b.Type {
	case "text":
	case "image", "document":
		if p.Type = ir.Image; b.Type == "document" {
			p.Type = ir.File
		}
		if b.Source == nil {
			return p, fmt.Errorf("source: missing")
		}
		p.Media = &ir.Media{URL: b.Source.URL, Data: b.Source.Data, MIME: b.Source.MediaType, ID: b.Source.FileID, Name: b.Title}
	case "tool_use", "server_tool_use":
		p.Type, p.ID, p.Name, p.Args = ir.ToolCall, b.ID, b.Name, string(b.Input)
	case "tool_result":
		parts, err := parseContent(b.Content)
		if err != nil {
			return p, err
		}
		p.Type, p.ID, p.Parts, p.IsError = ir.ToolResult, b.ToolUseID, parts, b.IsError
	case "thinking":
		p.Type, p.Text, p.Signature = ir.Thinking, str(b.Thinking), str(b.Signature)
	case "redacted_thinking":
		p.Type, p.Redacted = ir.Thinking, b.Data
	default:
		return p, fmt.Errorf("type: %q %w", b.Type, ir.ErrUnknownType)
	}
	return p, nil
}

// defaultMax is the default of max_tokens, which this API requires. A thinking budget is
// added to it.
const defaultMax = 8192

// BuildRequest returns the body of a request, including the members in Extra. It omits
// fields of r that the API lacks, but returns an error, which begins with input_audio,
// if a message contains audio.
func BuildRequest(r *ir.Request) ([]byte, error) {
	o := r.Document()
	o["model"] = r.Model
	system, turns, err := ir.Alternate(r.Messages, buildBlocks)
	if err != nil {
		return nil, err
	}
	if len(system) > 0 {
		o["system"] = system
	}
	var msgs []ir.Obj
	for _, t := range turns {
		msgs = append(msgs, ir.Obj{"role": t.Role, "content": t.Blocks})
	}
	o["messages"] = msgs
	if r.Stream {
		o["stream"] = true
	}
	if tools := buildTools(r.Tools); len(tools) > 0 {
		o["tools"] = tools
		if r.Choice != nil || r.Parallel != nil {
			o["tool_choice"] = buildChoice(r)
		}
	}
	output := bounds(o, r)
	o.Put("stop_sequences", r.Stop)
	if r.User != "" {
		o["metadata"] = ir.Obj{"user_id": r.User}
	}
	if f := r.Format; f != nil && len(f.Schema) > 0 {
		output["format"] = ir.Obj{"type": "json_schema", "schema": f.Schema}
	}
	if len(output) > 0 {
		o["output_config"] = output
	}
	return o.Bytes()
}

// buildTools returns the tools. A tool with Hosted is included as the caller wrote it if it has a
// name, as such tools have in this API; otherwise it is omitted.
func buildTools(defs []ir.ToolDef) (tools []any) {
	for i := range defs {
		t := &defs[i]
		if len(t.Hosted) > 0 {
			var own tool
			if json.Unmarshal(t.Hosted, &own) == nil && own.Name != "" {
				tools = append(tools, t.Hosted)
			}
			continue
		}
		tools = append(tools, tool{Name: t.Flat(), Description: t.Description, Schema: t.ParametersOr(ir.NoParameters), Cache: t.Cache})
	}
	return tools
}

// buildChoice returns the member tool_choice. It also disables parallel tool calls if
// r.Parallel is false, unless the model must not call a tool at all.
func buildChoice(r *ir.Request) ir.Obj {
	choice := ir.Obj{"type": "auto"}
	if c := r.Choice; c != nil {
		switch c.Mode {
		case "required":
			choice["type"] = "any"
		case "tool":
			choice = ir.Obj{"type": "tool", "name": c.Name}
		default:
			choice["type"] = c.Mode
		}
	}
	if r.Parallel != nil && !*r.Parallel && choice["type"] != "none" {
		choice["disable_parallel_tool_use"] = true
	}
	return choice
}

// bounds sets the maximum length of the answer and at most one of thinking and sampling,
// which exclude each other. It returns the member output_config, which contains the
// effort or is empty.
func bounds(o ir.Obj, r *ir.Request) (output ir.Obj) {
	output = ir.Obj{}
	limit := r.MaxTokens
	if limit == 0 {
		limit = defaultMax
	}
	m, known := claude.Of(r.Model)
	effort, budget := m.Thinking(r.Effort, r.ThinkingBudget)
	switch {
	case effort != "":
		o["thinking"] = ir.Obj{"type": "adaptive", "display": "summarized"}
		output["effort"] = effort
	case budget > 0:
		if r.MaxTokens == 0 {
			limit += budget
		}
		if budget = claude.Within(budget, limit); budget > 0 {
			o["thinking"] = ir.Obj{"type": "enabled", "budget_tokens": budget}
		}
	case m.Sampling || !known:
		o.Put("temperature", clamp(r.Temperature))
		o.Put("top_p", r.TopP)
		o.Put("top_k", r.TopK)
	}
	o["max_tokens"] = limit
	return output
}

// clamp limits a temperature to 1, the maximum of this API.
func clamp(t *float64) *float64 {
	if t != nil && *t > 1 {
		one := 1.0
		return &one
	}
	return t
}

func buildBlocks(parts []ir.Part) ([]block, error) {
	var out []block
	for _, p := range parts {
		b := block{Type: "text", Cache: p.Cache}
		switch p.Type {
		case ir.Text, ir.Refusal:
			if p.Text == "" {
				continue // the API rejects empty text
			}
			b.Text = &p.Text
		case ir.Image, ir.File:
			if b.Type = "image"; p.Type == ir.File {
				b.Type, b.Title = "document", p.Media.Name
			}
			b.Source = sourceOf(p.Media)
		case ir.Audio:
			return nil, fmt.Errorf("input_audio: this provider does not accept audio")
		case ir.ToolCall:
			b.Type, b.ID, b.Name, b.Input = "tool_use", p.ID, ir.FlatName(p.Namespace, p.Name), ir.Object(p.Args)
		case ir.ToolResult:
			inner, err := buildBlocks(p.Parts)
			if err != nil {
				return nil, err
			}
			b.Type, b.ToolUseID, b.IsError = "tool_result", p.ID, p.IsError
			if len(inner) > 0 {
				if b.Content, err = json.Marshal(inner); err != nil {
					return nil, err
				}
			}
		case ir.Thinking:
			switch {
			case p.Redacted != "":
				b.Type, b.Data = "redacted_thinking", p.Redacted
			case p.Signature != "":
				b.Type, b.Thinking, b.Signature = "thinking", &p.Text, &p.Signature
			default:
				continue // the API rejects unsigned thinking
			}
		}
		out = append(out, b)
	}
	return out, nil
}

func sourceOf(m *ir.Media) *source {
	switch {
	case m.Data != "":
		return &source{Type: "base64", MediaType: m.MIME, Data: m.Data}
	case m.ID != "":
		return &source{Type: "file", FileID: m.ID}
	}
	return &source{Type: "url", URL: m.URL}
}
