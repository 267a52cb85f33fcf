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

// callers are the APIs that callers may speak, in the order in which the catalog
// lists their tools. A new one is a value in the package of its dialect, a line
// here, and its kind in pkg/llm, which reads requests before a decision.
var callers = []*dialect.Caller{chat.Caller, responses.Caller, messages.Caller, messages.CountTokensCaller, chat.EmbeddingsCaller, chat.CompletionsCaller}

// callerOf is the API of a kind of calls; nil: the kind is no API's.
func callerOf(kind string) *dialect.Caller {
	for _, c := range callers {
		if c.Kind == kind {
			return c
		}
	}
	return nil
}

// estimate is the API of a provider that cannot count tokens: no request is sent,
// and tokens are estimated at four bytes each.
var estimate = &dialect.API{Name: "estimate"}

// apiFor is the API in which a provider is sent a call: the caller's own where the
// provider offers it, else one that it is translated to; nil: there is none.
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

// usageOf reads what a plain answer says was used.
func usageOf(a *dialect.API, body []byte) ir.Usage {
	return a.Usage([]byte(gjson.GetBytes(body, "usage").Raw))
}

// answer is how one call's answer is written for its caller.
type answer struct {
	dialect.Frame
	caller *dialect.Caller
}

func (a *answer) encoder() dialect.Encoder { return a.caller.Encoder(&a.Frame) }

// build writes an answer as one document. It fills in what the provider left out.
func (a *answer) build(r *ir.Response) ([]byte, error) {
	if r.ID == "" || a.caller.OwnID {
		r.ID = a.ID
	}
	if r.Created == 0 {
		r.Created = a.Created
	}
	return a.caller.Build(r, &a.Frame)
}

// responseID is the id of an answer as its document or first event has it.
func responseID(doc []byte) string {
	for _, path := range []string{"id", "response.id", "message.id"} {
		if v := gjson.GetBytes(doc, path); v.Type == gjson.String {
			return v.Str
		}
	}
	return ""
}

const (
	// maxItems bounds how many items of a response can be referred to by their ids,
	// and maxItemID the length of one, in bytes.
	maxItems  = 256
	maxItemID = 256
)

// itemIDs are the ids of the items in a response.
func itemIDs(response []byte) (ids []string) {
	gjson.GetBytes(response, "output").ForEach(func(_, item gjson.Result) bool {
		if id := item.Get("id"); id.Type == gjson.String && id.Str != "" && len(id.Str) <= maxItemID {
			ids = append(ids, id.Str)
		}
		return len(ids) < maxItems
	})
	return ids
}
