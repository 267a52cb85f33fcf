// Package anthropic describes the provider Anthropic. Package messages implements its
// APIs.
package anthropic

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/messages"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// Provider describes Anthropic. Requests for its list of models also require the header
// field with the API version.
var Provider = provider.Kind{
	Name: "anthropic", Trace: "anthropic", Base: "https://api.anthropic.com/v1", APIs: []*dialect.API{messages.API, messages.CountTokens},
	Authorize: provider.KeyIn("X-Api-Key"), Lists: true, ListHeader: map[string]string{"Anthropic-Version": messages.Version},
	RequestID: "Request-Id", Passes: []string{"anthropic-ratelimit-"}, Overloaded: messages.Overloaded,
}
