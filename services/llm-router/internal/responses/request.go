// Package responses implements OpenAI's responses API for a server and for a client.
// Source: https://platform.openai.com/docs/api-reference/responses
package responses

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

type content struct {
	Type     string          `json:"type"`
	Text     string          `json:"text"`
	Refusal  string          `json:"refusal"`
	ImageURL string          `json:"image_url"`
	Detail   string          `json:"detail"`
	FileID   string          `json:"file_id"`
	FileURL  string          `json:"file_url"`
	FileData string          `json:"file_data"`
	Filename string          `json:"filename"`
	Audio    *audio          `json:"input_audio"`
	Cache    json.RawMessage `json:"cache_control"`
}

type audio struct {
	Data   string `json:"data"`
	Format string `json:"format"`
}

type item struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Namespace string          `json:"namespace"`
	Arguments string          `json:"arguments"`
	Input     string          `json:"input"`
	Output    json.RawMessage `json:"output"`
	Summary   []content       `json:"summary"`
	Encrypted string          `json:"encrypted_content"`
}

type tool struct {
	Type        string            `json:"type"`
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Parameters  json.RawMessage   `json:"parameters"`
	Strict      *bool             `json:"strict"`
	Format      json.RawMessage   `json:"format"`
	Tools       []json.RawMessage `json:"tools"`
}

// ParseRequest decodes a request. Instructions become the first message. An error about a
// member begins with its path. The members previous_response_id, store, include,
// truncation, background, stream_options, conversation and client_metadata are dropped.
// All other members that ParseRequest does not decode are in Extra.
func ParseRequest(body []byte) (*ir.Request, error) {
	m, err := ir.Split(body)
	if err != nil {
		return nil, err
	}
	r := &ir.Request{}
	var instructions string
	var input, choice json.RawMessage
	var tools []json.RawMessage
	var reasoning struct {
		Effort string `json:"effort"`
	}
	var text struct {
		Format struct {
			Type        string          `json:"type"`
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"schema"`
			Strict      *bool           `json:"strict"`
		} `json:"format"`
	}
	var previous string
	var ignored any
	if err := m.TakeAll("model", &r.Model, "stream", &r.Stream, "instructions", &instructions, "input", &input, "tools", &tools, "tool_choice", &choice,
		"parallel_tool_calls", &r.Parallel, "max_output_tokens", &r.MaxTokens, "temperature", &r.Temperature, "top_p", &r.TopP, "top_logprobs", &r.TopLogProbs,
		"reasoning", &reasoning, "text", &text, "user", &r.User, "metadata", &r.Metadata, "prompt_cache_key", &r.CacheKey, "previous_response_id", &previous,
		"store", &ignored, "include", &ignored, "truncation", &ignored, "background", &ignored, "stream_options", &ignored, "conversation", &ignored, "client_metadata", &ignored); err != nil {
		return nil, err
	}
	r.Effort = reasoning.Effort
	if f := text.Format; f.Type != "" && f.Type != "text" {
		r.Format = &ir.Format{Type: f.Type, Name: f.Name, Description: f.Description, Schema: f.Schema, Strict: f.Strict}
	}
	if instructions != "" {
		r.Messages = append(r.Messages, ir.Message{Role: ir.System, Parts: []ir.Part{{Type: ir.Text, Text: instructions}}})
	}
	msgs, err := ParseInput(input)
	if err != nil {
		return nil, err
	}
	r.Messages = append(r.Messages, msgs...)
	for i, raw := range tools {
		ds, err := parseTool(raw, "")
		if err != nil {
			return nil, ir.Misfit(fmt.Sprintf("tools[%d]", i), err)
		}
		r.Tools = append(r.Tools, ds...)
	}
	if r.Choice, err = parseChoice(choice); err != nil {
		return nil, err
	}
	r.Extra = m
	return r, nil
}

// parseTool decodes a tool, or the tools in a namespace. For a tool of a type other than
// function, custom and namespace, Hosted is the tool as the caller wrote it, since other
// APIs have no equivalent. A tool without a type is an error.
func parseTool(raw json.RawMessage, namespace string) ([]ir.ToolDef, error) {
	var t tool
	if err := json.Unmarshal(raw, &t); err != nil {
		return nil, err
	}
	d := ir.ToolDef{Name: t.Name, Namespace: namespace, Description: t.Description, Schema: t.Parameters, Strict: t.Strict}
	switch t.Type {
	case "function":
	case "custom":
		if d.Custom = t.Format; len(t.Format) == 0 {
			d.Custom = json.RawMessage("null")
		}
	case "namespace":
		var out []ir.ToolDef
		for _, inner := range t.Tools {
			ds, err := parseTool(inner, t.Name)
			if err != nil {
				return nil, err
			}
			out = append(out, ds...)
		}
		return out, nil
	case "":
		return nil, errors.New("type: missing")
	default:
		d.Hosted = raw
	}
	return []ir.ToolDef{d}, nil
}

func parseChoice(raw json.RawMessage) (*ir.Choice, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var mode string
	if json.Unmarshal(raw, &mode) == nil {
		return &ir.Choice{Mode: mode}, nil
	}
	var c struct {
		Type string `json:"type"`
		Mode string `json:"mode"`
		Name string `json:"name"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, ir.Misfit("tool_choice", err)
	}
	if c.Mode != "" { // the type allowed_tools; its list of tools is not converted
		return &ir.Choice{Mode: c.Mode}, nil
	}
	return &ir.Choice{Mode: "tool", Name: c.Name}, nil
}

// ParseInput decodes the member input: a text, or a list of items. It joins consecutive
// items of the model into one message, and likewise consecutive results of tools. It
// returns nil if the member is absent or null.
func ParseInput(raw json.RawMessage) ([]ir.Message, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []ir.Message{{Role: ir.User, Parts: []ir.Part{{Type: ir.Text, Text: text}}}}, nil
	}
	var items []item
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, ir.Misfit("input", err)
	}
	var out []ir.Message
	for i := range items {
		m, err := parseItem(&items[i])
		if err != nil {
			return nil, fmt.Errorf("input[%d]%w", i, err)
		}
		if n := len(out); n > 0 && out[n-1].Role == m.Role && m.Role != ir.User && m.Role != ir.System {
			out[n-1].Parts = append(out[n-1].Parts, m.Parts...)
			continue
		}
		out = append(out, m)
	}
	return out, nil
}

