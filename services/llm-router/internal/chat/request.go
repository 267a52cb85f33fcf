// Package chat implements OpenAI's chat completions API for a server and for a client.
// Source: https://platform.openai.com/docs/api-reference/chat
package chat

import (
	"encoding/json"
	"fmt"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

type toolCall struct {
	Index    *int   `json:"index,omitempty"`
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function *struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	} `json:"function,omitempty"`
	Custom *struct {
		Name  string `json:"name"`
		Input string `json:"input"`
	} `json:"custom,omitempty"`
	Extra *extraContent `json:"extra_content,omitempty"`
}

// extraContent holds the thought signature of a tool call, as Google's OpenAI-compatible
// endpoint sends it.
type extraContent struct {
	Google struct {
		Signature string `json:"thought_signature,omitempty"`
	} `json:"google"`
}

type message struct {
	Role       string          `json:"role"`
	Name       string          `json:"name,omitempty"`
	Content    json.RawMessage `json:"content"`
	Refusal    string          `json:"refusal,omitempty"`
	Reasoning  string          `json:"reasoning_content,omitempty"`
	Reasoning2 string          `json:"reasoning,omitempty"`
	Details    []detail        `json:"reasoning_details,omitempty"`
	ToolCalls  []toolCall      `json:"tool_calls,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
	Cache      json.RawMessage `json:"cache_control,omitempty"`
}

// detail holds one part of signed thinking, in the format of OpenRouter's
// reasoning_details.
type detail struct {
	Type      string `json:"type"` // reasoning.text or reasoning.encrypted
	Text      string `json:"text,omitempty"`
	Data      string `json:"data,omitempty"`
	Signature string `json:"signature,omitempty"`
}

type part struct {
	Type     string          `json:"type"`
	Text     string          `json:"text,omitempty"`
	Refusal  string          `json:"refusal,omitempty"`
	ImageURL *imageURL       `json:"image_url,omitempty"`
	Audio    *audio          `json:"input_audio,omitempty"`
	File     *file           `json:"file,omitempty"`
	Cache    json.RawMessage `json:"cache_control,omitempty"`
}

type imageURL struct {
	URL    string `json:"url"`
	Detail string `json:"detail,omitempty"`
}

type audio struct {
	Data   string `json:"data"`
	Format string `json:"format"`
}

type file struct {
	Data string `json:"file_data,omitempty"`
	ID   string `json:"file_id,omitempty"`
	Name string `json:"filename,omitempty"`
}

// body holds the members of a request that need conversion.
type body struct {
	msgs     []message
	tools    []tool
	choice   json.RawMessage
	stop     json.RawMessage
	format   json.RawMessage
	max      int64
	maxNew   int64 // max_completion_tokens, which takes precedence over max_tokens unless it is 0
	options  struct{}
	thinking struct {
		Budget int64 `json:"budget_tokens"`
	}
}

type tool struct {
	Type     string          `json:"type"`
	Function json.RawMessage `json:"function"`
	Custom   json.RawMessage `json:"custom"`
	Cache    json.RawMessage `json:"cache_control"`
}

// ParseRequest decodes a request. An error about a member begins with its path, as in
// "messages[0]: role: ". The member stream_options is ignored; members that ParseRequest
// does not decode are in Extra.
func ParseRequest(doc []byte) (*ir.Request, error) {
	m, err := ir.Split(doc)
	if err != nil {
		return nil, err
	}
	r := &ir.Request{}
	var b body
	if err := m.TakeAll("model", &r.Model, "stream", &r.Stream, "stream_options", &b.options, "messages", &b.msgs, "tools", &b.tools, "tool_choice", &b.choice, "parallel_tool_calls", &r.Parallel,
		"max_tokens", &b.max, "max_completion_tokens", &b.maxNew, "temperature", &r.Temperature, "top_p", &r.TopP, "top_k", &r.TopK, "stop", &b.stop, "seed", &r.Seed, "n", &r.N,
		"presence_penalty", &r.PresencePenalty, "frequency_penalty", &r.FrequencyPenalty, "logprobs", &r.LogProbs, "top_logprobs", &r.TopLogProbs,
		"response_format", &b.format, "reasoning_effort", &r.Effort, "user", &r.User, "metadata", &r.Metadata, "prompt_cache_key", &r.CacheKey, "thinking", &b.thinking); err != nil {
		return nil, err
	}
	if r.MaxTokens = b.max; b.maxNew > 0 {
		r.MaxTokens = b.maxNew
	}
	r.ThinkingBudget = b.thinking.Budget
	if r.Stop, err = parseStop(b.stop); err != nil {
		return nil, err
	}
	if r.Tools, err = parseTools(b.tools); err != nil {
		return nil, err
	}
	if r.Choice, err = parseChoice(b.choice); err != nil {
		return nil, err
	}
	if err := parseFormat(b.format, r); err != nil {
		return nil, err
	}
	for i := range b.msgs {
		x, err := parseMessage(&b.msgs[i])
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		r.Messages = append(r.Messages, x)
	}
	r.Extra = m
	return r, nil
}

// parseStop decodes one stop sequence or a list of them.
func parseStop(raw json.RawMessage) (out []string, err error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}, nil
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, ir.Misfit("stop", err)
	}
	return out, nil
}

// parseTools decodes functions and custom tools. A custom tool without a format has the
// format null, which distinguishes it from a function.
func parseTools(tools []tool) (out []ir.ToolDef, err error) {
	for i, t := range tools {
		var f struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
			Strict      *bool           `json:"strict"`
			Format      json.RawMessage `json:"format"`
		}
		raw := t.Function
		if t.Type == "custom" {
			raw = t.Custom
		}
		if err := json.Unmarshal(raw, &f); err != nil {
			return nil, ir.Misfit(fmt.Sprintf("tools[%d]", i), err)
		}
		d := ir.ToolDef{Name: f.Name, Description: f.Description, Schema: f.Parameters, Strict: f.Strict, Cache: t.Cache}
		if t.Type == "custom" {
			if d.Custom = f.Format; len(f.Format) == 0 {
				d.Custom = json.RawMessage("null")
			}
		}
		out = append(out, d)
	}
	return out, nil
}

// parseChoice decodes tool_choice: a mode, or an object that names a tool. It returns
// nil if the member is absent.
func parseChoice(raw json.RawMessage) (*ir.Choice, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var mode string
	if json.Unmarshal(raw, &mode) == nil {
		return &ir.Choice{Mode: mode}, nil
	}
	var c struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
		Custom struct {
			Name string `json:"name"`
		} `json:"custom"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, ir.Misfit("tool_choice", err)
	}
	return &ir.Choice{Mode: "tool", Name: c.Function.Name + c.Custom.Name}, nil
}

