// Package llm summarizes requests to language models, and defines the frames in which
// their answers are streamed. The body of a call is the request, unchanged. The args of
// the call are the summary; policy reads nothing of the request except the summary and
// the data classes (labels), so that a decision can be repeated after the prompt is
// erased. All services that read requests use one reader for the summary, Peek. To
// support another member of any API, add it to the shapes in members.go.
package llm

import (
	"bytes"
	"slices"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Executor is the name of the service that sends requests to language models.
const Executor = services.LLMRouter

// Kinds of calls to language models, one per API.
const (
	Chat        = "llm.chat"         // OpenAI chat completions
	Responses   = "llm.responses"    // OpenAI responses
	Messages    = "llm.messages"     // Anthropic messages
	CountTokens = "llm.count_tokens" // Anthropic messages/count_tokens
	Embeddings  = "llm.embeddings"   // OpenAI embeddings
	Completions = "llm.completions"  // OpenAI completions
)

// Models is the kind of a call that lists the models of every provider.
const Models = "llm.models"

// Kinds lists the kinds of calls to language models, sorted.
var Kinds = []string{Chat, Completions, CountTokens, Embeddings, Messages, Responses}

// Capture modes: how much of prompts and answers is recorded on the ledger.
const (
	CapturePlain     = "plain"     // the content
	CaptureEncrypted = "encrypted" // the content, encrypted under the tenant's content key; destroying the key erases it
	CaptureHashed    = "hashed"    // the SHA-256 of the content, which lets a holder of the content prove that it is the recorded one
	CaptureOff       = "off"       // a commitment whose salt is discarded
)

// Args is the summary of a request. Its members are computed from the request alone,
// except Beta, Body, Cache, Capture, Digest and History, which the proposing service
// sets. The proposing service also adds History to In and Hold.
type Args struct {
	Answers  int64    `json:"answers,omitempty"`      // number of answers requested; 0 means one
	Beta     []string `json:"beta,omitempty"`         // features of the API that the caller enabled by header
	Body     string   `json:"body"`                   // commitment of the request
	Bytes    int64    `json:"bytes"`                  // length of the request in bytes
	Cache    string   `json:"cache,omitempty"`        // "use" if a cached answer is accepted, otherwise empty
	Capture  string   `json:"capture"`                // capture mode, such as CapturePlain
	Digest   string   `json:"digest,omitempty"`       // SHA-256 of the request, if Capture is CaptureHashed
	Fields   []string `json:"fields"`                 // top-level members of the request, sorted
	History  int64    `json:"history,omitempty"`      // tokens of the stored responses that the request continues; included in In
	Hold     int64    `json:"hold_tokens"`            // upper bound of input and output tokens; Most adds images, files and, for unlimited answers, the tokens above DefaultOutput
	Images   int64    `json:"images,omitempty"`       // number of images and videos; the model determines their tokens
	In       int64    `json:"hold_input"`             // upper bound of input tokens; included in Hold
	Messages int64    `json:"messages"`               // number of messages or inputs
	Model    string   `json:"model"`                  // name of the model, as given by the caller
	Params   Raw      `json:"params"`                 // other top-level members that are numbers, booleans or short strings, without texts for the model
	Previous string   `json:"previous,omitempty"`     // id of the response that the request continues
	Refs     []string `json:"references,omitempty"`   // ids of stored items that the input refers to
	Stream   bool     `json:"stream,omitempty"`       // the caller requests an event stream
	Tools    []string `json:"tools"`                  // names of the tools offered to the model, in order, then of the tools that only tool_choice or function_call names
	Unbound  bool     `json:"unbounded,omitempty"`    // the request does not limit its answers: Hold includes at least DefaultOutput for each, and the model may return more
	Usage    bool     `json:"stream_usage,omitempty"` // the caller requests usage in the stream
	Whole    bool     `json:"whole,omitempty"`        // the request has files other than inline audio, a stored prompt, or tools that the provider runs: the input may fill the model's context
}

// Raw is a JSON value in canonical form (package canon).
type Raw []byte

// Canonical implements canon.Document.
func (a *Args) Canonical(c *canon.Codec) {
	c.OptInt("answers", &a.Answers)
	c.OptStrs("beta", &a.Beta)
	c.Str("body", &a.Body)
	c.Int("bytes", &a.Bytes)
	c.OptStr("cache", &a.Cache)
	c.Str("capture", &a.Capture)
	c.OptStr("digest", &a.Digest)
	c.Strs("fields", &a.Fields)
	c.OptInt("history", &a.History)
	c.Int("hold_input", &a.In)
	c.Int("hold_tokens", &a.Hold)
	c.OptInt("images", &a.Images)
	c.Int("messages", &a.Messages)
	c.Str("model", &a.Model)
	c.Raw("params", (*[]byte)(&a.Params))
	c.OptStr("previous", &a.Previous)
	c.OptStrs("references", &a.Refs)
	c.OptBool("stream", &a.Stream)
	c.OptBool("stream_usage", &a.Usage)
	c.Strs("tools", &a.Tools)
	c.OptBool("unbounded", &a.Unbound)
	c.OptBool("whole", &a.Whole)
}

// Agrees reports whether the members of a and b that are computed from the request alone
// are equal. In and Hold are compared without History.
func (a *Args) Agrees(b *Args) (agrees bool) {
	canon.With(a.said(), func(said []byte) {
		canon.With(b.said(), func(other []byte) { agrees = bytes.Equal(said, other) })
	})
	return agrees
}

// said returns the args with only the members that are computed from the request alone.
func (a *Args) said() *Args {
	c := *a
	c.In, c.Hold = c.In-c.History, c.Hold-c.History
	c.Beta, c.Body, c.Cache, c.Capture, c.Digest, c.History = nil, "", "", "", "", 0
	return &c
}

// Limits are a model's limits in tokens: its context, the input for one image, and its
// output. 0 means unknown.
type Limits struct{ Context, Image, Output int64 }

// Above returns, for each limit, the larger value of l and o, or 0 if both are unknown.
// If one image or output limit is unknown, it counts as the value that Most assumes for
// it; an unknown context is ignored. The result does not depend on the order in which
// several limits are combined.
func (l Limits) Above(o Limits) Limits {
	above := func(a, b, unknown int64) int64 {
		if a == 0 && b == 0 {
			return 0
		}
		return max(or(a, unknown), or(b, unknown))
	}
	return Limits{max(l.Context, o.Context), above(l.Image, o.Image, unknownImage), above(l.Output, o.Output, unknownOutput)}
}

// UnknownContext is the context size in tokens that is assumed for a model whose context
// is unknown.
const UnknownContext = 1 << 20

// Assumed values of other unknown limits, in tokens.
const (
	unknownImage  = 48 << 10
	unknownOutput = 128 << 10
)

// or returns a if it is positive, else b.
func or(a, b int64) int64 {
	if a > 0 {
		return a
	}
	return b
}

// Most returns upper bounds of the input and output tokens that a model with these
// limits uses for the request. In place of unknown limits it uses assumed values, except
// that an unknown context does not limit the input.
func (a *Args) Most(l Limits) (in, out int64) {
	in = a.In + a.Images*or(l.Image, unknownImage)
	if a.Whole {
		in = max(in, or(l.Context, UnknownContext))
	}
	if l.Context > 0 {
		in = min(in, l.Context)
	}
	out = a.Hold - a.In
	if a.Unbound {
		out += max(a.Answers, 1) * max(0, or(l.Output, unknownOutput)-DefaultOutput)
	}
	return in, out
}

// Egress returns the maximum number of bytes that may be sent to providers for the
// request if it is sent the given number of times. The llm-router counts the bytes and
// does not send a translation that exceeds this.
func (a *Args) Egress(sends int64) int64 {
	return sends * (2*a.Bytes + bytesPerToken*a.History + headBytes)
}

const (
	headBytes     = 2 << 10 // bytes allowed for a request line and headers
	bytesPerToken = 6       // bytes allowed for each token of stored responses
)

// ModelsEgress is the maximum number of bytes that a call of kind Models may send to
// providers.
const ModelsEgress = 16 << 10

// Stored reports whether the response may be stored, to be fetched and continued by its
// id: the member store of the request is not false.
func (a *Args) Stored() bool { return gjson.GetBytes(a.Params, "store").Raw != "false" }

// Known reports whether the cache, the capture mode, the model and the params have values
// that Schema permits, which decoding does not check.
func (a *Args) Known() bool {
	return len(a.Params) > 0 && a.Params[0] == '{' && (a.Cache == "" || a.Cache == "use") && a.Model != "" && slices.Contains([]string{CapturePlain, CaptureEncrypted, CaptureHashed, CaptureOff}, a.Capture)
}

// Schema is the JSON Schema of Args, in canonical form. Decoding into Args checks the
// members and their types, except that of params; Known checks params and the values of
// cache, capture and model. Decoding also rejects an optional member that is empty.
const Schema = `{"additionalProperties":false,"properties":{"answers":{"type":"integer"},"beta":{"items":{"type":"string"},"type":"array"},"body":{"type":"string"},"bytes":{"type":"integer"},"cache":{"enum":["use"]},"capture":{"enum":["plain","encrypted","hashed","off"]},"digest":{"type":"string"},"fields":{"items":{"type":"string"},"type":"array"},"history":{"type":"integer"},"hold_input":{"type":"integer"},"hold_tokens":{"type":"integer"},"images":{"type":"integer"},"messages":{"type":"integer"},"model":{"minLength":1,"type":"string"},"params":{"additionalProperties":true,"type":"object"},"previous":{"type":"string"},"references":{"items":{"type":"string"},"type":"array"},"stream":{"type":"boolean"},"stream_usage":{"type":"boolean"},"tools":{"items":{"type":"string"},"type":"array"},"unbounded":{"type":"boolean"},"whole":{"type":"boolean"}},"required":["body","bytes","capture","fields","hold_input","hold_tokens","messages","model","params","tools"],"type":"object"}`