// parseItem decodes one item of an input as a message of its own. Its errors are
// appended to the path of the item: they begin with a colon, or with a dot and the name
// of a member.
func parseItem(it *item) (ir.Message, error) {
	of := func(role string, p ir.Part) (ir.Message, error) {
		return ir.Message{Role: role, Parts: []ir.Part{p}}, nil
	}
	switch it.Type {
	case "message", "":
		return parseMessage(it)
	case "function_call", "custom_tool_call":
		return of(ir.Assistant, it.toolCall())
	case "function_call_output", "custom_tool_call_output":
		parts, err := parseContent(it.Output)
		if err != nil {
			return ir.Message{}, fmt.Errorf(".output: %w", err)
		}
		return of(ir.Tool, ir.Part{Type: ir.ToolResult, ID: it.CallID, Parts: parts})
	case "reasoning":
		return of(ir.Assistant, it.thinking())
	}
	return ir.Message{}, fmt.Errorf(".type: %q cannot be translated for this provider", it.Type)
}

// parseMessage decodes an item of type message. The role developer becomes System.
func parseMessage(it *item) (ir.Message, error) {
	parts, err := parseContent(it.Content)
	if err != nil {
		return ir.Message{}, fmt.Errorf(": %w", err)
	}
	switch it.Role {
	case "developer":
		return ir.Message{Role: ir.System, Parts: parts}, nil
	case ir.System, ir.User, ir.Assistant:
		return ir.Message{Role: it.Role, Parts: parts}, nil
	}
	return ir.Message{}, fmt.Errorf(".role: %q is unknown", it.Role)
}

