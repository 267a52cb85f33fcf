// Package compatible is any server that offers OpenAI's API, such as vLLM,
// llama.cpp and LM Studio: what a configuration without a kind means.
package compatible

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// Provider is a server with OpenAI's API. Traces name it as the configuration does.
var Provider = provider.Kind{Name: "compatible", APIs: []*dialect.API{chat.API, chat.Embeddings, chat.Completions}, Needs: "base_url", Lists: true}
