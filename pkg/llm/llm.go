// Package llm summarizes requests to language models. The request is a call's body and
// is forwarded byte for byte; the args are this summary, which is all that policy reads,
// so that a decision can be taken again after the prompt is erased. There is one reader
// of requests, Peek, for policy, guards and providers; a member that any API gives a
// meaning is added to the shapes in members.go.
package llm

import (
	"bytes"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Executor is the service that talks to language models.
const Executor = "llm-router"

// APIs, by the kind of call each is.
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

// Kinds lists the APIs.
var Kinds = []string{Chat, Completions, CountTokens, Embeddings, Messages, Responses}

// How much of prompts and answers the ledger keeps.
const (
	CapturePlain     = "plain"     // the content
	CaptureEncrypted = "encrypted" // the content under the tenant's key: destroying that erases it
	CaptureHashed    = "hashed"    // its SHA-256, by which a holder of the content can prove it
	CaptureOff       = "off"       // a commitment under a salt that nobody keeps
)

// Args is the summary. Its members follow from the request alone, except Capture, Cache
// and History, which the gateway adds; it adds History to In and Hold too.
type Args struct {
	Answers  int64    `json:"answers,omitempty"`      // number of answers, if not one
	Beta     []string `json:"beta,omitempty"`         // features of the API that the caller enabled by header
	Body     string   `json:"body"`                   // commitment of the request
	Bytes    int64    `json:"bytes"`                  // of the request
	Cache    string   `json:"cache,omitempty"`        // "use": a cached answer is accepted
	Capture  string   `json:"capture"`                // how much the ledger keeps
	Digest   string   `json:"digest,omitempty"`       // sha256 of the request, where Capture is hashed
	Fields   []string `json:"fields"`                 // top-level members of the request, sorted
	History  int64    `json:"history,omitempty"`      // tokens of the stored responses it continues, which In holds too
	Hold     int64    `json:"hold_tokens"`            // the most it can use, in and out, but for Images, Unbound and Whole
	Images   int64    `json:"images,omitempty"`       // number of images; the model determines their tokens
	In       int64    `json:"hold_input"`             // the input's part of Hold
	Messages int64    `json:"messages"`               // how many
	Model    string   `json:"model"`                  // as the caller names it
	Params   Raw      `json:"params"`                 // members that are numbers, booleans or short strings
	Previous string   `json:"previous,omitempty"`     // id of the response this one continues
	Refs     []string `json:"references,omitempty"`   // ids of stored items that its input names
	Stream   bool     `json:"stream,omitempty"`       // the caller wants events
	Tools    []string `json:"tools"`                  // offered to the model, in order
	Unbound  bool     `json:"unbounded,omitempty"`    // the request does not bound its answers: Hold has DefaultOutput for each, and the model may return more
	Usage    bool     `json:"stream_usage,omitempty"` // chat: the caller asked for usage in the stream
	Whole    bool     `json:"whole,omitempty"`        // files and a provider's own tools: the input may fill the model's context
}

// Raw is canonical JSON.
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

// Agrees reports whether a summarizes the same request as b: all members but those that
// the gateway adds are equal.
func (a *Args) Agrees(b *Args) bool { return bytes.Equal(a.said(), b.said()) }

// said returns the members that follow from the request alone.
func (a *Args) said() []byte {
	c := *a
	c.In, c.Hold = c.In-c.History, c.Hold-c.History
	c.Beta, c.Body, c.Cache, c.Capture, c.Digest, c.History = nil, "", "", "", "", 0
	return contract.Bytes(&c)
}

// Limits are the most tokens that a model accepts and returns; 0 is unknown.
type Limits struct{ Context, Image, Output int64 }

// Above returns the larger of each limit; an unknown limit counts as the value that Most
// assumes for it.
func (l Limits) Above(o Limits) Limits {
	above := func(a, b, unknown int64) int64 {
		if a == 0 && b == 0 {
			return 0
		}
		return max(or(a, unknown), or(b, unknown))
	}
	if l == (Limits{}) {
		return o
	}
	return Limits{max(l.Context, o.Context), above(l.Image, o.Image, unknownImage), above(l.Output, o.Output, unknownOutput)}
}

// UnknownContext is the assumed context size of a model, in tokens, where it is unknown.
const UnknownContext = 1 << 20

// Assumed values of other unknown limits, in tokens.
const (
	unknownImage  = 48 << 10
	unknownOutput = 128 << 10
)

func or(a, b int64) int64 {
	if a > 0 {
		return a
	}
	return b
}

// Most returns the most tokens, in and out, that one answer to the request can use at a
// model with the limits.
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

// Egress returns the most bytes that a request may send to providers when it is sent
// that many times. A translation that exceeds it is not sent: the llm-router counts.
func (a *Args) Egress(sends int64) int64 {
	return sends * (2*a.Bytes + bytesPerToken*a.History + headBytes)
}

const (
	headBytes     = 2 << 10 // for a request line and headers
	bytesPerToken = 6       // of stored responses
)

// ModelsEgress is the most that a call of kind Models may send, in bytes.
const ModelsEgress = 16 << 10

// Stored reports whether a response may be fetched and continued by its id.
func (a *Args) Stored() bool { return gjson.GetBytes(a.Params, "store").Raw != "false" }

// Schema is the JSON Schema of Args, in canonical form. Decoding into Args is as
// strict as it is; TestSchema compares them.
const Schema = `{"additionalProperties":false,"properties":{"answers":{"type":"integer"},"beta":{"items":{"type":"string"},"type":"array"},"body":{"type":"string"},"bytes":{"type":"integer"},"cache":{"enum":["use"]},"capture":{"enum":["plain","encrypted","hashed","off"]},"digest":{"type":"string"},"fields":{"items":{"type":"string"},"type":"array"},"history":{"type":"integer"},"hold_input":{"type":"integer"},"hold_tokens":{"type":"integer"},"images":{"type":"integer"},"messages":{"type":"integer"},"model":{"minLength":1,"type":"string"},"params":{"additionalProperties":true,"type":"object"},"previous":{"type":"string"},"references":{"items":{"type":"string"},"type":"array"},"stream":{"type":"boolean"},"stream_usage":{"type":"boolean"},"tools":{"items":{"type":"string"},"type":"array"},"unbounded":{"type":"boolean"},"whole":{"type":"boolean"}},"required":["body","bytes","capture","fields","hold_input","hold_tokens","messages","model","params","tools"],"type":"object"}`
