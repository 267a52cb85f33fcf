package llmrouter

import (
	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/messages"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/responses"
)

// callers lists the APIs that callers may use, in the order in which Service.tools
// returns their tools. A new API requires a dialect.Caller, an entry here, and its kind
// in pkg/llm, which reads requests before policy decides on them.
var callers = []*dialect.Caller{chat.Caller, responses.Caller, messages.Caller, messages.CountTokensCaller, chat.EmbeddingsCaller, chat.CompletionsCaller}

// callerOf returns the API of a kind of calls, or nil if the kind belongs to none.
func callerOf(kind string) *dialect.Caller {
	for _, c := range callers {
		if c.Kind == kind {
			return c
		}
	}
	return nil
}

// estimate represents the API of a provider that cannot count tokens: no request is
// sent, and tokens are estimated at four bytes each.
var estimate = &dialect.API{Name: "estimate"}

// apiFor returns the API in which a call is sent to a provider: the caller's own if the
// provider offers it, or else one into which the call can be translated, estimate for a
// count of tokens, or nil if there is none.
func apiFor(p *provider.Provider, c *dialect.Caller) *dialect.API {
	if a := p.Native(c.Kind); a != nil {
		return a
	}
	switch {
	case c.Parse != nil:
		return p.Translated()
	case c.Counts:
		return estimate
	case c.Embeds:
		return p.Embeds()
	}
	return nil
}

// usageOf returns the usage that a complete response reports.
func usageOf(a *dialect.API, body []byte) ir.Usage {
	return a.Usage([]byte(gjson.GetBytes(body, "usage").Raw))
}

// answer holds the properties of a call that determine its response, and the API in
// which the response is written.
type answer struct {
	dialect.Frame
	caller *dialect.Caller
}

func (a *answer) encoder() dialect.Encoder { return a.caller.Encoder(&a.Frame) }

// build returns a response as one document. It sets the creation time if the provider
// sent none, and the id if the provider sent none or the API requires the router's.
func (a *answer) build(r *ir.Response) ([]byte, error) {
	if r.ID == "" || a.caller.OwnID {
		r.ID = a.ID
	}
	if r.Created == 0 {
		r.Created = a.Created
	}
	return a.caller.Build(r, &a.Frame)
}

// responseID returns the id of the response from a complete response or from an event of
// a stream, or "" if the document contains none.
func responseID(doc []byte) string {
	for _, path := range []string{"id", "response.id", "message.id"} {
		if v := gjson.GetBytes(doc, path); v.Type == gjson.String {
			return v.Str
		}
	}
	return ""
}

const (
	// maxItems is the maximum number of items of a response that can be referred to by
	// their ids, and maxItemID the maximum length of such an id, in bytes.
	maxItems  = 256
	maxItemID = 256
)

// itemIDs returns the ids of the items in a response. It omits ids longer than
// maxItemID, and ids after the first maxItems.
func itemIDs(response []byte) (ids []string) {
	gjson.GetBytes(response, "output").ForEach(func(_, item gjson.Result) bool {
		if id := item.Get("id"); id.Type == gjson.String && id.Str != "" && len(id.Str) <= maxItemID {
			ids = append(ids, id.Str)
		}
		return len(ids) < maxItems
	})
	return ids
}
