// Package gemini implements Google's generateContent API, and its API for embeddings,
// for a client. Source: https://ai.google.dev/api/generate-content
package gemini

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

type blob struct {
	MIME string `json:"mimeType,omitempty"`
	Data string `json:"data,omitempty"`
	URI  string `json:"fileUri,omitempty"`
}

type part struct {
	Text      *string  `json:"text,omitempty"`
	Thought   bool     `json:"thought,omitempty"`
	Signature string   `json:"thoughtSignature,omitempty"`
	Inline    *blob    `json:"inlineData,omitempty"`
	File      *blob    `json:"fileData,omitempty"`
	Call      *call    `json:"functionCall,omitempty"`
	Result    *outcome `json:"functionResponse,omitempty"`
}

type call struct {
	ID   string          `json:"id,omitempty"`
	Name string          `json:"name"`
	Args json.RawMessage `json:"args,omitempty"`
}

type outcome struct {
	ID       string `json:"id,omitempty"`
	Name     string `json:"name"`
	Response ir.Obj `json:"response"`
}

type content struct {
	Role  string `json:"role,omitempty"`
	Parts []part `json:"parts"`
}

// effortBudget maps each effort to a thinking budget in tokens.
var effortBudget = map[string]int64{"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 32768}

// buildRequest returns the body of a request, including the members in Extra; the model
// is in the URL. Fields of r that the API lacks are omitted. Models from generation 3 on
// require a thought signature on the first tool call of each turn. If that call has no
// signature, for example because another model made it, it gets a placeholder. Parts of
// an unknown type are an error.
func buildRequest(r *ir.Request) ([]byte, error) {
	o := r.Document()
	w := writer{names: map[string]string{}, signs: third(r.Model)}
	system, turns, err := ir.Alternate(r.Messages, w.parts)
	if err != nil {
		return nil, err
	}
	var contents []content
	for _, t := range turns {
		contents = append(contents, content{roles[t.Role], t.Blocks})
	}
	o["contents"] = contents
	if len(system) > 0 {
		o["systemInstruction"] = content{Parts: system}
	}
	if decls := declare(r.Tools); len(decls) > 0 {
		o["tools"] = []ir.Obj{{"functionDeclarations": decls}}
		if c := r.Choice; c != nil {
			f := ir.Obj{"mode": modes[c.Mode]}
			if c.Mode == "tool" {
				f["allowedFunctionNames"] = []string{c.Name}
			}
			o["toolConfig"] = ir.Obj{"functionCallingConfig": f}
		}
	}
	if g := generation(r); len(g) > 0 {
		o["generationConfig"] = g
	}
	return o.Bytes()
}

// roles and modes map roles, and modes of the tool choice, to their names in this API.
var (
	roles = map[string]string{ir.User: "user", ir.Assistant: "model"}
	modes = map[string]string{"auto": "AUTO", "none": "NONE", "required": "ANY", "tool": "ANY"}
)

// declare returns the tools as function declarations. It omits tools with Hosted, for
// which the API has no equivalent.
func declare(tools []ir.ToolDef) (decls []ir.Obj) {
	for i := range tools {
		t := &tools[i]
		if len(t.Hosted) > 0 {
			continue
		}
		d := ir.Obj{"name": t.Flat()}
		d.Put("description", t.Description)
		d.Put("parametersJsonSchema", t.Parameters())
		decls = append(decls, d)
	}
	return decls
}

// generation returns the member generationConfig: sampling, limits, the format of the
// answer, log probabilities and thinking.
func generation(r *ir.Request) ir.Obj {
	g := ir.Obj{}
	g.Put("temperature", r.Temperature)
	g.Put("topP", r.TopP)
	g.Put("topK", r.TopK)
	g.Put("candidateCount", r.N)
	g.Put("maxOutputTokens", r.MaxTokens)
	g.Put("stopSequences", r.Stop)
	g.Put("seed", r.Seed)
	g.Put("presencePenalty", r.PresencePenalty)
	g.Put("frequencyPenalty", r.FrequencyPenalty)
	g.Put("responseLogprobs", r.LogProbs)
	g.Put("logprobs", r.TopLogProbs)
	if f := r.Format; f != nil {
		g["responseMimeType"] = "application/json"
		g.Put("responseJsonSchema", f.Schema)
	}
	if t := thinking(r); t != nil {
		g["thinkingConfig"] = t
	}
	return g
}

// writer converts the parts of one request.
type writer struct {
	names map[string]string // names of tools by id of the tool call: in this API, a result refers to a tool call by the tool's name
	signs bool              // the first tool call of a turn must have a signature
}

// parts returns the parts of one message in the format of the API, or an error for a
// part of an unknown type. It omits thinking: this API signs tool calls and texts
// instead.
func (w *writer) parts(parts []ir.Part) (out []part, err error) {
	signed := !w.signs
	for i := range parts {
		p := &parts[i]
		switch p.Type {
		case ir.Text, ir.Refusal:
			out = append(out, part{Text: &p.Text, Signature: p.Signature})
		case ir.Thinking:
		case ir.Image, ir.Audio, ir.File:
			out = append(out, file(p.Media))
		case ir.ToolCall:
			out = append(out, w.call(p, !signed))
			signed = true
		case ir.ToolResult:
			if out, err = w.result(out, p); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("content: %s cannot be sent to this provider", p.Type)
		}
	}
	return out, nil
}

// file returns the part for a file: its bytes, its URL or its id.
func file(m *ir.Media) part {
	if m.Data != "" {
		return part{Inline: &blob{MIME: m.MIME, Data: m.Data}}
	}
	uri := m.URL
	if uri == "" {
		uri = m.ID
	}
	return part{File: &blob{MIME: m.MIME, URI: uri}}
}

// call returns the part for a tool call, and records the tool's name for result. If sign
// is set and the call has no signature, it gets the placeholder.
func (w *writer) call(p *ir.Part, sign bool) part {
	name := ir.FlatName(p.Namespace, p.Name)
	w.names[p.ID] = name
	x := part{Call: &call{Name: name, Args: ir.Object(p.Args)}, Signature: p.Signature}
	if x.Signature == "" && sign {
		x.Signature = unsigned
	}
	return x
}

// result appends the result of a tool call. Its text is sent as the member error if the
// result is an error. Otherwise a text that is a JSON object is sent as that object,
// unless it is nested too deep, and any other text as the member output. Files follow as
// separate parts.
func (w *writer) result(out []part, p *ir.Part) ([]part, error) {
	name := w.names[p.ID]
	if name == "" {
		name = p.Name
	}
	text := ir.PlainText(p.Parts)
	resp := ir.Obj{"output": text}
	if p.IsError {
		resp = ir.Obj{"error": text}
	} else if canon.CheckDepth([]byte(text)) == nil {
		var doc map[string]json.RawMessage                           // numbers keep all their digits
		if json.Unmarshal([]byte(text), &doc) == nil && doc != nil { // null leaves doc nil
			resp = ir.Obj{}
			for name, value := range doc {
				resp[name] = value
			}
		}
	}
	out = append(out, part{Result: &outcome{Name: name, Response: resp}})
	for _, q := range p.Parts {
		if q.Media != nil {
			more, err := w.parts([]ir.Part{q})
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		}
	}
	return out, nil
}

type response struct {
	ID         string      `json:"responseId"`
	Model      string      `json:"modelVersion"`
	Candidates []candidate `json:"candidates"`
	Feedback   *struct {
		Block string `json:"blockReason"`
	} `json:"promptFeedback"`
	Usage *struct {
		In        int64 `json:"promptTokenCount"`
		Tools     int64 `json:"toolUsePromptTokenCount"`
		Out       int64 `json:"candidatesTokenCount"`
		Reasoning int64 `json:"thoughtsTokenCount"`
		Cached    int64 `json:"cachedContentTokenCount"`
	} `json:"usageMetadata"`
	Error json.RawMessage `json:"error"`
}

// candidate is one of the answers in a response, or a piece of it in a stream.
type candidate struct {
	Index   int     `json:"index"`
	Content content `json:"content"`
	Finish  string  `json:"finishReason"`
	Tokens  *tokens `json:"logprobsResult"`
}

// tokens holds the log probability of each token of an answer, and of its alternatives.
type tokens struct {
	Chosen []token `json:"chosenCandidates"`
	Top    []struct {
		Candidates []token `json:"candidates"`
	} `json:"topCandidates"`
}

type token struct {
	Text string  `json:"token"`
	Log  float64 `json:"logProbability"`
}

func (t *token) openAI() ir.Obj {
	bytes := []int{}
	for _, b := range []byte(t.Text) {
		bytes = append(bytes, int(b))
	}
	return ir.Obj{"token": t.Text, "logprob": t.Log, "bytes": bytes}
}

// logProbs returns the log probabilities in OpenAI's format, or nil if the answer has
// none.
func (t *tokens) logProbs() json.RawMessage {
	if t == nil || len(t.Chosen) == 0 {
		return nil
	}
	content := []ir.Obj{}
	for i := range t.Chosen {
		o, top := t.Chosen[i].openAI(), []ir.Obj{}
		if i < len(t.Top) {
			for _, c := range t.Top[i].Candidates {
				top = append(top, c.openAI())
			}
		}
		o["top_logprobs"] = top
		content = append(content, o)
	}
	doc, err := ir.Obj{"content": content, "refusal": nil}.Bytes()
	if err != nil {
		return nil
	}
	return doc
}

func (r *response) usage() ir.Usage {
	if r.Usage == nil {
		return ir.Usage{}
	}
	u := r.Usage
	return ir.Usage{In: u.In + u.Tools, Out: u.Out + u.Reasoning, Cached: u.Cached, Reasoning: u.Reasoning, Known: true}
}

func finish(s string) string {
	switch s {
	case "STOP", "":
		return ir.Stop
	case "MAX_TOKENS":
		return ir.Length
	case "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "LANGUAGE":
		return ir.Filtered
	}
	return strings.ToLower(s)
}

// parse decodes a part. A call without an id gets the given one, and a call without
// arguments gets an empty object. Inline data becomes an image, and a part of an unknown
// type becomes empty text.
func parse(p *part, id string) ir.Part {
	switch {
	case p.Call != nil:
		x := ir.Part{Type: ir.ToolCall, ID: p.Call.ID, Name: p.Call.Name, Args: string(p.Call.Args), Signature: p.Signature}
		if x.ID == "" {
			x.ID = id
		}
		if x.Args == "" || x.Args == "null" {
			x.Args = "{}"
		}
		return x
	case p.Inline != nil:
		return ir.Part{Type: ir.Image, Media: &ir.Media{MIME: p.Inline.MIME, Data: p.Inline.Data}}
	case p.Text != nil && p.Thought:
		return ir.Part{Type: ir.Thinking, Text: *p.Text}
	case p.Text != nil:
		return ir.Part{Type: ir.Text, Text: *p.Text}
	}
	return ir.Part{Type: ir.Text}
}

// parseResponse decodes a response. A tool call without an id, as most models return it,
// gets one derived from id. A response without candidates is returned as an answer with
// the finish reason Filtered if it contains feedback about the prompt; otherwise it is
// an error.
func parseResponse(body []byte, id string) (*ir.Response, error) {
	var d response
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, err
	}
	out := &ir.Response{ID: d.ID, Model: d.Model, Usage: d.usage()}
	n := 0
	for _, c := range d.Candidates {
		a := ir.Answer{Finish: finish(c.Finish), LogProbs: c.Tokens.logProbs()}
		for i := range c.Content.Parts {
			p := parse(&c.Content.Parts[i], fmt.Sprintf("call_%s_%d", id, n))
			if p.Type == ir.ToolCall {
				n++
				if a.Finish == ir.Stop {
					a.Finish = ir.ToolCalls
				}
			}
			if k := len(a.Parts); k > 0 && a.Parts[k-1].Type == p.Type && p.Type == ir.Text {
				a.Parts[k-1].Text += p.Text
				continue
			}
			a.Parts = append(a.Parts, p)
		}
		out.Choices = append(out.Choices, a)
	}
	if len(out.Choices) == 0 {
		if d.Feedback == nil {
			return nil, errors.New("the response contains no candidate")
		}
		out.Choices = []ir.Answer{{Finish: ir.Filtered}}
	}
	return out, nil
}

