// Package anthropic is the provider Anthropic, of whose APIs the dialect messages
// holds the wire format.
package anthropic

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/messages"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// Provider is Anthropic. The list of models needs the version in its header, too.
var Provider = provider.Kind{
	Name: "anthropic", Trace: "anthropic", Base: "https://api.anthropic.com/v1", APIs: []*dialect.API{messages.API, messages.CountTokens},
	Authorize: provider.KeyIn("X-Api-Key"), Lists: true, ListHeader: map[string]string{"Anthropic-Version": messages.Version},
	RequestID: "Request-Id", Passes: []string{"anthropic-ratelimit-"},
}
