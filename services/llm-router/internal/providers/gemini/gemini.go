// Package gemini is Google's generateContent API as a client writes and reads
// it. Source: https://ai.google.dev/api/generate-content
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

var effortBudget = map[string]int64{"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 32768}

// BuildRequest writes a request. The model stands in the URL.
func BuildRequest(r *ir.Request) ([]byte, error) {
	o := ir.Obj{}
	for k, v := range r.Extra {
		o[k] = v
	}
	w := writer{names: map[string]string{}, signs: third(r.Model)}
	var contents []content
	var system []part
	add := func(role string, parts []part) {
		if len(parts) == 0 {
			return
		}
		if n := len(contents); n > 0 && contents[n-1].Role == role {
			contents[n-1].Parts = append(contents[n-1].Parts, parts...)
			return
		}
		contents = append(contents, content{role, parts})
	}
	for _, m := range r.Messages {
		parts, err := w.parts(m.Parts)
		if err != nil {
			return nil, err
		}
		switch m.Role {
		case ir.System:
			system = append(system, parts...)
		case ir.Assistant:
			add("model", parts)
		default:
			add("user", parts)
		}
	}
	o["contents"] = contents
	if len(system) > 0 {
		o["systemInstruction"] = content{Parts: system}
	}
	var decls []ir.Obj
	for _, t := range r.Tools {
		if len(t.Hosted) > 0 {
			continue
		}
		d := ir.Obj{"name": ir.FlatName(t.Namespace, t.Name)}
		d.Put("description", t.Description)
		schema := t.Schema
		if len(t.Custom) > 0 {
			schema = ir.CustomSchema
		}
		d.Put("parametersJsonSchema", schema)
		decls = append(decls, d)
	}
	if len(decls) > 0 {
		o["tools"] = []ir.Obj{{"functionDeclarations": decls}}
		if c := r.Choice; c != nil {
			f := ir.Obj{"mode": map[string]string{"auto": "AUTO", "none": "NONE", "required": "ANY", "tool": "ANY"}[c.Mode]}
			if c.Mode == "tool" {
				f["allowedFunctionNames"] = []string{c.Name}
			}
			o["toolConfig"] = ir.Obj{"functionCallingConfig": f}
		}
	}
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
	if len(g) > 0 {
		o["generationConfig"] = g
	}
	return o.Bytes()
}

// writer writes the parts of one request.
type writer struct {
	names map[string]string // of tool calls by id: results go by name here
	signs bool              // calls are signed: the first of a turn must be
}

func (w *writer) parts(parts []ir.Part) ([]part, error) {
	var out []part
	signed := !w.signs
	for _, p := range parts {
		switch p.Type {
		case ir.Text, ir.Refusal:
			out = append(out, part{Text: &p.Text, Signature: p.Signature})
		case ir.Thinking: // what was thought stays with the signature on the call
		case ir.Image, ir.Audio, ir.File:
			if p.Media.Data != "" {
				out = append(out, part{Inline: &blob{MIME: p.Media.MIME, Data: p.Media.Data}})
				continue
			}
			uri := p.Media.URL
			if uri == "" {
				uri = p.Media.ID
			}
			out = append(out, part{File: &blob{MIME: p.Media.MIME, URI: uri}})
		case ir.ToolCall:
			name := ir.FlatName(p.Namespace, p.Name)
			w.names[p.ID] = name
			x := part{Call: &call{Name: name, Args: ir.Object(p.Args)}, Signature: p.Signature}
			if x.Signature == "" && !signed {
				x.Signature = unsigned
			}
			signed = true
			out = append(out, x)
		case ir.ToolResult:
			name := w.names[p.ID]
			if name == "" {
				name = p.Name
			}
			text := ir.PlainText(p.Parts)
			resp := ir.Obj{"output": text}
			if p.IsError {
				resp = ir.Obj{"error": text}
			}
			var doc map[string]any
			if !p.IsError && canon.CheckDepth([]byte(text)) == nil && json.Unmarshal([]byte(text), &doc) == nil {
				resp = doc
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
		default:
			return nil, fmt.Errorf("content: %s cannot be sent to this provider", p.Type)
		}
	}
	return out, nil
}

type response struct {
	ID         string `json:"responseId"`
	Model      string `json:"modelVersion"`
	Candidates []struct {
		Index   int     `json:"index"`
		Content content `json:"content"`
		Finish  string  `json:"finishReason"`
		Tokens  *tokens `json:"logprobsResult"`
	} `json:"candidates"`
	Feedback *struct {
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

// tokens is how probable each token of an answer was, beside others.
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

// logProbs is the same in OpenAI's shape; nil: nothing was told.
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

// parse reads a part; id names a call that has no id of its own.
func parse(p *part, id string) ir.Part {
	switch {
	case p.Call != nil:
		x := ir.Part{Type: ir.ToolCall, ID: p.Call.ID, Name: p.Call.Name, Args: string(p.Call.Args), Signature: p.Signature}
		if x.ID == "" {
			x.ID = id
		}
		if x.Args == "" {
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

// ParseResponse reads an answer; id names the call, for ids of tool calls.
func ParseResponse(body []byte, id string) (*ir.Response, error) {
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
			return nil, errors.New("the answer holds no candidate")
		}
		out.Choices = []ir.Answer{{Finish: ir.Filtered}}
	}
	return out, nil
}

// Decoder reads a stream, each of whose events is an answer in part.
type Decoder struct {
	CallID string
	begun  bool
	calls  int
	asked  map[int]bool // candidates that called a tool
	done   bool
}

// Done reports whether some candidate said why it ended.
func (d *Decoder) Done() bool { return d.done }

// Event reads one server-sent event.
func (d *Decoder) Event(_ string, data []byte) ([]ir.Event, error) {
	var r response
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	if len(r.Error) > 0 {
		return nil, ParseFault(0, data)
	}
	var out []ir.Event
	if !d.begun {
		d.begun, d.asked = true, map[int]bool{}
		out = append(out, ir.Event{Kind: ir.Begin, ID: r.ID, Model: r.Model})
	}
	if r.Feedback != nil && r.Feedback.Block != "" {
		d.done = true
		out = append(out, ir.Event{Kind: ir.End, Finish: ir.Filtered})
	}
	for _, c := range r.Candidates {
		for i := range c.Content.Parts {
			p := parse(&c.Content.Parts[i], fmt.Sprintf("call_%s_%d", d.CallID, d.calls))
			switch {
			case p.Type == ir.ToolCall:
				args := p.Args
				p.Args = ""
				out = append(out, ir.Event{Kind: ir.CallBegin, Choice: c.Index, Index: d.calls, Part: p},
					ir.Event{Kind: ir.CallArgs, Choice: c.Index, Index: d.calls, Part: ir.Part{Args: args}})
				d.calls++
				d.asked[c.Index] = true
			case p.Text != "":
				out = append(out, ir.Event{Kind: ir.Delta, Choice: c.Index, Part: p, LogProbs: c.Tokens.logProbs()})
			}
		}
		if c.Finish != "" {
			d.done = true
			f := finish(c.Finish)
			if f == ir.Stop && d.asked[c.Index] {
				f = ir.ToolCalls
			}
			out = append(out, ir.Event{Kind: ir.End, Choice: c.Index, Finish: f})
		}
	}
	if u := r.usage(); u.Known {
		out = append(out, ir.Event{Kind: ir.Used, Usage: u})
	}
	return out, nil
}

// ParseFault reads an error (google.rpc.Status as JSON).
func ParseFault(status int, body []byte) *ir.Fault {
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
	if strings.HasPrefix(strings.TrimSpace(string(body)), "[") { // streams answer errors in a list
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

// BuildEmbeddings writes a batchEmbedContents request for OpenAI's inputs.
func BuildEmbeddings(model string, inputs []string, dimensions int64) ([]byte, error) {
	reqs := []ir.Obj{}
	for _, in := range inputs {
		q := ir.Obj{"model": "models/" + model, "content": content{Parts: []part{{Text: &in}}}}
		q.Put("outputDimensionality", dimensions)
		reqs = append(reqs, q)
	}
	return ir.Obj{"requests": reqs}.Bytes()
}

// ParseEmbeddings reads the vectors.
func ParseEmbeddings(body []byte) ([][]float32, error) {
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