// parseFormat sets r.Format from response_format. The format text is the default and
// sets nothing.
func parseFormat(raw json.RawMessage, r *ir.Request) error {
	if len(raw) == 0 {
		return nil
	}
	var f struct {
		Type   string `json:"type"`
		Schema struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"schema"`
			Strict      *bool           `json:"strict"`
		} `json:"json_schema"`
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		return ir.Misfit("response_format", err)
	}
	if f.Type != "text" {
		r.Format = &ir.Format{Type: f.Type, Name: f.Schema.Name, Description: f.Schema.Description, Schema: f.Schema.Schema, Strict: f.Schema.Strict}
	}
	return nil
}

// parseMessage decodes a message. The role developer becomes System, and the role
// function becomes Tool. The content of a message with the role Tool becomes one tool
// result. Thinking in reasoning_details takes precedence over unsigned thinking. Errors
// begin with the invalid member.
func parseMessage(m *message) (ir.Message, error) {
	out := ir.Message{Role: m.Role, Name: m.Name}
	switch m.Role {
	case "developer":
		out.Role = ir.System
	case "function":
		out.Role = ir.Tool
	case ir.System, ir.User, ir.Assistant, ir.Tool:
	default:
		return out, fmt.Errorf("role: %q is unknown", m.Role)
	}
	for _, d := range m.Details {
		out.Parts = append(out.Parts, ir.Part{Type: ir.Thinking, Text: d.Text, Signature: d.Signature, Redacted: d.Data})
	}
	if t := m.Reasoning + m.Reasoning2; t != "" && len(m.Details) == 0 {
		out.Parts = append(out.Parts, ir.Part{Type: ir.Thinking, Text: t})
	}
	parts, err := parseContent(m.Content)
	if err != nil {
		return out, err
	}
	if len(m.Cache) > 0 && len(parts) > 0 {
		parts[len(parts)-1].Cache = m.Cache
	}
	if out.Role == ir.Tool {
		id := m.ToolCallID
		out.Parts = []ir.Part{{Type: ir.ToolResult, ID: id, Name: m.Name, Parts: parts, Cache: m.Cache}}
		return out, nil
	}
	out.Parts = append(out.Parts, parts...)
	if m.Refusal != "" {
		out.Parts = append(out.Parts, ir.Part{Type: ir.Refusal, Text: m.Refusal})
	}
	for i := range m.ToolCalls {
		out.Parts = append(out.Parts, callOf(&m.ToolCalls[i]))
	}
	return out, nil
}

// callOf returns the part of the intermediate form for a tool call.
func callOf(c *toolCall) ir.Part {
	p := ir.Part{Type: ir.ToolCall, ID: c.ID}
	if c.Function != nil {
		p.Name, p.Args = c.Function.Name, c.Function.Arguments
	}
	if c.Custom != nil {
		p.Name, p.Args, p.Custom = c.Custom.Name, c.Custom.Input, true
	}
	if c.Extra != nil {
		p.Signature = c.Extra.Google.Signature
	}
	return p
}

func parseContent(raw json.RawMessage) ([]ir.Part, error) { return ir.Content(raw, parsePart) }

func parsePart(p *part) (ir.Part, error) {
	x := ir.Part{Type: ir.Text, Text: p.Text, Cache: p.Cache}
	switch {
	case p.Type == "text":
	case p.Type == "refusal":
		x.Type, x.Text = ir.Refusal, p.Refusal
	case p.Type == "image_url" && p.ImageURL != nil:
		x.Type, x.Media = ir.Image, ir.FromURL(p.ImageURL.URL)
		x.Media.Detail = p.ImageURL.Detail
	case p.Type == "input_audio" && p.Audio != nil:
		x.Type, x.Media = ir.Audio, &ir.Media{Data: p.Audio.Data, MIME: "audio/" + p.Audio.Format}
	case p.Type == "file" && p.File != nil:
		x.Type, x.Media = ir.File, ir.FromURL(p.File.Data)
		x.Media.ID, x.Media.Name = p.File.ID, p.File.Name
	default:
		return x, fmt.Errorf("type: %q is unknown", p.Type)
	}
	return x, nil
}

// BuildRequest returns the body of a request. It omits fields of r that the API lacks,
// and includes the members in Extra.
func BuildRequest(r *ir.Request) ([]byte, error) {
	o := r.Document()
	o["model"] = r.Model
	msgs := []ir.Obj{}
	for _, m := range r.Messages {
		msgs = append(msgs, buildMessages(&m)...)
	}
	o["messages"] = msgs
	if r.Stream {
		o["stream"] = true
		o["stream_options"] = map[string]bool{"include_usage": true}
	}
	if tools := buildTools(r.Tools); len(tools) > 0 {
		o["tools"] = tools
		o.Put("parallel_tool_calls", r.Parallel)
		if c := r.Choice; c != nil {
			if o["tool_choice"] = c.Mode; c.Mode == "tool" {
				o["tool_choice"] = ir.Obj{"type": "function", "function": ir.Obj{"name": c.Name}}
			}
		}
	}
	o.Put("max_completion_tokens", r.MaxTokens)
	o.Put("temperature", r.Temperature)
	o.Put("top_p", r.TopP)
	o.Put("top_k", r.TopK)
	o.Put("stop", r.Stop)
	o.Put("seed", r.Seed)
	o.Put("n", r.N)
	o.Put("presence_penalty", r.PresencePenalty)
	o.Put("frequency_penalty", r.FrequencyPenalty)
	o.Put("logprobs", r.LogProbs)
	o.Put("top_logprobs", r.TopLogProbs)
	o.Put("reasoning_effort", r.Effort)
	o.Put("user", r.User)
	o.Put("metadata", r.Metadata)
	o.Put("prompt_cache_key", r.CacheKey)
	if r.Format != nil {
		o["response_format"] = buildFormat(r.Format)
	}
	return o.Bytes()
}

// buildTools returns the tools. It omits tools with Hosted, for which the API has no
// equivalent.
func buildTools(defs []ir.ToolDef) (tools []ir.Obj) {
	for i := range defs {
		t := &defs[i]
		if len(t.Hosted) > 0 {
			continue
		}
		f := ir.Obj{"name": t.Flat()}
		f.Put("description", t.Description)
		x := ir.Obj{"type": "function", "function": f}
		if len(t.Custom) > 0 {
			x = ir.Obj{"type": "custom", "custom": f}
			if string(t.Custom) != "null" {
				f["format"] = t.Custom
			}
		} else {
			f.Put("parameters", t.Schema)
			f.Put("strict", t.Strict)
		}
		x.Put("cache_control", t.Cache)
		tools = append(tools, x)
	}
	return tools
}

// buildFormat returns the member response_format.
func buildFormat(f *ir.Format) ir.Obj {
	if f.Type != "json_schema" {
		return ir.Obj{"type": f.Type}
	}
	s := ir.Obj{"name": f.Name}
	s.Put("description", f.Description)
	s.Put("schema", f.Schema)
	s.Put("strict", f.Strict)
	return ir.Obj{"type": f.Type, "json_schema": s}
}

// buildMessages returns the API's messages for one message of the intermediate form. The
// text of each tool result, or "error" for a failed result without text, becomes a
// message of its own; other parts of the results follow in a user message.
func buildMessages(m *ir.Message) []ir.Obj {
	var out []ir.Obj
	o := ir.Obj{"role": m.Role}
	o.Put("name", m.Name)
	var rest []ir.Part
	for _, p := range m.Parts {
		if p.Type != ir.ToolResult {
			rest = append(rest, p)
			continue
		}
		text, others := flat(p.Parts)
		if p.IsError && text == "" {
			text = "error"
		}
		x := ir.Obj{"role": "tool", "tool_call_id": p.ID, "content": text}
		x.Put("cache_control", p.Cache)
		out = append(out, x)
		rest = append(rest, others...) // a tool result cannot contain files: they follow in a user message
	}
	if m.Role == ir.Assistant {
		assistant(o, m.Parts)
		return append(out, o)
	}
	if len(rest) == 0 {
		return out
	}
	if m.Role == ir.Tool {
		o["role"] = ir.User
	}
	o["content"] = buildContent(rest)
	return append(out, o)
}

// flat splits the content of a tool result into its text and its other parts.
func flat(parts []ir.Part) (text string, rest []ir.Part) {
	for _, p := range parts {
		if p.Type == ir.Text {
			text += p.Text
		} else {
			rest = append(rest, p)
		}
	}
	return text, rest
}

// turn holds the parts of one turn of the model, grouped by the member of the message in
// which they are sent.
type turn struct {
	text, thinking, refusal string
	calls                   []toolCall
	details                 []detail
	content                 []ir.Part
	parts                   bool // content must be sent as a list of parts, not as a string
}

// add assigns a part to the member in which it is sent.
func (t *turn) add(p *ir.Part) {
	switch p.Type {
	case ir.Thinking:
		t.thinking += p.Text
		if p.Signature != "" {
			t.details = append(t.details, detail{Type: "reasoning.text", Text: p.Text, Signature: p.Signature})
		}
		if p.Redacted != "" {
			t.details = append(t.details, detail{Type: "reasoning.encrypted", Data: p.Redacted})
		}
	case ir.Refusal:
		t.refusal += p.Text
	case ir.ToolCall:
		t.calls = append(t.calls, callFor(p))
	default:
		t.text += p.Text
		t.content = append(t.content, *p)
		t.parts = t.parts || len(p.Cache) > 0 || p.Type != ir.Text
	}
}

// assistant sets the members of an assistant message from its parts.
func assistant(o ir.Obj, parts []ir.Part) {
	var t turn
	for i := range parts {
		t.add(&parts[i])
	}
	o["content"] = nil
	if t.parts {
		o["content"] = buildContent(t.content)
	} else if t.text != "" || len(t.calls) == 0 && t.refusal == "" {
		o["content"] = t.text
	}
	o.Put("reasoning_content", t.thinking)
	if len(t.details) > 0 {
		o["reasoning_details"] = t.details
	}
	o.Put("refusal", t.refusal)
	if len(t.calls) > 0 {
		o["tool_calls"] = t.calls
	}
}

// callFor returns the API's tool call for a part.
func callFor(p *ir.Part) toolCall {
	c := toolCall{ID: p.ID, Type: "function"}
	if p.Custom {
		c.Type = "custom"
		c.Custom = &struct {
			Name  string `json:"name"`
			Input string `json:"input"`
		}{p.Name, p.Args}
		return c
	}
	args := p.Args
	if args == "" {
		args = "{}"
	}
	c.Function = &struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	}{ir.FlatName(p.Namespace, p.Name), args}
	if p.Signature != "" {
		c.Extra = &extraContent{}
		c.Extra.Google.Signature = p.Signature
	}
	return c
}

func buildContent(parts []ir.Part) any {
	if len(parts) == 1 && parts[0].Type == ir.Text && len(parts[0].Cache) == 0 {
		return parts[0].Text
	}
	out := []part{}
	for _, p := range parts {
		x := part{Type: "text", Text: p.Text, Cache: p.Cache}
		switch p.Type {
		case ir.Refusal:
			x = part{Type: "refusal", Refusal: p.Text}
		case ir.Image:
			x.Type, x.ImageURL = "image_url", &imageURL{p.Media.DataURL(), p.Media.Detail}
		case ir.Audio:
			x.Type, x.Audio = "input_audio", &audio{p.Media.Data, after(p.Media.MIME)}
		case ir.File:
			x.Type, x.File = "file", &file{ID: p.Media.ID, Name: p.Media.Name}
			if u := p.Media.DataURL(); u != "" {
				x.File.Data = u
			}
		}
		out = append(out, x)
	}
	return out
}

// after returns the subtype of a MIME type, such as png for image/png, or all of mime if
// it has no slash.
func after(mime string) string {
	for i := range len(mime) {
		if mime[i] == '/' {
			return mime[i+1:]
		}
	}
	return mime
}
