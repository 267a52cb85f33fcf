// Package openai describes the provider OpenAI. Packages chat and responses implement
// its APIs.
package openai

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/responses"
)

// Provider describes OpenAI's API platform.
var Provider = provider.Kind{
	Name: "openai", Trace: "openai", Base: "https://api.openai.com/v1", APIs: []*dialect.API{chat.API, responses.API, chat.Embeddings, chat.Completions},
	Lists: true, NewBounds: true, Passes: []string{"openai-processing-ms"},
}
