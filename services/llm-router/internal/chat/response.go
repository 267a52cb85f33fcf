package chat

import (
	"encoding/json"
	"errors"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

type usage struct {
	In      int64    `json:"prompt_tokens"`
	Out     int64    `json:"completion_tokens"`
	Total   int64    `json:"total_tokens"`
	InMore  *inMore  `json:"prompt_tokens_details,omitempty"`
	OutMore *outMore `json:"completion_tokens_details,omitempty"`
}

type inMore struct {
	Cached int64 `json:"cached_tokens"`
	Write  int64 `json:"cache_write_tokens,omitempty"`
}

type outMore struct {
	Reasoning int64 `json:"reasoning_tokens"`
}

// ir returns the usage in the intermediate form. It may be called on nil; Known is then
// false.
func (u *usage) ir() ir.Usage {
	if u == nil {
		return ir.Usage{}
	}
	x := ir.Usage{In: u.In, Out: u.Out, Known: true}
	if u.InMore != nil {
		x.Cached, x.CacheWrite = u.InMore.Cached, u.InMore.Write
	}
	if u.OutMore != nil {
		x.Reasoning = u.OutMore.Reasoning
	}
	return x
}

// usageOf returns u in the format of the member usage.
func usageOf(u ir.Usage) *usage {
	return &usage{In: u.In, Out: u.Out, Total: u.In + u.Out, InMore: &inMore{u.Cached, u.CacheWrite}, OutMore: &outMore{u.Reasoning}}
}

// Usage decodes the member "usage" of a completion, of embeddings or of a chunk. Known
// is false if the member is absent or cannot be decoded.
func Usage(member []byte) ir.Usage {
	var u *usage
	if json.Unmarshal(member, &u) != nil {
		return ir.Usage{}
	}
	return u.ir()
}

var finishIn = map[string]string{"stop": ir.Stop, "length": ir.Length, "tool_calls": ir.ToolCalls, "function_call": ir.ToolCalls, "content_filter": ir.Filtered}

func finish(s string) string {
	if f, ok := finishIn[s]; ok {
		return f
	}
	return s
}

// finishOut returns the API's finish reason for a finish reason of the intermediate
// form.
func finishOut(s string) string {
	if s == ir.Paused || s == "" {
		return "stop"
	}
	return s
}

// ParseResponse decodes a completion with all its choices. Finish reasons without an
// equivalent in the intermediate form are kept. A completion without a choice is an
// error.
func ParseResponse(body []byte) (*ir.Response, error) {
	var d struct {
		ID      string `json:"id"`
		Model   string `json:"model"`
		Created int64  `json:"created"`
		Choices []struct {
			Index    int             `json:"index"`
			Message  message         `json:"message"`
			Finish   string          `json:"finish_reason"`
			LogProbs json.RawMessage `json:"logprobs"`
		} `json:"choices"`
		Usage *usage `json:"usage"`
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, err
	}
	if len(d.Choices) == 0 {
		return nil, errors.New("the completion contains no choice")
	}
	r := &ir.Response{ID: d.ID, Model: d.Model, Created: d.Created, Usage: d.Usage.ir()}
	for _, c := range d.Choices {
		c.Message.Role = ir.Assistant
		m, err := parseMessage(&c.Message)
		if err != nil {
			return nil, err
		}
		r.Choices = append(r.Choices, ir.Answer{Parts: m.Parts, Finish: finish(c.Finish), LogProbs: c.LogProbs})
	}
	return r, nil
}

// BuildResponse returns a completion. model is the name in the caller's request, which
// may differ from the model that was used. The members content, refusal and logprobs are
// present even if they are empty, since clients in statically typed languages require
// them.
func BuildResponse(r *ir.Response, model string) ([]byte, error) {
	choices := []ir.Obj{}
	for i, a := range r.Choices {
		m := ir.Obj{"role": "assistant", "refusal": nil}
		assistant(m, a.Parts)
		c := ir.Obj{"index": i, "message": m, "finish_reason": finishOut(a.Finish), "logprobs": nil}
		if len(a.LogProbs) > 0 {
			c["logprobs"] = a.LogProbs
		}
		choices = append(choices, c)
	}
	return ir.Obj{"id": r.ID, "object": "chat.completion", "created": r.Created, "model": model, "choices": choices, "usage": usageOf(r.Usage)}.Bytes()
}

type chunk struct {
	ID      string          `json:"id"`
	Model   string          `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   *usage          `json:"usage"`
	Error   json.RawMessage `json:"error"`
}

// choice is one element of the member choices in a chunk: a piece of one answer.
type choice struct {
	Index int `json:"index"`
	Delta struct {
		Content    string     `json:"content"`
		Refusal    string     `json:"refusal"`
		Reasoning  string     `json:"reasoning_content"`
		Reasoning2 string     `json:"reasoning"`
		Details    []detail   `json:"reasoning_details"`
		ToolCalls  []toolCall `json:"tool_calls"`
	} `json:"delta"`
	Text     string          `json:"text"` // set in streams of text completions, which Decoder also reads
	Finish   *string         `json:"finish_reason"`
	LogProbs json.RawMessage `json:"logprobs"`
}

// Decoder decodes the chunks of one stream, of chat completions or of text completions.
// The zero value is ready to use.
type Decoder struct {
	begun bool
	calls map[[2]int]bool
	done  bool
}

// Done reports whether the event [DONE] has been received. A finish reason does not end
// the stream, since usage may follow.
func (d *Decoder) Done() bool { return d.done }

// Event decodes one server-sent event. A chunk may contain pieces of several choices and
// so become several events. Events have no names in this API. An error in the stream is
// returned as an *ir.Fault. Malformed JSON and a negative index are other errors.
func (d *Decoder) Event(_ string, data []byte) ([]ir.Event, error) {
	if string(data) == "[DONE]" {
		d.done = true
		return nil, nil
	}
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, err
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return nil, ParseFault(0, data)
	}
	var out []ir.Event
	if !d.begun {
		d.begun = true
		d.calls = map[[2]int]bool{}
		out = append(out, ir.Event{Kind: ir.Begin, ID: c.ID, Model: c.Model})
	}
	for i := range c.Choices {
		ch := &c.Choices[i]
		if err := ch.check(); err != nil {
			return nil, err
		}
		out = ch.said(out)
		out = d.called(out, ch)
		if ch.Finish != nil && *ch.Finish != "" {
			out = append(out, ir.Event{Kind: ir.End, Choice: ch.Index, Finish: finish(*ch.Finish)})
		}
	}
	if c.Usage != nil {
		out = append(out, ir.Event{Kind: ir.Used, Usage: c.Usage.ir()})
	}
	return out, nil
}

// check returns an error if the index of the answer, or that of a tool call in it, is
// negative.
func (ch *choice) check() error {
	err := ir.CheckIndex("choices[].index", ch.Index)
	for i := range ch.Delta.ToolCalls {
		if n := ch.Delta.ToolCalls[i].Index; err == nil && n != nil {
			err = ir.CheckIndex("choices[].delta.tool_calls[].index", *n)
		}
	}
	return err
}

// said appends the events for the thinking, the text and the refusal of a piece. If the
// piece has reasoning_details, the members reasoning and reasoning_content are ignored,
// because they contain the same thinking without its signature.
func (ch *choice) said(out []ir.Event) []ir.Event {
	delta := func(typ, text string) {
		if text != "" {
			out = append(out, ir.Event{Kind: ir.Delta, Choice: ch.Index, Part: ir.Part{Type: typ, Text: text}, LogProbs: ch.LogProbs})
		}
	}
	for _, t := range ch.Delta.Details {
		if t.Text != "" || t.Data != "" {
			out = append(out, ir.Event{Kind: ir.Delta, Choice: ch.Index, Part: ir.Part{Type: ir.Thinking, Text: t.Text, Redacted: t.Data}})
		}
		if t.Signature != "" {
			out = append(out, ir.Event{Kind: ir.Signed, Choice: ch.Index, Part: ir.Part{Signature: t.Signature}})
		}
	}
	if len(ch.Delta.Details) == 0 {
		delta(ir.Thinking, ch.Delta.Reasoning+ch.Delta.Reasoning2)
	}
	delta(ir.Text, ch.Delta.Content+ch.Text)
	delta(ir.Refusal, ch.Delta.Refusal)
	return out
}

// called appends the events for the tool calls of a piece. For a call without an index,
// the index is its position in the list.
func (d *Decoder) called(out []ir.Event, ch *choice) []ir.Event {
	for i := range ch.Delta.ToolCalls {
		t := &ch.Delta.ToolCalls[i]
		n := i
		if t.Index != nil {
			n = *t.Index
		}
		p := callOf(t)
		args := p.Args
		p.Args = ""
		if at := [2]int{ch.Index, n}; !d.calls[at] {
			d.calls[at] = true
			out = append(out, ir.Event{Kind: ir.CallBegin, Choice: ch.Index, Index: n, Part: p})
		}
		if args != "" {
			out = append(out, ir.Event{Kind: ir.CallArgs, Choice: ch.Index, Index: n, Part: ir.Part{Args: args}})
		}
	}
	return out
}

// Encoder encodes a stream as chunks. Its exported fields must be set before the first
// event; a Begin event with an id replaces ID.
type Encoder struct {
	ID      string
	Model   string // model name in the caller's request
	Created int64
	Usage   bool // the caller requested that the stream ends with its usage

	begun map[int]bool
	used  ir.Usage
}

func (e *Encoder) chunk(b []byte, choices any, usage any) []byte {
	o := ir.Obj{"id": e.ID, "object": "chat.completion.chunk", "created": e.Created, "model": e.Model, "choices": choices}
	if e.Usage {
		o["usage"] = usage
	}
	doc, err := json.Marshal(o)
	if err != nil {
		return b
	}
	return append(append(append(b, "data: "...), doc...), "\n\n"...)
}

// Encode returns the chunk for one event, or nil if the event has none. Usage is written
// by Finish.
func (e *Encoder) Encode(ev *ir.Event) []byte {
	switch ev.Kind {
	case ir.Begin:
		if ev.ID != "" {
			e.ID = ev.ID
		}
		return e.delta(ev, ir.Obj{"content": ""}, nil)
	case ir.End:
		return e.delta(ev, ir.Obj{}, finishOut(ev.Finish))
	case ir.Used:
		e.used.Merge(ev.Usage)
		return nil
	}
	if d := spelled(ev); d != nil {
		return e.delta(ev, d, nil)
	}
	return nil
}

// delta returns a chunk with a piece of an answer. The first chunk of each answer
// contains the role.
func (e *Encoder) delta(ev *ir.Event, d ir.Obj, finish any) []byte {
	if e.begun == nil {
		e.begun = map[int]bool{}
	}
	if !e.begun[ev.Choice] {
		e.begun[ev.Choice] = true
		if _, ok := d["content"]; !ok && finish == nil {
			d["content"] = nil
		}
		d["role"] = "assistant"
	}
	var probs any
	if len(ev.LogProbs) > 0 {
		probs = ev.LogProbs
	}
	return e.chunk(nil, []ir.Obj{{"index": ev.Choice, "delta": d, "logprobs": probs, "finish_reason": finish}}, nil)
}

// spelled returns the delta for an event that carries content, or nil for other events.
func spelled(ev *ir.Event) ir.Obj {
	switch ev.Kind {
	case ir.Delta:
		switch {
		case ev.Part.Type == ir.Thinking && ev.Part.Redacted != "":
			return ir.Obj{"reasoning_details": []detail{{Type: "reasoning.encrypted", Data: ev.Part.Redacted}}}
		case ev.Part.Type == ir.Thinking:
			return ir.Obj{"reasoning_content": ev.Part.Text}
		case ev.Part.Type == ir.Refusal:
			return ir.Obj{"refusal": ev.Part.Text}
		}
		return ir.Obj{"content": ev.Part.Text}
	case ir.Signed:
		return ir.Obj{"reasoning_details": []detail{{Type: "reasoning.text", Signature: ev.Part.Signature}}}
	case ir.CallBegin:
		p := ev.Part
		c := callFor(&p)
		if c.Function != nil {
			c.Function.Arguments = ""
		}
		c.Index = &ev.Index
		return ir.Obj{"tool_calls": []toolCall{c}}
	case ir.CallArgs:
		c := toolCall{Index: &ev.Index}
		c.Function = &struct {
			Name      string `json:"name,omitempty"`
			Arguments string `json:"arguments"`
		}{Arguments: ev.Part.Args}
		return ir.Obj{"tool_calls": []toolCall{c}}
	}
	return nil
}

// Finish returns the bytes that end a complete stream: the usage, if the caller
// requested it, and [DONE]. It must not be called for a stream that broke.
func (e *Encoder) Finish() []byte {
	var b []byte
	if e.Usage {
		b = e.chunk(b, []any{}, usageOf(e.used))
	}
	return append(b, "data: [DONE]\n\n"...)
}

// ParseFault decodes the body of an error response or, with status 0, an error in a
// stream. The member error may be an object or, from some servers, a string, and its code
// a string or a number. If the body has any other form, only Status is set.
func ParseFault(status int, body []byte) *ir.Fault {
	var d struct {
		Error json.RawMessage `json:"error"`
	}
	f := &ir.Fault{Status: status}
	if json.Unmarshal(body, &d) != nil || len(d.Error) == 0 {
		return f
	}
	var e struct {
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Param   string          `json:"param"`
		Code    json.RawMessage `json:"code"`
	}
	if json.Unmarshal(d.Error, &e) != nil {
		_ = json.Unmarshal(d.Error, &f.Message) // some servers send a string instead of an object
		return f
	}
	f.Message, f.Type, f.Param = e.Message, e.Type, e.Param
	if json.Unmarshal(e.Code, &f.Code) != nil {
		f.Code = string(e.Code) // some servers send a number
	}
	return f
}
