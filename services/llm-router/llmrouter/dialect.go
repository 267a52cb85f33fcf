package llmrouter

import (
	"fmt"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/bedrock"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/gemini"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/messages"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/responses"
)

// decoder reads a provider's stream; encoder writes the caller's.
type (
	decoder interface {
		Event(name string, data []byte) ([]ir.Event, error)
		Done() bool
	}
	encoder interface {
		Encode(*ir.Event) []byte
		Finish() []byte
	}
)

// native is the wire that takes a call's body as it is.
var native = map[string]string{llm.Chat: provider.Chat, llm.Responses: provider.Responses, llm.Messages: provider.Messages, llm.CountTokens: provider.CountTokens,
	llm.Embeddings: provider.Embeddings, llm.Completions: provider.Completions}

// spelled are the kinds whose streams we can write ourselves.
var spelled = map[string]bool{llm.Chat: true, llm.Responses: true, llm.Messages: true}

// wireEstimate stands for no request at all: tokens are estimated here, at four
// bytes each, where a provider cannot count them.
const wireEstimate = "estimate"

// wireFor is the API in which a provider is asked for a call of a kind: the
// caller's own where the provider offers it, else one that it is translated to.
func wireFor(p *provider.Provider, kind string) string {
	if w := native[kind]; p.Speaks(w) {
		return w
	}
	switch kind {
	case llm.Chat, llm.Responses, llm.Messages:
		for _, w := range []string{provider.Chat, provider.Messages, provider.Gemini, provider.Converse, provider.Responses} {
			if p.Speaks(w) {
				return w
			}
		}
	case llm.CountTokens:
		return wireEstimate
	case llm.Embeddings:
		if p.Speaks(provider.GeminiEmbed) {
			return provider.GeminiEmbed
		}
	}
	return ""
}

func parseRequest(kind string, body []byte) (*ir.Request, error) {
	switch kind {
	case llm.Chat:
		return chat.ParseRequest(body)
	case llm.Responses:
		return responses.ParseRequest(body)
	}
	return messages.ParseRequest(body)
}

func buildRequest(wire string, r *ir.Request) ([]byte, error) {
	if err := fit(wire, r); err != nil {
		return nil, err
	}
	switch wire {
	case provider.Chat:
		return chat.BuildRequest(r)
	case provider.Responses:
		return responses.BuildRequest(r)
	case provider.Messages:
		return messages.BuildRequest(r)
	case provider.Gemini:
		return gemini.BuildRequest(r)
	case provider.Converse:
		return bedrock.BuildRequest(r)
	}
	return nil, fmt.Errorf("no translation to %s", wire)
}

// openAIOnly are members that say how OpenAI is to bill, keep or hasten a request;
// to others they say nothing.
var openAIOnly = []string{"prediction", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "verbosity"}

// binding are the members that say, in one API or another, what is offered, what
// a request may use and what it goes on from, without case, hyphens and
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

// fit refuses what a wire cannot say and what the answer would lack, and takes
// out what says nothing there.
func fit(wire string, r *ir.Request) error {
	for m := range r.Extra {
		if binding[strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(m))] {
			return fmt.Errorf("%s: has no meaning in the caller's API, and one in this provider's", m)
		}
	}
	for i := range r.Tools {
		if r.Tools[i].Name == "" && len(r.Tools[i].Hosted) == 0 {
			return fmt.Errorf("tools: one is not spelled as the caller's API does, and has no name there")
		}
	}
	several := wire == provider.Chat || wire == provider.Gemini
	if r.N > 1 && !several {
		return fmt.Errorf("n: this provider gives one answer to a request")
	}
	if r.LogProbs != nil && *r.LogProbs && !several && wire != provider.Responses {
		return fmt.Errorf("logprobs: this provider does not tell probabilities")
	}
	if wire != provider.Chat && wire != provider.Responses {
		for _, m := range openAIOnly {
			delete(r.Extra, m)
		}
	}
	return nil
}

func parseResponse(wire string, body []byte, callID string) (*ir.Response, error) {
	switch wire {
	case provider.Chat:
		return chat.ParseResponse(body)
	case provider.Responses:
		return responses.ParseResponse(body)
	case provider.Messages:
		return messages.ParseResponse(body)
	case provider.Gemini:
		return gemini.ParseResponse(body, callID)
	}
	return bedrock.ParseResponse(body)
}

func newDecoder(wire, callID string) decoder {
	switch wire {
	case provider.Responses:
		return &responses.Decoder{}
	case provider.Messages:
		return &messages.Decoder{}
	case provider.Gemini:
		return &gemini.Decoder{CallID: callID}
	case provider.Converse:
		return &bedrock.Decoder{}
	}
	return &chat.Decoder{}
}

// usageOf reads what a plain answer says was used.
func usageOf(wire string, body []byte) ir.Usage {
	switch wire {
	case provider.Responses:
		return responses.Usage(body)
	case provider.Messages:
		return messages.Usage(body)
	case provider.CountTokens:
		return ir.Usage{Known: true}
	}
	return chat.Usage([]byte(gjson.GetBytes(body, "usage").Raw)) // embeddings and completions count alike
}

// answer is how one call's answer is spelled to its caller.
type answer struct {
	kind    string
	id      string // of the answer, where it is ours to name
	model   string // as the caller named it
	created int64
	usage   bool
	request *ir.Request // nil where nothing is translated
	body    []byte      // of the request
	prev    string
	store   bool
}

func (a *answer) frame() responses.Frame {
	said, _ := ir.Split(a.body)
	return responses.Frame{ID: a.id, Model: a.model, Created: a.created, Request: a.request, Said: said, Previous: a.prev, Store: a.store}
}

func (a *answer) encoder() encoder {
	switch a.kind {
	case llm.Responses:
		return &responses.Encoder{Frame: a.frame()}
	case llm.Messages:
		return &messages.Encoder{ID: a.id, Model: a.model}
	}
	return &chat.Encoder{ID: a.id, Model: a.model, Created: a.created, Usage: a.usage}
}

func (a *answer) build(r *ir.Response) ([]byte, error) {
	if r.ID == "" || a.kind == llm.Responses {
		r.ID = a.id
	}
	if r.Created == 0 {
		r.Created = a.created
	}
	switch a.kind {
	case llm.Responses:
		f := a.frame()
		return responses.BuildResponse(r, &f)
	case llm.Messages:
		return messages.BuildResponse(r, a.model)
	}
	return chat.BuildResponse(r, a.model)
}

// prefix of the ids that each API gives its answers.
var idPrefix = map[string]string{llm.Chat: "chatcmpl-", llm.Responses: "resp_", llm.Messages: "msg_", llm.Completions: "cmpl-"}

// responseID is the id of an answer as its document or first event spells it.
func responseID(doc []byte) string {
	for _, path := range []string{"id", "response.id", "message.id"} {
		if v := gjson.GetBytes(doc, path); v.Type == gjson.String {
			return v.Str
		}
	}
	return ""
}

// maxItems bounds how many items of a response can be referred to by their ids.
const maxItems = 256

// itemIDs are the ids of the items in a response.
func itemIDs(response []byte) (ids []string) {
	gjson.GetBytes(response, "output").ForEach(func(_, item gjson.Result) bool {
		if id := item.Get("id"); id.Type == gjson.String && id.Str != "" && len(id.Str) <= maxItems {
			ids = append(ids, id.Str)
		}
		return len(ids) < maxItems
	})
	return ids
}