// toolCall returns the part for a call of a function or of a custom tool.
func (it *item) toolCall() ir.Part {
	p := ir.Part{Type: ir.ToolCall, ID: it.CallID, Name: it.Name, Namespace: it.Namespace, Args: it.Arguments}
	if it.Type == "custom_tool_call" {
		p.Args, p.Custom = it.Input, true
	}
	return p
}

// thinking returns the part for a reasoning item. The encrypted content is its
// signature.
func (it *item) thinking() ir.Part {
	p := ir.Part{Type: ir.Thinking, Signature: it.Encrypted}
	for _, s := range it.Summary {
		p.Text += s.Text
	}
	return p
}

func parseContent(raw json.RawMessage) ([]ir.Part, error) { return ir.Content(raw, parsePart) }

func parsePart(c *content) (ir.Part, error) {
	p := ir.Part{Type: ir.Text, Text: c.Text, Cache: c.Cache}
	switch c.Type {
	case "input_text", "output_text", "text", "summary_text":
	case "refusal":
		p.Type, p.Text = ir.Refusal, c.Refusal
	case "input_image":
		p.Type, p.Media = ir.Image, ir.FromURL(c.ImageURL)
		p.Media.Detail, p.Media.ID = c.Detail, c.FileID
	case "input_file":
		p.Type, p.Media = ir.File, ir.FromURL(c.FileData)
		if c.FileURL != "" {
			p.Media.URL = c.FileURL
		}
		p.Media.ID, p.Media.Name = c.FileID, c.Filename
	case "input_audio":
		if c.Audio == nil {
			return p, errors.New("input_audio: missing")
		}
		p.Type, p.Media = ir.Audio, &ir.Media{Data: c.Audio.Data, MIME: "audio/" + c.Audio.Format}
	default:
		return p, fmt.Errorf("type: %q %w", c.Type, ir.ErrUnknownType)
	}
	return p, nil
}

// BuildRequest returns the body of a request, including the members in Extra. It sets
// store to false: the ledger, not the provider, stores the conversation. It omits fields
// of r that the API lacks.
func BuildRequest(r *ir.Request) ([]byte, error) {
	o := r.Document()
	o["model"], o["store"] = r.Model, false
	if r.Stream {
		o["stream"] = true
	}
	items := []ir.Obj{}
	for _, m := range r.Messages {
		items = append(items, buildItems(&m)...)
	}
	o["input"] = items
	if tools := buildTools(r.Tools); len(tools) > 0 {
		o["tools"] = tools
		o.Put("parallel_tool_calls", r.Parallel)
		if c := r.Choice; c != nil {
			if o["tool_choice"] = c.Mode; c.Mode == "tool" {
				o["tool_choice"] = ir.Obj{"type": "function", "name": c.Name}
			}
		}
	}
	o.Put("max_output_tokens", r.MaxTokens)
	o.Put("temperature", r.Temperature)
	o.Put("top_p", r.TopP)
	o.Put("top_logprobs", r.TopLogProbs)
	o.Put("user", r.User)
	o.Put("metadata", r.Metadata)
	o.Put("prompt_cache_key", r.CacheKey)
	if r.Effort != "" {
		o["reasoning"] = ir.Obj{"effort": r.Effort}
	}
	if f := r.Format; f != nil {
		x := ir.Obj{"type": f.Type}
		x.Put("name", f.Name)
		x.Put("description", f.Description)
		x.Put("schema", f.Schema)
		x.Put("strict", f.Strict)
		o["text"] = ir.Obj{"format": x}
	}
	return o.Bytes()
}

