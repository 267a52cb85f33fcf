package bedrock

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/claude"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

type media struct {
	Format string `json:"format"`
	Name   string `json:"name,omitempty"`
	Source struct {
		Bytes string `json:"bytes"`
	} `json:"source"`
}

type block struct {
	Text     *string `json:"text,omitempty"`
	Image    *media  `json:"image,omitempty"`
	Document *media  `json:"document,omitempty"`
	ToolUse  *struct {
		ID    string          `json:"toolUseId"`
		Name  string          `json:"name"`
		Input json.RawMessage `json:"input,omitempty"`
	} `json:"toolUse,omitempty"`
	ToolResult *struct {
		ID      string  `json:"toolUseId"`
		Content []block `json:"content"`
		Status  string  `json:"status,omitempty"`
	} `json:"toolResult,omitempty"`
	Reasoning *reasoning `json:"reasoningContent,omitempty"`
	Cache     *struct {
		Type string `json:"type"`
	} `json:"cachePoint,omitempty"`
}

type reasoning struct {
	Text *struct {
		Text      string `json:"text"`
		Signature string `json:"signature,omitempty"`
	} `json:"reasoningText,omitempty"`
	Redacted string `json:"redactedContent,omitempty"`
}

// BuildRequest writes a request. The model stands in the URL.
func BuildRequest(r *ir.Request) ([]byte, error) {
	o := ir.Obj{}
	more := ir.Obj{}
	for k, v := range r.Extra {
		more[k] = v
	}
	var system []block
	type message struct {
		Role    string  `json:"role"`
		Content []block `json:"content"`
	}
	var msgs []message
	files := names{}
	for _, m := range r.Messages {
		blocks, err := buildBlocks(m.Parts, files)
		if err != nil {
			return nil, err
		}
		role := ir.User
		switch m.Role {
		case ir.System:
			system = append(system, blocks...)
			continue
		case ir.Assistant:
			role = ir.Assistant
		}
		if n := len(msgs); n > 0 && msgs[n-1].Role == role {
			msgs[n-1].Content = append(msgs[n-1].Content, blocks...)
		} else if len(blocks) > 0 {
			msgs = append(msgs, message{role, blocks})
		}
	}
	o["messages"] = msgs
	if len(system) > 0 {
		o["system"] = system
	}
	c, output := ir.Obj{}, ir.Obj{}
	sampling, limit := true, r.MaxTokens
	if m, is := claude.Of(r.Model); is {
		effort, budget := m.Thinking(r.Effort, r.ThinkingBudget)
		switch sampling = m.Sampling && effort == "" && budget == 0; {
		case effort != "":
			more["thinking"] = ir.Obj{"type": "adaptive", "display": "summarized"}
			output["effort"] = effort
		case budget > 0: // counts towards the limit
			if limit == 0 {
				limit = budget + 4096
			}
			if budget = claude.Within(budget, limit); budget > 0 {
				more["thinking"] = ir.Obj{"type": "enabled", "budget_tokens": budget}
			}
		}
	} else if effort := m.Effort(r.Effort); effort != "" {
		switch {
		case strings.Contains(r.Model, "openai."):
			more["reasoning_effort"] = effort
		case strings.Contains(r.Model, "amazon.nova"):
			more["reasoningConfig"] = ir.Obj{"type": "enabled", "maxReasoningEffort": effort}
		}
	}
	c.Put("maxTokens", limit)
	c.Put("stopSequences", r.Stop)
	if sampling {
		c.Put("temperature", r.Temperature)
		c.Put("topP", r.TopP)
		more.Put("top_k", r.TopK)
	}
	if len(c) > 0 {
		o["inferenceConfig"] = c
	}
	if len(more) > 0 {
		o["additionalModelRequestFields"] = more
	}
	if f := r.Format; f != nil && len(f.Schema) > 0 {
		schema := ir.Obj{"schema": string(f.Schema)}
		schema.Put("name", f.Name)
		schema.Put("description", f.Description)
		output["textFormat"] = ir.Obj{"type": "json_schema", "structure": ir.Obj{"jsonSchema": schema}}
	}
	if len(output) > 0 {
		o["outputConfig"] = output
	}
	var tools []ir.Obj
	for _, t := range r.Tools {
		if len(t.Hosted) > 0 {
			continue
		}
		schema := t.Schema
		if len(t.Custom) > 0 {
			schema = ir.CustomSchema
		}
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		spec := ir.Obj{"name": ir.FlatName(t.Namespace, t.Name), "inputSchema": ir.Obj{"json": schema}}
		spec.Put("description", t.Description)
		tools = append(tools, ir.Obj{"toolSpec": spec})
		if len(t.Cache) > 0 {
			tools = append(tools, ir.Obj{"cachePoint": ir.Obj{"type": "default"}})
		}
	}
	if len(tools) > 0 && (r.Choice == nil || r.Choice.Mode != "none") {
		tc := ir.Obj{"tools": tools}
		if r.Choice != nil {
			switch r.Choice.Mode {
			case "required":
				tc["toolChoice"] = ir.Obj{"any": ir.Obj{}}
			case "tool":
				tc["toolChoice"] = ir.Obj{"tool": ir.Obj{"name": r.Choice.Name}}
			default:
				tc["toolChoice"] = ir.Obj{"auto": ir.Obj{}}
			}
		}
		o["toolConfig"] = tc
	}
	return o.Bytes()
}

