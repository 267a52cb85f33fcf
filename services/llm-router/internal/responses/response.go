package responses

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

type usage struct {
	In     int64 `json:"input_tokens"`
	InMore struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Out     int64 `json:"output_tokens"`
	OutMore struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int64 `json:"total_tokens"`
}

func (u *usage) ir() ir.Usage {
	if u == nil {
		return ir.Usage{}
	}
	return ir.Usage{In: u.In, Out: u.Out, Cached: u.InMore.Cached, Reasoning: u.OutMore.Reasoning, Known: true}
}

func usageOf(u ir.Usage) *usage {
	x := &usage{In: u.In, Out: u.Out, Total: u.In + u.Out}
	x.InMore.Cached, x.OutMore.Reasoning = u.Cached, u.Reasoning
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

type response struct {
	ID         string            `json:"id"`
	Model      string            `json:"model"`
	Created    int64             `json:"created_at"`
	Status     string            `json:"status"`
	Output     []json.RawMessage `json:"output"`
	Usage      *usage            `json:"usage"`
	Incomplete *struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// ParseResponse decodes a response. If the response contains an error, that is returned
// as an *ir.Fault. Items that result from a provider's own tools are omitted.
func ParseResponse(body []byte) (*ir.Response, error) {
	var d response
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, err
	}
	if d.Error != nil {
		return nil, &ir.Fault{Code: d.Error.Code, Message: d.Error.Message}
	}
	a := ir.Answer{Finish: d.finish()}
	for i, raw := range d.Output {
		parts, err := parseOutput(raw)
		if err != nil {
			return nil, fmt.Errorf("output[%d]: %w", i, err)
		}
		for _, p := range parts {
			if p.Type == ir.ToolCall && a.Finish == ir.Stop {
				a.Finish = ir.ToolCalls
			}
		}
		a.Parts = append(a.Parts, parts...)
	}
	return &ir.Response{ID: d.ID, Model: d.Model, Created: d.Created, Usage: d.Usage.ir(), Choices: []ir.Answer{a}}, nil
}

// finish returns the finish reason of a response. It does not take tool calls into
// account.
func (d *response) finish() string {
	if d.Incomplete != nil {
		if d.Incomplete.Reason == "content_filter" {
			return ir.Filtered
		}
		return ir.Length
	}
	return ir.Stop
}

// ParseOutput decodes the output items of a stored response as one assistant message.
// body needs no member but output. The errors are those of ParseResponse.
func ParseOutput(body []byte) ([]ir.Message, error) {
	r, err := ParseResponse(body)
	if err != nil {
		return nil, err
	}
	return []ir.Message{{Role: ir.Assistant, Parts: r.Choices[0].Parts}}, nil
}

// parseOutput decodes one output item. From a message, it omits parts of unknown types.
// It returns nil for an item of an unknown type.
func parseOutput(raw json.RawMessage) ([]ir.Part, error) {
	var it item
	if err := json.Unmarshal(raw, &it); err != nil {
		return nil, err
	}
	switch it.Type {
	case "message":
		return ir.Output(it.Content, parsePart)
	case "function_call", "custom_tool_call":
		return []ir.Part{it.toolCall()}, nil
	case "reasoning":
		return []ir.Part{it.thinking()}, nil
	}
	return nil, nil // an item of a provider's own tool has no equivalent in other APIs
}

// Frame holds the members of a response that come from its request, and the response's
// id and time. If Request is nil, tool calls keep the names that the provider returned.
type Frame struct {
	ID       string
	Model    string // model name in the caller's request
	Created  int64
	Request  *ir.Request
	Said     ir.Members // members of the request, as the caller wrote them
	Previous string
	Store    bool
}

// echoed lists the members of a request that its response repeats unchanged.
var echoed = []string{"instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "temperature",
	"tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"}

// with sets in o the members of the object that the request contains under name, if any,
// and returns o.
func (f *Frame) with(name string, o ir.Obj) ir.Obj {
	if said, err := ir.Split(f.Said[name]); err == nil {
		for k, v := range said {
			o[k] = v
		}
	}
	return o
}

// doc returns a response document. It repeats the members in echoed as they are in the
// request, and contains defaults for most members in echoed that the request omits.
func (f *Frame) doc(status string, output []ir.Obj, u any, incomplete any) ir.Obj {
	o := ir.Obj{"id": f.ID, "object": "response", "created_at": f.Created, "status": status, "background": false, "error": nil, "incomplete_details": incomplete,
		"instructions": nil, "max_output_tokens": nil, "model": f.Model, "output": output, "parallel_tool_calls": true, "previous_response_id": nil,
		"reasoning": f.with("reasoning", ir.Obj{"effort": nil, "summary": nil}), "store": f.Store, "temperature": nil, "text": f.with("text", ir.Obj{"format": ir.Obj{"type": "text"}}),
		"tool_choice": "auto", "tools": []any{}, "top_p": nil, "truncation": "disabled", "usage": u, "user": nil, "metadata": ir.Obj{}}
	o.Put("previous_response_id", f.Previous)
	for _, k := range echoed {
		if v := f.Said[k]; len(v) > 0 && string(v) != "null" {
			o[k] = v
		}
	}
	return o
}

// BuildResponse returns a response. Consecutive texts and refusals become parts of one
// message. The ids of items are derived from that of the response. The API has one
// answer per response, so all but the first are omitted.
func BuildResponse(r *ir.Response, f *Frame) ([]byte, error) {
	var a ir.Answer
	if len(r.Choices) > 0 {
		a = r.Choices[0]
	}
	output := []ir.Obj{}
	for i := 0; i < len(a.Parts); i++ {
		var run []ir.Part
		for ; i < len(a.Parts) && said(&a.Parts[i]); i++ {
			run = append(run, a.Parts[i])
		}
		if len(run) > 0 {
			output = append(output, messageItem(f.itemID("msg", len(output)), "completed", buildContent(run, ir.Assistant)))
			i--
			continue
		}
		p := a.Parts[i]
		f.Request.Unflatten(&p)
		output = append(output, f.item(&p, len(output), "completed"))
	}
	status, incomplete := ending(a.Finish)
	return f.doc(status, output, usageOf(r.Usage), incomplete).Bytes()
}

func said(p *ir.Part) bool { return p.Type == ir.Text || p.Type == ir.Refusal }

func ending(finish string) (status string, incomplete any) {
	switch finish {
	case ir.Length:
		return "incomplete", ir.Obj{"reason": "max_output_tokens"}
	case ir.Filtered:
		return "incomplete", ir.Obj{"reason": "content_filter"}
	}
	return "completed", nil
}

// itemID returns the id of the nth item of a response. It is derived from the response's
// id, so that every encoding of a response has the same ids.
func (f *Frame) itemID(prefix string, n int) string { return fmt.Sprintf("%s_%s_%d", prefix, f.ID, n) }

func messageItem(id, status string, content []ir.Obj) ir.Obj {
	return ir.Obj{"type": "message", "id": id, "role": "assistant", "status": status, "content": content}
}

// item returns the output item for a tool call or for thinking.
func (f *Frame) item(p *ir.Part, n int, status string) ir.Obj {
	switch {
	case p.Type == ir.Thinking:
		o := ir.Obj{"type": "reasoning", "id": f.itemID("rs", n), "summary": []ir.Obj{}}
		if p.Text != "" {
			o["summary"] = []ir.Obj{{"type": "summary_text", "text": p.Text}}
		}
		o.Put("encrypted_content", p.Signature)
		return o
	case p.Custom:
		o := ir.Obj{"type": "custom_tool_call", "id": f.itemID("ctc", n), "call_id": p.ID, "name": p.Name, "input": customInput(p.Args), "status": status}
		o.Put("namespace", p.Namespace)
		return o
	}
	o := ir.Obj{"type": "function_call", "id": f.itemID("fc", n), "call_id": p.ID, "name": p.Name, "arguments": p.Args, "status": status}
	o.Put("namespace", p.Namespace)
	return o
}

// customInput returns the text for a custom tool. A provider that supports only functions
// returns it as the member input of args; if there is no such member, the text is args
// itself.
func customInput(args string) string {
	var d struct {
		Input *string `json:"input"`
	}
	if json.Unmarshal([]byte(args), &d) == nil && d.Input != nil {
		return *d.Input
	}
	return args
}

// Decoder decodes the events of one stream. The zero value is ready to use.
type Decoder struct {
	calls map[int]int // index of the tool call, by output index of its item
	done  bool
	delta map[int]bool // indexes of the tool calls whose arguments were received in deltas
}

// Done reports whether the event with the whole response has been received; the response
// may have failed.
func (d *Decoder) Done() bool { return d.done }

// event is an event of a stream, with the members that are used here.
type event struct {
	Type     string          `json:"type"`
	Response json.RawMessage `json:"response"`
	Index    int             `json:"output_index"`
	Item     json.RawMessage `json:"item"`
	Delta    json.RawMessage `json:"delta"`
	Code     string          `json:"code"`
	Message  string          `json:"message"`
}

// text returns the delta if it is a string, or "".
func (e *event) text() string {
	var s string
	_ = json.Unmarshal(e.Delta, &s)
	return s
}

// deltas maps the types of events that contain a piece of text to the type of the part.
var deltas = map[string]string{"response.output_text.delta": ir.Text, "response.refusal.delta": ir.Refusal,
	"response.reasoning_summary_text.delta": ir.Thinking, "response.reasoning_text.delta": ir.Thinking}

// Event decodes one server-sent event. It ignores the name, since the data contains the
// type. It returns nothing for an event of an unknown type, an *ir.Fault for an error or
// a failed response, and another error for an event that cannot be decoded or a tool
// call before response.created.
func (d *Decoder) Event(_ string, data []byte) ([]ir.Event, error) {
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	if typ := deltas[e.Type]; typ != "" {
		return []ir.Event{{Kind: ir.Delta, Part: ir.Part{Type: typ, Text: e.text()}}}, nil
	}
	switch e.Type {
	case "error":
		return nil, &ir.Fault{Code: e.Code, Message: e.Message}
	case "response.created":
		return d.created(&e)
	case "response.output_item.added":
		return d.added(&e)
	case "response.function_call_arguments.delta", "response.custom_tool_call_input.delta":
		if n, ok := d.calls[e.Index]; ok {
			d.delta[n] = true
			return []ir.Event{{Kind: ir.CallArgs, Index: n, Part: ir.Part{Args: e.text()}}}, nil
		}
	case "response.output_item.done":
		return d.finished(&e)
	case "response.completed", "response.incomplete", "response.failed":
		return d.completed(&e)
	}
	return nil, nil
}

// created decodes response.created, the first event, and resets the state of the tool
// calls.
func (d *Decoder) created(e *event) ([]ir.Event, error) {
	d.calls, d.delta = map[int]int{}, map[int]bool{}
	var r response
	if err := json.Unmarshal(e.Response, &r); err != nil {
		return nil, err
	}
	return []ir.Event{{Kind: ir.Begin, ID: r.ID, Model: r.Model}}, nil
}

// added decodes the beginning of an item. It returns an event only for a tool call.
func (d *Decoder) added(e *event) ([]ir.Event, error) {
	parts, err := parseOutput(e.Item)
	if err != nil || len(parts) == 0 || parts[0].Type != ir.ToolCall {
		return nil, err
	}
	if d.calls == nil {
		return nil, errors.New("a tool call before response.created")
	}
	n := len(d.calls)
	d.calls[e.Index] = n
	parts[0].Args = ""
	return []ir.Event{{Kind: ir.CallBegin, Index: n, Part: parts[0]}}, nil
}

// finished decodes the end of an item: the signature of thinking, or the arguments of a
// call that were not received in deltas.
func (d *Decoder) finished(e *event) ([]ir.Event, error) {
	parts, err := parseOutput(e.Item)
	if err != nil || len(parts) == 0 {
		return nil, err
	}
	p := parts[0]
	if p.Type == ir.Thinking && p.Signature != "" {
		return []ir.Event{{Kind: ir.Signed, Part: ir.Part{Signature: p.Signature}}}, nil
	}
	if n, ok := d.calls[e.Index]; ok && !d.delta[n] && p.Args != "" {
		return []ir.Event{{Kind: ir.CallArgs, Index: n, Part: ir.Part{Args: p.Args}}}, nil
	}
	return nil, nil
}

// completed decodes the last event. It returns an *ir.Fault if the response failed.
func (d *Decoder) completed(e *event) ([]ir.Event, error) {
	d.done = true
	var r response
	if err := json.Unmarshal(e.Response, &r); err != nil {
		return nil, err
	}
	if r.Error != nil {
		return nil, &ir.Fault{Code: r.Error.Code, Message: r.Error.Message}
	}
	if e.Type == "response.failed" {
		return nil, &ir.Fault{Message: "the response failed"}
	}
	end := r.finish()
	if end == ir.Stop && len(d.calls) > 0 {
		end = ir.ToolCalls
	}
	return []ir.Event{{Kind: ir.End, Finish: end}, {Kind: ir.Used, Usage: r.Usage.ir()}}, nil
}

// Encoder encodes a stream as numbered events, with the events of begin and end that this
// API requires around each item. Frame must be set before the first event.
type Encoder struct {
	Frame

	seq    int
	begun  bool
	output []ir.Obj
	open   string // type of the open item: message, reasoning, call; empty = none is open
	part   string // type of the open part of a message: text or refusal; empty = none is open
	text   string // text of the open part, or of the open reasoning item
	call   ir.Part
	index  int // index of the open tool call
	used   ir.Usage
	finish string
	pieces []ir.Obj // finished parts of the open message
}

// event appends an event with the next sequence number.
func (e *Encoder) event(b []byte, name string, o ir.Obj) []byte {
	o["sequence_number"] = e.seq
	e.seq++
	return ir.AppendEvent(b, name, o)
}

func (e *Encoder) start(b []byte) []byte {
	if e.begun {
		return b
	}
	e.begun = true
	e.output = []ir.Obj{}
	b = e.event(b, "response.created", ir.Obj{"response": e.doc("in_progress", e.output, nil, nil)})
	return e.event(b, "response.in_progress", ir.Obj{"response": e.doc("in_progress", e.output, nil, nil)})
}

func (e *Encoder) id(prefix string) string { return e.itemID(prefix, len(e.output)) }

// close appends to b the events that end the open item, if any, and adds the item to
// e.output.
func (e *Encoder) close(b []byte) []byte {
	at := len(e.output)
	var done ir.Obj
	switch e.open {
	case "":
		return b
	case "message":
		b = e.closePart(b)
		done = messageItem(e.id("msg"), "completed", e.pieces)
		e.pieces = nil
	case "reasoning":
		id := e.id("rs")
		b = e.event(b, "response.reasoning_summary_text.done", ir.Obj{"item_id": id, "output_index": at, "summary_index": 0, "text": e.text})
		b = e.event(b, "response.reasoning_summary_part.done", ir.Obj{"item_id": id, "output_index": at, "summary_index": 0, "part": ir.Obj{"type": "summary_text", "text": e.text}})
		done = e.item(&ir.Part{Type: ir.Thinking, Text: e.text, Signature: e.call.Signature}, at, "completed")
	case "call":
		done = e.item(&e.call, at, "completed")
		if e.call.Custom {
			in := done["input"]
			b = e.event(b, "response.custom_tool_call_input.delta", ir.Obj{"item_id": done["id"], "output_index": at, "delta": in})
			b = e.event(b, "response.custom_tool_call_input.done", ir.Obj{"item_id": done["id"], "output_index": at, "input": in})
		} else {
			b = e.event(b, "response.function_call_arguments.done", ir.Obj{"item_id": done["id"], "output_index": at, "name": e.call.Name, "arguments": e.call.Args})
		}
	}
	b = e.event(b, "response.output_item.done", ir.Obj{"output_index": at, "item": done})
	e.output = append(e.output, done)
	e.open, e.text, e.call = "", "", ir.Part{}
	return b
}

func (e *Encoder) closePart(b []byte) []byte {
	if e.part == "" {
		return b
	}
	at := ir.Obj{"item_id": e.id("msg"), "output_index": len(e.output), "content_index": len(e.pieces)}
	with := func(k string, v any) ir.Obj {
		o := ir.Obj{k: v}
		for n, x := range at {
			o[n] = x
		}
		return o
	}
	p := ir.Part{Type: e.part, Text: e.text}
	piece := buildContent([]ir.Part{p}, ir.Assistant)[0]
	if e.part == ir.Refusal {
		b = e.event(b, "response.refusal.done", with("refusal", e.text))
	} else {
		o := with("text", e.text)
		o["logprobs"] = []any{}
		b = e.event(b, "response.output_text.done", o)
	}
	b = e.event(b, "response.content_part.done", with("part", piece))
	e.pieces = append(e.pieces, piece)
	e.part, e.text = "", ""
	return b
}

// openItem closes the open item and appends the beginning of another.
func (e *Encoder) openItem(b []byte, kind string, added ir.Obj) []byte {
	b = e.close(e.start(b))
	e.open = kind
	return e.event(b, "response.output_item.added", ir.Obj{"output_index": len(e.output), "item": added})
}

// Encode returns the bytes for one event. It returns nil for the events of all choices
// but the first.
func (e *Encoder) Encode(ev *ir.Event) []byte {
	if ev.Choice > 0 {
		return nil
	}
	switch ev.Kind {
	case ir.Begin:
		return e.start(nil)
	case ir.Used:
		e.used.Merge(ev.Usage)
	case ir.Signed:
		if e.open == "reasoning" {
			e.call.Signature += ev.Part.Signature
		}
	case ir.Delta:
		if ev.Part.Type == ir.Thinking {
			return e.think(ev.Part.Text)
		}
		return e.say(ev.Part.Type, ev.Part.Text)
	case ir.CallBegin:
		return e.beginCall(ev)
	case ir.CallArgs:
		return e.args(ev)
	case ir.End:
		e.finish = ev.Finish
	}
	return nil
}

// think returns the events for a piece of thinking, as a delta of the reasoning summary.
func (e *Encoder) think(text string) (b []byte) {
	if e.open != "reasoning" {
		b = e.openItem(b, "reasoning", ir.Obj{"type": "reasoning", "id": e.idAfterClose("rs"), "summary": []any{}})
		b = e.event(b, "response.reasoning_summary_part.added", ir.Obj{"item_id": e.id("rs"), "output_index": len(e.output), "summary_index": 0, "part": ir.Obj{"type": "summary_text", "text": ""}})
	}
	e.text += text
	return e.event(b, "response.reasoning_summary_text.delta", ir.Obj{"item_id": e.id("rs"), "output_index": len(e.output), "summary_index": 0, "delta": text})
}

// say returns the events for a piece of text or of a refusal. Both are parts of one
// message.
func (e *Encoder) say(typ, text string) (b []byte) {
	if e.open != "message" {
		b = e.openItem(b, "message", messageItem(e.idAfterClose("msg"), "in_progress", []ir.Obj{}))
	}
	at := len(e.output)
	if e.part != typ {
		b = e.closePart(b)
		e.part = typ
		empty := buildContent([]ir.Part{{Type: e.part}}, ir.Assistant)[0]
		b = e.event(b, "response.content_part.added", ir.Obj{"item_id": e.id("msg"), "output_index": at, "content_index": len(e.pieces), "part": empty})
	}
	e.text += text
	o := ir.Obj{"item_id": e.id("msg"), "output_index": at, "content_index": len(e.pieces), "delta": text}
	if e.part == ir.Refusal {
		return e.event(b, "response.refusal.delta", o)
	}
	o["logprobs"] = []any{}
	return e.event(b, "response.output_text.delta", o)
}

// beginCall returns the events that end the open item and begin a tool call.
func (e *Encoder) beginCall(ev *ir.Event) []byte {
	p := ev.Part
	p.Type = ir.ToolCall
	e.Request.Unflatten(&p)
	b := e.close(e.start(nil))
	b = e.openItem(b, "call", e.item(&p, len(e.output), "in_progress"))
	e.call, e.index = p, ev.Index
	return b
}

// args returns the event for a piece of the open call's arguments, or nil for a piece of
// the arguments of another call. For a custom tool it also returns nil: the text is
// written when it is complete, since it is extracted from a JSON object.
func (e *Encoder) args(ev *ir.Event) []byte {
	if e.open != "call" || e.index != ev.Index {
		return nil
	}
	e.call.Args += ev.Part.Args
	if e.call.Custom {
		return nil
	}
	return e.event(nil, "response.function_call_arguments.delta", ir.Obj{"item_id": e.id("fc"), "output_index": len(e.output), "delta": ev.Part.Args})
}

// idAfterClose returns the id that the next item will have after the open item has been
// closed.
func (e *Encoder) idAfterClose(prefix string) string {
	n := len(e.output)
	if e.open != "" {
		n++
	}
	return e.itemID(prefix, n)
}

// Finish returns the end of a complete stream: the end of the open item, and an event
// with the whole response. If Encode has not begun the response, the events that begin
// it come first.
func (e *Encoder) Finish() []byte {
	b := e.close(e.start(nil))
	status, incomplete := ending(e.finish)
	return e.event(b, "response."+status, ir.Obj{"response": e.doc(status, e.output, usageOf(e.used), incomplete)})
}
