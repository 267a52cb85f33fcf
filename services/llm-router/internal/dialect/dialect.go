// Package dialect says what an API of language models is, as a value: how a
// request is addressed and written in it, and how answers, streams, usage and
// errors are read. A dialect (chat, responses, messages, or one inside a
// provider's package) exports such values; the shared code of the router works on
// them and knows no API by its name.
//
// There are two sides. An API is what a provider offers; a Caller is what callers
// may speak. Some are both, and then a request passes without translation.
//
// The package is pure: it declares values and checks requests against them.
package dialect

import (
	"fmt"
	"io"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/sse"
)

// Decoder reads one provider's stream into the intermediate form. It holds the
// state of that stream and is used by one goroutine.
type Decoder interface {
	// Event reads one event and returns what it means. The slices that it is given
	// are valid during the call only. An error that is an *ir.Fault is the
	// provider's own; any other says that the event cannot be read.
	Event(name string, data []byte) ([]ir.Event, error)
	// Done reports whether the stream said that it is complete.
	Done() bool
}

// Encoder writes one caller's stream from the intermediate form. It holds the
// state of that stream and is used by one goroutine.
type Encoder interface {
	// Encode returns the bytes of one event, which may be none.
	Encode(*ir.Event) []byte
	// Finish returns the end of a stream that is complete.
	Finish() []byte
}

// Source yields the events of a stream as the transport frames them. The slices
// of an event are valid until the next one. io.ErrUnexpectedEOF: the stream ended
// inside an event; io.EOF: between two.
type Source interface{ Next() (sse.Event, error) }

// API is one API that a provider offers. Functions are nil where it lacks the
// ability that they provide.
type API struct {
	// Name is what `apis` in the llm document calls it.
	Name string
	// Kind is the kind of calls whose bodies it takes as they are; empty where no
	// caller speaks it.
	Kind string
	// Path is where a request goes, below the provider's base URL. The model is
	// escaped already.
	Path func(model string, stream bool) string
	// Header holds header fields that every request has; beta are the names of
	// features that the caller opted in to.
	Header func(beta []string) map[string]string

	// Rank orders the APIs that a request may be translated to: the lowest that a
	// provider offers is taken. 0: nothing is translated to it.
	Rank int
	// Build writes a request that Fit accepted.
	Build func(*ir.Request) ([]byte, error)
	// Parse reads a plain answer; callID makes ids for tool calls that have none.
	Parse func(body []byte, callID string) (*ir.Response, error)
	// Decoder reads a stream.
	Decoder func(callID string) Decoder
	// Source frames a stream; nil: server-sent events.
	Source func(io.Reader) Source
	// Usage reads the member "usage" of a plain answer, or nothing where there is
	// none.
	Usage func(member []byte) ir.Usage
	// Fault reads an error: the body of a response with a status, or with status 0
	// an error within a stream. header returns a header field of the response.
	Fault func(status int, header func(name string) string, body []byte) *ir.Fault
	// Embed translates embeddings; nil: only its own callers' requests pass.
	Embed *Embedding

	Several  bool // it gives several answers to a request (n)
	LogProbs bool // it returns probabilities of tokens
	Hints    bool // it knows OpenAI's members on billing, storage and priority
	Trails   bool // events may follow the one that ends the answer: read on until the stream ends
	Items    bool // its answers hold items that later requests can name by id
	// AskUsage is the path of a member that, set to true, makes a stream report its
	// usage; empty: it does so unasked.
	AskUsage string
	// OldBound is a member for the bound of an answer that servers without the
	// current one know; empty: there is one name only.
	OldBound string
	// Final are the types of the events whose member "response" is the whole answer.
	Final []string
}

// Embedding converts embedding requests and responses between the API of a provider and
// a different embeddings API that a caller uses. Input given as tokens instead of text
// cannot be converted.
type Embedding struct {
	// Build writes a request; dimensions 0 leaves their number to the model.
	Build func(model string, texts []string, dimensions int64) ([]byte, error)
	// Parse reads the vectors, one for each text, in order.
	Parse func(body []byte) ([][]float32, error)
}

// Frame is what an answer to a caller repeats of the call. ID names the answer
// where that is ours to do; Body is the request as the caller wrote it.
type Frame struct {
	ID       string
	Model    string // as the caller named it
	Created  int64  // seconds since 1970
	Usage    bool   // the caller requested that a stream ends with its usage
	Request  *ir.Request
	Body     []byte
	Previous string // id of the response that the request continues
	Store    bool
}

// Caller is an API that callers speak. Without Parse its requests only go to
// providers that offer the same API.
type Caller struct {
	Kind        string // of its calls
	Description string // of its tool in the catalog
	Operation   string // gen_ai.operation.name of OpenTelemetry's conventions
	IDPrefix    string // of the ids that the API gives its answers
	Native      *API   // takes its bodies as they are
	OwnID       bool   // the id of an answer is always ours
	Said        string // member of an answer that holds what the model said; empty: all of it
	Joined      bool   // a caller puts a choice's text together, whatever came between
	Counts      bool   // the answer is a number of tokens, which can be estimated
	Embeds      bool   // the answer is vectors

	Parse   func(body []byte) (*ir.Request, error)
	Build   func(r *ir.Response, f *Frame) ([]byte, error)
	Encoder func(f *Frame) Encoder
}

// hints are members that say how OpenAI is to bill, store or prioritize a
// request; in other APIs they have no meaning.
var hints = []string{"prediction", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "verbosity"}

// binding are the members that say, in one API or another, what is offered, what
// a request may use and what it continues, without case, hyphens and
// underscores. A member that its own dialect does not know must not become one of
// these on the way: neither policy nor the budget has seen it as that.
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

// Fit refuses a request that the API cannot express or whose answer would lack
// what the request requires, and removes members that have no meaning there. Errors
// begin with the member that is wrong.
func (a *API) Fit(r *ir.Request) error {
	for m := range r.Extra {
		if binding[plainName.Replace(strings.ToLower(m))] {
			return fmt.Errorf("%s: has no meaning in the caller's API, and one in this provider's", m)
		}
	}
	for i := range r.Tools {
		if r.Tools[i].Name == "" && len(r.Tools[i].Hosted) == 0 {
			return fmt.Errorf("tools: one is not spelled as the caller's API does, and has no name there")
		}
	}
	if r.N > 1 && !a.Several {
		return fmt.Errorf("n: this provider gives one answer to a request")
	}
	if r.LogProbs != nil && *r.LogProbs && !a.LogProbs {
		return fmt.Errorf("logprobs: this provider does not tell probabilities")
	}
	if !a.Hints {
		for _, m := range hints {
			delete(r.Extra, m)
		}
	}
	return nil
}

// Request writes a request that Fit accepts. It may remove members of the request
// that have no meaning in this API.
func (a *API) Request(r *ir.Request) ([]byte, error) {
	if err := a.Fit(r); err != nil {
		return nil, err
	}
	return a.Build(r)
}

// To is a Path that depends on neither the model nor streaming, for APIs whose
// requests hold both in their bodies.
func To(path string) func(string, bool) string { return func(string, bool) string { return path } }
