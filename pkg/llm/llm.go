// Package llm is what the mesh says about a request to a language model. The
// request itself is a call's body and passes byte for byte; the args are this
// summary of it, which is all that policy sees, so that a decision can be taken
// again when the prompt is long gone.
package llm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// APIs, by the kind of call each is.
const (
	Chat        = "llm.chat"         // OpenAI chat completions
	Responses   = "llm.responses"    // OpenAI responses
	Messages    = "llm.messages"     // Anthropic messages
	CountTokens = "llm.count_tokens" // Anthropic messages/count_tokens
	Embeddings  = "llm.embeddings"   // OpenAI embeddings
	Completions = "llm.completions"  // OpenAI completions
)

// Kinds lists them.
var Kinds = []string{Chat, Completions, CountTokens, Embeddings, Messages, Responses}

// How much of prompts and answers the ledger keeps.
const (
	CapturePlain     = "plain"     // the content
	CaptureEncrypted = "encrypted" // the content under the tenant's key: destroying that erases it
	CaptureHashed    = "hashed"    // its SHA-256, so that who holds the content can show it
	CaptureOff       = "off"       // a commitment under a salt that nobody keeps
)

// Args is the summary. Its members follow from the request alone, but for
// Capture and Cache.
type Args struct {
	Beta     []string `json:"beta,omitempty"`         // features of the API that the caller turned on by header
	Body     string   `json:"body"`                   // commitment of the request
	Bytes    int64    `json:"bytes"`                  // of the request
	Cache    string   `json:"cache,omitempty"`        // "use": an answer kept from before will do
	Capture  string   `json:"capture"`                // how much the ledger keeps
	Digest   string   `json:"digest,omitempty"`       // sha256 of the request, where Capture is hashed
	Fields   []string `json:"fields"`                 // top-level members of the request, sorted
	Hold     int64    `json:"hold_tokens"`            // an upper estimate of what it uses, in and out
	In       int64    `json:"hold_input"`             // part of Hold that goes in
	Messages int64    `json:"messages"`               // how many
	Model    string   `json:"model"`                  // as the caller names it
	Params   Raw      `json:"params"`                 // members that are numbers, booleans or short strings
	Previous string   `json:"previous,omitempty"`     // id of the response this one continues
	Stream   bool     `json:"stream,omitempty"`       // the caller wants events
	Tools    []string `json:"tools"`                  // offered to the model, in order
	Usage    bool     `json:"stream_usage,omitempty"` // chat: the caller asked for usage in the stream
}

// Raw is canonical JSON.
type Raw []byte

// Canonical implements canon.Document.
func (a *Args) Canonical(c *canon.Codec) {
	c.OptStrs("beta", &a.Beta)
	c.Str("body", &a.Body)
	c.Int("bytes", &a.Bytes)
	c.OptStr("cache", &a.Cache)
	c.Str("capture", &a.Capture)
	c.OptStr("digest", &a.Digest)
	c.Strs("fields", &a.Fields)
	c.Int("hold_input", &a.In)
	c.Int("hold_tokens", &a.Hold)
	c.Int("messages", &a.Messages)
	c.Str("model", &a.Model)
	c.Raw("params", (*[]byte)(&a.Params))
	c.OptStr("previous", &a.Previous)
	c.OptBool("stream", &a.Stream)
	c.OptBool("stream_usage", &a.Usage)
	c.Strs("tools", &a.Tools)
}

// Stored reports whether a response may be fetched and continued by its id.
func (a *Args) Stored() bool { return gjson.GetBytes(a.Params, "store").Raw != "false" }