// decoder decodes one stream. Tool calls without an id get one derived from CallID,
// which must be set before the first event.
type decoder struct {
	CallID string
	begun  bool
	calls  int
	called map[int]bool // candidates that called a tool; for them, the finish reason Stop is replaced by ToolCalls
	done   bool
}

// Done reports whether any candidate has ended or the prompt was blocked. Other
// candidates may continue, so the stream is read to its end.
func (d *decoder) Done() bool { return d.done }

// Event decodes one server-sent event, which may contain several pieces. Events have no
// names in this API. An error in the stream is returned as an *ir.Fault. Malformed JSON
// and a negative index of a candidate are other errors.
func (d *decoder) Event(_ string, data []byte) ([]ir.Event, error) {
	var r response
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	if len(r.Error) > 0 {
		return nil, parseFault(0, data)
	}
	var out []ir.Event
	if !d.begun {
		d.begun, d.called = true, map[int]bool{}
		out = append(out, ir.Event{Kind: ir.Begin, ID: r.ID, Model: r.Model})
	}
	if r.Feedback != nil && r.Feedback.Block != "" {
		d.done = true
		out = append(out, ir.Event{Kind: ir.End, Finish: ir.Filtered})
	}
	for i := range r.Candidates {
		if err := ir.CheckIndex("candidates[].index", r.Candidates[i].Index); err != nil {
			return nil, err
		}
		out = d.candidate(out, &r.Candidates[i])
	}
	if u := r.usage(); u.Known {
		out = append(out, ir.Event{Kind: ir.Used, Usage: u})
	}
	return out, nil
}