// names are those that files have in one request: the API wants each once, and
// in few characters.
type names map[string]int

var unnamable = regexp.MustCompile(`[^A-Za-z0-9()\[\]-]+`)

func (n names) name(file string) string {
	if i := strings.LastIndexByte(file, '.'); i > 0 {
		file = file[:i]
	}
	if file = strings.TrimSpace(unnamable.ReplaceAllString(file, " ")); file == "" {
		file = "document"
	}
	if n[file]++; n[file] > 1 {
		return n.name(fmt.Sprintf("%s (%d)", file, n[file]))
	}
	return file
}

func buildBlocks(parts []ir.Part, files names) ([]block, error) {
	var out []block
	for _, p := range parts {
		var b block
		switch p.Type {
		case ir.Text, ir.Refusal:
			if p.Text == "" {
				continue
			}
			b.Text = &p.Text
		case ir.Image, ir.File:
			if p.Media.Data == "" {
				return nil, fmt.Errorf("content: this provider takes images and files as bytes (a data URL), not by URL or id")
			}
			m := &media{Format: format(p.Media.MIME), Name: p.Media.Name}
			m.Source.Bytes = p.Media.Data
			if p.Type == ir.Image {
				m.Name = ""
				b.Image = m
			} else {
				m.Name = files.name(m.Name)
				b.Document = m
			}
		case ir.ToolCall:
			b.ToolUse = &struct {
				ID    string          `json:"toolUseId"`
				Name  string          `json:"name"`
				Input json.RawMessage `json:"input,omitempty"`
			}{p.ID, ir.FlatName(p.Namespace, p.Name), ir.Object(p.Args)}
		case ir.ToolResult:
			inner, err := buildBlocks(p.Parts, files)
			if err != nil {
				return nil, err
			}
			if inner == nil {
				inner = []block{}
			}
			status := ""
			if p.IsError {
				status = "error"
			}
			b.ToolResult = &struct {
				ID      string  `json:"toolUseId"`
				Content []block `json:"content"`
				Status  string  `json:"status,omitempty"`
			}{p.ID, inner, status}
		case ir.Thinking:
			switch {
			case p.Redacted != "":
				b.Reasoning = &reasoning{Redacted: p.Redacted}
			case p.Signature != "":
				b.Reasoning = &reasoning{}
				b.Reasoning.Text = &struct {
					Text      string `json:"text"`
					Signature string `json:"signature,omitempty"`
				}{p.Text, p.Signature}
			default:
				continue
			}
		default:
			return nil, fmt.Errorf("content: %s cannot be sent to this provider", p.Type)
		}
		out = append(out, b)
		if len(p.Cache) > 0 {
			out = append(out, block{Cache: &struct {
				Type string `json:"type"`
			}{"default"}})
		}
	}
	return out, nil
}

// format is a file's format as this API names it.
func format(mime string) string {
	_, f, _ := strings.Cut(mime, "/")
	switch f {
	case "plain":
		return "txt"
	case "markdown":
		return "md"
	case "vnd.openxmlformats-officedocument.wordprocessingml.document":
		return "docx"
	}
	return f
}

type usage struct {
	In    int64 `json:"inputTokens"`
	Out   int64 `json:"outputTokens"`
	Read  int64 `json:"cacheReadInputTokens"`
	Write int64 `json:"cacheWriteInputTokens"`
}

func (u *usage) ir() ir.Usage {
	return ir.Usage{In: u.In + u.Read + u.Write, Out: u.Out, Cached: u.Read, CacheWrite: u.Write, Known: true}
}

func finish(s string) string {
	switch s {
	case "end_turn", "stop_sequence":
		return ir.Stop
	case "max_tokens", "model_context_window_exceeded":
		return ir.Length
	case "tool_use":
		return ir.ToolCalls
	case "guardrail_intervened", "content_filtered":
		return ir.Filtered
	}
	return s
}

