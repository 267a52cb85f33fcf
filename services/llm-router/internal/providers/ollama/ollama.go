// Package ollama describes the provider Ollama, a server for local models with OpenAI's
// API.
package ollama

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// Provider describes Ollama. Its default address is on the router's own host.
var Provider = provider.Kind{Name: "ollama", Trace: "ollama", Base: "http://localhost:11434/v1", APIs: []*dialect.API{chat.API, chat.Completions, chat.Embeddings}, Lists: true}