// buildTools returns the tools. The tools of one namespace are combined into one tool at
// the position of the first of them. It omits tools with Hosted, which only the caller's
// API defines.
func buildTools(defs []ir.ToolDef) (tools []any) {
	byNamespace := map[string]ir.Obj{}
	for i := range defs {
		t := &defs[i]
		if len(t.Hosted) > 0 {
			continue
		}
		x := buildTool(t)
		if t.Namespace == "" {
			tools = append(tools, x)
			continue
		}
		ns := byNamespace[t.Namespace]
		if ns == nil {
			ns = ir.Obj{"type": "namespace", "name": t.Namespace, "tools": []any{}}
			byNamespace[t.Namespace] = ns
			tools = append(tools, ns)
		}
		ns["tools"] = append(ns["tools"].([]any), x)
	}
	return tools
}

func buildTool(t *ir.ToolDef) ir.Obj {
	if len(t.Custom) > 0 {
		c := ir.Obj{"type": "custom", "name": t.Name}
		c.Put("description", t.Description)
		if string(t.Custom) != "null" {
			c["format"] = t.Custom
		}
		return c
	}
	f := ir.Obj{"type": "function", "name": t.Name, "strict": false}
	f.Put("description", t.Description)
	f.Put("parameters", t.Schema)
	f.Put("strict", t.Strict)
	return f
}

// buildItems returns the items for a message. Each tool call, result and signed thinking
// is an item of its own; the content between them becomes messages. Unsigned thinking is
// omitted.
func buildItems(m *ir.Message) []ir.Obj {
	var out []ir.Obj
	var run []ir.Obj // content of the message being built
	flush := func() {
		if len(run) > 0 {
			role := m.Role
			if role == ir.Tool {
				role = ir.User
			}
			out = append(out, ir.Obj{"type": "message", "role": role, "content": run})
			run = nil
		}
	}
	for _, p := range m.Parts {
		switch p.Type {
		case ir.ToolCall:
			flush()
			x := ir.Obj{"type": "function_call", "call_id": p.ID, "name": p.Name, "arguments": p.Args}
			if p.Custom {
				x = ir.Obj{"type": "custom_tool_call", "call_id": p.ID, "name": p.Name, "input": p.Args}
			}
			x.Put("namespace", p.Namespace)
			out = append(out, x)
		case ir.ToolResult:
			flush()
			x := ir.Obj{"type": "function_call_output", "call_id": p.ID, "output": ir.PlainText(p.Parts)}
			for _, q := range p.Parts {
				if q.Type != ir.Text {
					x["output"] = buildContent(p.Parts, ir.User)
				}
			}
			out = append(out, x)
		case ir.Thinking:
			if p.Signature == "" {
				continue
			}
			flush()
			out = append(out, ir.Obj{"type": "reasoning", "summary": []ir.Obj{{"type": "summary_text", "text": p.Text}}, "encrypted_content": p.Signature})
		default:
			run = append(run, buildContent([]ir.Part{p}, m.Role)...)
		}
	}
	flush()
	return out
}

func buildContent(parts []ir.Part, role string) []ir.Obj {
	out := []ir.Obj{}
	for _, p := range parts {
		x := ir.Obj{"type": "input_text", "text": p.Text}
		switch p.Type {
		case ir.Refusal:
			x = ir.Obj{"type": "refusal", "refusal": p.Text}
		case ir.Image:
			x = ir.Obj{"type": "input_image"}
			x.Put("image_url", p.Media.DataURL())
			x.Put("detail", p.Media.Detail)
			x.Put("file_id", p.Media.ID)
		case ir.File:
			x = ir.Obj{"type": "input_file"}
			x.Put("file_id", p.Media.ID)
			x.Put("filename", p.Media.Name)
			if p.Media.Data != "" {
				x["file_data"] = p.Media.DataURL()
			} else {
				x.Put("file_url", p.Media.URL)
			}
		case ir.Audio:
			mime := p.Media.MIME
			if len(mime) > len("audio/") {
				mime = mime[len("audio/"):]
			}
			x = ir.Obj{"type": "input_audio", "input_audio": audio{p.Media.Data, mime}}
		default:
			if role == ir.Assistant {
				x["type"], x["annotations"] = "output_text", []any{}
			}
		}
		out = append(out, x)
	}
	return out
}
