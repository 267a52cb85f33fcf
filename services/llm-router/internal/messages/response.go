package messages

import (
	"encoding/json"
	"errors"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// usage is the member usage. Its input tokens exclude tokens that were read from a cache
// or written into one.
type usage struct {
	In         int64 `json:"input_tokens"`
	CacheWrite int64 `json:"cache_creation_input_tokens"`
	CacheRead  int64 `json:"cache_read_input_tokens"`
	Out        int64 `json:"output_tokens"`
	OutMore    *more `json:"output_tokens_details,omitempty"`
}

type more struct {
	Thinking int64 `json:"thinking_tokens"`
}

// ir returns the usage in the intermediate form, in which In includes the tokens of the
// cache. It may be called on nil; Known is then false.
func (u *usage) ir() ir.Usage {
	if u == nil {
		return ir.Usage{}
	}
	x := ir.Usage{In: u.In + u.CacheRead + u.CacheWrite, Cached: u.CacheRead, CacheWrite: u.CacheWrite, Out: u.Out, Known: true}
	if u.OutMore != nil {
		x.Reasoning = u.OutMore.Thinking
	}
	return x
}

func usageOf(u ir.Usage) *usage {
	x := &usage{In: u.In - u.Cached - u.CacheWrite, CacheRead: u.Cached, CacheWrite: u.CacheWrite, Out: u.Out}
	if u.Reasoning > 0 {
		x.OutMore = &more{u.Reasoning}
	}
	return x
}

// Usage decodes the member "usage" of a response. Known is false if the member is absent
// or cannot be decoded.
func Usage(member []byte) ir.Usage {
	var u *usage
	if json.Unmarshal(member, &u) != nil {
		return ir.Usage{}
	}
	return u.ir()
}

func finish(s string) string {
	switch s {
	case "end_turn", "stop_sequence":
		return ir.Stop
	case "max_tokens", "model_context_window_exceeded":
		return ir.Length
	case "tool_use":
		return ir.ToolCalls
	case "refusal":
		return ir.Filtered
	case "pause_turn":
		return ir.Paused
	}
	return s
}

// finishOut returns the API's stop reason for a finish reason; an empty one counts as
// ir.Stop. stopSeq is the stop sequence that ended the answer, or "". A provider's own
// finish reason is returned unchanged.
func finishOut(s, stopSeq string) string {
	switch s {
	case ir.Stop, "":
		if stopSeq != "" {
			return "stop_sequence"
		}
		return "end_turn"
	case ir.Length:
		return "max_tokens"
	case ir.ToolCalls:
		return "tool_use"
	case ir.Filtered:
		return "refusal"
	case ir.Paused:
		return "pause_turn"
	}
	return s
}

// ParseResponse decodes a message. Blocks of an unknown type are omitted. In the usage, In
// includes the input tokens of the cache, which this API counts separately.
func ParseResponse(body []byte) (*ir.Response, error) {
	var d struct {
		ID      string          `json:"id"`
		Model   string          `json:"model"`
		Content json.RawMessage `json:"content"`
		Stop    string          `json:"stop_reason"`
		StopSeq string          `json:"stop_sequence"`
		Usage   *usage          `json:"usage"`
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, err
	}
	parts, err := ir.Output(d.Content, parseBlock)
	if err != nil {
		return nil, err
	}
	return &ir.Response{ID: d.ID, Model: d.Model, Usage: d.Usage.ir(), Choices: []ir.Answer{{Parts: parts, Finish: finish(d.Stop), StopSeq: d.StopSeq}}}, nil
}

// BuildResponse returns a message. model is the name in the caller's request. The API
// has one answer per response, so all but the first are omitted.
func BuildResponse(r *ir.Response, model string) ([]byte, error) {
	var a ir.Answer
	if len(r.Choices) > 0 {
		a = r.Choices[0]
	}
	content, err := buildBlocks(visible(a.Parts))
	if err != nil {
		return nil, err
	}
	if content == nil {
		content = []block{}
	}
	o := ir.Obj{"id": r.ID, "type": "message", "role": "assistant", "model": model, "content": content, "stop_reason": finishOut(a.Finish, a.StopSeq),
		"stop_sequence": nil, "usage": usageOf(r.Usage)}
	o.Put("stop_sequence", a.StopSeq)
	return o.Bytes()
}

// visible returns the parts with a placeholder signature on unsigned thinking, so that
// buildBlocks includes it. Unsigned thinking is valid in a response but not in a
// request.
func visible(parts []ir.Part) []ir.Part {
	out := make([]ir.Part, len(parts))
	copy(out, parts)
	for i := range out {
		if out[i].Type == ir.Thinking && out[i].Signature == "" && out[i].Redacted == "" {
			out[i].Signature = unsigned
		}
	}
	return out
}

// unsigned is the signature of thinking from a provider that does not sign it.
const unsigned = "unsigned"

type event struct {
	Type    string `json:"type"`
	Index   int    `json:"index"`
	Message *struct {
		ID    string `json:"id"`
		Model string `json:"model"`
		Usage *usage `json:"usage"`
	} `json:"message"`
	Block *block `json:"content_block"`
	Delta *struct {
		Type      string `json:"type"`
		Text      string `json:"text"`
		JSON      string `json:"partial_json"`
		Thinking  string `json:"thinking"`
		Signature string `json:"signature"`
		Stop      string `json:"stop_reason"`
		StopSeq   string `json:"stop_sequence"`
	} `json:"delta"`
	Usage *struct {
		In         *int64 `json:"input_tokens"`
		CacheWrite *int64 `json:"cache_creation_input_tokens"`
		CacheRead  *int64 `json:"cache_read_input_tokens"`
		Out        int64  `json:"output_tokens"`
		OutMore    *more  `json:"output_tokens_details"`
	} `json:"usage"`
}

// Decoder decodes the events of one stream and combines their usage. The zero value is
// ready to use.
type Decoder struct {
	calls map[int]int // index of the tool call, by index of the block
	used  usage
	done  bool
}

// Done reports whether the event message_stop has been received. A stop reason does not
// end the stream.
func (d *Decoder) Done() bool { return d.done }

// Event decodes one server-sent event. It ignores the name, since the data contains the
// type. It returns no events for a type that is unknown or has no equivalent in the
// intermediate form. The error is an *ir.Fault for an error that the provider sent in
// the stream, and another error for malformed JSON, a malformed block, or a tool call
// before message_start.
func (d *Decoder) Event(_ string, data []byte) ([]ir.Event, error) {
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	switch e.Type {
	case "error":
		return nil, ParseFault(0, data)
	case "message_start":
		return d.begin(&e), nil
	case "content_block_start":
		return d.open(&e)
	case "content_block_delta":
		return d.piece(&e), nil
	case "message_delta":
		return d.end(&e), nil
	case "message_stop":
		d.done = true
	}
	return nil, nil
}

func (d *Decoder) begin(e *event) []ir.Event {
	d.calls = map[int]int{}
	if e.Message == nil {
		return nil
	}
	out := []ir.Event{{Kind: ir.Begin, ID: e.Message.ID, Model: e.Message.Model}}
	if e.Message.Usage != nil {
		d.used = *e.Message.Usage
		out = append(out, ir.Event{Kind: ir.Used, Usage: d.used.ir()})
	}
	return out
}

// open decodes the beginning of a block: a tool call without its arguments, or the text or thinking
// that the block already contains. It returns nothing for other blocks, such as those of an unknown
// type.
func (d *Decoder) open(e *event) ([]ir.Event, error) {
	if e.Block == nil {
		return nil, nil
	}
	p, err := parseBlock(e.Block)
	if errors.Is(err, ir.ErrUnknownType) {
		return nil, nil // see ir.Output
	}
	if err != nil {
		return nil, err
	}
	switch {
	case p.Type == ir.ToolCall:
		if d.calls == nil {
			return nil, errors.New("a tool call before message_start")
		}
		n := len(d.calls)
		d.calls[e.Index] = n
		p.Args = ""
		return []ir.Event{{Kind: ir.CallBegin, Index: n, Part: p}}, nil
	case p.Text != "" || p.Redacted != "":
		return []ir.Event{{Kind: ir.Delta, Part: p}}, nil
	}
	return nil, nil
}

// piece returns the event for a delta of the open block: text, thinking, a signature, or
// arguments of a tool call. It returns nil for any other delta, and for arguments that
// are empty or belong to no tool call.
func (d *Decoder) piece(e *event) []ir.Event {
	if e.Delta == nil {
		return nil
	}
	switch e.Delta.Type {
	case "text_delta":
		return []ir.Event{{Kind: ir.Delta, Part: ir.Part{Type: ir.Text, Text: e.Delta.Text}}}
	case "thinking_delta":
		return []ir.Event{{Kind: ir.Delta, Part: ir.Part{Type: ir.Thinking, Text: e.Delta.Thinking}}}
	case "signature_delta":
		return []ir.Event{{Kind: ir.Signed, Part: ir.Part{Signature: e.Delta.Signature}}}
	case "input_json_delta":
		if n, ok := d.calls[e.Index]; ok && e.Delta.JSON != "" {
			return []ir.Event{{Kind: ir.CallArgs, Index: n, Part: ir.Part{Args: e.Delta.JSON}}}
		}
	}
	return nil
}

// end decodes the stop reason and the total usage. Input amounts and thinking tokens
// that the event omits keep their earlier values.
func (d *Decoder) end(e *event) (out []ir.Event) {
	if e.Delta != nil && e.Delta.Stop != "" {
		out = append(out, ir.Event{Kind: ir.End, Finish: finish(e.Delta.Stop), StopSeq: e.Delta.StopSeq})
	}
	u := e.Usage
	if u == nil {
		return out
	}
	set := func(to, v *int64) {
		if v != nil {
			*to = *v
		}
	}
	set(&d.used.In, u.In)
	set(&d.used.CacheRead, u.CacheRead)
	set(&d.used.CacheWrite, u.CacheWrite)
	if d.used.Out = u.Out; u.OutMore != nil {
		d.used.OutMore = u.OutMore
	}
	return append(out, ir.Event{Kind: ir.Used, Usage: d.used.ir()})
}

// Encoder encodes a stream. ID and Model must be set before the first event; a Begin
// event with an id replaces ID. message_start is delayed until the first content,
// because it contains the usage of the prompt.
type Encoder struct {
	ID    string
	Model string // model name in the caller's request

	begun   bool
	open    string // type of the open block: text, thinking, tool_use; empty = none is open
	index   int    // index of the open block, or of the next one if none is open
	call    int
	used    ir.Usage
	finish  string
	stopSeq string
}

// start appends message_start unless it has been written.
func (e *Encoder) start(b []byte) []byte {
	if e.begun {
		return b
	}
	e.begun = true
	return ir.AppendEvent(b, "message_start", ir.Obj{"message": ir.Obj{"id": e.ID, "type": "message", "role": "assistant", "model": e.Model, "content": []any{}, "stop_reason": nil,
		"stop_sequence": nil, "usage": usageOf(e.used)}})
}

// stop appends the end of the open block, if any.
func (e *Encoder) stop(b []byte) []byte {
	if e.open == "" {
		return b
	}
	e.open = ""
	b = ir.AppendEvent(b, "content_block_stop", ir.Obj{"index": e.index})
	e.index++
	return b
}

// block ends the open block, if any, and appends the beginning of a block of the given
// type. It does nothing if a block of that type is already open, except that each tool
// call gets a block of its own.
func (e *Encoder) block(b []byte, typ string, begun ir.Obj) []byte {
	if e.open == typ && typ != "tool_use" {
		return b
	}
	b = e.stop(b)
	e.open = typ
	begun["type"] = typ
	return ir.AppendEvent(b, "content_block_start", ir.Obj{"index": e.index, "content_block": begun})
}

func (e *Encoder) delta(b []byte, d ir.Obj) []byte {
	return ir.AppendEvent(b, "content_block_delta", ir.Obj{"index": e.index, "delta": d})
}

// Encode returns the bytes for one event, or nil if there are none. The API has one
// answer per response, so events of answers after the first are ignored.
func (e *Encoder) Encode(ev *ir.Event) []byte {
	if ev.Choice > 0 {
		return nil
	}
	var b []byte
	switch ev.Kind {
	case ir.Used:
		e.used.Merge(ev.Usage)
		return nil
	case ir.Begin:
		if ev.ID != "" {
			e.ID = ev.ID
		}
		return nil // delayed until the first content, so that it contains the usage
	case ir.Delta:
		b = e.start(b)
		switch {
		case ev.Part.Redacted != "":
			b = e.stop(e.block(b, "redacted_thinking", ir.Obj{"data": ev.Part.Redacted}))
		case ev.Part.Type == ir.Thinking:
			b = e.delta(e.block(b, "thinking", ir.Obj{"thinking": "", "signature": ""}), ir.Obj{"type": "thinking_delta", "thinking": ev.Part.Text})
		default:
			b = e.delta(e.block(b, "text", ir.Obj{"text": ""}), ir.Obj{"type": "text_delta", "text": ev.Part.Text})
		}
	case ir.Signed:
		if e.open == "thinking" {
			b = e.delta(b, ir.Obj{"type": "signature_delta", "signature": ev.Part.Signature})
		}
	case ir.CallBegin:
		b = e.block(e.start(b), "tool_use", ir.Obj{"id": ev.Part.ID, "name": ir.FlatName(ev.Part.Namespace, ev.Part.Name), "input": ir.Obj{}})
		e.call = ev.Index
	case ir.CallArgs:
		if e.open == "tool_use" && e.call == ev.Index {
			b = e.delta(b, ir.Obj{"type": "input_json_delta", "partial_json": ev.Part.Args})
		}
	case ir.End:
		e.finish, e.stopSeq = ev.Finish, ev.StopSeq
	}
	return b
}

// Finish returns the end of a complete stream: the end of the open block, the stop
// reason with the usage, and message_stop. If there was no content, message_start comes
// first.
func (e *Encoder) Finish() []byte {
	b := e.stop(e.start(nil))
	d := ir.Obj{"stop_reason": finishOut(e.finish, e.stopSeq), "stop_sequence": nil}
	d.Put("stop_sequence", e.stopSeq)
	b = ir.AppendEvent(b, "message_delta", ir.Obj{"delta": d, "usage": usageOf(e.used)})
	return ir.AppendEvent(b, "message_stop", ir.Obj{})
}

// Overloaded is the HTTP status of the API for an overloaded service.
// Source: https://docs.claude.com/en/api/errors
const Overloaded = 529

// status maps error types to the HTTP statuses with the same meaning.
var status = map[string]int{"invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403, "not_found_error": 404,
	"request_too_large": 413, "rate_limit_error": 429, "api_error": 500, "timeout_error": 504, "overloaded_error": Overloaded}

// ParseFault decodes the body of an error response or, with code 0, an error in a
// stream. In a stream, the status is derived from the error's type; it is 0 for an
// unknown type. If the body cannot be decoded, the type and the message are empty.
func ParseFault(code int, body []byte) *ir.Fault {
	var d struct {
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
	}
	_ = json.Unmarshal(body, &d)
	if code == 0 {
		code = status[d.Error.Type]
	}
	return &ir.Fault{Status: code, Type: d.Error.Type, Message: d.Error.Message}
}
