// Package openai is the provider OpenAI: its APIs, of which the dialects chat and
// responses hold the wire formats, and where they are.
package openai

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/responses"
)

// Provider is OpenAI.
var Provider = provider.Kind{
	Name: "openai", Trace: "openai", Base: "https://api.openai.com/v1", APIs: []*dialect.API{chat.API, responses.API, chat.Embeddings, chat.Completions},
	Lists: true, NewBounds: true, Passes: []string{"openai-processing-ms"},
}
