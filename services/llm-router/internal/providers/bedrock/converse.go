package bedrock

import (
	"encoding/base64"
	"encoding/json"
	"errors"
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
	Text       *string    `json:"text,omitempty"`
	Image      *media     `json:"image,omitempty"`
	Document   *media     `json:"document,omitempty"`
	ToolUse    *toolUse   `json:"toolUse,omitempty"`
	ToolResult *result    `json:"toolResult,omitempty"`
	Reasoning  *reasoning `json:"reasoningContent,omitempty"`
	Cache      *point     `json:"cachePoint,omitempty"`
}

type toolUse struct {
	ID    string          `json:"toolUseId"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input,omitempty"`
}

type result struct {
	ID      string  `json:"toolUseId"`
	Content []block `json:"content"`
	Status  string  `json:"status,omitempty"`
}

type reasoning struct {
	Text     *thought `json:"reasoningText,omitempty"`
	Redacted string   `json:"redactedContent,omitempty"`
}

type thought struct {
	Text      string `json:"text"`
	Signature string `json:"signature,omitempty"`
}

// point marks the end of a part of the prompt that the provider may cache.
type point struct {
	Type string `json:"type"`
}

type message struct {
	Role    string  `json:"role"`
	Content []block `json:"content"`
}

// buildRequest returns the body of a request; the model is in the URL. The members in
// Extra are sent to the model as additionalModelRequestFields. Fields of r that
// Converse lacks, such as Seed, are omitted. It returns an error for audio, and for
// images and files by URL or id.
func buildRequest(r *ir.Request) ([]byte, error) {
	o := ir.Obj{}
	files := names{}
	system, turns, err := ir.Alternate(r.Messages, func(parts []ir.Part) ([]block, error) { return buildBlocks(parts, files) })
	if err != nil {
		return nil, err
	}
	var msgs []message
	for _, t := range turns {
		msgs = append(msgs, message{t.Role, t.Blocks})
	}
	o["messages"] = msgs
	if len(system) > 0 {
		o["system"] = system
	}
	more, output := r.Document(), ir.Obj{}
	if c := inference(r, more, output); len(c) > 0 {
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
	if tools := buildTools(r.Tools); len(tools) > 0 && (r.Choice == nil || r.Choice.Mode != "none") {
		tc := ir.Obj{"tools": tools}
		if r.Choice != nil {
			tc["toolChoice"] = buildChoice(r.Choice)
		}
		o["toolConfig"] = tc
	}
	return o.Bytes()
}

// inference returns the member inferenceConfig: the maximum length of the answer, the stop
// sequences and the sampling. It adds members that only some families of models accept to more, and
// the effort for a Claude model, if there is one, to output.
func inference(r *ir.Request, more, output ir.Obj) ir.Obj {
	sampling, limit := think(r, more, output)
	c := ir.Obj{}
	c.Put("maxTokens", limit)
	c.Put("stopSequences", r.Stop)
	if sampling {
		c.Put("temperature", r.Temperature)
		c.Put("topP", r.TopP)
		more.Put("top_k", r.TopK)
	}
	return c
}

// think adds to more and output the members for the thinking that the request specifies,
// in the form of the model's family. It returns whether the request may also specify
// sampling, and the limit of the answer in tokens, thinking included; 0 means that there
// is none.
func think(r *ir.Request, more, output ir.Obj) (sampling bool, limit int64) {
	m, is := claude.Of(r.Model)
	if !is {
		if effort := m.Effort(r.Effort); effort != "" {
			switch {
			case strings.Contains(r.Model, "openai."):
				more["reasoning_effort"] = effort
			case strings.Contains(r.Model, "amazon.nova"):
				more["reasoningConfig"] = ir.Obj{"type": "enabled", "maxReasoningEffort": effort}
			}
		}
		return true, r.MaxTokens
	}
	limit = r.MaxTokens
	effort, budget := m.Thinking(r.Effort, r.ThinkingBudget)
	sampling = m.Sampling && effort == "" && budget == 0
	switch {
	case effort != "":
		more["thinking"] = ir.Obj{"type": "adaptive", "display": "summarized"}
		output["effort"] = effort
	case budget > 0:
		if limit == 0 {
			limit = budget + answerRoom
		}
		if budget = claude.Within(budget, limit); budget > 0 {
			more["thinking"] = ir.Obj{"type": "enabled", "budget_tokens": budget}
		}
	}
	return sampling, limit
}

// answerRoom is the number of tokens for the answer that are added to a thinking budget
// if the request has no limit.
const answerRoom = 4096

// buildTools returns the tools. It omits tools with Hosted, for which the API has no
// equivalent.
func buildTools(defs []ir.ToolDef) (tools []ir.Obj) {
	for i := range defs {
		t := &defs[i]
		if len(t.Hosted) > 0 {
			continue
		}
		spec := ir.Obj{"name": t.Flat(), "inputSchema": ir.Obj{"json": t.ParametersOr(ir.NoParameters)}}
		spec.Put("description", t.Description)
		tools = append(tools, ir.Obj{"toolSpec": spec})
		if len(t.Cache) > 0 {
			tools = append(tools, ir.Obj{"cachePoint": ir.Obj{"type": "default"}})
		}
	}
	return tools
}

// buildChoice returns the member toolChoice.
func buildChoice(c *ir.Choice) ir.Obj {
	switch c.Mode {
	case "required":
		return ir.Obj{"any": ir.Obj{}}
	case "tool":
		return ir.Obj{"tool": ir.Obj{"name": c.Name}}
	}
	return ir.Obj{"auto": ir.Obj{}}
}

// names counts the files of one request by name: the API requires unique names of a
// limited set of characters.
type names map[string]int

var unnamable = regexp.MustCompile(`[^A-Za-z0-9()\[\]-]+`)

// name returns a unique name for a file, without its extension and with characters that
// the API does not allow replaced by spaces. If nothing remains, the name is document. A
// name that is already used gets a number.
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

// buildBlocks returns the blocks for the parts of a message. It omits the parts for
// which buildBlock returns false, and adds a cache point after each part with
// cache_control.
func buildBlocks(parts []ir.Part, files names) (out []block, err error) {
	for i := range parts {
		p := &parts[i]
		b, ok, err := buildBlock(p, files)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		out = append(out, b)
		if len(p.Cache) > 0 {
			out = append(out, block{Cache: &point{"default"}})
		}
	}
	return out, nil
}

// buildBlock returns the block for a part. ok is false for empty text and for thinking that is
// neither signed nor redacted, which the API would reject. Audio, and images and files by URL or
// id, are an error.
func buildBlock(p *ir.Part, files names) (b block, ok bool, err error) {
	switch p.Type {
	case ir.Text, ir.Refusal:
		return block{Text: &p.Text}, p.Text != "", nil
	case ir.Image, ir.File:
		return buildFile(p, files)
	case ir.ToolCall:
		return block{ToolUse: &toolUse{p.ID, ir.FlatName(p.Namespace, p.Name), ir.Object(p.Args)}}, true, nil
	case ir.ToolResult:
		inner, err := buildBlocks(p.Parts, files)
		if inner == nil {
			inner = []block{}
		}
		r := &result{ID: p.ID, Content: inner}
		if p.IsError {
			r.Status = "error"
		}
		return block{ToolResult: r}, true, err
	case ir.Thinking:
		if p.Redacted != "" {
			return block{Reasoning: &reasoning{Redacted: p.Redacted}}, true, nil
		}
		return block{Reasoning: &reasoning{Text: &thought{p.Text, p.Signature}}}, p.Signature != "", nil
	}
	return b, false, fmt.Errorf("content: %s cannot be sent to this provider", p.Type)
}

// buildFile returns the block for an image or a document, which must be given as bytes.
func buildFile(p *ir.Part, files names) (b block, ok bool, err error) {
	if p.Media.Data == "" {
		return b, false, fmt.Errorf("content: this provider accepts images and files as bytes (a data URL), not by URL or id")
	}
	m := &media{Format: format(p.Media.MIME)}
	m.Source.Bytes = p.Media.Data
	if p.Type == ir.Image {
		return block{Image: m}, true, nil
	}
	m.Name = files.name(p.Media.Name)
	return block{Document: m}, true, nil
}

// format returns the API's name for the format of a file of this media type, in most
// cases its subtype.
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

// parseResponse decodes a response. It omits blocks other than text, tool calls and
// thinking. The result has neither an ID nor a Model, since this API's responses contain
// neither. Usage.In includes the input tokens of the cache.
func parseResponse(body []byte) (*ir.Response, error) {
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

// decoder decodes the events of one stream by their :event-type. The zero value is ready
// to use.
type decoder struct {
	calls map[int]int
	done  bool
}

// Done reports whether the event metadata has been received. It contains the usage and
// is the last event of a complete stream.
func (d *decoder) Done() bool { return d.done }

// event is an event of a stream, with the members that are used here.
type event struct {
	Index int `json:"contentBlockIndex"`
	Start struct {
		ToolUse *toolUse `json:"toolUse"`
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

// Event decodes one event, whose type is its name. It returns no events for a type
// without an equivalent in the intermediate form, and an error for malformed JSON and
// for a tool call before messageStart.
func (d *decoder) Event(name string, data []byte) ([]ir.Event, error) {
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	switch name {
	case "messageStart":
		d.calls = map[int]int{}
		return []ir.Event{{Kind: ir.Begin}}, nil
	case "contentBlockStart":
		if t := e.Start.ToolUse; t != nil {
			if d.calls == nil {
				return nil, errors.New("a tool call before messageStart")
			}
			n := len(d.calls)
			d.calls[e.Index] = n
			return []ir.Event{{Kind: ir.CallBegin, Index: n, Part: ir.Part{ID: t.ID, Name: t.Name}}}, nil
		}
	case "contentBlockDelta":
		return d.piece(&e), nil
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

// piece returns the event for a delta of a block: text, thinking, a signature, or
// arguments of a tool call. It returns nil for any other delta, and for arguments of a
// call that has not begun.
func (d *decoder) piece(e *event) []ir.Event {
	switch {
	case e.Delta.Text != nil:
		return []ir.Event{{Kind: ir.Delta, Part: ir.Part{Type: ir.Text, Text: *e.Delta.Text}}}
	case e.Delta.ToolUse != nil:
		if n, ok := d.calls[e.Index]; ok {
			return []ir.Event{{Kind: ir.CallArgs, Index: n, Part: ir.Part{Args: e.Delta.ToolUse.Input}}}
		}
	case e.Delta.Reasoning != nil:
		r := e.Delta.Reasoning
		if r.Signature != "" {
			return []ir.Event{{Kind: ir.Signed, Part: ir.Part{Signature: r.Signature}}}
		}
		p := ir.Part{Type: ir.Thinking, Text: r.Text}
		if len(r.Redacted) > 0 {
			p.Redacted = base64.StdEncoding.EncodeToString(r.Redacted)
		}
		return []ir.Event{{Kind: ir.Delta, Part: p}}
	}
	return nil
}

// exceptions maps the exceptions of a stream to the HTTP statuses with the same meaning.
var exceptions = map[string]int{"throttlingException": 429, "validationException": 400, "modelTimeoutException": 408, "internalServerException": 500,
	"serviceUnavailableException": 503, "modelStreamErrorException": 424, "accessDeniedException": 403, "resourceNotFoundException": 404}

// parseFault decodes an error. kind is the header field x-amzn-errortype of a response,
// or the :exception-type or :error-code in a stream. In a stream status is 0, and the
// fault's status is that of kind in exceptions, or 0 if kind is not listed there.
func parseFault(status int, kind string, body []byte) *ir.Fault {
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
