// Package messages is Anthropic's messages API, as a server reads and writes it
// and as a client does.
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
	Data      string          `json:"data,omitempty"` // redacted_thinking
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

// ParseRequest reads a request.
func ParseRequest(body []byte) (*ir.Request, error) {
	m, err := ir.Split(body)
	if err != nil {
		return nil, err
	}
	r := &ir.Request{}
	var system json.RawMessage
	var msgs []message
	var tools []json.RawMessage
	var choice *struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Disabled *bool  `json:"disable_parallel_tool_use"`
	}
	var thinking struct {
		Type   string `json:"type"`
		Budget int64  `json:"budget_tokens"`
	}
	var meta struct {
		User string `json:"user_id"`
	}
	type format struct {
		Type   string          `json:"type"`
		Schema json.RawMessage `json:"schema"`
	}
	var output struct {
		Effort string  `json:"effort"`
		Format *format `json:"format"`
	}
	var output2 *format
	if err := m.TakeAll("model", &r.Model, "stream", &r.Stream, "system", &system, "messages", &msgs, "tools", &tools, "tool_choice", &choice, "max_tokens", &r.MaxTokens,
		"temperature", &r.Temperature, "top_p", &r.TopP, "top_k", &r.TopK, "stop_sequences", &r.Stop, "thinking", &thinking, "metadata", &meta,
		"output_config", &output, "output_format", &output2); err != nil {
		return nil, err
	}
	r.User, r.ThinkingBudget, r.Effort = meta.User, thinking.Budget, output.Effort
	if output.Format != nil {
		output2 = output.Format
	}
	if output2 != nil {
		r.Format = &ir.Format{Type: output2.Type, Name: "answer", Schema: output2.Schema}
	}
	if parts, err := parseContent(system); err != nil {
		return nil, ir.Misfit("system", err)
	} else if len(parts) > 0 {
		r.Messages = append(r.Messages, ir.Message{Role: ir.System, Parts: parts})
	}
	for i, x := range msgs {
		parts, err := parseContent(x.Content)
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		if x.Role != ir.User && x.Role != ir.Assistant && x.Role != ir.System {
			return nil, fmt.Errorf("messages[%d].role: %q is unknown", i, x.Role)
		}
		r.Messages = append(r.Messages, ir.Message{Role: x.Role, Parts: parts})
	}
	for i, raw := range tools {
		var t tool
		if err := json.Unmarshal(raw, &t); err != nil {
			return nil, ir.Misfit(fmt.Sprintf("tools[%d]", i), err)
		}
		d := ir.ToolDef{Name: t.Name, Description: t.Description, Schema: t.Schema, Strict: t.Strict, Cache: t.Cache}
		if t.Type != "" && t.Type != "custom" {
			d.Hosted = raw
		}
		r.Tools = append(r.Tools, d)
	}
	if choice != nil {
		r.Choice = &ir.Choice{Mode: choice.Type, Name: choice.Name}
		if choice.Type == "any" {
			r.Choice.Mode = "required"
		}
		if choice.Disabled != nil {
			parallel := !*choice.Disabled
			r.Parallel = &parallel
		}
	}
	r.Extra = m
	return r, nil
}

func parseContent(raw json.RawMessage) ([]ir.Part, error) { return ir.Content(raw, parseBlock) }

func str(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

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
		return p, fmt.Errorf("type: %q is unknown", b.Type)
	}
	return p, nil
}

// defaultMax is what is asked for where the caller's API needs no bound.
const defaultMax = 8192

// BuildRequest writes a request.
func BuildRequest(r *ir.Request) ([]byte, error) {
	o := ir.Obj{}
	for k, v := range r.Extra {
		o[k] = v
	}
	o["model"] = r.Model
	var system []block
	var msgs []ir.Obj
	add := func(role string, blocks []block) {
		if len(blocks) == 0 {
			return
		}
		if n := len(msgs); n > 0 && msgs[n-1]["role"] == role {
			msgs[n-1]["content"] = append(msgs[n-1]["content"].([]block), blocks...)
			return
		}
		msgs = append(msgs, ir.Obj{"role": role, "content": blocks})
	}
	for _, m := range r.Messages {
		blocks, err := buildBlocks(m.Parts)
		if err != nil {
			return nil, err
		}
		switch m.Role {
		case ir.System:
			system = append(system, blocks...)
		case ir.Assistant:
			add(ir.Assistant, blocks)
		default:
			add(ir.User, blocks)
		}
	}
	if len(system) > 0 {
		o["system"] = system
	}
	o["messages"] = msgs
	if r.Stream {
		o["stream"] = true
	}
	var tools []any
	for _, t := range r.Tools {
		switch {
		case len(t.Hosted) > 0:
			var own tool
			if json.Unmarshal(t.Hosted, &own) == nil && own.Name != "" {
				tools = append(tools, t.Hosted)
			}
		case len(t.Custom) > 0:
			tools = append(tools, tool{Name: ir.FlatName(t.Namespace, t.Name), Description: t.Description, Cache: t.Cache,
				Schema: ir.CustomSchema})
		default:
			schema := t.Schema
			if len(schema) == 0 {
				schema = json.RawMessage(`{"type":"object","properties":{}}`)
			}
			tools = append(tools, tool{Name: ir.FlatName(t.Namespace, t.Name), Description: t.Description, Schema: schema, Cache: t.Cache})
		}
	}
	if len(tools) > 0 {
		o["tools"] = tools
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
		if r.Choice != nil || r.Parallel != nil {
			o["tool_choice"] = choice
		}
	}
	limit := r.MaxTokens
	if limit == 0 {
		limit = defaultMax
	}
	output := ir.Obj{}
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

// clamp: this API's temperature ends at 1.
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
				continue // the API refuses empty text
			}
			b.Text = &p.Text
		case ir.Image, ir.File:
			if b.Type = "image"; p.Type == ir.File {
				b.Type, b.Title = "document", p.Media.Name
			}
			b.Source = sourceOf(p.Media)
		case ir.Audio:
			return nil, fmt.Errorf("input_audio: this provider takes no audio")
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
				continue // unsigned thinking is refused by the API
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