// ParseResponse reads an answer.
func ParseResponse(body []byte) (*ir.Response, error) {
	var d struct {
		Output struct {
			Message struct {
				Content []block `json:"content"`
			} `json:"message"`
		} `json:"output"`
		Stop  string `json:"stopReason"`
		Usage usage  `json:"usage"`
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, err
	}
	a := ir.Answer{Finish: finish(d.Stop)}
	for _, b := range d.Output.Message.Content {
		switch {
		case b.Text != nil:
			a.Parts = append(a.Parts, ir.Part{Type: ir.Text, Text: *b.Text})
		case b.ToolUse != nil:
			a.Parts = append(a.Parts, ir.Part{Type: ir.ToolCall, ID: b.ToolUse.ID, Name: b.ToolUse.Name, Args: string(b.ToolUse.Input)})
		case b.Reasoning != nil && b.Reasoning.Text != nil:
			a.Parts = append(a.Parts, ir.Part{Type: ir.Thinking, Text: b.Reasoning.Text.Text, Signature: b.Reasoning.Text.Signature})
		case b.Reasoning != nil:
			a.Parts = append(a.Parts, ir.Part{Type: ir.Thinking, Redacted: b.Reasoning.Redacted})
		}
	}
	return &ir.Response{Usage: d.Usage.ir(), Choices: []ir.Answer{a}}, nil
}

// Decoder reads a stream's events, by their :event-type.
type Decoder struct {
	calls map[int]int
	done  bool
}

// Done reports whether the stream said that it is complete: metadata is last.
func (d *Decoder) Done() bool { return d.done }

// Event reads one event.
func (d *Decoder) Event(name string, data []byte) ([]ir.Event, error) {
	var e struct {
		Index int `json:"contentBlockIndex"`
		Start struct {
			ToolUse *struct {
				ID   string `json:"toolUseId"`
				Name string `json:"name"`
			} `json:"toolUse"`
		} `json:"start"`
		Delta struct {
			Text    *string `json:"text"`
			ToolUse *struct {
				Input string `json:"input"`
			} `json:"toolUse"`
			Reasoning *struct {
				Text      string `json:"text"`
				Signature string `json:"signature"`
				Redacted  []byte `json:"redactedContent"`
			} `json:"reasoningContent"`
		} `json:"delta"`
		Stop  string `json:"stopReason"`
		Usage *usage `json:"usage"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	switch name {
	case "messageStart":
		d.calls = map[int]int{}
		return []ir.Event{{Kind: ir.Begin}}, nil
	case "contentBlockStart":
		if t := e.Start.ToolUse; t != nil {
			n := len(d.calls)
			d.calls[e.Index] = n
			return []ir.Event{{Kind: ir.CallBegin, Index: n, Part: ir.Part{ID: t.ID, Name: t.Name}}}, nil
		}
	case "contentBlockDelta":
		switch {
		case e.Delta.Text != nil:
			return []ir.Event{{Kind: ir.Delta, Part: ir.Part{Type: ir.Text, Text: *e.Delta.Text}}}, nil
		case e.Delta.ToolUse != nil:
			if n, ok := d.calls[e.Index]; ok {
				return []ir.Event{{Kind: ir.CallArgs, Index: n, Part: ir.Part{Args: e.Delta.ToolUse.Input}}}, nil
			}
		case e.Delta.Reasoning != nil:
			r := e.Delta.Reasoning
			if r.Signature != "" {
				return []ir.Event{{Kind: ir.Signed, Part: ir.Part{Signature: r.Signature}}}, nil
			}
			p := ir.Part{Type: ir.Thinking, Text: r.Text}
			if len(r.Redacted) > 0 {
				p.Redacted = base64.StdEncoding.EncodeToString(r.Redacted)
			}
			return []ir.Event{{Kind: ir.Delta, Part: p}}, nil
		}
	case "messageStop":
		return []ir.Event{{Kind: ir.End, Finish: finish(e.Stop)}}, nil
	case "metadata":
		d.done = true
		if e.Usage != nil {
			return []ir.Event{{Kind: ir.Used, Usage: e.Usage.ir()}}, nil
		}
	}
	return nil, nil
}

// exceptions are the HTTP statuses that exceptions in a stream stand for.
var exceptions = map[string]int{"throttlingException": 429, "validationException": 400, "modelTimeoutException": 408, "internalServerException": 500,
	"serviceUnavailableException": 503, "modelStreamErrorException": 424, "accessDeniedException": 403, "resourceNotFoundException": 404}

// ParseFault reads an error; kind is x-amzn-errortype, or the :exception-type of
// a stream.
func ParseFault(status int, kind string, body []byte) *ir.Fault {
	var d struct {
		Message  string `json:"message"`
		Message2 string `json:"Message"`
	}
	_ = json.Unmarshal(body, &d)
	kind, _, _ = strings.Cut(kind, ":")
	if status == 0 && kind != "" {
		status = exceptions[strings.ToLower(kind[:1])+kind[1:]]
	}
	return &ir.Fault{Status: status, Type: kind, Message: d.Message + d.Message2}
}