// candidate appends the events for one candidate's piece. The arguments of a call are
// always complete.
func (d *decoder) candidate(out []ir.Event, c *candidate) []ir.Event {
	for i := range c.Content.Parts {
		p := parse(&c.Content.Parts[i], fmt.Sprintf("call_%s_%d", d.CallID, d.calls))
		switch {
		case p.Type == ir.ToolCall:
			args := p.Args
			p.Args = ""
			out = append(out, ir.Event{Kind: ir.CallBegin, Choice: c.Index, Index: d.calls, Part: p},
				ir.Event{Kind: ir.CallArgs, Choice: c.Index, Index: d.calls, Part: ir.Part{Args: args}})
			d.calls++
			d.called[c.Index] = true
		case p.Text != "":
			out = append(out, ir.Event{Kind: ir.Delta, Choice: c.Index, Part: p, LogProbs: c.Tokens.logProbs()})
		}
	}
	if c.Finish == "" {
		return out
	}
	d.done = true
	f := finish(c.Finish)
	if f == ir.Stop && d.called[c.Index] {
		f = ir.ToolCalls
	}
	return append(out, ir.Event{Kind: ir.End, Choice: c.Index, Finish: f})
}

// parseFault decodes an error (google.rpc.Status as JSON), either alone or as the first
// item of a list. If status is 0, the fault's status is the code in the error. A
// retryDelay in its details becomes RetryMS.
func parseFault(status int, body []byte) *ir.Fault {
	var d struct {
		Error struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
			Status  string `json:"status"`
			Details []struct {
				Type  string `json:"@type"`
				Delay string `json:"retryDelay"`
			} `json:"details"`
		} `json:"error"`
	}
	if strings.HasPrefix(strings.TrimSpace(string(body)), "[") { // an error response to a request for a stream may be a list
		var list []json.RawMessage
		if json.Unmarshal(body, &list) == nil && len(list) > 0 {
			body = list[0]
		}
	}
	_ = json.Unmarshal(body, &d)
	f := &ir.Fault{Status: status, Type: d.Error.Status, Message: d.Error.Message}
	if status == 0 {
		f.Status = d.Error.Code
	}
	for _, x := range d.Error.Details {
		if wait, err := time.ParseDuration(x.Delay); err == nil {
			f.RetryMS = wait.Milliseconds()
		}
	}
	return f
}

// buildEmbeddings returns a batchEmbedContents request with one entry for each input, in
// order. If dimensions is 0, the model determines their number.
func buildEmbeddings(model string, inputs []string, dimensions int64) ([]byte, error) {
	reqs := []ir.Obj{}
	for _, in := range inputs {
		q := ir.Obj{"model": "models/" + model, "content": content{Parts: []part{{Text: &in}}}}
		q.Put("outputDimensionality", dimensions)
		reqs = append(reqs, q)
	}
	return ir.Obj{"requests": reqs}.Bytes()
}

// parseEmbeddings returns the vectors in a batchEmbedContents response, in the order of
// the inputs. This API reports no usage for them.
func parseEmbeddings(body []byte) ([][]float32, error) {
	var d struct {
		Embeddings []struct {
			Values []float32 `json:"values"`
		} `json:"embeddings"`
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, err
	}
	var out [][]float32
	for _, e := range d.Embeddings {
		out = append(out, e.Values)
	}
	return out, nil
}