// Schema is the JSON Schema of Args, in canonical form. Decoding into Args is as
// strict as it is; TestSchema compares them.
const Schema = `{"additionalProperties":false,"properties":{"beta":{"items":{"type":"string"},"type":"array"},"body":{"type":"string"},"bytes":{"type":"integer"},"cache":{"enum":["use"]},"capture":{"enum":["plain","encrypted","hashed","off"]},"digest":{"type":"string"},"fields":{"items":{"type":"string"},"type":"array"},"hold_input":{"type":"integer"},"hold_tokens":{"type":"integer"},"messages":{"type":"integer"},"model":{"minLength":1,"type":"string"},"params":{"additionalProperties":true,"type":"object"},"previous":{"type":"string"},"stream":{"type":"boolean"},"stream_usage":{"type":"boolean"},"tools":{"items":{"type":"string"},"type":"array"}},"required":["body","bytes","capture","fields","hold_input","hold_tokens","messages","model","params","tools"],"type":"object"}`

// FieldError says which member of a request is wrong, and how.
type FieldError struct{ Field, Problem string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

func bad(field, format string, args ...any) error {
	return &FieldError{field, fmt.Sprintf(format, args...)}
}

// subject is the member of a request that must not be empty, by kind.
var subject = map[string]string{Chat: "messages", Responses: "input", Messages: "messages", CountTokens: "messages", Embeddings: "input", Completions: "prompt"}

// Bounds of the summary: what is longer has no place in a decision.
const (
	maxFields = 128
	maxTools  = 1024
	maxModel  = 256
	maxParam  = 128 // bytes of one parameter
)

// Peek reads what a request says of itself, and the data classes it brings
// (labels). It walks the document once and decodes nothing it does not name.
// Two members of one name are refused: provider and policy might each believe
// another one.
func Peek(kind string, body []byte) (*Args, []string, error) {
	if !gjson.ValidBytes(body) {
		return nil, nil, bad("body", "is not one JSON document")
	}
	root := gjson.ParseBytes(body)
	if !root.IsObject() {
		return nil, nil, bad("body", "must be a JSON object")
	}
	p := peek{a: &Args{Bytes: int64(len(body)), Fields: []string{}, Tools: []string{}}, kind: kind}
	seen := map[string]bool{}
	root.ForEach(func(k, v gjson.Result) bool {
		name := k.String()
		if fold := strings.ToLower(name); seen[fold] {
			p.err = bad(name, "stands twice in the request")
		} else {
			seen[fold] = true
		}
		if len(p.a.Fields) == maxFields || len(name) > maxParam {
			p.err = bad("body", "has more than %d members, or one with a name above %d bytes", maxFields, maxParam)
		}
		if p.err == nil {
			p.a.Fields = append(p.a.Fields, name)
			p.member(name, v)
		}
		return p.err == nil
	})
	if p.err == nil {
		p.err = p.finish()
	}
	if p.err != nil {
		return nil, nil, p.err
	}
	return p.a, p.labels, nil
}

type peek struct {
	kind   string
	a      *Args
	params []string // `"name":value`
	labels []string
	max, n int64
	some   bool // the subject is there
	err    error
}

func (p *peek) member(name string, v gjson.Result) {
	switch name {
	case "model":
		if v.Type != gjson.String || v.Str == "" || len(v.Str) > maxModel {
			p.err = bad("model", "name a model as provider/model, e.g. demo/echo; GET /v1/models lists them")
			return
		}
		p.a.Model = v.Str
		return
	case "stream":
		if !v.IsBool() && v.Type != gjson.Null {
			p.err = bad("stream", "want true or false")
		}
		p.a.Stream = v.Bool()
		return
	case "stream_options":
		p.a.Usage = v.Get("include_usage").Bool()
	case "max_tokens", "max_completion_tokens", "max_output_tokens":
		if v.Type == gjson.Number && (v.Num < 0 || v.Num > 1<<31) {
			p.err = bad(name, "want 0 to 2147483648")
			return
		}
		p.max = max(p.max, v.Int())
	case "n":
		if v.Type == gjson.Number && (v.Num < 0 || v.Num > 1024) {
			p.err = bad(name, "want 1 to 1024")
			return
		}
		p.n = v.Int()
	case "previous_response_id":
		if v.Type == gjson.String && p.kind == Responses {
			p.a.Previous, p.some = v.Str, true
		}
	case "prompt", "conversation":
		p.some = p.some || p.kind == Responses // a stored prompt or conversation is input enough
	case "tools", "functions":
		p.tools(name, v, 0)
	}
	if name == subject[p.kind] {
		p.content(name, v)
	}
	switch v.Type {
	case gjson.Number, gjson.True, gjson.False:
	case gjson.String:
		if len(v.Raw) > maxParam || name == subject[p.kind] || name == "system" || name == "instructions" || name == "suffix" {
			return
		}
	default:
		return
	}
	raw, err := canon.Transform(nil, []byte(v.Raw))
	if err != nil || v.Type == gjson.Number && len(v.Raw) > 16 { // beyond what a canonical number or text can be
		raw = canon.AppendString(nil, strings.ToValidUTF8(v.Raw, "?"))
	}
	p.params = append(p.params, string(canon.AppendString(nil, name))+":"+string(raw))
}

func (p *peek) content(name string, v gjson.Result) {
	switch {
	case v.Type == gjson.String:
		p.some, p.a.Messages = v.Str != "", 1
		return
	case !v.IsArray():
		p.err = bad(name, "want a list, or text where the API takes it")
		return
	}
	var file bool
	if p.a.Messages, file, p.err = look(name, v.Raw); file {
		p.labels = []string{labelUserFile}
	}
	p.some = p.some || p.a.Messages > 0
}

// tools names what is offered: a function by its name, a function in a
// namespace by both, a provider's own tool by its type.
func (p *peek) tools(field string, v gjson.Result, depth int) {
	v.ForEach(func(_, t gjson.Result) bool {
		var name, typ string
		var inner gjson.Result
		once := map[string]bool{}
		t.ForEach(func(k, m gjson.Result) bool {
			key := strings.ToLower(k.String())
			if once[key] {
				p.err = bad(field, "a tool holds two members %q", key)
			}
			once[key] = true
			switch key {
			case "name":
				name = m.String()
			case "type":
				typ = m.String()
			case "function", "custom":
				if twice(m, "name") {
					p.err = bad(field, "a function holds two names")
				}
				name = m.Get("name").String()
			case "tools":
				inner = m
			}
			return p.err == nil
		})
		switch {
		case p.err != nil:
		case len(p.a.Tools) >= maxTools:
			p.err = bad(field, "more than %d tools", maxTools)
		case typ == "namespace" && depth == 0:
			at := len(p.a.Tools)
			p.tools(field, inner, 1)
			for i := at; i < len(p.a.Tools); i++ {
				p.a.Tools[i] = name + "." + p.a.Tools[i]
			}
		case name != "":
			p.a.Tools = append(p.a.Tools, name)
		case typ != "":
			p.a.Tools = append(p.a.Tools, typ)
		default:
			p.err = bad(field, "a tool has neither name nor type")
		}
		return p.err == nil
	})
}

func twice(v gjson.Result, name string) bool {
	n := 0
	v.ForEach(func(k, _ gjson.Result) bool {
		if strings.EqualFold(k.String(), name) {
			n++
		}
		return true
	})
	return n > 1
}

// defaultOutput is held for a request that does not bound its answer.
const defaultOutput = 4096

func (p *peek) finish() error {
	a := p.a
	if a.Model == "" {
		return bad("model", "name a model as provider/model, e.g. demo/echo; GET /v1/models lists them")
	}
	if !p.some {
		return bad(subject[p.kind], "%s must not be empty", subject[p.kind])
	}
	slices.Sort(a.Fields)
	var err error
	if a.Params, err = canon.Transform(nil, []byte("{"+strings.Join(p.params, ",")+"}")); err != nil {
		return bad("body", "holds a name that is not text: %v", err)
	}
	a.In = a.Bytes/3 + 1
	out := p.max
	if out == 0 {
		out = defaultOutput
	}
	if p.kind == Embeddings || p.kind == CountTokens {
		out = 0
	}
	a.Hold = a.In + out*max(p.n, 1)
	return nil
}
