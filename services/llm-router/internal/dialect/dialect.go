// Package dialect describes APIs of language models as values: how a request is
// addressed and written, and how responses, streams, usage and errors are read. A
// dialect (chat, responses, messages, or one inside a provider's package) exports such
// values.
//
// An API describes an API that a provider offers; a Caller describes one that callers
// use. If the provider offers the caller's API, a request is forwarded without
// translation.
//
// The package is pure: it declares the types of these values and checks requests against
// them.
package dialect

import (
	"fmt"
	"io"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/sse"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// Decoder converts a provider's stream into the intermediate form. It holds the state of
// one stream and is used by one goroutine.
type Decoder interface {
	// Event decodes one event. It must not retain data. An *ir.Fault is an error that
	// the provider sent; any other error means that the event cannot be decoded.
	Event(name string, data []byte) ([]ir.Event, error)
	// Done reports whether the stream is complete, except for events that may follow in
	// an API with Trails.
	Done() bool
}

// Encoder writes a caller's stream from the intermediate form. It holds the state of one
// stream and is used by one goroutine.
type Encoder interface {
	// Encode returns the bytes of one event, which may be none.
	Encode(*ir.Event) []byte
	// Finish returns the bytes that end a complete stream.
	Finish() []byte
}

// Source reads the events of a stream from its framing. If the stream ends between two
// events, Next returns io.EOF, or io.ErrUnexpectedEOF if the API marks the end of a
// stream by its last event. It also returns io.ErrUnexpectedEOF if the stream ends
// inside an event, an *ir.Fault if the framing carries an error, and other errors of the
// framing and of the reader. The slices of an event are valid until the next call.
type Source interface{ Next() (sse.Event, error) }

// API describes one API that a provider offers. If a function is nil, the API lacks the
// feature, unless the comment on the field gives a default.
type API struct {
	// Name identifies the API in the member `apis` of the llm document.
	Name string
	// Kind is the kind of calls whose bodies the API accepts unchanged; empty if callers
	// cannot use the API.
	Kind string
	// Path returns the path of a request below the provider's base URL. model is already
	// escaped.
	Path func(model string, stream bool) string
	// Header returns the header fields that every request has. beta lists the features
	// that the caller opted in to.
	Header func(beta []string) map[string]string

	// Rank orders the APIs into which a request may be translated: of the APIs that a
	// provider offers, the one with the lowest rank is used. 0 excludes the API.
	Rank int
	// Build returns the body of a request that Fit accepted.
	Build func(*ir.Request) ([]byte, error)
	// Parse decodes a complete response. If a response of the API may contain tool calls
	// without an id, they get one that is derived from callID.
	Parse func(body []byte, callID string) (*ir.Response, error)
	// Decoder returns the decoder for one stream.
	Decoder func(callID string) Decoder
	// Source returns the reader of a stream's framing; nil means server-sent events.
	Source func(io.Reader) Source
	// Usage decodes the member "usage" of a complete response; member may be empty.
	Usage func(member []byte) ir.Usage
	// Fault decodes an error: the body of a response with an error status or, with
	// status 0, an error within a stream. header returns a header field of the response.
	Fault func(status int, header func(name string) string, body []byte) *ir.Fault
	// Embed translates embeddings. If it is nil, embeddings requests in another format
	// cannot be translated into this API.
	Embed *Embedding

	Several  bool // the API can return several answers to one request (n)
	LogProbs bool // the API can return the log probabilities of tokens
	Hints    bool // the API accepts the members of OpenAI's API that hints lists
	Trails   bool // events may follow the one that ends the answer; a translated stream is read to its end
	Items    bool // responses contain items with ids, to which later requests can refer
	// AskUsage is the path of the request member that must be true for a stream to
	// report its usage. It is empty if streams always report it.
	AskUsage string
	// OldBound is the older name of the request member that limits the length of an
	// answer, or "" if there is none. A translated request contains it as well, unless
	// the provider supports the current name.
	OldBound string
	// Final lists the types of the events whose member "response" is the whole response.
	Final []string
}

// Embedding converts embedding requests and responses between the API of a provider and
// a different embeddings API that a caller uses. Input given as tokens instead of text
// cannot be converted.
type Embedding struct {
	// Build returns the body of a request. If dimensions is 0, the model determines
	// their number.
	Build func(model string, texts []string, dimensions int64) ([]byte, error)
	// Parse returns the vectors, one for each text, in order.
	Parse func(body []byte) ([][]float32, error)
}

// Frame holds the members of a response that are determined by the call and not by the
// provider's answer. ID is the id of the response if the provider assigned none or the
// caller's API has OwnID; Body is the request as the caller wrote it.
type Frame struct {
	ID       string
	Model    string // model name in the caller's request
	Created  int64  // seconds since 1970
	Usage    bool   // the caller requested that a stream ends with its usage
	Request  *ir.Request
	Body     []byte
	Previous string // id of the response that the request continues; "" if there is none
	Store    bool
}

// Caller describes an API that callers use. Without Parse, its requests are sent only to
// providers that offer the same API, unless Embeds is set and the provider has a
// translation of embeddings.
type Caller struct {
	Kind        string // kind of the calls that requests become
	Description string // description of the call's kind in the tool catalog
	Operation   string // gen_ai.operation.name of OpenTelemetry's conventions
	IDPrefix    string // prefix of the ids that the API gives to responses
	Native      *API   // the provider's API that accepts the bodies of callers unchanged
	OwnID       bool   // translated responses have the router's id instead of the provider's
	Said        string // member of a response that contains the model's output; empty: the whole response
	Joined      bool   // the caller joins all texts of a choice, even with other events between them
	Counts      bool   // the response is a number of tokens, which can be estimated
	Embeds      bool   // the response contains vectors

	Parse   func(body []byte) (*ir.Request, error)
	Build   func(r *ir.Response, f *Frame) ([]byte, error)
	Encoder func(f *Frame) Encoder
}

// hints lists members of OpenAI's API, such as those about billing, storage and
// priority, without which a request is still valid.
var hints = []string{"prediction", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "verbosity"}

// binding lists request members that, in some API, select the model or determine the
// prompt, the tools, the limits, or the number or form of answers. The names are in
// lower case, without hyphens and underscores. Fit rejects such a member if the caller's
// dialect does not define it, because policy and the budget have not read it and the
// provider's API may apply it.
var binding = set("additionalmodelrequestfields background bestof cachedcontent candidatecount container contents conversation extrabody functioncall functiondeclarations functions generationconfig " +
	"inferenceconfig input maxcompletiontokens maxgenlen maxnewtokens maxoutputtokens maxtokencount maxtokens maxtokenstosample mcpservers messages model models n numpredict numreturnsequences options " +
	"outputconfig outputformat plugins preset previousresponseid prompt reasoning reasoningconfig route searchparameters stream system systeminstruction thinking thinkingbudget thinkingconfig toolchoice " +
	"toolconfig toolresources tools websearchoptions")

func set(names string) map[string]bool {
	m := map[string]bool{}
	for n := range strings.FieldsSeq(names) {
		m[n] = true
	}
	return m
}

var plainName = strings.NewReplacer("_", "", "-", "")

// Fit returns an error for a member of r.Extra that is in binding, for a tool that has
// neither a name nor a provider's own definition, and for several answers or log
// probabilities if the API cannot return them. It removes the members in hints from
// r.Extra if the API does not accept them. Errors begin with the invalid member.
func (a *API) Fit(r *ir.Request) error {
	for m := range r.Extra {
		if binding[plainName.Replace(strings.ToLower(m))] {
			return fmt.Errorf("%s: the caller's API does not define this member, but an API of a provider does; remove it", m)
		}
	}
	for i := range r.Tools {
		if r.Tools[i].Name == "" && len(r.Tools[i].Hosted) == 0 {
			return fmt.Errorf("tools: a tool has no name in the format of the caller's API")
		}
	}
	if r.N > 1 && !a.Several {
		return fmt.Errorf("n: this provider returns only one answer to a request")
	}
	if r.LogProbs != nil && *r.LogProbs && !a.LogProbs {
		return fmt.Errorf("logprobs: this provider does not return log probabilities")
	}
	if !a.Hints {
		for _, m := range hints {
			delete(r.Extra, m)
		}
	}
	return nil
}

// Request returns the body of a request, or the error of Fit or Build. As Fit does, it
// may remove members of r.Extra.
func (a *API) Request(r *ir.Request) ([]byte, error) {
	if err := a.Fit(r); err != nil {
		return nil, err
	}
	return a.Build(r)
}

// To returns a value for Path: a function that returns path for every model, streaming
// or not. It is for APIs whose request bodies contain the model and whether the response
// is a stream.
func To(path string) func(string, bool) string { return func(string, bool) string { return path } }
